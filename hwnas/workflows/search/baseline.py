"""The run that a search is compared with: ``baseline=RUN``."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hwnas.analysis import reading, run_fronts
from hwnas.analysis.comparability import listed
from hwnas.analysis.fronts import ComparedRun, FrontPoint, FrontStage, Objective, RunFront, declared
from hwnas.analysis.page.data import OverlaidFront, PageTable
from hwnas.analysis.speedup import Speedup, in_plane, speedup
from hwnas.analysis.speedup_verdict import FrontLabels, equal_accuracy_table, speedup_verdict
from hwnas.core.errors import ConfigError, RunError, counted, unknown_name
from hwnas.core.manifest import Manifest, accuracy_source
from hwnas.nas.candidates import Candidate
from hwnas.nas.cascades import EXPECTED, LATENCY
from hwnas.nas.member import Member
from hwnas.nas.run import Run
from hwnas.tasks.metrics import costs_in, metric_of, perfect_value
from hwnas.tasks.metrics.budget import Budget
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.cascades import CASCADES_FILE, CascadeReport
from hwnas.workflows.search.context import TargetContext

_COST = Objective(EXPECTED, maximise=False)


def of_run(folder: Path, metric: str, budget: Budget) -> list[FrontPoint]:
    """Return the cascades of a finished search as points of metric and expected latency.

    The values are those on the test split; the worst case of each is within ``budget``.

    Args:
        folder: Folder of the target.
        metric: Metric of the task.
        budget: Limits of this search.

    Raises:
        RunError: the table of cascades is damaged.
    """
    if not (folder / CASCADES_FILE).exists():
        return []
    names = {metric: f"verified_{metric}", EXPECTED: f"verified_{EXPECTED}"}
    columns = [Objective(names[metric], maximise=True), Objective(names[EXPECTED], maximise=False)]
    limits = _limits(folder / CASCADES_FILE, budget)
    points = [
        point
        for point in reading.points(folder / CASCADES_FILE, [*columns, *limits])
        if not budget.exceeded({o.name: point.figures[o.name] for o in limits})
    ]
    return [
        FrontPoint(p.id, {name: p.figures[column] for name, column in names.items()})
        for p in points
    ]


def _limits(path: Path, budget: Budget, prefix: str = "") -> list[Objective]:
    """Return the limited metrics of a CSV file, whose columns may have a prefix."""
    known = reading.columns(path)
    return [Objective(n, metric_of(n).maximise) for n in budget.limits if f"{prefix}{n}" in known]


def of_front(cascades: CascadeReport, metric: str) -> list[FrontPoint]:
    """Return the cascades of a front as points of metric and expected latency, on test data."""
    points = []
    for cascade in cascades.pairs:
        result, ends = cascade.verified, f"{cascade.first.id} {cascade.second.id}"
        figures = {metric: result.accuracy, EXPECTED: result.costs[EXPECTED]}
        points.append(FrontPoint(f"{ends} {cascade.threshold:.6g}", figures))
    return points


def compare_cascades(
    own: Sequence[FrontPoint],
    cascades: Sequence[FrontPoint],
    base: Sequence[FrontPoint],
    base_cascades: Sequence[FrontPoint],
    quality: Objective,
) -> Speedup | None:
    """Return the speedup of networks and cascades over the baseline, by mean latency per image.

    Args:
        own: Verified members of the front.
        cascades: Their cascades, as returned by ``of_front``.
        base: Networks of the baseline.
        base_cascades: Their cascades; may be empty.
        quality: The metric.

    Returns:
        ``None`` if the front has no cascades.
    """
    if not cascades:
        return None
    return speedup(
        _front("front", [*_without_cascades(own, quality), *cascades], quality),
        _front("baseline", [*_without_cascades(base, quality), *base_cascades], quality),
        quality,
        _COST,
    )


def _without_cascades(networks: Iterable[FrontPoint], quality: Objective) -> list[FrontPoint]:
    """Return networks with their latency as expected latency."""
    return [
        FrontPoint(n.id, {quality.name: n.figures[quality.name], EXPECTED: n.figures[LATENCY]})
        for n in networks
    ]


def _front(name: str, points: Sequence[FrontPoint], quality: Objective) -> RunFront:
    run = ComparedRun(name, declared([quality.name, EXPECTED]), [], points)
    return in_plane(run, quality, _COST, "verified")


#: Origin of the weights of a run's networks, by its option ``accuracy``.
_WEIGHTS = {"supernet": "weights of a supernet", "trained": "trained separately"}
_TEXTS = ("description", "caveat", "source")  # fields of a target that do not affect results
_UNFINISHED = {
    "running": "is running or was interrupted. Finish it: hwnas resume {path}",
    "finished by another": "was ended by another process. Name the folder of that process",
    "nothing fits the budget": "has no candidate within its budget. Name another search",
    "none could be verified": "has no verified network. Name another search",
}


@dataclass(frozen=True)
class Baseline:
    """An earlier front, for one target."""

    name: str  #: path, as the user wrote it
    run: ComparedRun  #: its networks
    #: compared values: ``searched`` (validation split) or ``verified`` (compiled files, test split)
    kind: FrontStage
    weights: str  #: origin of the weights as text; empty if unknown
    n_over: int  #: networks left out: they exceed the budget of this search
    cascades: Sequence[FrontPoint] = ()  #: cascades of its networks, see :func:`of_run`

    @property
    def points(self) -> Sequence[FrontPoint]:
        """The networks with the compared values."""
        return (self.run.verified if self.kind == "verified" else self.run.scored) or []

    def compared_with(
        self, config: SearchConfig, candidates: Sequence[Candidate], members: Sequence[Member]
    ) -> "BaselineComparison":
        """Return the comparison of the verified front of a search with this baseline.

        Args:
            config: The configuration of the search.
            candidates: Its candidates.
            members: Its compiled networks; those with ``is_deliverable`` are compared.
        """
        quality, cost = _objectives(config)
        points = _deliverable_points(members)
        run = ComparedRun("front", declared(config.objectives), [], points, candidates=candidates)
        front = in_plane(run, quality, cost, "verified")
        return BaselineComparison(
            self, speedup(front, in_plane(self.run, quality, cost, self.kind), quality, cost)
        )


@dataclass(frozen=True)
class BaselineComparison:
    """The comparison of a verified front with its baseline."""

    baseline: Baseline
    speedup: Speedup  #: by the first minimised cost
    average: Speedup | None = None  #: with cascades, by expected latency; ``None`` without them

    def with_cascades(
        self, members: Sequence[Member], cascades: CascadeReport
    ) -> "BaselineComparison":
        """Return the comparison with ``average``, the speedup of cascades by expected latency.

        ``average`` is ``None`` if the front has no cascades. If the compared cost is not the
        latency, the comparison itself is returned.
        """
        quality, base = self.speedup.quality, self.baseline
        if self.speedup.cost.name != LATENCY:
            return self
        points = of_front(cascades, quality.name)
        average = compare_cascades(
            _deliverable_points(members), points, base.points, base.cascades, quality
        )
        return replace(self, average=average)

    @property
    def sentences(self) -> list[str]:
        """The results of the comparison as sentences."""
        n, n_over = len(self.speedup.baseline), self.baseline.n_over
        summary = f"front of {counted(n, 'network')}"
        summary += f", {self.baseline.weights}" * bool(self.baseline.weights)
        lines = speedup_verdict(
            self.speedup, FrontLabels(f"Against {self.baseline.name} ({summary})")
        )
        if self.average is not None:
            theirs = "and cascades of the baseline" if self.baseline.cascades else "alone"
            lead = f"Averaged over images, against networks {theirs}"
            lines += speedup_verdict(
                self.average, FrontLabels(lead, "the front with its cascades"), briefly=True
            )
        if n_over:
            lines.append(
                f"Left out of the baseline, as over the budget of this search: {n_over} "
                f"network{'s' * (n_over != 1)}."
            )
        return lines

    @property
    def overlay(self) -> OverlaidFront:
        """The baseline as an overlay of the front's figure."""
        label = f"baseline {self.baseline.name}"
        return OverlaidFront(label, [point.figures for point in self.baseline.points])

    def table(self) -> PageTable:
        """Return the table of costs at equal metric, for a page."""
        return equal_accuracy_table(self.speedup, FrontLabels(""), "All figures: baseline.csv.")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``baseline`` in ``front.json``."""
        entry = {"path": self.baseline.name, "n_over_budget": self.baseline.n_over}
        average = {} if self.average is None else {"on_average": self.average.to_json()}
        return entry | self.speedup.to_json() | average | {"sentences": self.sentences}


def _deliverable_points(members: Sequence[Member]) -> list[FrontPoint]:
    return [run_fronts.verified(member) for member in members if member.is_deliverable]


def read_baselines(contexts: Sequence[TargetContext]) -> dict[str, Baseline]:
    """Return the baseline of each target that has one, by name of the target.

    Raises:
        RunError: a baseline cannot be read, is unfinished, for another target or other data, lacks
            the cost, or has no network within the budget.
        ConfigError: no objective of the search is a minimised cost.
    """
    result = {}
    for context in contexts:
        named = context.config.baseline
        if named is not None:
            path = Path(named)
            if path.is_dir():
                result[context.target] = _baseline_of_run(path, context)
            elif len(contexts) > 1 and all(s.config.baseline == named for s in contexts):
                raise RunError(
                    f"baseline={path}: a CSV file is for one target only. Write "
                    f"{context.target}.baseline={path}."
                )
            else:
                result[context.target] = _baseline_of_table(path, context.config)
    return result


def _objectives(config: SearchConfig) -> tuple[Objective, Objective]:
    """Return the metric and the first minimised cost of a search.

    Raises:
        ConfigError: there is no such cost.
    """
    metric, priced = config.metric, costs_in(config.objectives)
    cost = next((name for name in priced if not metric_of(name).maximise), None)
    if cost is None:
        raise ConfigError(
            f"baseline={config.baseline} compares costs at equal {metric_of(metric).label}: "
            f"objectives={config.objectives} must include a minimised cost, for example latency_ms."
        )
    return Objective(metric, metric_of(metric).maximise), Objective(cost, maximise=False)


def _baseline_of_run(path: Path, context: TargetContext) -> Baseline:
    manifest = Run.load(path, "baseline").manifest
    _check_finished(path, manifest)
    if "targets" in manifest:
        if context.target not in manifest["targets"]:
            names = unknown_name("target", context.target, manifest["targets"])
            raise RunError(f"baseline={path}: {names}")
        path = path / context.target
        if not (path / "manifest.json").exists():
            raise RunError(
                f"baseline={path} has no candidate within its budget. Name another search."
            )
        manifest = Run.load(path, "baseline").manifest
    _check_same(path, manifest, context)
    run = run_fronts.read_run_folder(path, "baseline")
    weights = accuracy_source(manifest)
    origin = _WEIGHTS.get(weights, f"accuracy={weights}")
    cascades = of_run(path, context.config.metric, context.config.allowed)
    baseline = Baseline(str(path), run, "verified", origin, 0, cascades)
    return _within_budget(baseline, context.config)


def _check_finished(path: Path, manifest: Manifest) -> None:
    if manifest["config"].get("accuracy") == "table":
        raise RunError(
            f"baseline={path} is a search in a benchmark table, which has no verified networks. "
            "Name a search for a target, or a CSV file."
        )
    if (status := manifest.get("status")) != "finished":
        problem = _UNFINISHED.get(str(status), f"is not finished: its status is '{status}'")
        raise RunError(f"baseline={path} {problem.format(path=path)}")


def _check_same(path: Path, manifest: Manifest, context: TargetContext) -> None:
    """Reject a run for another target, or on other images."""
    here, there = context.parts.digests(), manifest.get("digests", {})
    target, config = manifest["config"]["target"], context.config
    name = target["name"]
    if name != config.target.name:
        raise RunError(
            f"baseline={path} is a search for target '{name}', not for '{config.target.name}'. "
            "Name a search for the same target."
        )
    if _digest(there, "target", name) != here["target"]:
        differing = _differing_settings(target, json.loads(json.dumps(asdict(config.target))))
        file = context.parts.networks.backend.user_file()
        if not differing and file is not None:
            differing = [f"the content of {file}"]
        if differing:
            raise RunError(
                f"baseline={path}: its target '{name}' has other settings than the target of this "
                f"search: {listed(differing, 3)}. Use the same target, or another baseline."
            )
    if _digest(there, "data", name) != here["data"]:
        other = manifest["config"]["dataset"]["name"]
        difference = f"dataset={other}, here dataset={config.dataset.name}"
        if other == config.dataset.name:
            difference = f"images, splits or sizes of dataset={other} differ"
        raise RunError(
            f"baseline={path} was verified on other data: {difference}. Name a search on the same "
            "data."
        )


def _digest(digests: Mapping[str, str], name: str, target: str) -> str | None:
    """Return a digest of a run; a search for several targets has them by target."""
    return digests.get(name, digests.get(f"{target}.{name}"))


def _differing_settings(there: Any, here: Any, name: str = "target") -> list[str]:
    """Return the common settings that differ, with both values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        common = [key for key in here if key in there and key not in _TEXTS]
        return [
            line
            for key in common
            for line in _differing_settings(there[key], here[key], f"{name}.{key}")
        ]
    return [] if there == here else [f"{name}={there}, here {here}"]


