"""The run that a search is held against: ``baseline=RUN``."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hwnas.analysis import reading, run_fronts, speedup_text
from hwnas.analysis import reading as foreign
from hwnas.analysis.fronts import ComparedRun, FrontPoint, FrontStage, Objective, RunFront, declared
from hwnas.analysis.page.model import OverlaidFront, PageTable
from hwnas.analysis.speedup import Speedup, in_plane, speedup
from hwnas.analysis.speedup_text import FrontLabels, sentences
from hwnas.core.errors import ConfigError, RunError, unknown_name
from hwnas.core.manifest import Manifest, accuracy_source, read_manifest
from hwnas.nas.candidates import Candidate
from hwnas.nas.cascades import EXPECTED, LATENCY
from hwnas.nas.member import Member
from hwnas.tasks.metrics import costs_in, metric_of, perfect_value
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.cascades import CASCADES_FILE, CascadeReport
from hwnas.workflows.search.context import TargetContext

# A front and its baseline by the latency of an image on the average: networks, and cascades.

_COST = Objective(EXPECTED, maximise=False)


def of_run(folder: Path, metric: str) -> list[FrontPoint]:
    """Return the cascades of a search, by what the test split says of them; it may have none.

    Args:
        folder: Of the search for its target.
        metric: Of the task.

    Raises:
        RunError: its table is damaged.
    """
    if not (folder / CASCADES_FILE).exists():
        return []
    names = {metric: f"verified_{metric}", EXPECTED: f"verified_{EXPECTED}"}
    columns = [Objective(names[metric], maximise=True), Objective(names[EXPECTED], maximise=False)]
    found = foreign.points(folder / CASCADES_FILE, columns)
    return [
        FrontPoint(p.id, {name: p.figures[column] for name, column in names.items()}) for p in found
    ]


def of_front(cascades: CascadeReport, metric: str) -> list[FrontPoint]:
    """Return the cascades of a front, by what the test split says of them."""
    found = []
    for cascade in cascades.found:
        seen, ends = cascade.verified, f"{cascade.first.id} {cascade.second.id}"
        figures = {metric: seen.accuracy, EXPECTED: seen.costs[EXPECTED]}
        found.append(FrontPoint(f"{ends} {cascade.threshold:.6g}", figures))
    return found


def compared(
    own: Sequence[FrontPoint],
    cascades: Sequence[FrontPoint],
    base: Sequence[FrontPoint],
    base_cascades: Sequence[FrontPoint],
    quality: Objective,
) -> Speedup | None:
    """Hold the networks and cascades of a front against those of its baseline.

    Args:
        own: The verified members.
        cascades: Of these, as ``of_front`` returns them.
        base: The networks of the baseline.
        base_cascades: Of these, where they are known.
        quality: The metric.

    Returns:
        ``None`` where the front has no cascades.
    """
    if not cascades:
        return None
    return speedup(
        _front("front", [*_alone(own, quality), *cascades], quality),
        _front("baseline", [*_alone(base, quality), *base_cascades], quality),
        quality,
        _COST,
    )


def _alone(networks: Iterable[FrontPoint], quality: Objective) -> list[FrontPoint]:
    """Return networks by what each image costs."""
    return [
        FrontPoint(n.id, {quality.name: n.figures[quality.name], EXPECTED: n.figures[LATENCY]})
        for n in networks
    ]


def _front(name: str, points: Sequence[FrontPoint], quality: Objective) -> RunFront:
    run = ComparedRun(name, declared([quality.name, EXPECTED]), [], points)
    return in_plane(run, quality, _COST, "verified")


#: How the networks of a run came by their weights, by its option ``accuracy``.
_WEIGHTS = {"supernet": "the supernet's weights", "trained": "trained alone"}
_TEXTS = ("description", "caveat", "source")  # of a target: they decide nothing
_UNFINISHED = {
    "running": "is still going, or was cut off: finish it with run.resume={path}",
    "finished by another": "was verified by another process, elsewhere: name that one's folder",
    "nothing fits the budget": "found nothing that fits its budget",
    "none could be verified": "found nothing that could be verified",
}


@dataclass(frozen=True)
class Baseline:
    """A front that was found before, for one target."""

    name: str  #: as the user wrote it
    run: ComparedRun
    kind: FrontStage
    weights: str  #: how its networks came by them, in words; empty where that is not known
    n_over: int  #: networks that are left out: they are over the budget of the search at hand
    cascades: Sequence[
        FrontPoint
    ] = ()  #: of its networks, by the latency of an image on the average

    @property
    def points(self) -> Sequence[FrontPoint]:
        """What is compared of it."""
        return (self.run.verified if self.kind == "verified" else self.run.scored) or []


@dataclass(frozen=True)
class BaselineComparison:
    """A verified front against its baseline."""

    baseline: Baseline
    found: Speedup
    average: Speedup | None = None  #: with its cascades, by what an image takes on the average

    @property
    def sentences(self) -> list[str]:
        """What it comes to, in words."""
        n, n_over = len(self.found.baseline), self.baseline.n_over
        about = f"front of {n} network{'s' * (n != 1)}"
        about += f", {self.baseline.weights}" * bool(self.baseline.weights)
        told = sentences(self.found, FrontLabels(f"Against {self.baseline.name} ({about})"))
        if self.average is not None:
            theirs = "and cascades of the baseline" if self.baseline.cascades else "alone"
            lead = f"On the average image, against networks {theirs}"
            told += sentences(
                self.average, FrontLabels(lead, "the front with its cascades"), briefly=True
            )
        if n_over:
            told.append(
                f"Left out of the baseline, since over the budget of this search: {n_over} "
                f"network{'s' * (n_over != 1)}."
            )
        return told

    @property
    def beside(self) -> OverlaidFront:
        """What is drawn beside the front."""
        label = f"baseline {self.baseline.name}"
        return OverlaidFront(label, [point.figures for point in self.baseline.points])

    def table(self) -> PageTable:
        """Return what a page shows of it."""
        return speedup_text.equal_accuracy_table(
            self.found, FrontLabels(""), "All figures: baseline.csv."
        )

    def to_json(self) -> dict[str, Any]:
        """Return what ``front.json`` holds; the manifest holds it without levels."""
        facts = {"path": self.baseline.name, "n_over_budget": self.baseline.n_over}
        average = {} if self.average is None else {"on_average": self.average.to_json()}
        return facts | self.found.to_json() | average | {"sentences": self.sentences}


def read_baselines(contexts: Sequence[TargetContext]) -> dict[str, Baseline]:
    """Return the baselines of those targets that have one, by the target's name.

    Raises:
        RunError: one is not finished, of another target or other data, or lacks the cost.
    """
    found = {}
    for context in contexts:
        named = context.config.baseline
        if named is not None:
            path = Path(named)
            if path.is_dir():
                found[context.target] = _of_run(path, context)
            elif len(contexts) > 1 and all(s.config.baseline == named for s in contexts):
                raise RunError(
                    f"baseline={path}: a CSV file is of one target: write "
                    f"{context.target}.baseline={path}."
                )
            else:
                found[context.target] = _of_table(path, context.config)
    return found


def against(
    baseline: Baseline | None,
    config: SearchConfig,
    candidates: Sequence[Candidate],
    members: Sequence[Member],
) -> BaselineComparison | None:
    """Hold a verified front against its baseline, if it has one."""
    if baseline is None:
        return None
    quality, cost = _objectives(config)
    fitting = [run_fronts.verified(member) for member in members if member.is_deliverable]
    run = ComparedRun("front", declared(config.objectives), [], fitting, candidates=candidates)
    own = in_plane(run, quality, cost, "verified")
    base = in_plane(baseline.run, quality, cost, baseline.kind)
    return BaselineComparison(baseline, speedup(own, base, quality, cost))


def with_cascades(
    found: BaselineComparison | None, members: Sequence[Member], cascades: CascadeReport
) -> BaselineComparison | None:
    """Hold a front with its cascades against its baseline, too, where latencies are compared."""
    if found is None or found.found.cost.name != LATENCY:
        return found
    base, own = found.baseline, [run_fronts.verified(m) for m in members if m.is_deliverable]
    quality = found.found.quality
    told = of_front(cascades, quality.name)
    average = compared(own, told, base.points, base.cascades, quality)
    return replace(found, average=average)


def _objectives(config: SearchConfig) -> tuple[Objective, Objective]:
    """Return the metric and the first cost of a search that is to be minimised.

    Raises:
        ConfigError: there is none.
    """
    metric, priced = config.metric, costs_in(config.objectives)
    cost = next((name for name in priced if not metric_of(name).maximise), None)
    if cost is None:
        raise ConfigError(
            f"baseline={config.baseline} says how much less a network costs at equal "
            f"{metric_of(metric).label}: objectives={config.objectives} need a cost to be "
            "minimised, for example latency_ms."
        )
    return Objective(metric, metric_of(metric).maximise), Objective(cost, maximise=False)


def _of_run(path: Path, context: TargetContext) -> Baseline:
    manifest = read_manifest(path, "baseline")
    _check_finished(path, manifest)
    if "targets" in manifest:
        if context.target not in manifest["targets"]:
            names = unknown_name("target", context.target, manifest["targets"])
            raise RunError(f"baseline={path}: {names}")
        path = path / context.target
        if not (path / "manifest.json").exists():
            raise RunError(f"baseline={path}: nothing that was found there fits its budget.")
        manifest = read_manifest(path, "baseline")
    _check_same(path, manifest, context)
    run = run_fronts.read_run_folder(path, "baseline")
    weights = accuracy_source(manifest)
    words = _WEIGHTS.get(weights, f"accuracy={weights}")
    cascades = of_run(path, context.config.metric)
    found = Baseline(str(path), run, "verified", words, 0, cascades)
    return _fitting(found, context.config)


def _check_finished(path: Path, manifest: Manifest) -> None:
    if (verb := manifest["verb"]) != "search":
        raise RunError(f"baseline={path} is a run of '{verb}', not of 'search'.")
    if manifest["config"].get("accuracy") == "table":
        raise RunError(f"baseline={path} is a search in a benchmark table: nothing was compiled.")
    if (status := manifest.get("status")) != "finished":
        words = _UNFINISHED.get(str(status), f"is not finished: its status is '{status}'")
        raise RunError(f"baseline={path} {words.format(path=path)}.")


def _check_same(path: Path, manifest: Manifest, context: TargetContext) -> None:
    """Refuse a run for another target, or on other images."""
    here, there = context.parts.digests(), manifest.get("digests", {})
    target, config = manifest["config"]["target"], context.config
    name = target["name"]
    if name != config.target.name:
        raise RunError(
            f"baseline={path} is a run for target '{name}', not for '{config.target.name}'."
        )
    if _digest(there, "target", name) != here["target"]:
        differing = _differing(target, json.loads(json.dumps(asdict(config.target))))
        file = context.parts.networks.backend.user_file()
        if not differing and file is not None:
            differing = [f"what is written in {file}"]
        if differing:
            raise RunError(
                f"baseline={path}: target '{name}' was another one there: "
                f"{reading.listed(differing, 3)}."
            )
    if _digest(there, "data", name) != here["data"]:
        other = manifest["config"]["dataset"]["name"]
        which = f"dataset={other}, here dataset={config.dataset.name}"
        if other == config.dataset.name:
            which = f"of dataset={other} other images, splits or sizes"
        raise RunError(f"baseline={path} was verified on other data: {which}.")


def _digest(digests: Mapping[str, str], name: str, target: str) -> str | None:
    """Return a digest of a run; that of a search for several targets names them."""
    return digests.get(name, digests.get(f"{target}.{name}"))


def _differing(there: Any, here: Any, name: str = "target") -> list[str]:
    """Return which settings differ, of those that both have."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        common = [key for key in here if key in there and key not in _TEXTS]
        return [
            line for key in common for line in _differing(there[key], here[key], f"{name}.{key}")
        ]
    return [] if there == here else [f"{name}={there}, here {here}"]


