"""The page of a search for several targets: models for all of them, then each target's front."""

import html
from collections.abc import Sequence

from hwnas.figure import column
from hwnas.report.page import cell, change_cell, interactive, page
from hwnas.report.plot import Panel
from hwnas.search.joint import JointMember

_COSTS = ("latency_ms", "energy_mj")


def render(
    title: str,
    facts: Sequence[tuple[str, str]],
    panels: Sequence[tuple[str, Panel]],
    members: Sequence[JointMember],
    missed: Sequence[str],
) -> str:
    """Return the page.

    Args:
        title: Of the page.
        facts: What is known of the run.
        panels: The front of each target that has one, by its name, which is also its folder.
        members: The front of models for all targets.
        missed: What to say of targets whose budget nothing meets.
    """
    sections = ["<h2>Models for all targets</h2>", *map(_note, missed), _table(members)]
    for number, (target, panel) in enumerate(panels):
        name = html.escape(target)
        link = f'<a href="{name}/report.html">its own page</a>'
        sections.append(f"<h2>{name}</h2><p>Front, {link} has its table.</p>")
        objectives = ("accuracy", panel.cost)
        plots = interactive(
            panel.candidates, panel.members, objectives, panel.budget,
            number=number, for_all=panel.for_all,
        )  # fmt: skip
        sections.append(plots)
    return page(title, "".join(sections), facts)


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _table(members: Sequence[JointMember]) -> str:
    if not members:
        return _note("No candidate fits the budgets of all targets.")
    targets = list(members[0].members)
    head = ["id"]
    for target in targets:
        head += [f"{target} accuracy", *(column(f"{target}.{name}").title for name in _COSTS)]
    rows = []
    for member in members:
        cells = [member.candidate.id]
        for part in member.members.values():
            cells.append(cell(part.accuracy, "accuracy"))
            for name in _COSTS:
                searched = part.candidate.figures[name]
                cells.append(change_cell(searched, part.figures[name], name))
        cells.append(html.escape(member.label or "fits all, on the front"))
        kind = ' class="left"' if member.label else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{text}</td>' for text in cells)}</tr>")
    heads = "".join(f"<th>{html.escape(text)}</th>" for text in (*head, "after verification"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll">{table}</div>'
