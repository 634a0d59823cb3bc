"""The version, and the location of ``conf/``, ``search_spaces/`` and ``latency_tables/``."""

from pathlib import Path

_HERE = Path(__file__).parents[1]
_PACKAGED = _HERE / "_content"

#: The folder of the content: inside the package if installed from a wheel, else the checkout.
ROOT = _PACKAGED if _PACKAGED.is_dir() else _HERE.parent


def entries(folder: Path) -> dict[str, str]:
    """Return the first comment line of each YAML file in a folder, by file name without suffix."""
    return {path.stem: _first_comment(path) for path in sorted(folder.glob("*.yaml"))}


def _first_comment(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @package"):
            return line.removeprefix("# ").strip()
    return ""


__version__ = "0.1.0"
