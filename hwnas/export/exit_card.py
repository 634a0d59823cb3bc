"""What the card of an export says of early exits."""

from typing import Any

from hwnas.figure import Figure
from hwnas.metrics import column
from hwnas.searching.exits import NEVER

Row = dict[str, Any]

#: What files are, in words.
ABOUT = {
    "exits.json": "thresholds of the exits, those that were chosen and others, and the segments",
    "exits.npz": "what torch answers at each exit and at the end to the images of `images.npz`",
}


def about(leaving: Row) -> dict[str, str]:
    """Return what the files of segments are, in words."""
    return ABOUT | {
        name: f"of segment {i}, as `{name.replace(f'segment{i}', 'model', 1)}`"
        for i, names in enumerate(leaving["segments"])
        for name in names
    }


def section(leaving: Row) -> str:
    """Return what leaving early comes to."""
    lines = ["| | foreseen | test split |", "| --- | --- | --- |"]
    foreseen, found = leaving["foreseen"], leaving["found"]
    for i, threshold in enumerate(leaving["thresholds"]):
        where = "never" if threshold >= NEVER else f"from {threshold:.4f} on"
        shares = (_told(each["left"][i], ".1%") for each in (foreseen, found))
        lines.append(f"| leaves at exit {i} ({where}) | {' | '.join(shares)} |")
    rows = [("accuracy", *(_told(each["accuracy"], ".4f") for each in (foreseen, found)))]
    for name in foreseen["costs"]:
        title = f"expected {column(name.removeprefix('expected_')).title}"
        rows.append((title, *(_told(each["costs"][name], ".4g") for each in (foreseen, found))))
    lines += [f"| {' | '.join(row)} |" for row in rows]
    worst = Figure(*leaving["worst"]["latency_ms"])
    return (
        "\n".join(lines) + "\n\n`python run_exits.py images.npy` runs the segments one after the "
        "other; an image leaves at the first exit whose largest probability reaches its threshold. "
        f"Thresholds were chosen on one half of the validation split, to lose at most "
        f"{leaving['max_drop']:g} points there; the other half foresaw what they come to. An image "
        f"that runs to the end takes {worst.value:.4g} ms ({worst.source}); it is answered as by "
        "the whole network. Other thresholds, with what they come to, are in "
        "`exits.json`."
    )


def _told(row: list[Any], form: str) -> str:
    figure = Figure(*row)
    ends = "" if figure.low is None else f" ({figure.low:{form}} to {figure.high:{form}})"
    return f"{figure.value:{form}}{ends}"
