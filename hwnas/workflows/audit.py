"""Compares the supernet's ranking of networks with that of networks trained alone."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from hwnas.analysis.sections import audit_png, with_audit
from hwnas.core.errors import ConfigError
from hwnas.core.manifest import Manifest, missing_front_error
from hwnas.core.pareto import non_dominated
from hwnas.core.progress import NullProgress, Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row, RunFolder
from hwnas.models.families.base import Family
from hwnas.models.graph import n_macs
from hwnas.models.int8.simulation import with_graph_precision
from hwnas.models.spaces import Genotype, Space
from hwnas.models.spaces.union import join_spaces
from hwnas.nas.run import Run, check_files
from hwnas.nas.verified_files import MemberRow, read_front
from hwnas.tasks.metrics import costs_in, format_value, maximise_flags, metric_of, quality_in
from hwnas.training import inference, loop, supernet
from hwnas.training.data import ImageData
from hwnas.training.evaluation.rank_audit import (
    AuditedNetwork,
    AuditFinding,
    AuditVerdict,
    assess_ranking,
    repeated_indices,
    select_networks,
)
from hwnas.training.inference import per_sample
from hwnas.training.jobs import TrainingJob, train_together
from hwnas.training.supernet import TrainingSetup, check_supernet_exists
from hwnas.workflows.config import AuditConfig, SearchConfig
from hwnas.workflows.config.compose import with_supernet
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search.finish_runs import weights_folder

_FORMAT = 1  #: format version of audit.json


@dataclass(frozen=True)
class AuditResult:
    """The results of an audit."""

    path: Path  #: the folder of the search
    findings: Sequence[AuditFinding]  #: one per audited network
    #: ``leaves front`` by id, for audited front members that another one dominates if both are
    #: trained alone
    leaving: Mapping[str, str]
    messages: Sequence[str]  #: the results as sentences
    metric: str  #: name of the compared metric


def audit(config: AuditConfig, reporter: Reporter) -> AuditResult:
    """Train networks of a search separately and compare their ranking with the supernet's.

    Both rankings are by the metric on the validation split. The results are also written into the
    folder of the search (``audit/`` and ``report.html``).

    Args:
        config: The options of the audit.
        reporter: Is notified of progress.

    Raises:
        ConfigError: the search has no supernet, or trained it for 0 epochs and ``epochs`` is not
            given.
        RunError: the search has no front, or a file of it is missing or damaged.
        TrainingError: a training failed.
    """
    searched, folder = with_supernet(config.run), RunFolder(Path(config.run))
    manifest = folder.reopen()
    with contextlib.closing(folder):
        check_files(Run.load(folder.path))
        members = _members(folder)
        with reporter.timed("Load data"):
            trained = _trained_spaces(searched, manifest, folder.path, reporter)
        reporter.say(trained.data.notes)
        front = [(trained.genotype(row), row) for row in members.rows]
        subjects = select_networks(
            [genotype for genotype, _ in front],
            trained.space,
            config.n_networks,
            trained.size,
            config.seed,
        )
        findings = _findings(subjects, trained, searched, config, reporter)
        verdict = assess_ranking(findings)
        leaving = _leaving_members(findings, {g.id: row for g, row in front}, members)
        epochs = _separate_setup(next(iter(trained.setups.values())), config).train.epochs
        sentences = _words(findings, verdict, epochs, trained.data)
        sentences.append(_leaving_words(findings, leaving, members))
        alone = {f"{f.subject.genotype.id} alone": f.alone[0] for f in findings}
        sentences += inference.chance_level_messages(trained.data, "validation", alone, "epochs")
        metric = members.metric
        rows = [_row(finding, leaving, trained.whole, metric) for finding in findings]
        png = audit_png(findings, verdict, epochs, metric)
        content = {"epochs": epochs, **verdict.to_json(), "words": sentences, "networks": rows}
        content["costs"] = [*members.judged_by.values()]
        _write(folder, png, content)
    return AuditResult(folder.path, findings, leaving, sentences, metric)


@dataclass(frozen=True)
class _Members:
    """The verified front of a search."""

    rows: Sequence[MemberRow]  #: sorted by the first searched cost
    costs: Sequence[str]
    metric: str

    @property
    def judged_by(self) -> dict[str, str]:
        """The column used for each cost, the verified one if it is known for all members."""
        columns = {name: f"verified_{name}" for name in self.costs}
        known = {n for n in columns.values() if all(row.get(n) is not None for row in self.rows)}
        return {name: column if column in known else name for name, column in columns.items()}


def _members(folder: RunFolder) -> _Members:
    content = read_front(folder.path)
    if content is None:
        raise missing_front_error(folder.path)
    priced = costs_in(content["objectives"])
    staying = [row for row in content["members"] if row["verified_on_front"]]
    rows = sorted(staying, key=lambda row: float(row[priced[0]]))
    return _Members(rows, priced, quality_in(content["objectives"]))


@dataclass(frozen=True)
class _TrainedSpaces:
    """The search spaces whose supernets were trained."""

    space: Space
    whole: Space  #: the space of the search, in which its front is encoded
    setups: Mapping[str, TrainingSetup]  #: by the name of the space

    @property
    def data(self) -> ImageData:
        """The data set of the search."""
        return next(iter(self.setups.values())).data

    def of(self, genotype: Genotype) -> TrainingSetup:
        """Return the training setup of a genotype's supernet."""
        return self.setups[genotype.space]

    def genotype(self, row: MemberRow) -> Genotype:
        """Return the genotype of a member of the front."""
        choices = self.whole.choices
        return self.whole.genotype({n: row[n] for n in choices if row.get(n) is not None})

    def size(self, genotype: Genotype) -> float:
        """Return the number of multiply-accumulate operations."""
        setup = self.of(genotype)
        return n_macs(setup.family.lower(setup.space, genotype, setup.data.signature))


