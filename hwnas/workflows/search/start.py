"""The first lines of a search: target, data, budget, space, objectives and trials."""

import itertools
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hwnas.core.errors import counted
from hwnas.hardware.suggested_commands import inherited_models
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.metrics.budget import Budget, limit_words
from hwnas.training.evaluation.interfaces import TrainedConfig
from hwnas.workflows.components import SearchComponents
from hwnas.workflows.config.search import MAX_TRIALS, fidelities_within
from hwnas.workflows.search.context import TargetContext

_LARGER_SPACES = {"mbconv_96": 96, "mbconv_224": 224}  #: largest resolutions, in pixels
_MAX_LOST = 0.99  # largest fraction of lost pixels that is printed
_MANY_PIXELS = 0.5  # fraction of cropped or lost pixels beyond which a message warns


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
        if models := inherited_models(target):
            lines.append(_row("", f"models: {models}, which its file does not change"))
    labels = itertools.chain(["data"], itertools.repeat(""))
    lines += [_row(label, text) for label, text in zip(labels, _data(parts), strict=False)]
    for context in contexts:
        budget = _budget(context.config.allowed, _given_limits(arguments, context.target))
        lines.append(_row("budget", context.label + budget))
    workers, fidelities = config.study.workers or 1, config.trained.fidelities
    limited = config.n_trials == MAX_TRIALS and config.minutes is not None
    n_trials = f"within {config.minutes:g} min" if limited else f"{config.n_trials:,}"
    lines += [
        _row("space", f"{config.searched} ({parts.space.n_genotypes():,.4g} networks)"),
        _row("objectives", ", ".join(map(_objective, config.objectives))),
        _row("trials", f"{n_trials}, seed {config.seed}, {counted(workers, 'worker')}"),
    ]
    default, short = TrainedConfig().fidelities, fidelities_within(config.train.epochs)
    if config.accuracy == "trained" and default != short == fidelities:
        epochs = f"trained.fidelities={fidelities} instead of {default}"
        lines.append(_row("epochs", f"{epochs}, as train.epochs={config.train.epochs}"))
    return lines


def _row(label: str, text: str) -> str:
    return f"{label:<11}{text}"


def _data(parts: SearchComponents) -> Iterator[str]:
    """Yield the sizes of the data set, and how images are resized."""
    data, side = parts.data, parts.data.train.side
    sizes = data.file_sizes or {(side, side): 1}
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    counts = ", ".join(f"{len(split):,} {name}" for name, split in splits.items())
    channels = {1: "grey", 3: "RGB"}.get(len(data.mean), f"{len(data.mean)} channels")
    largest = max(_resolutions(parts))
    smallest = min(_resolutions(parts))
    original = _range(*(f(sizes, key=math.prod) for f in (min, max)))
    yield f"{data.name}: {counts} images of {original} pixels ({channels})"
    resized = _range((smallest, smallest), (largest, largest))
    yield f"resized to {resized} pixels; values from {data.values[0]} to {data.values[1]}"
    n_pixels = sum(n * w * h for (w, h), n in sizes.items())
    cropped = 1 - sum(n * min(w, h) ** 2 for (w, h), n in sizes.items()) / n_pixels
    if cropped > _MANY_PIXELS:
        yield (
            f"! {cropped:.0%} of the pixels are cut off: only the central square of an image is "
            "used. Pad or resize the images to squares first."
        )
        return
    lost = sum(n * max(0, w * h - largest**2) for (w, h), n in sizes.items()) / n_pixels
    if lost > _MANY_PIXELS:
        share = f"{lost:.0%}" if lost <= _MAX_LOST else f"More than {_MAX_LOST:.0%}"
        yield f"! {share} of the pixels are lost. {_larger_space(sizes, largest)}"


def _larger_space(sizes: Mapping[tuple[int, int], int], largest: int) -> str:
    """Return a sentence with a shipped space above ``largest`` pixels: the smallest that suffices.

    It suffices if it covers the median of the images' shorter sides.
    """
    side = statistics.median_high(map(min, Counter(sizes).elements()))
    larger = {name: size for name, size in _LARGER_SPACES.items() if size > largest}
    if not larger:
        return "No shipped space has a larger resolution."
    covering = [name for name, size in larger.items() if size >= side]
    return f"For larger images: search_space={(covering or [*larger][-1:])[0]}"


def _range(first: tuple[int, int], last: tuple[int, int]) -> str:
    """Return two image sizes as text, such as ``16x16 to 28x28``."""
    return " to ".join(dict.fromkeys(f"{width}x{height}" for width, height in (first, last)))


def _resolutions(parts: SearchComponents) -> list[int]:
    """Return the image sizes of the search space, in pixels."""
    space = parts.space
    known = [parts.networks.resolution(g) for g in (space.smallest(), space.largest())]
    for member in space.members:
        known += [int(r) for r in member.choices.get("resolution", ()) if isinstance(r, int)]
    return known


def _given_limits(arguments: Sequence[str], target: str) -> set[str]:
    """Return the metrics of the limits in the arguments."""
    keys = [argument.partition("=")[0].lstrip("+") for argument in arguments]
    keys = [key.removeprefix(f"{target}.") for key in keys]
    return {key.removeprefix("budget.") for key in keys if key.startswith("budget.")}


def _budget(budget: Budget, chosen: set[str]) -> str:
    """Return the limits as text, and where those that were not given come from."""
    limits = ", ".join(limit_words(name, value) for name, value in budget.limits.items())
    others = [metric_of(name).label for name in budget.limits if name not in chosen]
    named = [metric_of(name).label for name in budget.limits if name in chosen]
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
