"""The training history of a candidate and the estimates of its quality."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from hwnas.core.errors import RunError, counted
from hwnas.core.manifest import FinetuningRecord, Manifest, accuracy_source
from hwnas.core.quantity import Quantity
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate, read_columns
from hwnas.nas.front import distinct
from hwnas.nas.run import Run
from hwnas.tasks import recorded_task
from hwnas.tasks.metrics import costs_in, quality_in
from hwnas.workflows.config.search import MAX_TRIALS

_MAX_PAUSES = 3  # between commands of one search
_AFTER = re.compile(r".*_after_(\d+)_epochs")


@dataclass(frozen=True)
class TrainingHistory:
    """Observations and estimates of a candidate's metric on the validation split, in order."""

    figures: Sequence[tuple[str, Quantity]]  #: label, such as ``after 3 epochs``, and metric
    lines: Sequence[str]  #: the history as sentences


def trainings(run: Run, candidate: Candidate) -> TrainingHistory:
    """Return a candidate's metric after each training and after fine-tuning, and its estimates.

    All are on the validation split.

    Args:
        run: The search, finished or unfinished.
        candidate: The candidate as recorded by the search.
    """
    manifest = run.manifest
    figures, lines = [*_training_figures(manifest, candidate)], []
    metric = recorded_task(manifest).metric
    if candidate.stopped and accuracy_source(manifest) == "trained":
        lines.append(
            "Its training stopped there: it will hardly become as good as one that costs no more."
        )
    done = manifest.get("finishing")
    if done is None or candidate.reason:
        return TrainingHistory(figures, lines)
    finished = done["finished"].get(candidate.id)
    if finished is not None:
        figures.append(("finished", Quantity(*finished)))
        lines.append(_finished_sentence(done, candidate.id))
        if candidate.id in done.get("hurried", ()):
            lines.append(
                "The time limit ended before it was trained for int8: it is calibrated alone. "
                "An export trains it."
            )
    else:
        lines.append(_unfinished_sentence(manifest, done, candidate.id))
    for target, folder in run.folders.items():
        scope = f" on {target}" if target else ""
        estimate = _posterior(folder, metric, candidate.id)
        if estimate is None:
            continue
        of_finished, figure, probability = estimate
        named = "believed, given all others"
        if of_finished and finished is None:
            named = "believed if it were finished"
        named += scope
        if figure.source == "modelled":  # else it is the observed value
            figures.append((named, figure))
        if probability is not None:
            lines.append(
                f"Probability of being on the front{scope}, before verification: {probability:.0%}."
            )
    return TrainingHistory(figures, lines)


def _training_figures(manifest: Manifest, candidate: Candidate) -> Iterator[tuple[str, Quantity]]:
    """Yield the metric after each training, and the expected final one if training was stopped."""
    n, task = manifest.get("images", {}).get("validation"), recorded_task(manifest)
    for name, value in candidate.details.items():
        if after := _AFTER.fullmatch(name):
            figure = task.score_of_mean(value, n) if n else Quantity(value, "measured")
            yield f"after {counted(int(after[1]), 'epoch')}", figure
    if candidate.stopped and accuracy_source(manifest) == "trained":
        total = sum(manifest["config"]["trained"]["fidelities"])
        figure = candidate.figures[quality_in(candidate.figures)]
        yield f"expected after {counted(total, 'epoch')}", figure


def _limit(manifest: Manifest) -> float | None:
    """Return the time limit of fine-tuning in minutes, or that of the whole command."""
    plan = manifest.get("time_plan")
    return manifest["config"]["finish"]["minutes"] if plan is None else plan["limit_s"] / 60


def _number_words(config: Mapping[str, Any], minutes: float | None) -> str:
    """Return the limit on fine-tuned networks as text; older runs without the entry had none."""
    if "max_candidates" not in config:
        return ""
    if config["max_candidates"] is None and minutes is not None:
        return ""
    limit = (
        config["max_candidates"]
        or f"{config['min_candidates']} or a fifth of all, the larger of the two,"
    )
    return f", but no more than {limit} for each target"


def _time_words(minutes: float | None) -> str:
    if minutes is None:
        return ""
    return f", and none is begun that would end after {minutes:g} minutes"


def _unfinished_sentence(manifest: Manifest, done: FinetuningRecord, genotype_id: str) -> str:
    if reason := done.get("collapsed", {}).get(genotype_id):
        return f"Its fine-tuning failed: {reason}"
    config, minutes = manifest["config"]["finish"], _limit(manifest)
    return (
        f"It was not finished: what is on the front with a probability of at least "
        f"{config['probability']:.0%} is, and the {config['min_candidates']} most probable "
        f"candidates{_number_words(config, minutes)}{_time_words(minutes)}."
    )


def _finished_sentence(done: FinetuningRecord, genotype_id: str) -> str:
    if not done["epochs"]:
        return "Not fine-tuned (finish.epochs=0)."
    text = f"Fine-tuned for {counted(done['epochs'], 'epoch')}"
    teacher = done["teacher"]
    if teacher == genotype_id:
        return f"{text}; it is the teacher of the others."
    if teacher is None:
        return f"{text}."
    return f"{text} with the teacher {teacher} ({done['alpha']:.0%} of the loss)."