def _trained_spaces(
    searched: SearchConfig, manifest: Manifest, run: Path, phases: Progress
) -> _TrainedSpaces:
    """Return the search spaces whose supernets were trained.

    Raises:
        RunError: a supernet is missing.
    """
    space_and_data = supernet.read_space_and_data(
        searched.spaces, searched.dataset, phases, searched.target.running
    )
    setups = _setups(searched, weights_folder(manifest, run), space_and_data)
    # A space without a feasible network has no supernet.
    trained = [m for m in space_and_data[0].members if setups[m.name].checkpoint().n_steps()]
    needed = trained or [*space_and_data[0].members]
    for member in needed:
        check_supernet_exists(setups[member.name])
    return _TrainedSpaces(
        join_spaces(needed), space_and_data[0], {m.name: setups[m.name] for m in needed}
    )


def _reread_setups(
    searched: SearchConfig, folder: Path, progress: Progress
) -> dict[str, TrainingSetup]:
    """Return the training setups of a search's supernets from its configuration."""
    space_and_data = supernet.read_space_and_data(
        searched.spaces, searched.dataset, progress, searched.target.running
    )
    return _setups(searched, folder, space_and_data)


def _setups(
    searched: SearchConfig,
    folder: Path,
    space_and_data: tuple[Space, Mapping[str, Family], ImageData],
) -> dict[str, TrainingSetup]:
    training = supernet.SupernetTraining(searched.dataset, searched.train, searched.seed, folder)
    space, families, data = space_and_data
    return training.setups(space, families, data.with_metric(searched.metric))


def _separate_setup(setup: TrainingSetup, config: AuditConfig, seed: int = 0) -> TrainingSetup:
    """Return the setup for training networks alone: the same recipe, from random weights."""
    epochs = config.epochs or setup.train.epochs
    if not epochs:
        raise ConfigError(
            "The search trained its supernet for 0 epochs, so epochs has no default: set epochs=N, "
            "1 or more."
        )
    train = replace(setup.train, epochs=epochs, init_from=None, from_supernet=False)
    return replace(setup, train=train, seed=config.seed + seed)


def _findings(
    subjects: Sequence[AuditedNetwork],
    trained: _TrainedSpaces,
    searched: SearchConfig,
    config: AuditConfig,
    phases: Progress,
) -> list[AuditFinding]:
    scoring = replace(searched.scoring, confidence=None)
    evaluators = {
        name: setup.evaluator(setup.trained(phases)[0], scoring)
        for name, setup in trained.setups.items()
    }
    with phases.phase("Score in supernet", len(subjects)) as advance:
        inherited = []
        for subject in subjects:
            evaluator = evaluators[subject.genotype.space]
            inherited.append(evaluator.score(subject.genotype).figure)
            advance(1)
    plan = [(i, 0) for i in range(len(subjects))]
    plan += [(i, 1) for i in repeated_indices(len(subjects), config.n_repeated)]
    pairs = [(subjects[i].genotype, seed) for i, seed in plan]
    jobs = [TrainingJob(_separate_setup(trained.of(g), config, seed), g) for g, seed in pairs]
    data = trained.data
    total = sum(loop.n_steps(job.options, len(data.train)) for job in jobs)
    figures: list[list[Quantity]] = [[] for _ in subjects]
    with phases.phase(f"Train {len(plan)} alone", total) as advance:
        if config.workers > 1:
            reread = partial(_reread_setups, searched, jobs[0].setup.supernets)
            train_together(jobs, reread, config.workers, advance)
        for (i, _), job in zip(plan, jobs, strict=True):
            network, _ = job.trained(
                NullProgress() if config.workers > 1 else _NestedProgress(advance)
            )
            evaluator = evaluators[job.genotype.space]
            images = partial(evaluator.calibration_images, job.genotype)
            network = with_graph_precision(network, job.setup.graph(job.genotype), images)
            batches = data.batches(data.validation, job.setup.resolution(job.genotype))
            values = np.concatenate([per_sample(data.task, network, *batch) for batch in batches])
            figures[i].append(data.task.score(values))
    return [
        AuditFinding(subject, figure, tuple(values))
        for subject, figure, values in zip(subjects, inherited, figures, strict=True)
    ]


