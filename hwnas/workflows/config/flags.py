"""Flags of the command line: folders of ``--config-dir DIR``, and flags that only print."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.typed_files import read_yaml
from hwnas.hardware.suggested_commands import register_config_folders
from hwnas.workflows.config.arguments import TAKE_A_VALUE

SHIPPED = Path(package.ROOT, "conf")  #: folder of the shipped files


def check_folders(arguments: Sequence[str]) -> None:
    """Check the YAML files of ``--config-dir DIR``, before Hydra reads them without size limits.

    Only files that an argument or another file names are checked. The folders are registered, so
    that suggested commands repeat them.

    Raises:
        ConfigError: a file is not valid YAML, has tags, a key twice, or is too large.
    """
    for error in (content for _, content in _named_files(arguments)):
        if isinstance(error, ConfigError):
            raise error
    register_config_folders(map(str, package.without_folders(arguments)[1]))


def check_own_names(arguments: Sequence[str]) -> None:
    """Check that no file of ``--config-dir DIR`` has the name of a shipped one.

    Hydra would read the shipped one. Earlier runs are not concerned: ``arguments`` are those of the
    command alone.

    Raises:
        ConfigError: a file, or a target in it, has such a name.
    """
    for path, content in _named_files(arguments):
        group, name = path.parent.name, {} if isinstance(content, ConfigError) else content
        shipped, own = SHIPPED / group, name.get("name")
        if (shipped / path.name).is_file():
            raise ConfigError(
                f"{path}: {path.stem} is the name of a shipped {group}, which would be used "
                f"instead. Rename the file, as my_{path.name}, and write name: my_{path.stem} into "
                "it."
            )
        if group == "target" and own != path.stem and (shipped / f"{own}.yaml").is_file():
            raise ConfigError(
                f"{path}: name: {own} is that of a shipped target. Write name: {path.stem}."
            )


def _named_files(arguments: Sequence[str]) -> Iterator[tuple[Path, dict[str, Any] | ConfigError]]:
    """Yield the files in folders of ``--config-dir`` that an argument or another file names.

    The second value is the content, or the error that a file cannot be read.
    """
    _, folders = package.without_folders(arguments)
    named = " ".join(argument.partition("=")[2] for argument in arguments)
    contents: dict[Path, dict[str, Any] | ConfigError] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*/*.yaml"))):
        try:
            contents[path] = content = read_yaml(dict[str, Any], path, ConfigError)
            named += f" {content.get('defaults', '')}"
        except ConfigError as error:
            contents[path] = error
    words = {*re.findall(r"[\w.-]+", named)}
    yield from ((path, content) for path, content in contents.items() if path.stem in words)


def without_print_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the flags that only print the configuration."""
    options, folders = package.without_folders(arguments)
    kept_arguments, rest = [f"--config-dir={folder}" for folder in folders], iter(options)
    for argument in rest:
        if argument in TAKE_A_VALUE:
            next(rest, "")
        elif not argument.lstrip("+~").startswith(("-", "hydra.", "hydra/")):
            kept_arguments.append(argument)
    return kept_arguments
