"""Explains a candidate: when and why it was proposed, and which candidates it dominates."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hwnas.core.quantity import Quantity
from hwnas.export import picking
from hwnas.nas import explanation
from hwnas.nas.candidates import Candidate
from hwnas.nas.explanation import DominanceSummary, Explanation
from hwnas.nas.front import distinct, pareto_front
from hwnas.nas.member import Member
from hwnas.nas.run import Run
from hwnas.nas.trial_attributes import Phase, Proposal
from hwnas.tasks import recorded_task
from hwnas.tasks.metrics import costs_in, metric_of, quality_in, quality_names
from hwnas.tasks.metrics.budget import violations
from hwnas.workflows.config import WhyConfig
from hwnas.workflows.why_sources import (
    Part,
    Section,
    TextTable,
    WhyReport,
    progress,
    read_run,
    starts_from_another,
    trainings,
    verified_candidates,
)

_NAMED = 5  #: candidates listed with their figures
_LISTED = 12  #: ids per line


def why(config: WhyConfig) -> WhyReport:
    """Return the explanation of a candidate, or of the front (``id=front``).

    Raises:
        RunError: the folder is not that of a search, or is that of one of several targets, or no
            trial is finished.
        ConfigError: no candidate has this id, or several ids start with it.
    """
    run = read_run(Path(config.run), config.study.storage)
    if config.id == "front":
        return WhyReport("", [*_front(run)])
    candidates, objectives = run.record.candidates, run.record.objectives
    name = config.id
    if name in picking.NAMES and name != "all":
        (name,) = picking.pick(run.front(distinct(candidates)), name)
    genotype_id = explanation.find(candidates, name)
    explained = explanation.explain(candidates, genotype_id, objectives)
    verified = run.member(explained.candidate)
    proposal = run.record.proposals[explained.candidate.trial]
    several = isinstance(run.config.get("search_space"), list)
    label = metric_of(quality_in(objectives)).label.capitalize()
    sections: list[tuple[str, list[Part]]] = [
        ("Choices", [*_choices(explained.candidate, several=several)]),
        ("Why it was proposed", [*_proposal_lines(explained.candidate, proposal, run)]),
        ("Figures", [_figures(explained.candidate, verified)]),
        (f"{label}, training by training", [*_training_parts(explained.candidate, run)]),
        ("Limits", [*_limits(explained.candidate, run, verified)]),
        ("When it came", _rank_before(explained, objectives)),
        ("Now, as searched", _rank_now(explained, objectives)),
    ]
    contents = [Section(title, parts) for title, parts in sections if parts]
    return WhyReport(_headline(explained, progress(run), verified), contents)


def _front(run: Run) -> Iterator[Section]:
    objectives = run.record.objectives
    members = pareto_front(run.record.candidates, objectives)
    if verified := verified_candidates(run):
        title = f"Front of {len(verified)} verified as compiled for the device"
        yield Section(title, [*_chance_level(run), _table(verified, objectives)])
    title = f"Front of {len(members)} as searched ({progress(run)})"
    lines = ["The history of a network: hwnas why RUN ID, or knee, fastest, most_accurate."]
    if run.is_running:
        lines.append("If the search was stopped, continue it: hwnas resume RUN.")
    yield Section(title, [_table(members, objectives), *lines])


def _chance_level(run: Run) -> list[str]:
    """Return whether no network is better than a constant answer."""
    if not run.front(distinct(run.record.candidates)).is_at_chance_level:
        return []
    constant = recorded_task(run.manifest).description.constant
    return [f"No network is better than {constant} by its 95 % interval: none is recommended."]


def _headline(explained: Explanation, status: str, verified: Member | None) -> str:
    candidate = explained.candidate
    state = "infeasible" if candidate.reason else "dominated"
    stays = verified.on_front if verified is not None else None
    if explained.on_front:
        state = "on the front as searched, off it as verified" if stays is False else "on the front"
    elif stays:
        end = "stopped early" if candidate.stopped else "dominated"
        state = f"{end} as searched, on the front as verified"
    elif candidate.stopped:
        state = "stopped early, as it will hardly be on the front"
    elif explained.now is None and not candidate.reason:
        state = "on no front for all targets, as one of them cannot run it"
    others = [str(number) for number in explained.trials[1:]]
    trials = (
        f"trial {candidate.trial}{', came again at ' * bool(others)}{_join_words(others, 'trial')}"
    )
    return f"{candidate.id}: {state} ({trials}; {status})"


def _choices(candidate: Candidate, *, several: bool) -> list[str]:
    """Return the choices; those of one part of a network (``stages.0``) share a line.

    If several spaces were searched, the first line names the network's space.
    """
    parts: dict[str, dict[str, list[str]]] = {}
    for name, value in candidate.genotype.options:
        *path, choice = name.split(".")
        inner = parts.setdefault(".".join(path[:2]), {})
        inner.setdefault(".".join(path[2:]), []).append(f"{choice}={value}")
    space = [f"search space {candidate.genotype.space}"] if several else []
    return space + [
        f"{part} ".lstrip() + "; ".join(" ".join([n, *w]).lstrip() for n, w in sorted(all.items()))
        for part, all in sorted(parts.items())
    ]


def _proposal_lines(candidate: Candidate, proposal: Proposal, run: Run) -> list[str]:
    lines = [f"Trial {candidate.trial}, {_reason(proposal, run)}."]
    is_over = not candidate.figures or bool(run.targets.exceeded(candidate.figures))
    if proposal.phase == "gain" and is_over and proposal.n_costed:
        lines.append(f"None of the {proposal.n_costed} whose costs were computed fits the limits.")
    lines += _expectation_lines(candidate, proposal, run)
    if proposal.parents:
        ids = {c.trial: c.id for c in run.record.candidates}
        parents = [f"{number} ({ids[number]})" for number in proposal.parents if number in ids]
        lines.append(f"It descends from {_join_words(parents, 'trial')}.")
    return lines


def _reason(proposal: Proposal, run: Run) -> str:
    sampler = run.config["sampler"]["name"]
    pool = f"{proposal.n_candidates} candidates looked at"
    picked = "drawn at random: costs are not known beforehand"
    if proposal.n_costed:
        picked = "picked to spread the first trials over the range of costs"
    computed = f", and of the best {proposal.n_costed} with computed ones" * bool(proposal.n_costed)
    modelled = f" with modelled costs{computed}" * bool(proposal.costs)
    second = " for each second" * (proposal.seconds is not None)
    generation = "its first generation, random"
    if proposal.generation:
        generation = f"generation {proposal.generation}, a child of the best before"
    counted = f", uncertainty counted {proposal.curiosity:g} times" * (proposal.curiosity != 1)
    ladder = "one of the fixed first trials, from the smallest network to the largest"
    if starts_from_another(run):
        ladder = "one of the first, which are those of start_from, in that search's order"
    nothing = "nothing else was known to fit the limits"
    reasons: dict[Phase, str] = {
        "ladder": ladder,
        "startup": f"by {sampler}, before there is a model: of {pool}, {picked}",
        "gain": f"by {sampler}: the highest expected gain{second} of {pool}{modelled}{counted}",
        "smallest": f"by {sampler}: {nothing}, so the smallest was tried",
        "random": f"by {sampler}, at random: nothing else was left that is known to fit the limits",
        "generation": f"by {sampler}: {generation}",
        "sampler": f"by {sampler}, which records no reasons",
    }
    return reasons[proposal.phase]


def _expectation_lines(candidate: Candidate, proposal: Proposal, run: Run) -> list[str]:
    """Return the expected and the observed values."""
    if proposal.expected is None:
        return []
    value, low, high = proposal.expected
    metric = quality_in(run.record.objectives)
    text = f"Expected {metric_of(metric).label} {value:.4g} (95 %: {low:.4g} to {high:.4g})"
    if (scored := candidate.figures.get(metric)) is None:
        text += "; it was not scored."
    else:
        side = "within" if low <= scored.value <= high else "outside"
        word = "forecast" if candidate.stopped else "found"
        text += f"; {word} {scored.value:.4g}, {side} the interval."
    n_within, n = explanation.n_within_intervals(run.record.candidates, run.record.proposals)
    lines = [f"{text} Of {n} such intervals of this search, {n_within} held."]
    names = costs_in(run.record.objectives)
    for name, cost in zip(names, proposal.costs, strict=False):
        if (figure := candidate.figures.get(name)) is not None:
            off = f" ({100 * (figure.value / cost - 1):+.0f} %)" if cost else ""
            lines.append(f"Modelled {name} {cost:.4g}; computed {figure.value:.4g}{off}.")
    if proposal.gain is not None:
        share = "less than 0.01 %" if proposal.gain < 1e-4 else _percent(proposal.gain)
        scale = ", half of it over logarithms of costs" * proposal.by_ratio
        duration = "" if proposal.seconds is None else f", in {proposal.seconds:.3g} s"
        lines.append(
            f"Expected gain: {share} of the hypervolume of the front at that time{scale}{duration}."
        )
    return lines


def _figures(candidate: Candidate, verified: Member | None) -> Part:
    """Return the figures, each followed by its verified value."""
    table = TextTable(("figure", "value", "interval", "source"))
    for name, figure in candidate.figures.items():
        table.add(metric_of(name).title, *_figure_cells(figure))
        for other, verified_figure in (verified.figures if verified else {}).items():
            target, _, plain = other.rpartition(".")
            if other == name:
                table.add("  verified", *_figure_cells(verified_figure))
            elif name in quality_names() and plain.startswith(name):  # accuracy_int8, accuracy_fp32
                dtype = plain.removeprefix(f"{name}_")
                label = " ".join(word for word in ("  verified", target, dtype) if word)
                table.add(label, *_figure_cells(verified_figure))
    return table if table.cells else "None: the target cannot run it."


def _training_parts(candidate: Candidate, run: Run) -> list[Part]:
    """Return the results of trainings and the estimates, on the validation split."""
    history = trainings(run, candidate)
    table = TextTable(("validation split", "value", "interval", "source"))
    for name, figure in history.figures:
        table.add(name, *_figure_cells(figure))
    return [*([table] if history.figures else []), *history.lines]


def _figure_cells(figure: Quantity) -> list[str]:
    known = figure.low is not None and figure.high is not None
    interval = f"{figure.low:.4g} to {figure.high:.4g}" if known else ""
    return [f"{figure.value:.5g}", interval, figure.source]


def _limits(candidate: Candidate, run: Run, verified: Member | None) -> list[str]:
    """Return each limit with its margin, and the reason if scoring or verification is missing."""
    limits = run.targets.all_limits
    unverified = [
        f"It could not be verified{f' on {target}' if target else ''}: {reason}"
        for target, reason in run.unverified(candidate.id).items()
    ]
    over = violations(limits, candidate.figures)
    lines = [_margin(name, candidate.figures[name], limits[name]) for name in over]
    if verified is not None:
        margins = violations(limits, verified.figures)
        exceeded = [name for name, excess in margins.items() if excess > 0]
        lines += [
            f"Verified, {_margin(name, verified.figures[name], limits[name])}" for name in exceeded
        ]
        lines += [] if unverified else [_verification(verified, exceeded, run)]
    lines += unverified
    if candidate.reason:
        worst = max(over, key=lambda name: over[name], default="")
        why = candidate.reason.rstrip(".")
        if worst and over[worst] > 0:
            needed = f"{metric_of(worst).binding(candidate.figures[worst]):.4g}"
            why = f"{_option(worst)} binds most, it would have to be {needed}"
        scored = any(name in quality_names() for name in candidate.figures)
        lines.append(f"{'It is infeasible' if scored else 'It was not scored'}: {why}.")
    return lines


def _margin(name: str, figure: Quantity, limit: float) -> str:
    metric = metric_of(name)
    over, value = metric.violation(figure, limit), metric.binding(figure)
    end = f"{'lower' if metric.maximise else 'upper'} end "
    end = "" if value == figure.value else end
    outcome = f"breaks it by {_percent(over)}" if over > 0 else f"leaves {_percent(-over)}"
    return f"{_option(name)} {limit:g}: {end}{value:.4g} {outcome}."


def _option(name: str) -> str:
    """Return the option for a limit."""
    target, _, plain = name.rpartition(".")
    return f"{target}.budget.{plain}" if target else f"budget.{name}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def _verification(verified: Member, exceeded: Sequence[str], run: Run) -> str:
    if exceeded:
        return "By its own files it leaves the budget."
    if verified.int8_slowdown:
        return f"By its own files it is not delivered: in int8 it takes {verified.int8_slowdown}."
    if verified.on_front is None and not run.is_running:
        front = "joint front" if run.targets.are_several else "front"
        return f"It is verified, but not a member of the {front}."
    if verified.on_front is None:
        return "It is verified; whether it stays on the front is known when the run has finished."
    if verified.on_front:
        return "By its own files it stays within the budget and on the front."
    better = "left the front: another member is better"
    return f"By its own files it {'is statistically tied' if verified.near_front else better}."


def _rank_before(explained: Explanation, objectives: Sequence[str]) -> list[Part]:
    """Return the rank of the candidate among earlier candidates."""
    standing = explained.before
    if standing is None:
        return []
    if not standing.n_others:
        return ["It was the first that was scored."]
    beat = f"It beat {len(standing.beaten)} of {standing.n_others} that had been scored"
    if explained.displaced:
        displaced = _join_words([c.id for c in explained.displaced])
        beat += f"; off the front went {displaced}"
    if not standing.beaten_by:
        return [f"{beat}.", "Nothing beat it: it joined the front."]
    return [f"{beat}.", *_dominating_parts("It was", standing, objectives)]


def _rank_now(explained: Explanation, objectives: Sequence[str]) -> list[Part]:
    """Return the rank of the candidate among all scored candidates."""
    standing = explained.now
    if standing is None:
        return []
    lines: list[Part] = [
        f"It beats {len(standing.beaten)} of {standing.n_others} others that were scored."
    ]
    if (rival := explained.removed_by) is not None:
        lines.append(f"It was on the front until trial {rival.trial}, when {rival.id} beat it.")
    if not explained.on_front:
        return [*lines, *_dominating_parts("It is", standing, objectives)]
    nearby = [c for c in explained.neighbours if c is not None]
    if not nearby:
        return [*lines, "It is the whole front."]
    lines.append(f"It is on the front of {len(explained.front)}. Its neighbours there:")
    return [*lines, _table(nearby, objectives, explained.candidate)]


def _dominating_parts(
    text: str, standing: DominanceSummary, objectives: Sequence[str]
) -> list[Part]:
    n, named = len(standing.beaten_by), standing.beaten_by[:_NAMED]
    nearest = "; the nearest, those on the front first" if n > _NAMED else ""
    return [f"{text} beaten by {n}{nearest}:", _table(named, objectives)]


def _table(
    candidates: Sequence[Candidate], objectives: Sequence[str], explained: Candidate | None = None
) -> TextTable:
    """Return the objectives of candidates, and their differences from the explained one."""
    table = TextTable(("id", "trial", *(metric_of(name).title for name in objectives)))
    for candidate in candidates:
        cells = [_cell(candidate, name, explained) for name in objectives]
        table.add(candidate.id, str(candidate.trial), *cells)
    return table


def _cell(candidate: Candidate, name: str, explained: Candidate | None) -> str:
    value = candidate.figures[name].value
    if explained is None:
        return f"{value:.5g}"
    return f"{value:.5g} ({value - explained.figures[name].value:+.2g})"


def _join_words(words: Sequence[str], noun: str = "") -> str:
    """Return words as a list: ``trials a, b and 3 more``."""
    plural = f"{noun}{'s' * (len(words) > 1)} " if noun and words else ""
    more = f" and {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return f"{plural}{', '.join(words[:_LISTED])}{more}"
