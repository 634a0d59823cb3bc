"""Search spaces in YAML files: finding, reading and validation."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

from hwnas.core import package
from hwnas.core.errors import SpaceError, unknown_name
from hwnas.core.schema import NumberBounds
from hwnas.core.typed_files import read_yaml
from hwnas.models.spaces.space import BLOCK, Option, SearchSpace, closest

_MAX_DEPTH = 1000  # blocks per stage
_MAX_NUMBER = 65536  # of channels, pixels and other sizes
#: For messages about entries that would describe several stages.
ONE_STAGE_EACH = (
    "Each stage has its own entries, such as stages.0.depth: [1, 2]. All networks of a file have "
    "the same stages: for one or two stages, write two files and search both with "
    "'search_space=[one.yaml,two.yaml]'."
)


def find(name: str) -> Path:
    """Return the file of a shipped space by name; a name that ends with ``.yaml`` is a path.

    Raises:
        SpaceError: if there is no such file.
    """
    if name.endswith((".yaml", ".yml")):
        if Path(name).is_file():
            return Path(name)
        several = f" Several spaces are a list: 'search_space=[{name}]'." if "," in name else ""
        raise SpaceError(f"search_space={name}: file not found. Correct the path.{several}")
    folder = package.ROOT / "search_spaces"
    if not (folder / f"{name}.yaml").is_file():
        raise SpaceError(
            unknown_name("search space", name, package.entries(folder))
            + " A path to a YAML file works too."
        )
    return folder / f"{name}.yaml"


def load_space(path: Path) -> SearchSpace:
    """Return the space of a YAML file; ``families.family_of`` checks it further.

    Raises:
        SpaceError: if the file cannot be read, or options, depths or conditions are invalid.
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
    """Check that a condition refers to existing choices and can be met."""
    names = [name for name in space.choices if name.rpartition(".")[2] == key]
    if not names:
        raise SpaceError(
            f"{path}: 'when' has a condition for '{key}', but there is no choice '{key}'. Remove "
            "the condition, or add the choice."
        )
    for other, allowed in needs.items():
        subject = f"{path}: when: '{key}' depends on '{other}'"
        if other in space.when:
            raise SpaceError(
                f"{subject}, which has a condition, too. Let '{key}' depend on "
                f"{' and '.join(map(repr, space.when[other]))} instead."
            )
        possible: set[Option] = set()
        for name in names:
            source = closest({*space.names}, name.rpartition(".")[0], other)
            if source is None:
                continue
            if not {*space.options(source)} & {*allowed}:
                raise SpaceError(
                    f"{subject}, but '{source}' is never {' or '.join(map(str, allowed))}: "
                    f"'{name}' would have no effect. Remove '{name}', or add one of these options "
                    f"to '{source}'."
                )
            possible |= {*space.options(source)}
        if not possible:
            raise SpaceError(
                f"{subject}, but '{other}' is not defined for any '{key}'. Define it in 'choices' "
                "or 'fixed', or remove the condition."
            )
        if strange := [option for option in allowed if option not in possible]:
            raise SpaceError(
                f"{subject}: {unknown_name(other, str(strange[0]), map(str, possible))}"
            )


class SpaceFile(TypedDict):
    """The content of the file of a search space."""

    family: str  #: family of the networks
    #: options of each choice, the smallest network's first
    choices: Annotated[
        dict[str, Annotated[list[Option], NumberBounds(1, 1000)]], NumberBounds(1, 10_000)
    ]
    #: values of names that do not vary
    fixed: NotRequired[Annotated[dict[str, Option], NumberBounds(maximum=10_000)] | None]
    #: conditions: for a key such as expansion, the options of other keys with which it is active
    when: NotRequired[dict[str, dict[str, Annotated[list[Option], NumberBounds(1, 1000)]]] | None]


def _read(path: Path) -> SpaceFile:
    """Return the content of the file of a space."""
    try:
        return read_yaml(SpaceFile, path, SpaceError)
    except FileNotFoundError:
        raise SpaceError(f"search_space={path}: file not found. Correct the path.") from None
    except SpaceError as error:
        if "depth" in str(error) or "stages" in str(error):
            raise SpaceError(f"{error} {ONE_STAGE_EACH}") from None
        raise


def _check_sizes(path: Path, name: str, options: Iterable[Option]) -> None:
    """Check the sizes of options before anything of that size is created."""
    maximum = _MAX_DEPTH if name.rpartition(".")[2] == "depth" else _MAX_NUMBER
    for option in options:
        if not isinstance(option, str) and not abs(option) <= maximum:
            bound = f"at least {-maximum}" if option < 0 else f"at most {maximum}"
            raise SpaceError(f"{path}: '{name}' is {option:g}; allowed: {bound}.")


def _check_options(path: Path, name: str, options: list[Option]) -> None:
    subject = f"{path}: choice '{name}'"
    if len({type(o) for o in options}) > 1:
        raise SpaceError(
            f"{subject}: options must be of one type, got {options!r}. Write all as text, as whole "
            "numbers, or with a decimal point."
        )
    if len(set(options)) < len(options):
        raise SpaceError(f"{subject}: an option occurs twice in {options!r}. Remove it once.")
    falls = name.rpartition(".")[2] == "stride"  # the first option is the smallest network's
    if not isinstance(options[0], str) and sorted(options, reverse=falls) != options:
        order = "descend: a larger stride computes less" if falls else "ascend"
        raise SpaceError(f"{subject}: options must {order}; got {options!r}.")


def _check_depths(path: Path, space: SearchSpace) -> None:
    """Check that the depth of each stage covers all its blocks."""
    known = {*space.names}
    indices: dict[str, set[int]] = {}
    for name in known:
        if match := BLOCK.fullmatch(name):
            indices.setdefault(match["stage"], set()).add(int(match["index"]))
    surplus = list[str]()
    for stage, present in sorted(indices.items()):
        depth = f"{stage}.depth"
        if depth not in known:
            raise SpaceError(
                f"{path}: '{stage}' has blocks but no '{depth}'. Add its numbers of blocks."
            )
        if not all(isinstance(value, int) for value in space.options(depth)):
            raise SpaceError(
                f"{path}: '{depth}' must be whole numbers, got {list(space.options(depth))}."
            )
        deepest = max(int(value) for value in space.options(depth))
        if beyond := sorted(present - set(range(deepest))):
            entries = ", ".join(f"{stage}.blocks.{index}.*" for index in beyond)
            surplus.append(f"{entries} ({depth} is at most {deepest})")
    if surplus:
        raise SpaceError(
            f"{path}: blocks beyond the largest depth of their stage: {'; '.join(surplus)}. Remove "
            "these entries, or add a larger depth."
        )
