"""Read published latencies of complete networks, and build the operators of these networks.

Sources:
    Once-for-all MobileNetV3 and FBNet: HELP (MIT), https://github.com/HayeonLee/HELP
    Accel-NASBench (Apache-2.0): https://github.com/afzalxo/Accel-NASBench
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hwnas.hardware.device_models.fitted_roofline import Floats, OperatorWork, operator_work
from hwnas.models.graph import INPUT, Graph, Node, OpSpec

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Space:
    """Networks and their latencies on several devices."""

    work: OperatorWork
    choices: Floats  #: one indicator per option, for baselines
    ms: Mapping[str, Floats]  #: latency of a batch, by ``<device>_<batch>``
    batch: Mapping[str, int]  #: batch size, by ``<device>_<batch>``


class _Builder:
    """Collects the operators of a network; ``c`` and ``h`` are the shape of the last output."""

    def __init__(self, c: int, h: int):
        self.c, self.h, self.nodes = c, h, list[Node]()

    def add(
        self, kind: str, c: int, h: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        op = OpSpec(kind, (self.c, self.h, self.h), (c, h, h), kernel, stride, groups, "float32")
        self.nodes.append(Node(f"n{len(self.nodes)}", op, (INPUT,)))
        self.c, self.h = c, h

    def conv(self, c: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        self.add("conv2d", c, -(-self.h // stride), kernel, stride, groups)

    def squeeze(self, reduced: int) -> None:
        c, h = self.c, self.h
        self.add("mean", c, 1)
        self.conv(reduced)
        self.conv(c)
        self.h = h
        self.add("mul", c, h)

    def mbconv(  # noqa: PLR0913, PLR0917
        self,
        c: int,
        mid: int,
        kernel: int,
        stride: int,
        se: int = 0,
        groups: int = 1,
        expand: bool = True,
    ) -> None:
        c_in = self.c
        if expand:
            self.conv(mid, groups=groups)
        self.conv(mid, kernel, stride, groups=mid)
        if se:
            self.squeeze(se)
        self.conv(c, groups=groups)
        if stride == 1 and c == c_in:
            self.add("add", c, self.h)

    def head(self, n: int, *widths: int) -> Graph:
        for width in widths:
            self.conv(width)
        if self.h > 1:
            self.add("mean", self.c, 1)
        self.add("linear", n, 1)
        return Graph.of(self.nodes)


def _round_to_8(channels: float) -> int:
    """Round to a multiple of 8, to no less than 90 % of the value."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _ofa(row: Row, width: float = 1.2) -> Graph:
    c = [_round_to_8(v * width) for v in (16, 16, 24, 40, 80, 112, 160, 960, 1280)]
    net = _Builder(3, int(row["resolution"]))
    net.conv(c[0], 3, 2)
    net.mbconv(c[1], c[0], 3, 1, expand=False)
    for i, (stride, se) in enumerate(zip((2, 2, 2, 1, 2), (0, 1, 0, 1, 1), strict=True)):
        for j in range(int(row[f"d_{i}"])):
            mid = _round_to_8(net.c * int(row[f"e_{4 * i + j}"]))
            kernel = int(row[f"ks_{4 * i + j}"])
            net.mbconv(c[2 + i], mid, kernel, stride if j == 0 else 1, _round_to_8(mid / 4) * se)
    net.conv(c[7])
    net.add("mean", net.c, 1)
    net.conv(c[8])
    return net.head(1000)


#: Kernel size, expansion and groups of each operator.
_FBNET = [(3, 1, 1), (3, 1, 2), (3, 3, 1), (3, 6, 1), (5, 1, 1), (5, 1, 2), (5, 3, 1), (5, 6, 1)]


def _fbnet(row: Row) -> Graph:
    net, i = _Builder(3, 32), 0
    net.conv(16, 3, 1)
    stages = zip(
        (16, 24, 32, 64, 112, 184, 352), (1, 4, 4, 4, 4, 4, 1), (1, 1, 2, 2, 1, 2, 1), strict=True
    )
    for c, n, s in stages:
        for j in range(n):
            stride, op = s if j == 0 else 1, int(row[f"op_{i}"])
            if op < len(_FBNET):
                k, e, g = _FBNET[op]
                net.mbconv(c, net.c * e, k, stride, groups=g)
            elif stride > 1 or net.c != c:
                net.conv(c, 1, stride)
            i += 1
    return net.head(100, 1504)


def _anb(row: Row) -> Graph:
    net = _Builder(3, 224)
    net.conv(32, 3, 2)
    stages = zip((16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 2, 1, 2, 1), strict=True)
    for i, (c, stride) in enumerate(stages):
        e, k, n, se = (int(row[f"block{i}_{key}"]) for key in ("e", "k", "l", "se"))
        for j in range(n):
            reduced = max(1, net.c // 4) if se else 0
            net.mbconv(c, net.c * e, k, stride if j == 0 else 1, reduced, expand=e > 1)
    return net.head(1000, 1280)


_BUILD: Mapping[str, Callable[[Row], Graph]] = {"ofa": _ofa, "anb": _anb, "fbnet": _fbnet}
NAMES = tuple(_BUILD)


def read(folder: Path, name: str) -> Space:
    """Return a space from ``folder/name.parquet``."""
    table = pd.read_parquet(folder / f"{name}.parquet")
    latencies = {
        column[3:]: table[column].to_numpy(float) for column in table if column.startswith("ms_")
    }
    options = [c for c in table if c != "macs_m" and not c.startswith("ms_")]
    choices = pd.get_dummies(table[options].astype(str)).to_numpy(float)
    networks = [_BUILD[name](row) for row in table.to_dict("records")]
    batch = {device: _batch(name, device) for device in latencies}
    return Space(operator_work(networks), choices, latencies, batch)


def _batch(space: str, device: str) -> int:
    suffix = device.rpartition("_")[2]
    is_gpu = any(part in device for part in ("titan", "ti_", "v100", "1080"))
    return int(suffix) if space != "anb" and is_gpu and suffix.isdigit() else 1


def hardware(device: str) -> str:
    """Return the name of a device without its batch size."""
    name, _, batch = device.rpartition("_")
    return name if batch.isdigit() and name and not name.startswith(("gold", "silver")) else device
