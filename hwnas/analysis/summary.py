"""Comparison of runs: indicators, intervals and tests."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hwnas.analysis import bootstrap, significance
from hwnas.analysis.bootstrap import DRAWS, BootstrapDraws, FrontUncertainty
from hwnas.analysis.fronts import (
    FORMAT,
    Array,
    ComparedRun,
    FrontStage,
    Objective,
    ReferenceFrame,
    RunFront,
    front,
    spanned,
    union,
)
from hwnas.analysis.indicators import INDICATORS, Yardstick, coverage
from hwnas.analysis.significance import GroupSample, GroupStatistics, PairTest, Ranking
from hwnas.core.errors import RunError
from hwnas.core.run_folder import Row
from hwnas.core.typed_files import finite


@dataclass(frozen=True)
class Comparison:
    """Results of a comparison of fronts."""

    kind: FrontStage  #: whether searched or verified figures of searches are compared
    fronts: Sequence[RunFront]
    yardstick: Yardstick  #: reference point and reference set of the indicators
    indicators: Sequence[Mapping[str, float]]  #: of each front, by name of the indicator
    uncertainty: FrontUncertainty | None  #: ``None``: no point has an interval, or no bootstrap
    #: values of each group, by indicator; without indicators that are NaN for a front
    samples: Mapping[str, Sequence[GroupSample]]
    tests: Mapping[str, Sequence[PairTest]]  #: one per pair of groups, by indicator
    rankings: Mapping[str, Ranking | None]  #: by indicator; ``None``: too few groups or seeds

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The compared objectives, in the order of columns of arrays."""
        return self.yardstick.frame.objectives

    @property
    def reference_set(self) -> str:
        """Description of the reference set of IGD+ and the epsilons."""
        if self.yardstick.is_given:
            return "the given true front"
        return "the non-dominated points of all compared fronts"

    @property
    def groups(self) -> list[str]:
        """Names of the groups, in the order of the fronts."""
        return [*dict.fromkeys(front.group for front in self.fronts)]

    @property
    def is_grouped(self) -> bool:
        """True if a group has several runs; their means are compared then."""
        return len(self.groups) < len(self.fronts)

    def spreads(self, indicator: str) -> list[tuple[str, GroupStatistics]]:
        """Return each group's name with the statistics of an indicator, in order of ``groups``.

        ``indicator`` must not be NaN for any front.
        """
        return [
            (sample.group, significance.spread(sample.values)) for sample in self.samples[indicator]
        ]

    def indicator_rows(self) -> list[Row]:
        """Return the rows of ``indicators.csv``: one per front, with 95 % intervals.

        The ends are ``None`` without intervals.
        """
        rows = []
        for i, run_front in enumerate(self.fronts):
            row: Row = {
                "run": run_front.name,
                "group": run_front.group,
                "seed": run_front.run.block,
            }
            row["n_points"] = int(run_front.mask.sum())
            for indicator in INDICATORS:
                low, high = self._interval(i, indicator.name)
                name = indicator.name
                row |= {name: self.indicators[i][name], f"{name}_low": low, f"{name}_high": high}
            rows.append(row)
        return rows

    def point_rows(self) -> list[Row]:
        """Return the rows of ``points.csv``: one per compared network, with its objectives.

        With intervals, they have the probabilities to be on the front of the run and of all runs.
        """
        rows = []
        for i, run_front in enumerate(self.fronts):
            for j, point in enumerate(run_front.points):
                row: Row = {"run": run_front.name, "group": run_front.group, "id": point.id}
                for k, objective in enumerate(self.objectives):
                    name = objective.name
                    row |= {
                        name: float(run_front.values[j, k]),
                        f"{name}_low": float(run_front.low[j, k]),
                    }
                    row[f"{name}_high"] = float(run_front.high[j, k])
                row["on_own_front"] = bool(run_front.mask[j])
                if self.uncertainty is not None:
                    row["p_on_own_front"] = float(self.uncertainty.on_own[i][j])
                    row["p_on_front_of_all"] = float(self.uncertainty.on_all[i][j])
                rows.append(row)
        return rows

    def coverage_rows(self) -> list[Row]:
        """Return the rows of ``coverage.csv``: one per ordered pair of fronts.

        ``share`` is the fraction of the front ``covered`` that ``run`` weakly dominates, in [0, 1].
        """
        maximise = self.yardstick.frame.maximise
        return [
            {"run": a.name, "covered": b.name, "share": coverage(a.members, b.members, maximise)}
            for a, b in itertools.product(self.fronts, repeat=2)
        ]

    def group_rows(self) -> list[Row]:
        """Return the rows of ``groups.csv``: one per group and indicator, see ``GroupStatistics``.

        Indicators that are NaN for a front are left out.
        """
        return [
            {"indicator": name, "group": group, **asdict(spread)}
            for name in self.samples
            for group, spread in self.spreads(name)
        ]

    def test_rows(self) -> list[Row]:
        """Return the rows of ``tests.csv``: one per indicator and pair of groups, see ``PairTest``.

        Groups of one run are not tested.
        """
        return [
            {"indicator": name, **asdict(test), "n": "+".join(map(str, test.n))}
            | {"significant": test.significant}
            for name, tests in self.tests.items()
            for test in tests
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``comparison.json``, which ``reference=FILE`` accepts.

        Numbers that are not finite become ``None``.
        """
        frame = self.yardstick.frame
        content = {
            "format": FORMAT,
            "objectives": {o.name: "max" if o.maximise else "min" for o in self.objectives},
            "figures": self.kind,
            **frame.to_json(),
            "reference_is": frame.origin,
            "reference_set": self.reference_set,
            "reference_set_share": self.yardstick.share(self.yardstick.target),
            "normalisation": "0 at the ideal, 1 at the reference point, linear",
            "runs": self.indicator_rows(),
            "coverage": self.coverage_rows(),
            "groups": self.group_rows(),
            "tests": self.test_rows(),
            "rankings": {n: None if r is None else asdict(r) for n, r in self.rankings.items()},
        }
        return {name: finite(part) for name, part in content.items()}

    def _interval(self, i: int, name: str) -> tuple[float | None, float | None]:
        if self.uncertainty is None:
            return None, None
        low, high = self.uncertainty.intervals[i][name]
        return low, high


def compare(
    runs: Sequence[ComparedRun],
    objectives: Sequence[Objective],
    kind: FrontStage,
    frame: ReferenceFrame | None = None,
    true_front: Array | None = None,
    draws: BootstrapDraws = DRAWS,
) -> Comparison:
    """Return indicators, intervals and tests of the fronts of runs.

    Args:
        runs: Runs with different names.
        objectives: Two to four objectives.
        kind: Whether searched or verified figures are compared; CSV files have only one kind.
        frame: Ideal and reference point; default: those of ``spanned`` for all fronts.
        true_front: Reference set ``(k, objectives)``; default: the non-dominated points of all
            fronts.
        draws: Bootstrap samples of the intervals.

    Raises:
        RunError: a front is empty, or a figure is missing or not finite.
    """
    fronts = [front(run, objectives, kind_of(run, kind)) for run in runs]
    if frame is None:
        frame = spanned(np.concatenate([f.members for f in fronts]), objectives)
    target = union(fronts, objectives) if true_front is None else true_front
    yardstick = Yardstick(frame, target, true_front is not None)
    values = [yardstick.indicators(f.members) for f in fronts]
    uncertain = None
    if draws.n and bootstrap.has_intervals(fronts):
        uncertain = bootstrap.uncertainty(fronts, yardstick, values, draws)
    groups, blocks = [f.group for f in fronts], [f.run.block for f in fronts]
    samples = {
        i.name: significance.group_values(
            groups, blocks, [indicators[i.name] for indicators in values]
        )
        for i in INDICATORS
        if not any(math.isnan(indicators[i.name]) for indicators in values)
    }
    by_name = {i.name: i for i in INDICATORS}
    return Comparison(
        kind,
        fronts,
        yardstick,
        values,
        uncertain,
        samples,
        {name: significance.pair_tests(by_group) for name, by_group in samples.items()},
        {
            name: significance.ranking(by_group, higher_is_better=by_name[name].higher_is_better)
            for name, by_group in samples.items()
        },
    )


def chosen_kind(runs: Sequence[ComparedRun], wanted: FrontStage | None) -> FrontStage:
    """Return which figures to compare: ``wanted``; if ``None``, ``verified`` or ``searched``.

    ``verified`` if all searches have verified figures; CSV files do not count. ``searched`` if one
    has none, or if there are CSV files only.

    Raises:
        RunError: verified figures are wanted, but a run has none.
    """
    searches = [run for run in runs if run.directions]
    missing = [run.name for run in searches if run.verified is None]
    if wanted == "verified" and missing:
        raise RunError(
            f"{missing[0]} has no verified figures, as the search is unfinished or used a "
            "benchmark table: set figures=searched."
        )
    if not searches:  # files have one value per figure
        return "searched"
    if wanted is not None:
        return wanted
    return "searched" if missing else "verified"


def kind_of(run: ComparedRun, kind: FrontStage) -> FrontStage:
    """Return ``kind`` for a search, ``searched`` for a CSV file: it has one value per figure."""
    return kind if run.directions else "searched"
