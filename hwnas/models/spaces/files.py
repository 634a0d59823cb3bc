"""Search spaces as YAML files: where they are, and what they must not contradict."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

from hwnas.core import package
from hwnas.core.errors import SpaceError, unknown_name
from hwnas.core.schema import NumberBounds
from hwnas.core.typed_files import read_yaml
from hwnas.models.spaces.space import BLOCK, Option, SearchSpace, closest

_DEEPEST = 1000  # blocks of a stage
_LARGEST = 65536  # channels, pixels and whatever else options count


def find(name: str) -> Path:
    """Return the file of a space that ships with hwnas, or of a path to a YAML file.

    Raises:
        SpaceError: there is none.
    """
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise SpaceError(f"search_space={name}: there is no such file.")
        return Path(name)
    folder = package.ROOT / "search_spaces"
    if not (folder / f"{name}.yaml").is_file():
        raise SpaceError(
            unknown_name("search space", name, package.entries(folder))
            + " A path to a YAML file works too."
        )
    return folder / f"{name}.yaml"


def load_space(path: Path) -> SearchSpace:
    """Read a space from YAML and check that it does not contradict itself.

    What only the family can judge (missing stages, even kernels) the family checks.

    Raises:
        SpaceError: with the file, the key and what is allowed.
    """
    raw = _read(path)
    choices, fixed = raw["choices"], raw.get("fixed") or {}
    for name, options in choices.items():
        _check_options(path, name, options)
        _check_sizes(path, name, options)
    for name, value in fixed.items():
        if name in choices:
            raise SpaceError(f"{path}: '{name}' is both a choice and fixed; keep one of them.")
        _check_sizes(path, name, [value])
    every = {name: tuple(options) for name, options in choices.items()}
    when = {
        key: {other: tuple(allowed) for other, allowed in needs.items()}
        for key, needs in (raw.get("when") or {}).items()
    }
    space = SearchSpace(path.stem, raw["family"], every, fixed, when)
    _check_depths(path, space)
    for key, needs in when.items():
        _check_when(path, space, key, needs)
    return space


def _check_when(
    path: Path, space: SearchSpace, key: str, needs: Mapping[str, tuple[Option, ...]]
) -> None:
    """Refuse conditions of choices that do not exist, or that can never or always hold."""
    names = [name for name in space.choices if name.rpartition(".")[2] == key]
    if not names:
        raise SpaceError(f"{path}: when: there is no choice of '{key}'.")
    for other, allowed in needs.items():
        where = f"{path}: when: '{key}' depends on '{other}'"
        if other in space.when:
            raise SpaceError(f"{where}, which depends on something itself; name that instead.")
        possible: set[Option] = set()
        for name in names:
            found = closest({*space.choices, *space.fixed}, name.rpartition(".")[0], other)
            if found is None:
                continue
            if not {*space.options(found)} & {*allowed}:
                raise SpaceError(
                    f"{where}, but '{found}' is never {' or '.join(map(str, allowed))}: "
                    f"'{name}' would have no effect."
                )
            possible |= {*space.options(found)}
        if not possible:
            raise SpaceError(f"{where}, but nothing says '{other}' for any '{key}'.")
        if strange := [option for option in allowed if option not in possible]:
            raise SpaceError(f"{where}: {unknown_name(other, str(strange[0]), map(str, possible))}")


class _SpaceFile(TypedDict):
    family: str
    choices: Annotated[
        dict[str, Annotated[list[Option], NumberBounds(1, 1000)]], NumberBounds(1, 10_000)
    ]
    fixed: NotRequired[Annotated[dict[str, Option], NumberBounds(maximum=10_000)] | None]
    when: NotRequired[dict[str, dict[str, Annotated[list[Option], NumberBounds(1, 1000)]]] | None]


def _read(path: Path) -> _SpaceFile:
    """Return the content of a space's file, with all its keys in their place."""
    try:
        return read_yaml(_SpaceFile, path, SpaceError)
    except FileNotFoundError:
        raise SpaceError(f"search_space={path}: there is no such file.") from None


def _check_sizes(path: Path, name: str, options: Iterable[Option]) -> None:
    """Refuse numbers that no network has, before anything of that size is made."""
    most = _DEEPEST if name.rpartition(".")[2] == "depth" else _LARGEST
    for option in options:
        if not isinstance(option, str) and not abs(option) <= most:
            raise SpaceError(f"{path}: '{name}' is {option:g}; allowed: at most {most}.")


def _check_options(path: Path, name: str, options: list[Option]) -> None:
    where = f"{path}: choice '{name}'"
    if len({type(o) for o in options}) > 1 or len(set(options)) < len(options):
        raise SpaceError(f"{where}: options must be different and of one type, got {options!r}.")
    falls = name.rpartition(".")[2] == "stride"  # the first option is the smallest network's
    if not isinstance(options[0], str) and sorted(options, reverse=falls) != options:
        order = "descend: a larger stride computes less" if falls else "ascend"
        raise SpaceError(f"{where}: options must {order}; got {options!r}.")


def _check_depths(path: Path, space: SearchSpace) -> None:
    """Refuse blocks that no depth reaches; which a family needs, it says itself."""
    known = {*space.choices, *space.fixed}
    indices: dict[str, set[int]] = {}
    for name in known:
        if match := BLOCK.fullmatch(name):
            indices.setdefault(match["stage"], set()).add(int(match["index"]))
    for stage, present in indices.items():
        depth = f"{stage}.depth"
        if depth not in known:
            raise SpaceError(f"{path}: '{stage}' has blocks but no '{depth}'.")
        if not all(isinstance(value, int) for value in space.options(depth)):
            raise SpaceError(f"{path}: '{depth}' must be whole numbers.")
        deepest = max(int(value) for value in space.options(depth))
        if beyond := present - set(range(deepest)):
            raise SpaceError(
                f"{path}: '{depth}' goes to {deepest}, but '{stage}' has a block {max(beyond)}; "
                f"allowed: 0 to {deepest - 1}."
            )
