"""Where the content (``conf/``, ``search_spaces/``, ``latency_tables/``) is."""

from pathlib import Path

_HERE = Path(__file__).parents[1]
_PACKAGED = _HERE / "_content"

#: The folder that holds the content: inside an installed wheel, else the checkout.
ROOT = _PACKAGED if _PACKAGED.is_dir() else _HERE.parent


def entries(folder: Path) -> dict[str, str]:
    """Return the names of the YAML files in ``folder`` with the first comment line of each."""
    return {path.stem: _first_comment(path) for path in sorted(folder.glob("*.yaml"))}


def _first_comment(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @package"):
            return line.removeprefix("# ").strip()
    return ""


# The version of this package.

__version__ = "0.1.0"
