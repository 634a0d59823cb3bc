"""Output of ``hwnas list KIND [NAME]`` and ``hwnas --version``."""

import os
import platform
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path

import yaml

from hwnas.core import machine, package
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.hardware import backends
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import limit_units, short_name

_WIDTH = 80


def catalog(words: Sequence[str]) -> str:
    """Return the text of ``hwnas list``: the kinds, the names of a kind, or details of a name.

    Args:
        words: The words after ``list``: none, a kind, or a kind and a name; and ``--config-dir
            DIR``, whose files are listed, too.

    Raises:
        ConfigError: the kind, the name or the folder is unknown.
    """
    words, folders = package.without_folders(words)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir={folder}: no such folder. Correct the path.")
    token = _FOLDERS.set((package.ROOT / "conf", *folders))
    try:
        return _catalog(words)
    finally:
        _FOLDERS.reset(token)


def _catalog(words: Sequence[str]) -> str:
    if not words:
        return "\n".join(["usage: hwnas list KIND [NAME]", "", f"kinds: {', '.join(_KINDS)}"])
    kind, *rest = words
    if kind not in _KINDS:
        raise ConfigError(unknown_name("kind", kind, _KINDS))
    names, details, footer = _KINDS[kind]
    known = names()
    if not rest:
        return "\n".join([*_name_lines(known), "", footer or _space_footer()])
    if rest[0] not in known:
        raise ConfigError(unknown_name(kind.removesuffix("s"), rest[0], known))
    return "\n".join(details(rest[0]))


def names_of(kind: str) -> list[str]:
    """Return the names of a kind, for example the names of all ``targets``.

    Raises:
        KeyError: ``kind`` is not one of ``kinds()``.
    """
    return [*_KINDS[kind][0]()]


def kinds() -> list[str]:
    """Return the kinds of names that ``hwnas list`` has: ``targets``, ``budgets``, ..."""
    return [*_KINDS]


