"""The drawing of the twelve folders, from the imports of the package."""

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path

import hwnas

ROOT = Path(hwnas.__file__).parent
#: Folders, upper layers first, as in ``tests/test_layers.py``.
LAYERS = (
    "testing", "cli", "workflows", "fleet", "analysis", "export", "nas", "training", "hardware",
    "models", "tasks", "core",
)  # fmt: skip
PURPOSE = {
    "testing": "contract tests for plug-ins",
    "cli": "command line, progress, tables",
    "workflows": "one module per verb, option schemas, Python API",
    "fleet": "deployment planning",
    "analysis": "comparison of fronts, figures, HTML page",
    "export": "files for devices, with a proof",
    "nas": "study, sampler, candidates, front, verification",
    "training": "data, training, supernets, fine-tuning",
    "hardware": "targets, backends, costs, latency tables",
    "models": "search spaces, families, graph, int8, ONNX, TFLite",
    "tasks": "classification, regression, metrics, budgets",
    "core": "errors, quantities, files, processes",
}
_ROW, _TOP, _NAMES, _GRID, _CELL = 34, 96, 390, 510, 34
_WIDTH = _GRID + _CELL * len(LAYERS) + 10


def pages() -> Iterator[tuple[str, str]]:
    """Yield the drawing."""
    yield "img/architecture.svg", drawing(imports())


def imports() -> set[tuple[str, str]]:
    """Return the pairs of folders of which the first imports from the second."""
    pairs = set()
    for path in ROOT.rglob("*.py"):
        folder = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hwnas."):
                pairs.add((folder, str(node.module).split(".")[1]))
    return {(a, b) for a, b in pairs if a != b and {a, b} <= {*LAYERS}}


def drawing(pairs: set[tuple[str, str]]) -> str:
    """Return an SVG image: a row per folder, with a dot below each folder that it imports."""
    height = _TOP + _ROW * len(LAYERS) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" role="img">',
        "<title>The folders of hwnas from top to bottom, and what each one imports</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for i, name in enumerate(LAYERS):
        x, y = _GRID + _CELL * (i + 0.5), _TOP + _ROW * (i + 0.5)
        parts += [
            f'<text x="{_NAMES - 12}" y="{y + 4}" text-anchor="end" font-size="13" '
            f'fill="#33415c">{escape(PURPOSE[name])}</text>',
            f'<rect x="{_NAMES}" y="{y - 14}" width="108" height="28" rx="5" fill="#e8eefb" '
            'stroke="#33415c"/>',
            f'<text x="{_NAMES + 54}" y="{y + 5}" text-anchor="middle" font-size="14" '
            f'font-weight="bold" fill="#1d2a44">{name}/</text>',
            f'<line x1="{_NAMES + 108}" y1="{y}" x2="{_WIDTH - 10}" y2="{y}" stroke="#e3e7ef"/>',
            f'<text transform="translate({x + 4} {_TOP - 6}) rotate(-55)" font-size="13" '
            f'fill="#1d2a44">{name}</text>',
        ]
    for upper, lower in sorted(pairs):
        x = _GRID + _CELL * (LAYERS.index(lower) + 0.5)
        y = _TOP + _ROW * (LAYERS.index(upper) + 0.5)
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="7" fill="#4b7bec">'
            f"<title>{upper} imports {lower}</title></circle>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