@final
class _NestedProgress:
    """Progress of one network as part of the total progress."""

    def __init__(self, advance: Callable[[int], None]):
        self._advance = advance

    @contextlib.contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Add steps to the total, those of an earlier run at once."""
        self._advance(done)
        yield self._advance


def _leaving_members(
    findings: Sequence[AuditFinding], rows: dict[str, MemberRow], members: _Members
) -> dict[str, str]:
    """Return audited members that another audited member dominates after training alone."""
    audited = [f for f in findings if f.subject.group == "front"]
    names = members.judged_by.values()
    costs = [[float(rows[f.subject.genotype.id][name]) for name in names] for f in audited]
    points = np.array([[f.mean_alone, *c] for f, c in zip(audited, costs, strict=True)])
    stays = non_dominated(points, maximise_flags([members.metric, *members.costs]))
    return {
        f.subject.genotype.id: "leaves front"
        for f, keeps in zip(audited, stays, strict=True)
        if not keeps
    }


def _words(
    findings: Sequence[AuditFinding],
    verdict: AuditVerdict,
    epochs: int,
    data: ImageData,
) -> list[str]:
    """Return the results as sentences."""
    n = len(findings)
    sentences = [
        f"Between {n} networks in the supernet and trained alone ({epochs} epochs each; validation "
        f"split, {len(data.validation):,} images): Kendall's tau {verdict.kendall}, Spearman's rho "
        f"{verdict.spearman}; in brackets 95 % (Fieller et al., 1957)."
    ]
    if not verdict.kendall.low > 0:
        sentences.append("That order is not significantly different from chance.")
    metric = data.task.metric
    more = "higher" if verdict.gap >= 0 else "lower"
    gap, label = _amount(metric, abs(verdict.gap)), metric_of(metric).label
    sentences.append(f"Alone their {label} is {gap} {more} on average.")
    sentences.append(_seed_words(findings, verdict, metric))
    return sentences


def _seed_words(findings: Sequence[AuditFinding], verdict: AuditVerdict, metric: str) -> str:
    """Return the deviation between seeds, and the highest correlation that it permits."""
    sd, m = verdict.seed_sd, sum(len(finding.alone) > 1 for finding in findings)
    if sd is None:
        return "The noise of seeds is not known: none was trained twice."
    text = (
        f"From seed to seed it differs by {_amount(metric, sd.value)} (standard deviation, "
        f"{_amount(metric, sd.low)} to {_amount(metric, sd.high)}; {m} networks trained twice)"
    )
    if verdict.ceiling is None:
        return f"{text}."
    return (
        f"{text}: two trainings alone would agree with each other by a tau of {verdict.ceiling} "
        "(Thomas & Hultquist, 1978)."
    )


def _leaving_words(
    findings: Sequence[AuditFinding], leaving: Mapping[str, str], members: _Members
) -> str:
    """Return the number of members that would leave the front, and the cost columns used."""
    n_front = sum(f.subject.group == "front" for f in findings)
    sources: dict[str, list[str]] = {}
    for name, judged in members.judged_by.items():
        sources.setdefault("searched" if judged == name else "verified", []).append(name)
    costs = "; ".join(f"{', '.join(names)} as {source}" for source, names in sources.items())
    return (
        f"Judged alone, {len(leaving)} of {n_front} audited members of the front would leave it, "
        f"because another of them is as good and cheaper ({costs})."
    )


def _amount(metric: str, value: float) -> str:
    """Return a difference of the metric as text; fractions in percentage points."""
    return (
        f"{value * 100:.2f} points"
        if metric_of(metric).perfect == 1
        else format_value(metric, value)
    )


def _write(folder: RunFolder, png: bytes, content: Row) -> None:
    folder.write_bytes("audit/audit.png", png)
    folder.write_csv("audit/networks.csv", content["networks"])
    folder.write_json("audit/audit.json", {"format": _FORMAT} | content)
    report = folder.path / "report.html"
    if report.is_file():
        page = with_audit(report.read_text(encoding="utf-8"), png, content["words"])
        folder.write_bytes("report.html", page.encode())


def _row(finding: AuditFinding, leaving: dict[str, str], space: Space, metric: str) -> Row:
    genotype = finding.subject.genotype
    row: Row = {"id": genotype.id, "group": finding.subject.group}
    row |= finding.supernet.columns(f"{metric}_supernet")
    row |= finding.alone[0].columns(f"{metric}_alone")
    row[f"{metric}_alone_mean"] = finding.mean_alone
    second = finding.alone[1].value if len(finding.alone) > 1 else None
    row[f"{metric}_alone_second_seed"] = second
    row["leaves_front"] = genotype.id in leaving if finding.subject.group == "front" else None
    return row | space.assignment(genotype)