def _posterior(
    folder: Path, metric: str, genotype_id: str
) -> tuple[bool, Quantity, float | None] | None:
    """Return the estimate of a candidate's metric, and its probability of being on the front.

    The first value is whether the metric is that after fine-tuning, or the observed one.
    """
    before, after = columns.read_column(metric), columns.finished(metric)
    believed = [f"{metric}{part}" for part in ("", "_source", "_low", "_high")]
    table = read_columns(folder, ["id", *believed, before, after, columns.ON_FRONT])
    if before not in table or genotype_id not in table["id"]:
        return None
    i = table["id"].index(genotype_id)
    if table[before][i] is None:
        return None
    finished = table.get(after, [])
    known = {c for c, value in zip(table["id"], finished, strict=False) if value is not None}
    probability = table[columns.ON_FRONT][i] if columns.ON_FRONT in table else None
    figure = Quantity(*(table[name][i] for name in believed))
    return columns.is_enough(len(known)), figure, probability


def read_run(path: Path, storage: str | None) -> Run:
    """Return the search in a folder with its trials.

    Args:
        path: The folder.
        storage: URL of the study's database, if the user gave it.

    Raises:
        RunError: the folder is not that of a search, or is that of one of several targets, or no
            trial is finished.
    """
    if not path.is_dir():
        raise RunError(f"run={path}: folder not found. Give the folder of a search.")
    run = Run.load(path, storage=storage)
    if "part_of" in run.manifest:
        raise RunError(
            f"run={path} is the folder of one target of a search. Write "
            f"run={path.absolute().parent}."
        )
    assert run.record
    return run


def starts_from_another(run: Run) -> bool:
    """Return whether the search began with the candidates of another search."""
    manifests = [run.manifest, *run.manifest.get("targets", {}).values()]
    return any(manifest.get("config", {}).get("start_from") for manifest in manifests)


def progress(run: Run) -> str:
    """Return the number of trials and the status as text, such as ``100 trials, finished``.

    Of a running search also the estimated time until the last trial, except with ``minutes``.
    """
    n, n_trials = len(run.record.candidates), run.config["n_trials"]
    if not run.is_running:
        return f"{n} trials, {run.manifest['status']}"
    if (minutes := run.config.get("minutes")) is not None and n_trials == MAX_TRIALS:
        spent_s = run.manifest.get("elapsed_s", max(run.record.seconds.values(), default=0.0))
        return f"{n} trials in {spent_s / 60:.0f} of {minutes:g} min"
    if n >= n_trials or not run.record.seconds:
        return f"{n} of {n_trials} trials so far"
    each_s = _seconds_per_trial([0.0, *sorted(run.record.seconds.values())])
    left_s = (n_trials - n) * each_s
    remaining = f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
    return (
        f"{n} of {n_trials} trials so far, {each_s:.3g} s each: {remaining} left until fine-tuning"
    )


def _seconds_per_trial(ends: Sequence[float]) -> float:
    """Return the mean seconds between ends of trials, without pauses between two commands.

    Pauses are the few longest times if they are ten times as long as the next.
    """
    gaps = sorted((b - a for a, b in pairwise(ends)), reverse=True)
    lengths = range(1, min(_MAX_PAUSES, len(gaps) // 8) + 1)
    n_pauses = max((n for n in lengths if gaps[n - 1] > 10 * gaps[n]), default=0)
    return fmean(gaps[n_pauses:])


def verified_candidates(run: Run) -> list[Candidate]:
    """Return the front members with the metric and costs of their compiled files.

    They are sorted by the first cost. Empty for several targets.
    """
    if "targets" in run.manifest:
        return []
    first, *_ = costs_in(run.record.objectives)
    members = [
        replace(m.candidate, figures={**m.candidate.figures, **m.all_figures})
        for m in run.front(distinct(run.record.candidates)).remaining
    ]
    return sorted(members, key=lambda c: (c.figures[first].value, c.trial))


# Explanations as sections of sentences and tables, for a terminal, plain text or Markdown.


@dataclass(frozen=True)
class TextTable:
    """A table of texts; all columns but the first are aligned to the right."""

    heads: Sequence[str]  #: headings of the columns
    cells: list[Sequence[str]] = field(default_factory=list)  #: rows

    def add(self, *cells: str) -> None:
        """Add a row."""
        self.cells.append(cells)

    def lines(self) -> Iterator[str]:
        """Yield the table as Markdown, whose columns are aligned in plain text, too."""
        columns = list(zip(self.heads, *self.cells, strict=True))
        widths = [max(3, *map(len, column)) for column in columns]

        def line(cells: Sequence[str]) -> str:
            first, *others = zip(cells, widths, strict=True)
            padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            return f"| {' | '.join(padded)} |"

        yield line(self.heads)
        yield line(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
        yield from map(line, self.cells)


Part = str | TextTable


@dataclass(frozen=True)
class Section:
    """Sentences and tables below a heading."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class WhyReport:
    """The explanation of a candidate, or of the front."""

    headline: str  #: empty if the sections contain it
    sections: Sequence[Section]

    def to_markdown(self) -> str:
        """Return the report in Markdown."""
        blocks = [f"**{self.headline}**"] if self.headline else []
        for section in self.sections:
            blocks.append(f"**{section.title}**")
            for part in section.parts:
                blocks.append(part if isinstance(part, str) else "\n".join(part.lines()))
        return "\n\n".join(blocks) + "\n"

    def __str__(self) -> str:
        lines = [self.headline] if self.headline else []
        for section in self.sections:
            lines += ["", section.title]
            for part in section.parts:
                part_lines = [part] if isinstance(part, str) else part.lines()
                lines += [f"  {line}" for line in part_lines]
        return "\n".join(lines).strip()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()
