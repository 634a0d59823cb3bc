"""A device as a file: what was measured on it, and networks that stand for what is searched."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict, final

import numpy as np

from hwnas import files
from hwnas.agreement import agreement
from hwnas.devices import predictor
from hwnas.devices.features import Encoder, Features
from hwnas.devices.predictor import FEWEST, Predictor
from hwnas.devices.prior import Prior
from hwnas.devices.work import CLASSES, Floats, Work, joined, work
from hwnas.errors import TableError
from hwnas.figure import Figure
from hwnas.graph import Graph
from hwnas.records import read_json
from hwnas.records.schema import Bound, Count, Positive, Size

_FORMAT = 1  #: of files that are written; earlier ones call it their version
_Level = Annotated[int, Bound(0, 64)]
_ENOUGH = 7  #: measurements from which one can be told to be wrong
_FAR = 1.5  #: half intervals that it must be off what all others say
_NEAR = 0.15  #: share of its latency by which it must be, too


@final
@dataclass(frozen=True)
class MeasuredDevice:
    """A device, known from networks that were measured there."""

    reference: Work  #: of networks that stand for what is searched
    measured: Work
    ms: Floats  #: what those took
    batch: int
    setting: str  #: what else decides latencies: dtype, threads, batch
    spaces: tuple[str, ...]

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(joined(self.reference, self.measured), self.batch)

    @cached_property
    def features(self) -> Features:
        """The measured networks as the model sees them."""
        return self._encoder(self.measured)

    @cached_property
    def predictor(self) -> Predictor:
        """What the measurements say."""
        return predictor.fit(self.features, self.ms, Prior())

    def encoded(self, networks: Sequence[Graph]) -> Features:
        """Return networks, not fused, as the model sees them."""
        return self._encoder(work(networks))

    def latency(self, lowered: Graph) -> Figure:
        """Return the latency of a network, not fused, in ms with its interval of 95 %."""
        (value,), (std,) = self.predictor.predict(self.encoded([lowered]))
        half = self.predictor.reach * std
        return Figure(float(value), "modelled", float(max(value - half, 0.0)), float(value + half))

    @property
    def reach(self) -> float:
        """Median half width of intervals over networks that stand for what is searched, relative.

        Those that were measured are known best.
        """
        values, std = self.predictor.predict(self._encoder(self.reference))
        return float(np.median(self.predictor.reach * std / values))

    def left_out(self) -> dict[str, float]:
        """Return how well each measured network is foretold by a fit to all others.

        The roofline, too, is fitted without it. ``coverage``: the share that lies in its interval.
        """
        values, inside = [], 0
        for i, ms in enumerate(self.ms):
            value, half = self.without(i)
            values.append(value)
            inside += abs(ms - value) <= half
        return agreement(values, self.ms) | {"coverage": inside / len(values)}

    def without(self, index: int) -> tuple[float, float]:
        """Return what all other measurements say of one, in ms, and half its interval."""
        others = np.delete(np.arange(len(self.ms)), index)
        found = predictor.fit(self.features[others], self.ms[others], Prior())
        (value,), (std,) = found.predict(self.features[np.array([index])])
        return float(value), float(found.reach * std)

    def stray(self) -> int | None:
        """Return the index of the measurement that all others contradict most, if one is."""
        if len(self.ms) <= _ENOUGH:
            return None
        error, std = self.predictor.posterior.left_out
        suspect = int(np.argmax(np.abs(error) / std))
        value, half = self.without(suspect)
        off = abs(self.ms[suspect] - value)
        return suspect if off > max(_FAR * half, _NEAR * value) else None

    def save(self, path: Path) -> None:
        """Write the file."""
        content = {
            "format": _FORMAT,
            "setting": self.setting,
            "spaces": self.spaces,
            "batch": self.batch,
            "ms": self.ms.tolist(),
            "measured": self.measured.rows(),
            "reference": self.reference.rows(),
        }
        files.write(path, json.dumps(content).encode())


#: Class, multiply-accumulates, weights, activations, level: see ``Work``.
_Operator = tuple[Annotated[int, Bound(0, len(CLASSES) - 1)], Count, Count, Count, _Level]
_Network = Annotated[list[_Operator], Bound(1, 10_000)]


class _Saved(TypedDict):
    format: NotRequired[int]
    version: NotRequired[int]  #: 1, of files that say no format
    setting: str
    spaces: list[str]
    batch: Size
    ms: Annotated[list[Positive], Bound(FEWEST, 1_000_000)]
    measured: list[_Network]
    reference: Annotated[list[_Network], Bound(1, 1_000_000)]


def load(path: Path) -> MeasuredDevice:
    """Return the device of a file.

    Raises:
        TableError: it is damaged, or of a newer version.
    """
    try:
        saved = read_json(_Saved, path, TableError, newest=_FORMAT)
    except FileNotFoundError:
        raise TableError(f"{path} is not there.") from None
    if len(saved["ms"]) != len(saved["measured"]):
        raise TableError(f"{path} cannot be read: it has not a latency for each network.")
    works = [Work.of_rows(rows) for rows in (saved["reference"], saved["measured"])]
    ms, spaces = np.array(saved["ms"], float), tuple(saved["spaces"])
    return MeasuredDevice(works[0], works[1], ms, saved["batch"], saved["setting"], spaces)
