"""The run as one self-contained HTML page: interactive front and table, no network access."""

import html
import json
from collections.abc import Container, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from hwnas.figure import COLUMNS, Figure, column
from hwnas.report.plot import DOMINATED, FOR_ALL, LEFT, LIMIT, SEARCHED, VERIFIED, Panel
from hwnas.report.thinning import thinned
from hwnas.results import Candidate
from hwnas.search.verify import Member
from hwnas.target import Budget

_SHOWN = 5_000  # dominated candidates: more make a page slow that shows nothing more
_LABEL = "Plotly.restyle('{plot_id}', {hovertext: hovertexts[%s]});"
#: Verified members: whether they left the front or the budget, and how they are drawn.
_KINDS = ((False, VERIFIED, "verified"), (True, LEFT, "left front or budget"))

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
  color: #222; }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2rem }
.note { color: #555; max-width: 60rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #e3e3e3;
  white-space: nowrap }
th { border-bottom: 2px solid #999 } td:first-child, th:first-child { font-family: monospace }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
td small { color: #777 } tr.left td { color: #B04A00 }
"""


@dataclass(frozen=True)
class RunStory:
    """What the page says of the run."""

    title: str
    facts: Sequence[tuple[str, str]]
    budget: Budget
    objectives: Sequence[str]


def render(story: RunStory, candidates: Sequence[Candidate], members: Sequence[Member]) -> str:
    """Return the page."""
    plots = interactive(candidates, members, story.objectives, story.budget)
    body = f"""{plots}
<h2>Verified front</h2>
<div class="scroll">{_table(members)}</div>"""
    return page(story.title, body, story.facts)


def page(title: str, body: str, facts: Sequence[tuple[str, str]]) -> str:
    """Return a page with an explanation of its plots, and what is known of the run."""
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in facts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p class="note">Open circles: accuracy as search saw it (supernet weights, validation
split, fp32). Filled points: the same networks verified from their compiled artefact (whole
test split, 95 % Wilson interval). Grey: dominated candidates. Dashed: the budget. Hover for
genotype and figures.</p>
{body}
<h2>Run</h2>
<div class="scroll"><table>{rows}</table></div>
</body></html>
"""


def interactive(
    candidates: Sequence[Candidate],
    members: Sequence[Member],
    objectives: Sequence[str],
    budget: Budget,
    *,
    number: int = 0,
    for_all: Container[str] = (),
) -> str:
    """Return the plots of one target; those of number 0 bring the library along.

    Args:
        candidates: All of the search.
        members: The front.
        objectives: Accuracy and the costs, a plot for each.
        budget: Limits to be drawn.
        number: Of the target on the page.
        for_all: Ids of models for all targets.
    """
    front = [member.candidate for member in members]
    on_front = {candidate.id for candidate in front}
    dominated = [c for c in candidates if c.state != "infeasible" and c.id not in on_front]
    shown = thinned(dominated, front, objectives, _SHOWN)
    parts = [f"<script>var hovertexts = window.hovertexts || [];\nhovertexts[{number}] = "]
    parts.append(f"{_hovertexts(shown, members)};</script>")
    for i, cost in enumerate(name for name in objectives if name != "accuracy"):
        figure = _front(Panel(shown, members, cost, budget, "", for_all))
        library = number == 0 and i == 0
        plot = figure.to_html(
            full_html=False,
            include_plotlyjs=library,
            div_id=f"front-{number}-{i}",
            post_script=_LABEL % number,
        )
        parts.append(str(plot))
    if len(shown) < len(dominated):
        parts.append(
            f'<p class="note">{len(shown):,} of {len(dominated):,} dominated candidates shown: '
            "half of them those nearest to the front, half an even share of the others.</p>"
        )
    return "".join(parts)


def _hovertexts(dominated: Sequence[Candidate], members: Sequence[Member]) -> str:
    """Return the texts of the points of each trace, as JavaScript; all plots share them."""
    texts = [
        [_hover(candidate) for candidate in dominated],
        [_hover(member.candidate) for member in members],
        *([_hover_verified(m) for m in members if bool(m.label) is left] for left, *_ in _KINDS),
    ]
    return json.dumps(texts).replace("</", "<\\/")  # no text may end the script


def _front(panel: Panel) -> go.Figure:
    """Return a plot; its traces are in the order of ``_hovertexts``."""
    dominated, members, cost = panel.candidates, panel.members, panel.cost
    figure = go.Figure()
    figure.add_scatter(
        x=[c.figures[cost].value for c in dominated],
        y=[c.figures["accuracy"].value for c in dominated],
        mode="markers", name="dominated", opacity=0.5,
        marker={"color": DOMINATED, "size": 5}, hoverinfo="text",
    )  # fmt: skip
    figure.add_scatter(
        x=[m.candidate.figures[cost].value for m in members],
        y=[m.candidate.figures["accuracy"].value for m in members],
        mode="markers", name="front as searched",
        marker={"color": SEARCHED, "size": 8, "symbol": "circle-open"}, hoverinfo="text",
    )  # fmt: skip
    for left, colour, name in _KINDS:
        chosen = [m for m in members if bool(m.label) is left]
        values = [m.accuracy for m in chosen]
        figure.add_scatter(
            x=[m.figures[cost].value for m in chosen],
            y=[v.value for v in values],
            error_y={
                "type": "data", "symmetric": False, "thickness": 1, "width": 2,
                "array": [(v.high or v.value) - v.value for v in values],
                "arrayminus": [v.value - (v.value if v.low is None else v.low) for v in values],
            },
            mode="markers", name=name, marker={"color": colour, "size": 7}, hoverinfo="text",
        )  # fmt: skip
    both = [m for m in members if m.candidate.id in panel.for_all]
    if both:
        figure.add_scatter(
            x=[m.figures[cost].value for m in both], y=[m.accuracy.value for m in both],
            mode="markers", name="fits all targets, on the joint front", hoverinfo="skip",
            marker={"color": FOR_ALL, "size": 13, "symbol": "square-open"},
        )  # fmt: skip
    if cost in panel.budget.limits:
        limit = panel.budget.limits[cost]
        text = f"budget {limit:g} {column(cost).unit}"
        figure.add_vline(x=limit, line_dash="dash", line_color=LIMIT, annotation_text=text)
    figure.update_layout(
        template="plotly_white", height=520, margin={"l": 60, "r": 20, "t": 30, "b": 50},
        xaxis_title=column(cost).title, yaxis_title="accuracy", hovermode="closest",
        legend={"orientation": "h", "y": 1.08}, hoverlabel={"align": "left"},
    )  # fmt: skip
    return figure


def _hover(candidate: Candidate) -> str:
    figures = [f"{column(n).label} {_text(f, n)}" for n, f in candidate.figures.items()]
    options = [f"{name} = {value}" for name, value in candidate.genotype.options]
    lines = [f"<b>{candidate.id}</b>", *figures, "", *options]
    return "<br>".join(html.escape(line) if line[:3] != "<b>" else line for line in lines)


def _hover_verified(member: Member) -> str:
    verified = [f"verified {n} {_text(f, n)}" for n, f in member.figures.items()]
    return "<br>".join([*map(html.escape, [*verified, member.label]), "", _hover(member.candidate)])


def _table(members: Sequence[Member]) -> str:
    costs = ("latency_ms", "energy_mj", "sram_kib", "flash_kib")
    titles = [column(name).title for name in costs]
    head = ["id", "accuracy searched", "fp32 test", "int8 test", *titles, "after verification"]
    rows = []
    for member in members:
        searched = member.candidate.figures
        cells = [member.candidate.id, cell(searched["accuracy"], "accuracy")]
        cells += [cell(member.figures["accuracy_fp32"], "accuracy"), _int8(member)]
        cells += [change_cell(searched[name], member.figures[name], name) for name in costs]
        cells.append(html.escape(member.label or "fits, on the front"))
        kind = ' class="left"' if member.label else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{text}</td>' for text in cells)}</tr>")
    heads = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _int8(member: Member) -> str:
    figure = member.figures.get("accuracy_int8")
    return cell(figure, "accuracy") if figure else "none"


def cell(figure: Figure, name: str) -> str:
    """Return a figure with its interval."""
    if figure.low is None or figure.high is None:
        return _number(figure.value, name)
    low, high = _number(figure.low, name), _number(figure.high, name)
    return f"{_number(figure.value, name)} <small>{low} to {high}</small>"


def change_cell(searched: Figure, verified: Figure, name: str) -> str:
    """Return a verified figure with how far it is from the searched one."""
    change = verified.value / searched.value - 1 if searched.value else 0.0
    return f"{_number(verified.value, name)} <small>{change:+.1%}</small>"


def _text(figure: Figure, name: str) -> str:
    interval = ""
    if figure.low is not None and figure.high is not None:
        interval = f" ({_number(figure.low, name)} to {_number(figure.high, name)})"
    unit = column(name).unit if name in COLUMNS else ""
    return f"{_number(figure.value, name)} {unit}{interval} [{figure.source}]"


def _number(value: float, name: str) -> str:
    return f"{value:.2%}" if name.startswith("accuracy") else f"{value:.4g}"
