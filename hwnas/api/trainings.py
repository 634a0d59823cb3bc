"""What a search trained of a candidate, what that came to, and what is believed of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.candidates import read_columns
from hwnas.figure import Figure
from hwnas.manifest import Finishing, Manifest, weights_of
from hwnas.metrics import quality
from hwnas.results import Candidate, RunFolder
from hwnas.searching import columns
from hwnas.tasks import of_manifest

_AFTER = re.compile(r".*_after_(\d+)_epochs")


@dataclass(frozen=True)
class Trainings:
    """What is known of how well a candidate answers on the validation split, in order."""

    figures: Sequence[tuple[str, Figure]]  #: with what each is of
    lines: Sequence[str]  #: what there is to say of it


def trainings(folder: RunFolder, manifest: Manifest, candidate: Candidate) -> Trainings:
    """Return what a run knows of how well a candidate answers, beside what it verified.

    Args:
        folder: Of the run, finished or not.
        manifest: Its manifest.
        candidate: As the study has it.
    """
    figures, lines = [*_read(manifest, candidate)], []
    metric = of_manifest(manifest).metric
    if candidate.stopped and weights_of(manifest) == "trained":
        lines.append(
            "Its training stopped there: it will hardly become as good as one that costs no more."
        )
    done = manifest.get("finishing")
    if done is None or candidate.reason:
        return Trainings(figures, lines)
    finished = done["finished"].get(candidate.id)
    if finished is not None:
        figures.append(("finished", Figure(*finished)))
        lines.append(_finished(done, candidate.id))
        if candidate.id in done.get("hurried", ()):
            lines.append(
                "finish.minutes ended before it was trained for int8: it is calibrated alone. "
                "An export trains it."
            )
    else:
        config = manifest["config"]["finish"]
        lines.append(
            f"It was not finished: what is on the front with a probability of at least "
            f"{config['probability']:.0%} is, and the {config['n_least']} most probable candidates"
            f"{_few(config)}{_late(config['minutes'])}."
        )
    targets = list(manifest.get("targets", [""]))
    for target in targets:
        own = f" on {target}" if target else ""
        told = _believed(folder.path / target, metric, candidate.id)
        if told is None:
            continue
        of_finished, figure, probability = told
        named = "believed, given all others"
        if of_finished and finished is None:
            named = "believed if it were finished"
        named += own
        if figure.source == "modelled":  # else it is what was read
            figures.append((named, figure))
        if probability is not None:
            lines.append(
                f"Probability of being on the front{own}, before verification: {probability:.0%}."
            )
    return Trainings(figures, lines)


def _read(manifest: Manifest, candidate: Candidate) -> Iterator[tuple[str, Figure]]:
    """Yield what was read after each training, and what was expected where that was the end."""
    n, task = manifest.get("images", {}).get("validation"), of_manifest(manifest)
    for name, value in candidate.details.items():
        if after := _AFTER.fullmatch(name):
            figure = task.of_mean(value, n) if n else Figure(value, "measured")
            yield f"after {_epochs(int(after[1]))}", figure
    if candidate.stopped and weights_of(manifest) == "trained":
        total = sum(manifest["config"]["trained"]["fidelities"])
        yield f"expected after {_epochs(total)}", candidate.figures[quality(candidate.figures)]


def _few(config: Mapping[str, Any]) -> str:
    """Say how many are finished at most; runs that say nothing of it had no such limit."""
    if "n_most" not in config:
        return ""
    if config["n_most"] is None and config["minutes"] is not None:
        return ""
    most = config["n_most"] or f"{config['n_least']} or a fifth of all, whichever is more,"
    return f", but no more than {most} for each target"


def _late(minutes: float | None) -> str:
    if minutes is None:
        return ""
    return f", and none is begun that would end after {minutes:g} minutes"


def _finished(done: Finishing, genotype_id: str) -> str:
    if not done["epochs"]:
        return "Finished without further training (finish.epochs=0)."
    words = f"Finished by {_epochs(done['epochs'])} more"
    teacher = done["teacher"]
    if teacher == genotype_id:
        return f"{words}; it is the teacher of the others."
    if teacher is None:
        return f"{words}."
    return f"{words}, with {done['alpha']:.0%} of the loss on what {teacher} answers."


def _believed(
    folder: Path, metric: str, genotype_id: str
) -> tuple[bool, Figure, float | None] | None:
    """Return what is believed of how well a candidate answers, and its probability of the front.

    The first says whether it is the metric after finishing, not the one that was read.
    """
    read, after = columns.read(metric), columns.finished(metric)
    believed = [f"{metric}{part}" for part in ("", "_source", "_low", "_high")]
    told = read_columns(folder, ["id", *believed, read, after, columns.ON_FRONT])
    if read not in told or genotype_id not in told["id"]:
        return None
    i = told["id"].index(genotype_id)
    if told[read][i] is None:
        return None
    finished = told.get(after, [])
    known = {c for c, value in zip(told["id"], finished, strict=False) if value is not None}
    probability = told[columns.ON_FRONT][i] if columns.ON_FRONT in told else None
    figure = Figure(*(told[name][i] for name in believed))
    return columns.is_enough(len(known)), figure, probability


def _epochs(n: int) -> str:
    return f"{n} epoch{'s' * (n != 1)}"
