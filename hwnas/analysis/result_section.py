"""The first section of a search's page: the recommended network, the front, and how to export."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hwnas.analysis.page.data import ResultRow, ResultSection
from hwnas.analysis.page.names import natural_order
from hwnas.hardware import backends
from hwnas.models.spaces import Option
from hwnas.nas.member import NEAR, Member
from hwnas.tasks.metrics import costs_in, metric_of
from hwnas.tasks.metrics.budget import limit_words

_STAGE = re.compile(r"(?:.*\.)?stages\.(\d+)\.(?:blocks\.\d+\.)?(\w+)$")
_UNITS = {"depth": "blocks", "width": "channels"}
_MEMORIES = ("sram_kib", "flash_kib")


@dataclass(frozen=True)
class SearchResultData:
    """The results that the first section of a page shows."""

    run: str  #: path of the run folder
    members: Sequence[Member]  #: verified networks
    recommended: Member | None  #: ``None``: none is left on the front, or at chance level
    objectives: Sequence[str]  #: names of the metric and costs
    limits: Mapping[str, float]  #: limits of the budget; of several targets: ``npu.latency_ms``
    facts: Sequence[tuple[str, str]]  #: name and text of target, time and sources
    target: str = ""  #: one of several targets; empty: the only one, or the joint front
    headline: Sequence[str] = ()  #: why no network is recommended


def result_section(result: SearchResultData) -> ResultSection:
    """Return the first section: recommended network, front, members not significantly off it.

    ``result`` must have at least one member.
    """
    members, best = result.members, result.recommended
    costs = [name for name in costs_in(result.objectives) if name in members[0].figures]
    costs += [name for name in _memories(members[0]) if name not in costs]
    heads = [f"{metric_of(name).title}" for name in costs]
    on_front = [m for m in members if not m.label]
    tied = [m for m in members if m.label == NEAR]
    title = f"Result on {result.target}" if result.target else "Result"
    return ResultSection(
        title,
        _headline(result),
        [("budget", _budget_words(result)), *result.facts],
        [
            "network, export command",
            f"{metric_of(members[0].metric).label} (test)",
            *heads,
            "files",
        ],
        [_row(member, costs, result, is_recommended=member is best) for member in on_front],
        [_row(member, costs, result, is_recommended=False) for member in tied],
    )


def _headline(result: SearchResultData) -> Sequence[str]:
    """Return the recommended network with its figures, architecture and reason."""
    best = result.recommended
    if best is None:
        return result.headline or ["No network is recommended: none is left on the front."]
    first = {name.rpartition(".")[0]: name for name in reversed(costs_in(result.objectives))}
    names = [*reversed(first.values()), *_memories(best)]
    costs = ", ".join(f"{metric_of(name).label} {_cost(best, name)}" for name in names)
    return [
        f"Recommended: {best.candidate.id}, {metric_of(best.metric).label} {best.quality_text}, "
        f"{costs}.",
        f"{genotype_words(best.candidate.genotype.options)}.",
        "It is the knee of the front: farthest above the line between its ends, with all "
        "objectives scaled to 0..1.",
    ]


def _memories(member: Member) -> list[str]:
    """Return the names of the memory sizes of a member, of all targets."""
    names = (f"{t}.{name}".lstrip(".") for t in member.parts for name in _MEMORIES)
    return [name for name in names if name in member.figures]


def _budget_words(result: SearchResultData) -> str:
    limits = ", ".join(limit_words(name, limit) for name, limit in result.limits.items())
    if not limits:
        return "no limits"
    is_met = any(not member.over_budget for member in result.members)
    return f"{limits}: {'met by every network below' if is_met else 'not met by any network'}"


def _row(
    member: Member, costs: Sequence[str], result: SearchResultData, *, is_recommended: bool
) -> ResultRow:
    name = member.candidate.id
    command = shlex.join(["hwnas", "export", result.run, f"pick={name}"])
    target = f" target_name={shlex.quote(result.target)}" if result.target else ""
    return ResultRow(
        [name, member.quality_text, *(_cost(member, n, unit=False) for n in costs)],
        command + target,
        [*_files(member)],
        genotype_words(member.candidate.genotype.options),
        is_recommended=is_recommended,
    )


def _files(member: Member) -> Iterator[tuple[str, str]]:
    """Yield the address and name of each model file, relative to the page."""
    known = backends.columns()
    for target, part in member.parts.items():
        for suffix in part.files:
            if suffix in known:
                path = f"{target}/models/{member.candidate.id}{suffix}".lstrip("/")
                yield path, f"{target} {suffix.strip('._')}".strip()


def _cost(member: Member, name: str, *, unit: bool = True) -> str:
    value = f"{member.figures[name].value:.4g}"
    return f"{value} {metric_of(name).unit}".rstrip() if unit else value


def genotype_words(options: Sequence[tuple[str, Option]]) -> str:
    """Return a genotype as text, as ``stage 1: 2 blocks, 16 channels, kernel 3/5``.

    Args:
        options: Names and values of the active choices.
    """
    parts: dict[str, dict[str, list[str]]] = {}
    for name, value in sorted(options, key=lambda option: natural_order(option[0])):
        match = _STAGE.match(name)
        part = f"stage {int(match[1]) + 1}" if match else name.rpartition(".")[0]
        choice = match[2] if match else name.rpartition(".")[2]
        parts.setdefault(part, {}).setdefault(choice, []).append(str(value))
    return "; ".join(_part(part, parts[part]) for part in sorted(parts, key=_place))


def _place(part: str) -> tuple[int, str]:
    """Return the place of a part: input, stem, stages, others."""
    order = {"": 0, "stem": 1}.get(part, 2 if part.startswith("stage ") else 3)
    return order, part


def _part(part: str, choices: dict[str, list[str]]) -> str:
    ordered = sorted(
        choices, key=lambda choice: list(_UNITS).index(choice) if choice in _UNITS else 9
    )
    texts = [_choice(choice, choices[choice]) for choice in ordered]
    return f"{part}: {', '.join(texts)}" if part else ", ".join(texts)


def _choice(choice: str, values: Sequence[str]) -> str:
    text = "/".join(values) if len({*values}) > 1 else values[0]
    if choice == "resolution":
        return f"{text}x{text} pixels"
    unit = _UNITS.get(choice)
    if unit is None:
        return f"{choice.replace('_', ' ')} {text}"
    return f"{text} {unit.removesuffix('s') if text == '1' else unit}"
