"""The run that a search is held against: ``baseline=RUN``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hwnas.api import on_average
from hwnas.api.cascades import Cascades
from hwnas.api.context import TargetContext
from hwnas.comparison import folder, foreign, reading
from hwnas.comparison.fronts import Kind, Objective, Point, Run, declared
from hwnas.comparison.speedup import Speedup, in_plane, speedup
from hwnas.comparison.speedup_narrative import Names, sentences
from hwnas.config import SearchConfig
from hwnas.errors import ConfigError, RunError, unknown
from hwnas.manifest import Manifest, read_manifest, weights_of
from hwnas.metrics import column, paid, perfect
from hwnas.report import equal_accuracy
from hwnas.report.explorer import Beside, Table
from hwnas.results import Candidate
from hwnas.searching.cascades import LATENCY
from hwnas.searching.member import Member

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
    run: Run
    kind: Kind
    weights: str  #: how its networks came by them, in words; empty where that is not known
    n_over: int  #: networks that are left out: they are over the budget of the search at hand
    cascades: Sequence[Point] = ()  #: of its networks, by the latency of an image on the average

    @property
    def points(self) -> Sequence[Point]:
        """What is compared of it."""
        return (self.run.verified if self.kind == "verified" else self.run.scored) or []


@dataclass(frozen=True)
class Against:
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
        told = sentences(self.found, Names(f"Against {self.baseline.name} ({about})"))
        if self.average is not None:
            theirs = "and cascades of the baseline" if self.baseline.cascades else "alone"
            lead = f"On the average image, against networks {theirs}"
            told += sentences(
                self.average, Names(lead, "the front with its cascades"), briefly=True
            )
        if n_over:
            told.append(
                f"Left out of the baseline, since over the budget of this search: {n_over} "
                f"network{'s' * (n_over != 1)}."
            )
        return told

    @property
    def beside(self) -> Beside:
        """What is drawn beside the front."""
        label = f"baseline {self.baseline.name}"
        return Beside(label, [point.figures for point in self.baseline.points])

    def table(self) -> Table:
        """Return what a page shows of it."""
        return equal_accuracy.table(self.found, Names(""), "All figures: baseline.csv.")

    def to_json(self) -> dict[str, Any]:
        """Return what ``front.json`` holds; the manifest holds it without levels."""
        facts = {"path": self.baseline.name, "n_over_budget": self.baseline.n_over}
        average = {} if self.average is None else {"on_average": self.average.to_json()}
        return facts | self.found.to_json() | average | {"sentences": self.sentences}


def read(contexts: Sequence[TargetContext]) -> dict[str, Baseline]:
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
) -> Against | None:
    """Hold a verified front against its baseline, if it has one."""
    if baseline is None:
        return None
    quality, cost = _objectives(config)
    fitting = [folder.verified(member) for member in members if member.is_deliverable]
    run = Run("front", declared(config.objectives), [], fitting, candidates=candidates)
    own = in_plane(run, quality, cost, "verified")
    base = in_plane(baseline.run, quality, cost, baseline.kind)
    return Against(baseline, speedup(own, base, quality, cost))


def with_cascades(
    found: Against | None, members: Sequence[Member], cascades: Cascades
) -> Against | None:
    """Hold a front with its cascades against its baseline, too, where latencies are compared."""
    if found is None or found.found.cost.name != LATENCY:
        return found
    base, own = found.baseline, [folder.verified(m) for m in members if m.is_deliverable]
    quality = found.found.quality
    told = on_average.of_front(cascades, quality.name)
    average = on_average.compared(own, told, base.points, base.cascades, quality)
    return replace(found, average=average)


def _objectives(config: SearchConfig) -> tuple[Objective, Objective]:
    """Return the metric and the first cost of a search that is to be minimised.

    Raises:
        ConfigError: there is none.
    """
    metric, priced = config.metric, paid(config.objectives)
    cost = next((name for name in priced if not column(name).maximise), None)
    if cost is None:
        raise ConfigError(
            f"baseline={config.baseline} says how much less a network costs at equal "
            f"{column(metric).label}: objectives={config.objectives} need a cost to be minimised, "
            "for example latency_ms."
        )
    return Objective(metric, column(metric).maximise), Objective(cost, maximise=False)


def _of_run(path: Path, context: TargetContext) -> Baseline:
    manifest = read_manifest(path, "baseline")
    _check_finished(path, manifest)
    if "targets" in manifest:
        if context.target not in manifest["targets"]:
            names = unknown("target", context.target, manifest["targets"])
            raise RunError(f"baseline={path}: {names}")
        path = path / context.target
        if not (path / "manifest.json").exists():
            raise RunError(f"baseline={path}: nothing that was found there fits its budget.")
        manifest = read_manifest(path, "baseline")
    _check_same(path, manifest, context)
    run = folder.read(path, "baseline")
    weights = weights_of(manifest)
    words = _WEIGHTS.get(weights, f"accuracy={weights}")
    cascades = on_average.of_run(path, context.config.metric)
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
    objectives = [Objective(name, column(name).maximise) for name in config.objectives]
    if (points := foreign.verified_front(path, plane)) is not None:
        run = Run(path.stem, declared(config.objectives), [], points, path=str(path))
        return _fitting(Baseline(str(path), run, "verified", "", 0), config)
    try:
        runs = foreign.read(path, objectives)
    except RunError:  # it may lack the other costs, which are only drawn
        runs = foreign.read(path, plane)
    if len(runs) > 1:
        raise RunError(f"baseline={path}: {len(runs)} runs are in that file; a baseline is one.")
    scored = [point.figures[config.metric].value for point in runs[0].scored]
    if perfect(config.metric, scored) == 100:
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
