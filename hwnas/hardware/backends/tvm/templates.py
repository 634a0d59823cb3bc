"""Schedules: a few configurations (plans) for each operator, the most promising first.

Two numbers describe a CPU: the lanes of its vectors and the number of vector registers. A tile of
the output is accumulated in registers during the reduction; a configuration sets its size. This
module uses only the schedule that it gets; it does not import TVM.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hwnas.models.graph import OpSpec

Schedule = Any  # tvm.s_tir.Schedule

ORDERS = ("weights", "image")  #: operand that stays in the cache
BORDERS = ("none", "inline", "row", "whole")  #: placement of zero padding


@dataclass(frozen=True)
class Cpu:
    """Properties of a CPU that schedules depend on."""

    lanes: int  #: float32 values in a vector
    registers: int  #: number of vector registers
    threads: int = 1  #: threads of an inference
    attention_rows: int = 4  #: rows of queries that attention computes at once


@dataclass(frozen=True)
class Tile:
    """Tiling of the output: the part that is accumulated in registers at once."""

    rows: int  #: rows of pixels
    columns: int  #: columns of pixels
    vectors: int  #: vectors of channels
    order: str = "weights"  #: one of ``ORDERS``
    border: str = "none"  #: one of ``BORDERS``

    @property
    def n_accumulators(self) -> int:
        """Number of vector registers that hold the tile."""
        return self.rows * self.columns * self.vectors

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.vectors} {self.order} {self.border}"


@dataclass(frozen=True)
class Plan:
    """The schedule of one operator; latency tables store its text, which ``parse`` reads."""

    tile: Tile | None  #: tile of convolutions and linear layers; ``None`` for other operators
    parallel: bool = False  #: True if the operator runs on all threads

    def __str__(self) -> str:
        return f"{self.tile or 'plain'}{' parallel' * self.parallel}"

    @staticmethod
    def parse(text: str) -> "Plan":
        """Return the plan of a text from ``str(plan)``.

        Raises:
            ValueError: it is not a plan.
        """
        words = text.split()
        parallel = words[-1:] == ["parallel"]
        words = words[: len(words) - parallel]
        if words == ["plain"]:
            return Plan(None, parallel)
        size, order, border = words
        rows, columns, vectors = (int(number) for number in size.split("x"))
        if min(rows, columns, vectors) < 1 or order not in ORDERS or border not in BORDERS:
            raise ValueError(f"'{text}' is no plan.")
        return Plan(Tile(rows, columns, vectors, order, border), parallel)


def plans(op: OpSpec, channels: int, cpu: Cpu, limit: int) -> list[Plan]:
    """Return about ``limit`` plans, the most promising first.

    With several threads, each tile has a plan with and one without them. Operators that are neither
    convolutions nor linear layers have one plan, or these two.

    Args:
        op: The operator.
        channels: Channels of the output in memory, see ``layout.padded``.
        cpu: The CPU.
        limit: Number of plans; an odd one may be exceeded by one.
    """
    threaded = (True, False) if cpu.threads > 1 else (False,)
    if op.base not in ("conv2d", "linear"):
        return [Plan(None, parallel) for parallel in threaded]
    # Threads do not speed up every operator: each tile is tried with and without them.
    tiles = _tiles(op, channels, cpu)[: max(1, limit // len(threaded))]
    return [Plan(tile, parallel) for tile in tiles for parallel in threaded]


def apply(sch: Schedule, op: OpSpec, cpu: Cpu, plan: Plan) -> None:
    """Apply a plan to the unscheduled operator ``op`` in ``sch``, which is changed."""
    if plan.tile is None:
        _schedule_plain(sch, op, cpu, plan.parallel)
    else:
        _schedule_tiled(sch, op, cpu, plan)


def _tiles(op: OpSpec, channels: int, cpu: Cpu) -> list[Tile]:
    _, height, width = op.out_shape
    n_vectors = max(1, channels // cpu.lanes)
    # Without padding a tile may cross the ends of rows and images if it covers whole ones or
    # divides them: otherwise its region of the output is not a box.
    if _flat(op):
        pixels = height * width
        candidates = _candidates(op, (1, pixels * op.batch), n_vectors, cpu)
        found = [t for t in candidates if _whole(t.columns, width) and _whole(t.columns, pixels)]
    else:
        found = list(_candidates(op, (height, width), n_vectors, cpu))
    fitting = [tile for tile in found if tile.n_accumulators <= _most(op, cpu)]
    return sorted(fitting, key=lambda tile: _cost(op, tile, cpu))


def _whole(columns: int, length: int) -> bool:
    return length % columns == 0 or columns % length == 0


def _flat(op: OpSpec) -> bool:
    """Return whether the operator can be treated as one long row of pixels."""
    return op.kernel == 1 and op.stride == 1 and not op.depthwise


def _most(op: OpSpec, cpu: Cpu) -> int:
    # One register for the broadcast input, some for weights; 28 of 32 and 12 of 16 were best.
    most = cpu.registers - 4
    return min(16, most) if op.depthwise else most


def _candidates(op: OpSpec, size: tuple[int, int], n_vectors: int, cpu: Cpu) -> Iterator[Tile]:
    height, width = size
    borders = ["row", "inline", "whole"] if op.padding else ["none"]
    orders = ["weights", "image"] if _flat(op) else ["weights"]
    for vectors in _divisors(n_vectors, 6):
        for columns in _divisors(width, cpu.registers):
            for rows in _divisors(height, 4):
                if rows > 1 and columns < min(width, 4 if op.depthwise else width):
                    continue
                for order in orders:
                    for border in borders:
                        yield Tile(rows, columns, vectors, order, border)


def _cost(op: OpSpec, tile: Tile, cpu: Cpu) -> float:
    """Return the distance of a tile from the best ones on tested CPUs; small is good."""
    ideal = cpu.registers * (0.28 if op.depthwise else 0.6)
    cost = abs(math.log2(tile.n_accumulators / ideal))
    if op.depthwise:
        return (
            cost
            + 0.15 * (tile.rows - 1)
            + 0.1 * ("inline", "row", "whole", "none").index(tile.border)
        )
    # Reuse: each load serves as many multiplications as the other side of the tile is long.
    loads = 1 / tile.vectors + 1 / (tile.rows * tile.columns)
    cost += loads
    cost += 0.3 * (tile.order == "image")
    return cost + {"row": 0.0, "whole": 0.2, "inline": 0.4, "none": 0.0}[tile.border]


def _divisors(n: int, most: int) -> list[int]:
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def _schedule_tiled(sch: Schedule, op: OpSpec, cpu: Cpu, plan: Plan) -> None:
    """Tile a convolution or a linear layer; its blocks are ``pad``, ``acc`` and ``out``."""
    tile = plan.tile
    assert tile is not None
    acc, out = sch.get_sblock("acc"), sch.get_sblock("out")
    pad = sch.get_sblock("pad") if op.padding else None
    spatial, reduction = sch.get_loops(acc)[:4], sch.get_loops(acc)[4:]
    n, y, x, f = spatial
    if _flat(op):
        x = sch.fuse(n, y, x)
        n = y = None
    channels = int(sch.get(f).extent)
    vector = min(channels, cpu.lanes)
    fo, fm, fi = sch.split(f, [None, tile.vectors, vector])
    xo, xi = sch.split(x, [None, tile.columns])
    yo, yi = (None, None) if y is None else sch.split(y, [None, tile.rows])
    outer = [fo, yo, xo] if tile.order == "weights" else [yo, xo, fo]
    inner = [yi, xi, fm, fi]
    loops = [loop for loop in [n, *outer, *reduction, *inner] if loop is not None]
    sch.reorder(*loops)
    innermost = [loop for loop in outer if loop is not None][-1]
    sch.reverse_compute_at(out, innermost, preserve_unit_loops=True)
    _finish_output(sch, out, vector)
    if pad is not None:
        _place_border(sch, pad, tile.border, yo)
    sch.vectorize(fi)
    for loop in (yi, xi, fm):
        if loop is not None:
            sch.unroll(loop)
    if op.depthwise and op.base == "conv2d":
        sch.unroll(reduction[1])
    if plan.parallel:
        _parallel(sch, [loop for loop in [n, *outer] if loop is not None])
    sch.decompose_reduction(acc, reduction[0])


def _finish_output(sch: Schedule, out: Any, vector: int) -> None:
    """Unroll the tile of the output and vectorise its channels."""
    loops = sch.get_loops(out)[-4:]
    fm, fi = sch.split(loops[-1], [None, vector])
    sch.vectorize(fi)
    for loop in (*loops[1:3], fm):
        sch.unroll(loop)


def _place_border(sch: Schedule, pad: Any, border: str, row: Any) -> None:
    if border == "inline":
        sch.compute_inline(pad)
        return
    if border == "row":
        sch.compute_at(pad, row, preserve_unit_loops=True)
    channels = sch.get_loops(pad)[-1]
    extent = int(sch.get(channels).extent)
    vector = next(v for v in (16, 8, 4, 2, 1) if extent % v == 0)
    if vector > 1:
        sch.vectorize(sch.split(channels, [None, vector])[1])


def _parallel(sch: Schedule, outer: list[Any]) -> None:
    """Run the outermost loops in parallel."""
    sch.parallel(outer[0] if len(outer) == 1 else sch.fuse(*outer[:3]))


def _schedule_plain(sch: Schedule, op: OpSpec, cpu: Cpu, parallel: bool) -> None:
    """Schedule an operator without tiles: vectors along the channels, rows in parallel."""
    if op.base == "attention":
        _schedule_attention(sch, op, cpu, parallel)
    elif op.base == "layernorm":
        _schedule_layernorm(sch, cpu, parallel)
    elif op.base == "mean":
        _schedule_reduction(sch, cpu, parallel, rows=False)
    elif op.base == "max_pool2d":
        if op.padding:
            sch.compute_inline(sch.get_sblock("pad"))
        _schedule_reduction(sch, cpu, parallel, rows=True)
    else:
        out = sch.get_sblock("out")
        *rows, channels = sch.get_loops(out)
        _vectorise(sch, channels, cpu)
        if parallel:
            sch.parallel(sch.fuse(*rows))


def _vectorise(sch: Schedule, loop: Any, cpu: Cpu) -> Any:
    """Split a loop into vectors; return the loop over them."""
    extent = int(sch.get(loop).extent)
    vector = next(v for v in (cpu.lanes, 8, 4, 2, 1) if extent % v == 0 and v <= cpu.lanes)
    outer, inner = sch.split(loop, [None, vector])
    if vector > 1:
        sch.vectorize(inner)
    return outer


def _schedule_reduction(sch: Schedule, cpu: Cpu, parallel: bool, rows: bool) -> None:
    """Reduce over a window, many channels at once."""
    acc, out = sch.get_sblock("acc"), sch.get_sblock("out")
    n, y, x, c, ry, rx = sch.get_loops(acc)
    extent = int(sch.get(c).extent)
    vector = next(v for v in (cpu.lanes, 8, 4, 2, 1) if extent % v == 0 and v <= cpu.lanes)
    n_vectors = extent // vector
    together = max(d for d in _divisors(n_vectors, 8))
    co, cm, ci = sch.split(c, [None, together, vector])
    sch.reorder(n, y, x, co, ry, rx, cm, ci)
    sch.reverse_compute_at(out, co, preserve_unit_loops=True)
    _finish_output(sch, out, vector)
    if vector > 1:
        sch.vectorize(ci)
    sch.unroll(cm)
    if parallel:
        sch.parallel(sch.fuse(n, y, x) if rows else co)
    sch.decompose_reduction(acc, ry)


def _schedule_layernorm(sch: Schedule, cpu: Cpu, parallel: bool) -> None:
    out = sch.get_sblock("out")
    n, y, x, c = sch.get_loops(out)
    row = sch.fuse(n, y, x)
    _vectorise(sch, c, cpu)
    for name in ("squares", "squares_part", "total", "total_part"):
        sch.compute_at(sch.get_sblock(name), row, preserve_unit_loops=True)
    if parallel:
        sch.parallel(row)
    for name in ("squares_part", "total_part"):
        part = sch.get_sblock(name)
        v, r = sch.get_loops(part)[-2:]
        sch.reorder(r, v)
        sch.vectorize(v)
        sch.decompose_reduction(part, r)


def _schedule_attention(sch: Schedule, op: OpSpec, cpu: Cpu, parallel: bool) -> None:
    """Compute a few rows of queries of one head at a time, from scores to output."""
    mixed, out = sch.get_sblock("mixed"), sch.get_sblock("out")
    n, head, i, channels = sch.get_loops(mixed)
    io, _ = sch.split(i, [None, cpu.attention_rows])
    _vectorise(sch, channels, cpu)
    for name in ("acc", "total", "total_part", "weights", "peak", "peak_part", "scores"):
        sch.compute_at(sch.get_sblock(name), io, preserve_unit_loops=True)
    keys = sch.get_sblock("keys")
    sch.compute_at(keys, head, preserve_unit_loops=True)
    for name in ("weights", "keys"):
        _vectorise(sch, sch.get_loops(sch.get_sblock(name))[-1], cpu)
    _vectorise(sch, sch.get_loops(out)[-1], cpu)
    if parallel:
        sch.parallel(sch.fuse(n, head))
    for name in ("total_part", "peak_part"):
        part = sch.get_sblock(name)
        v, r = sch.get_loops(part)[-2:]
        sch.reorder(r, v)
        sch.vectorize(v)
        sch.decompose_reduction(part, r)
    for name in ("scores", "acc"):
        _tile_product(sch, sch.get_sblock(name), cpu)


def _tile_product(sch: Schedule, block: Any, cpu: Cpu) -> None:
    """Accumulate some rows and vectors of a matrix product in registers."""
    rows, columns, reduction = sch.get_loops(block)[-3:]
    extent = int(sch.get(columns).extent)
    vector = next(v for v in (cpu.lanes, 8, 4, 2, 1) if extent % v == 0 and v <= cpu.lanes)
    most = max(1, (cpu.registers - 4) // cpu.attention_rows)
    outer, together, inner = sch.split(
        columns, [None, max(_divisors(extent // vector, most)), vector]
    )
    sch.reorder(outer, reduction, rows, together, inner)
    if vector > 1:
        sch.vectorize(inner)
    sch.unroll(rows)
    sch.unroll(together)
    sch.decompose_reduction(block, reduction)
