"""The first lines of a search: what is searched for, where, and with which data."""

import itertools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from hwnas.tasks.metrics import metric_of
from hwnas.tasks.metrics.budget import Budget, limit_words
from hwnas.workflows.components import SearchComponents
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.context import TargetContext

_MANY_PIXELS = 0.5  # fraction of lost pixels beyond which a message warns


def start_lines(
    contexts: Sequence[TargetContext], arguments: Sequence[str], path: Path
) -> list[str]:
    """Return lines of text with the target, data, budget, space, objectives and trials.

    Args:
        contexts: One for each target.
        arguments: Arguments of the command line, which show the limits that the user gave.
        path: The run folder.
    """
    first = contexts[0]
    config, parts = first.config, first.parts
    resume = f"hwnas resume {shlex.quote(str(path))}"
    lines = [f"Run folder: {path}    stop: Ctrl-C    continue: {resume}"]
    for context in contexts:
        target = context.config.target
        lines.append(_row("target", f"{target.name}: {target.description}"))
    labels = itertools.chain(["data"], itertools.repeat(""))
    lines += [_row(label, text) for label, text in zip(labels, _data(parts), strict=False)]
    for context in contexts:
        where = f"{context.target}: " * (len(contexts) > 1)
        budget = _budget(context.config.allowed, _given(arguments, context.target))
        lines.append(_row("budget", where + budget))
    workers = config.study.workers or 1
    lines += [
        _row("space", f"{config.searched} ({parts.space.n_genotypes():,.4g} networks)"),
        _row("objectives", ", ".join(map(_objective, config.objectives))),
        _row("trials", f"{config.n_trials:,}, seed {config.seed}, {_counted(workers, 'worker')}"),
    ]
    return lines


_INT8_TRAINING = 1.5  # duration of fine-tuning with the int8 training of some networks
_VERIFIED_S = 1.0  # of a member


def finishing_s(config: SearchConfig, trial_s: float) -> float | None:
    """Return the estimated seconds of fine-tuning and verification; ``None`` if unknown.

    Args:
        config: Options of the search.
        trial_s: Seconds per trial.
    """
    finish, trained = config.finish, config.trained.fidelities
    n = finish.max_candidates or max(finish.min_candidates, config.n_trials // 5)
    n = min(n, config.n_trials)
    epochs = finish.epochs if finish.epochs is not None else config.train.epochs
    if config.accuracy != "trained" and epochs:
        return None
    epoch_s = trial_s / (trained[0] + sum(trained[1:]) / 2)  # half of the candidates stop early
    seconds = n * (epochs * epoch_s * _INT8_TRAINING + _VERIFIED_S)
    return seconds if finish.minutes is None else min(seconds, 60 * finish.minutes)


def _row(label: str, text: str) -> str:
    return f"{label:<11}{text}"


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _data(parts: SearchComponents) -> Iterator[str]:
    """Yield the sizes of the data set, and how images are resized."""
    data, side = parts.data, parts.data.train.side
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    sizes = ", ".join(f"{len(split):,} {name}" for name, split in splits.items())
    channels = {1: "grey", 3: "RGB"}.get(len(data.mean), f"{len(data.mean)} channels")
    largest = max(_resolutions(parts))
    smallest = min(_resolutions(parts))
    seen = f"{smallest}x{smallest}" + f" to {largest}x{largest}" * (smallest != largest)
    yield f"{data.name}: {sizes} images of {side}x{side} pixels ({channels})"
    yield f"resized to {seen} pixels"
    if 1 - (largest / side) ** 2 > _MANY_PIXELS:
        lost = 1 - (largest / side) ** 2
        yield (
            f"! {lost:.0%} of the pixels are lost. Spaces for larger images: hwnas list spaces "
            "(mbconv_224, resnet_224)"
        )


def _resolutions(parts: SearchComponents) -> list[int]:
    """Return the image sizes of the search space, in pixels."""
    space = parts.space
    known = [parts.networks.resolution(g) for g in (space.smallest(), space.largest())]
    for member in space.members:
        known += [int(r) for r in member.choices.get("resolution", ()) if isinstance(r, int)]
    return known


def _given(arguments: Sequence[str], target: str) -> set[str]:
    """Return the metrics of the limits in the arguments."""
    keys = [argument.partition("=")[0].lstrip("+") for argument in arguments]
    keys = [key.removeprefix(f"{target}.") for key in keys]
    return {key.removeprefix("budget.") for key in keys if key.startswith("budget.")}


def _budget(budget: Budget, given: set[str]) -> str:
    """Return the limits as text, and where those that were not given come from."""
    limits = ", ".join(limit_words(name, value) for name, value in budget.limits.items())
    others = [metric_of(name).label for name in budget.limits if name not in given]
    named = [metric_of(name).label for name in budget.limits if name in given]
    if not limits:
        return "none"
    if not named:
        return f"{limits} (budget={budget.name})"
    if not others:
        return f"{limits} (given)"
    return (
        f"{limits} ({', '.join(named)} given; {', '.join(others)} from budget={budget.name}, "
        "which budget=none drops)"
    )


def _objective(name: str) -> str:
    metric = metric_of(name)
    return f"{metric.label} {'↑' if metric.maximise else '↓'}"
