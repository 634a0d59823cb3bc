"""The version, and the location of ``conf/``, ``search_spaces/`` and ``latency_tables/``."""

import re
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parents[1]
_PACKAGED = _HERE / "_content"

#: The folder of the content: inside the package if installed from a wheel, else the checkout.
ROOT = _PACKAGED if _PACKAGED.is_dir() else _HERE.parent


#: The option that names a folder of the user's configurations.
CONFIG_DIR = ("--config-dir", "-cd")

#: Lines that ``hwnas list KIND NAME`` and Hydra write, and descriptions of several lines.
_NO_TITLE = re.compile(r"# (@package |\+?\w+=\S+$)|description: *[>|]")


def without_folders(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return arguments without ``--config-dir DIR`` and ``-cd DIR``, and the folders ``DIR``."""
    remaining, folders, rest = [], [], iter(arguments)
    for argument in rest:
        option, _, value = argument.partition("=")
        if option in CONFIG_DIR:
            folders.append(Path(value or next(rest, "")))
        else:
            remaining.append(argument)
    return remaining, folders


def entries(folder: Path) -> dict[str, str]:
    """Return the title of each YAML file in a folder, by file name without suffix.

    In folders of hwnas it is the first comment, else the value of ``description:``; in a folder of
    the user's, first the description. It is ``""`` if a file has neither.
    """
    return {path.stem: _title(path) for path in sorted(folder.glob("*.yaml"))}


def _title(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = ("# ", "description:")  # a copied file has the comment of another one
    for start in starts if path.is_relative_to(ROOT) else reversed(starts):
        for line in lines:
            if line.startswith(start) and not _NO_TITLE.match(line):
                return line.removeprefix(start).strip(" '\"")
    return ""


__version__ = "0.1.0"