def _baseline_of_table(path: Path, config: SearchConfig) -> Baseline:
    """Read a CSV file as ``compare`` does; ``front.csv`` of a search has verified values."""
    if not path.exists():
        raise RunError(f"baseline={path}: folder or file not found. Correct the path.")
    plane = _objectives(config)
    objectives = [Objective(name, metric_of(name).maximise) for name in config.objectives]
    limits = _limits(path, config.allowed, "verified_")
    if (points := reading.verified_front(path, [*plane, *limits])) is not None:
        run = ComparedRun(path.stem, declared(config.objectives), [], points, path=str(path))
        return _within_budget(Baseline(str(path), run, "verified", "", 0), config)
    try:
        runs = reading.read_foreign_csv(path, [*objectives, *_limits(path, config.allowed)])
    except RunError:  # the other costs are only drawn and may be missing
        runs = reading.read_foreign_csv(path, plane)
    if len(runs) > 1:
        raise RunError(
            f"baseline={path} has {len(runs)} runs. Allowed: one. Remove the rows of the others."
        )
    scored = [point.figures[config.metric].value for point in runs[0].scored]
    if perfect_value(config.metric, scored) == 100:
        raise RunError(
            f"baseline={path}: accuracies are per cent. Divide them by 100: fractions are required."
        )
    return _within_budget(Baseline(str(path), runs[0], "searched", "", 0), config)


def _within_budget(baseline: Baseline, config: SearchConfig) -> Baseline:
    """Leave out networks over the budget of this search."""
    quality, cost = _objectives(config)
    for point in baseline.points:
        for name in (quality.name, cost.name):
            if name not in point.figures:
                remedy = f"Add it, remove the network, or name a search with the objective {name}."
                raise RunError(f"baseline={baseline.name}: {point.id} has no {name}. {remedy}")
        if point.figures[cost.name].value <= 0:
            raise RunError(
                f"baseline={baseline.name}: {cost.name} of {point.id} must be above 0. Correct it."
            )
    affordable = [p for p in baseline.points if not config.allowed.exceeded(p.figures)]
    if not affordable:
        raise RunError(
            f"baseline={baseline.name}: none of its networks meets the budget of this search. "
            "Relax the budget, or name another baseline."
        )
    is_verified, run = baseline.kind == "verified", baseline.run
    run = replace(run, verified=affordable) if is_verified else replace(run, scored=affordable)
    return replace(baseline, run=run, n_over=len(baseline.points) - len(affordable))