def _name_lines(entries: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of names with their descriptions."""
    column = min(22, max(map(len, entries)) + 2)
    for name, text in entries.items():
        lines = textwrap.wrap(text, _WIDTH - column) or [""]
        first, rest = (lines[0], lines[1:]) if len(name) < column - 1 else ("", lines)
        yield f"{name:<{column}}{first}".rstrip()
        yield from (" " * column + line for line in rest)


# Configuration files: targets, budgets, data sets, samplers.


#: Folders of configuration files.
_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("_FOLDERS", default=(package.ROOT / "conf",))


def _files_of(group: str) -> Callable[[], dict[str, str]]:
    def found() -> dict[str, str]:
        folder_entries = [package.entries(folder / group) for folder in _FOLDERS.get()]
        return {name: text for entries in folder_entries for name, text in entries.items()}

    return found


def _content_of(group: str) -> Callable[[str], Iterator[str]]:
    def lines(name: str) -> Iterator[str]:
        option = f"+{group}" if group == "target" else group
        yield f"# {option}={name}"
        paths = [folder / group / f"{name}.yaml" for folder in _FOLDERS.get()]
        yield from _text(next(path for path in paths if path.is_file()))

    return lines


def _text(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


# Search spaces.

#: Descriptions of choices by the last part of their names.
_CHOICES = {
    "resolution": "height and width of the images, in pixels",
    "width": "number of output channels",
    "depth": "number of blocks of the stage",
    "kernel": "size of the square window, in pixels",
    "expansion": "inner channels as a multiple of the channels around them",
    "stride": "step of the window in the first block of the stage, in pixels",
    "weight_bits": "bits per weight",
    "kind": "kind of block",
    "block": "kind of block",
    "pool": "1: max pooling of 3x3 pixels after the first convolution; 0: none",
    "width_multiplier": "factor of all widths",
    "se": "squeeze-and-excitation: fraction of the channels",
    "activation": "activation function",
    "heads": "number of attention heads",
    "patch": "size of a patch, in pixels",
    "embedding": "length of a token",
    "head_width": "length of the query of a head",
    "at": "stage after which the exit is",
    "mlp_ratio": "inner width of the MLP as a multiple of the embedding",
    "precision": "dtype of the operators",
}


def _space_files() -> dict[str, Path]:
    root = package.ROOT / "search_spaces"
    paths = [*sorted(root.glob("*.yaml")), *sorted(root.glob("*/*.yaml"))]
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in paths}


def _spaces() -> dict[str, str]:
    texts = {name: package.entries(path.parent)[path.stem] for name, path in _space_files().items()}
    folders = {name.partition("/")[0] for name in texts if "/" in name}
    return texts | {name: f"all spaces of {name}/" for name in sorted(folders)}


def _space(name: str) -> Iterator[str]:
    """Yield the YAML of a space with a comment on each choice, to start from."""
    path = _space_files().get(name)
    if path is None:
        yield from (f"search_space={n}" for n in _space_files() if n.startswith(f"{name}/"))
        return
    yield f"# search_space={name}. To make a space of your own, copy this file, change it,"
    yield "# and search with search_space=my_space.yaml. Under choices: the options of each"
    yield "# network. Under fixed: values that all networks have."
    yield "#"
    described: set[str] = set()
    for line in _text(path):
        key = re.match(r"  (?:[\w.]+\.)?(\w+):", line)
        text = _CHOICES.get(key[1], "") if key else ""
        if key and text and key[1] not in described and "#" not in line:
            described.add(key[1])
            line = f"{line}  # {text}"
        yield line


def _space_footer() -> str:
    targets: dict[str, list[str]] = {}
    for path in sorted((package.ROOT / "conf" / "target").glob("*.yaml")):
        spaces = yaml.safe_load(path.read_text(encoding="utf-8")).get("spaces") or ["mbconv_small"]
        targets.setdefault(", ".join(spaces), []).append(path.stem)
    defaults = "; ".join(f"{spaces} ({', '.join(users)})" for spaces, users in targets.items())
    return _paragraphs(
        f"Defaults of targets: {defaults}.",
        "Several: search_space='[A,B]'. A file: search_space=my_space.yaml. To start from one: "
        "hwnas list spaces NAME > my_space.yaml",
    )


def _paragraphs(*texts: str) -> str:
    return "\n".join(line for text in texts for line in textwrap.wrap(text, _WIDTH))


# Metrics and backends.


def _metrics() -> dict[str, str]:
    return {name: ", ".join(_facts(name)) for name, metric in metrics.all_metrics().items()}


def _facts(name: str) -> Iterator[str]:
    metric = metrics.metric_of(name)
    yield metric.title
    if metric.maximise:
        yield "maximised"
    yield from (f"needs target.facts.{fact}" for fact in metric.facts)


def _metric(name: str) -> Iterator[str]:
    metric = metrics.metric_of(name)
    yield f"{name}: {metric.title}, {'maximised' if metric.maximise else 'minimised'}"
    if name in metrics.cost_names():
        yield f"  limit: budget.{name}=NUMBER ({'lower' if metric.maximise else 'upper'} limit)"
        if units := limit_units(name):
            yield f"         budget.{short_name(name)}=NUMBER with a unit: {', '.join(units)}"
        yield f"  objective: objectives=[accuracy,{name}]"
    if metric.derive is not None:
        yield f"  derived from: {', '.join(metric.needs)}"
    yield from (f"  target.facts.{fact}=NUMBER: {text}" for fact, text in metric.facts.items())


def _backends() -> dict[str, str]:
    return {d.name: f"{d.about} (cost={', '.join(d.costs)})" for d in backends.known()}


def _backend(name: str) -> Iterator[str]:
    backend = backends.get(name)
    yield f"target.runtime={backend.name}: {backend.about}"
    yield f"  cost models: {', '.join(backend.costs)} (the first is the default)"
    yield f"  dtypes: {', '.join(backend.dtypes)} (the first is the default)"
    yield f"  latencies: {'measured' if backend.measured else 'estimated or modelled'}"
    yield f"  remote devices: {'yes' if backend.remote else 'no'}"
    if backend.needs:
        missing = backends.lacking(backend.needs)
        yield f"  packages: {backend.install}" + (" (not installed)" if missing else " (installed)")
    for artefact in backend.artefacts:
        for text in artefact.about.values():
            yield f"  exports {artefact.name}: {text}"
    yield from (f"  hwnas {e}" for examples in backend.examples.values() for e in examples)


_Kind = tuple[Callable[[], dict[str, str]], Callable[[str], Iterator[str]], str]
_KINDS: dict[str, _Kind] = {
    "targets": (
        _files_of("target"), _content_of("target"),
        "Use: +target=NAME; several: '+target=[A,B]'. Details: hwnas list targets NAME.\n"
        "A target of your own: a file DIR/target/NAME.yaml, and --config-dir DIR.",
    ),
    "budgets": (
        _files_of("budget"), _content_of("budget"),
        "Use: budget=NAME. One limit: budget.latency=0.5ms budget.flash=100KB; the others\n"
        "of the budget stay. Details: hwnas list budgets NAME.",
    ),
    "datasets": (
        _files_of("dataset"), _content_of("dataset"),
        "Use: dataset=NAME. Own images: dataset=images dataset.path=DIR, with a folder\n"
        "for each class. Details: hwnas list datasets NAME.",
    ),
    "spaces": (_spaces, _space, ""),
    "metrics": (
        _metrics, _metric,
        "Use: objectives=[accuracy,latency_ms], and all but accuracy and mae as a limit:\n"
        "budget.latency=0.5ms. Details: hwnas list metrics NAME.",
    ),
    "samplers": (
        _files_of("sampler"), _content_of("sampler"),
        "Use: sampler=NAME. Details: hwnas list samplers NAME.",
    ),
    "backends": (
        _backends, _backend,
        "Use: target.runtime=NAME. Details: hwnas list backends NAME.",
    ),
}  # fmt: skip


# Versions.

_PACKAGES = (
    "torch", "optuna", "ethos-u-vela", "apache-tvm", "onnxruntime", "ai-edge-litert", "numpy",
)  # fmt: skip


def versions() -> str:
    """Return a text with the versions of hwnas and its packages, the system and the CPU."""
    rows = [(name, _version(name)) for name in _PACKAGES]
    cpu = re.search(r"model name=(.*?)(?: vendor_id=|$)", machine.describe()["cpu"])
    threads = len(os.sched_getaffinity(0))
    rows += [
        ("python", platform.python_version()),
        ("system", platform.platform()),
        ("cpu", f"{cpu[1] if cpu else platform.machine()}, {threads} threads"),
    ]
    return "\n".join([f"hwnas {package.__version__}", *(f"  {n:<16}{text}" for n, text in rows)])


def _version(name: str) -> str:
    try:
        return backends.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