def _of_table(path: Path, config: SearchConfig) -> Baseline:
    """Read a CSV file, as ``compare`` does; of the ``front.csv`` of a search what was verified."""
    if not path.exists():
        raise RunError(f"baseline={path}: there is no such folder or file.")
    plane = _objectives(config)
    objectives = [Objective(name, metric_of(name).maximise) for name in config.objectives]
    if (points := foreign.verified_front(path, plane)) is not None:
        run = ComparedRun(path.stem, declared(config.objectives), [], points, path=str(path))
        return _fitting(Baseline(str(path), run, "verified", "", 0), config)
    try:
        runs = foreign.read_foreign_csv(path, objectives)
    except RunError:  # it may lack the other costs, which are only drawn
        runs = foreign.read_foreign_csv(path, plane)
    if len(runs) > 1:
        raise RunError(f"baseline={path}: {len(runs)} runs are in that file; a baseline is one.")
    scored = [point.figures[config.metric].value for point in runs[0].scored]
    if perfect_value(config.metric, scored) == 100:
        raise RunError(f"baseline={path}: accuracies must be fractions, not per cent.")
    return _fitting(Baseline(str(path), runs[0], "searched", "", 0), config)


def _fitting(baseline: Baseline, config: SearchConfig) -> Baseline:
    """Leave out what is over the budget of the search at hand."""
    _, cost = _objectives(config)
    for point in baseline.points:
        if cost.name not in point.figures:
            raise RunError(f"baseline={baseline.name}: {point.id} has no {cost.name}.")
        if point.figures[cost.name].value <= 0:
            raise RunError(f"baseline={baseline.name}: {cost.name} of {point.id} is not above 0.")
    kept = [p for p in baseline.points if not config.allowed.exceeded(p.figures)]
    if not kept:
        raise RunError(
            f"baseline={baseline.name}: none of its networks fits the budget of this search."
        )
    run = baseline.run
    run = replace(run, verified=kept) if baseline.kind == "verified" else replace(run, scored=kept)
    return replace(baseline, run=run, n_over=len(baseline.points) - len(kept))
