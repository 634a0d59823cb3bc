"""Lists: metrics, targets, budgets, data sets, samplers, spaces, backends, exit codes."""

import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import columns
import yaml
from text import code, page, sentence, table

from hwnas.core import errors, package
from hwnas.core.options import field_comments
from hwnas.hardware import backends
from hwnas.hardware.target import Target
from hwnas.models.spaces.files import find, load_space
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import limit_units, short_name
from hwnas.workflows.config.compose import compose
from hwnas.workflows.config.search import SPACE


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of each list."""
    for name, text in {
        "metrics": _metrics(),
        "targets": _targets(),
        "budgets": _budgets(),
        "datasets": _datasets(),
        "samplers": _samplers(),
        "search-spaces": _spaces(),
        "backends": _backends(),
        "columns": columns.text(),
        "exit-codes": _exit_codes(),
    }.items():
        yield f"reference/{name}.md", text


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return content


def _files(group: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the first comment and the content of each file of a configuration group."""
    folder = package.ROOT / "conf" / group
    return {n: (text, _read(folder / f"{n}.yaml")) for n, text in package.entries(folder).items()}


def _metrics() -> str:
    rows, units = [], dict[str, str]()
    for name, metric in metrics.all_metrics().items():
        is_cost = name in metrics.cost_names()
        limit = f"`budget.{short_name(name)}`{' (lower limit)' if metric.maximise else ''}"
        needed = ", ".join(f"`{fact}`" for fact in metric.facts)
        kind = "derived" if metric.derive else "mean over images" if metric.mean_of else ""
        if is_cost and limit_units(name):
            units[metric.unit] = ", ".join(limit_units(name))
        rows.append(
            (
                f"`{name}`",
                metric.title,
                "maximised" if metric.maximise else "minimised",
                limit if is_cost else "",
                ", ".join(filter(None, [kind, needed and f"needs {needed}"])),
            )
        )
    facts = [
        (f"`target.facts.{fact}`", sentence(text), f"`{metric.name}`")
        for metric in metrics.all_metrics().values()
        for fact, text in metric.facts.items()
    ]
    return page(
        "Metrics",
        "A metric is an objective (`objectives=[accuracy,latency_ms]`) and a column of files. A "
        "cost is also a limit (`budget.latency_ms=0.5`). Its name ends with its unit.",
        table(("Name", "Meaning", "Direction", "Limit", "Remarks"), rows),
        "## Units of limits",
        "A limit has a unit (`budget.latency=0.5ms`), or the name ends with it "
        "(`budget.latency_ms=0.5`).",
        table(("Unit of the metric", "Allowed"), units.items()),
        "Costs are those of one inference, that is of `target.batch` images. `macs_m` counts one "
        "image. Every figure has a source and, if known, a 95 % interval: see {doc}`columns`.",
        "## Facts of a target",
        "Some metrics are derived from facts that only you know. Set them in the target file or on "
        "the command line. They count as exact.",
        table(("Fact", "Meaning", "Metric"), facts),
        "A Python package adds a metric by an entry point in the group `hwnas.metrics`: see "
        "{doc}`extension-points`.",
    )


def _targets() -> str:
    names = package.entries(package.ROOT / "conf" / "target")
    files = {n: (text, compose("search", [f"+target={n}"]).target) for n, text in names.items()}
    rows = [
        (
            f"`{name}`",
            target.description,
            code(target.runtime),
            code(target.dtype),
            code(backends.get(target.runtime).costs[0]),
            ", ".join(map(code, target.spaces or [SPACE])),
        )
        for name, (_, target) in files.items()
    ]
    details = [
        part
        for name, (text, target) in files.items()
        for part in (
            f"## `{name}`",
            sentence(text),
            table(("Field", "Value"), _facts(target)),
        )
    ]
    return page(
        "Targets",
        "A target is a device with its compiler or runtime: `+target=NAME`. Targets are files in "
        "`conf/target/`. Add your own: {doc}`../how-to/own-board`. All fields are options "
        "(`target.threads=2`); {doc}`cli/search` describes them.",
        table(("Target", "Device", "Runtime", "dtype", "Default cost", "Default spaces"), rows),
        *details,
    )


def _facts(target: Target) -> Iterator[tuple[str, str]]:
    """Yield the facts of a target that are single values."""
    for name in ("device_class", "threads", "clock_mhz", "meter", "caveat", "source"):
        value = getattr(target, name)
        if value not in (None, "", "none"):
            yield f"`{name}`", value if name in ("caveat", "source") else code(value)


def _budgets() -> str:
    files = _files("budget")
    rows = [
        (
            f"`{name}`",
            sentence(text),
            ", ".join(
                f"`{limit}` {metrics.metric_of(limit).relation} {value:g}"
                for limit, value in content.items()
                if limit != "name"
            )
            or "no limits",
        )
        for name, (text, content) in files.items()
    ]
    return page(
        "Budgets",
        "A budget is a set of limits: `budget=NAME`. Change single limits with `budget.METRIC`, "
        "for example `budget=edge budget.latency_ms=0.3`. `budget.METRIC=null` removes a limit.",
        table(("Budget", "Meaning", "Limits"), rows),
        "A candidate meets a limit only if the upper bound of its 95 % interval does. See "
        "{doc}`../how-to/constraints`.",
    )


_SOURCES = {"images": "`dataset.path` or `dataset.hub_id`"}


def _datasets() -> str:
    rows, settings = [], []
    for name, (text, content) in _files("dataset").items():
        source = content["dataset"].get("hub_id", "")
        origin = f"Hugging Face hub: `{source}`" if source else _SOURCES.get(name, "embedded")
        rows.append((f"`{name}`", sentence(text), origin))
        flat = [f"`{key}={value}`" for key, value in _flat(content) if not key.endswith("hub_id")]
        settings.append((f"`{name}`", ", ".join(flat).lower()))
    return page(
        "Data sets",
        "`dataset=NAME` chooses a data set and the training schedule that suits it. "
        "`dataset=images` reads your own images: {doc}`../how-to/own-images`. `dataset.path=DIR` "
        "reads the Parquet files of those from the Hugging Face hub from a folder, without a "
        "network.",
        table(("Name", "Images", "Source"), rows),
        "## Settings",
        table(("Name", "Options that it sets"), settings),
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _samplers() -> str:
    rows = [(f"`{name}`", sentence(text)) for name, (text, _) in _files("sampler").items()]
    return page(
        "Samplers",
        "`sampler=NAME` chooses what proposes candidates. See {doc}`../explanation/samplers`.",
        table(("Sampler", "Algorithm"), rows),
    )


def _spaces() -> str:
    root = package.ROOT / "search_spaces"
    users: dict[str, list[str]] = {}
    for target, (_, content) in _files("target").items():
        for space in content.get("spaces") or [SPACE]:
            users.setdefault(space, []).append(f"`{target}`")
    rows = []
    for name, text in package.entries(root).items():
        space = load_space(find(name))
        pixels = space.options("resolution")
        rows.append(
            (
                f"`{name}`",
                sentence(text),
                f"`{space.family}`",
                f"{pixels[0]} to {pixels[-1]}",
                _size(space.choices),
                ", ".join(users.get(name, [])),
            )
        )
    folder = root / "baselines"
    baselines = [
        (f"`baselines/{name}`", sentence(text)) for name, text in package.entries(folder).items()
    ]
    return page(
        "Search spaces",
        "`search_space=NAME` chooses a search space; `search_space=FILE.yaml` reads your own "
        "({doc}`../how-to/own-search-space`), and `search_space='[A,B]'` searches several at once. "
        "Without it, a target has default spaces.",
        table(("Space", "Networks", "Family", "Pixels", "Combinations", "Default of"), rows),
        "Combinations count all options, also of blocks that a shallow stage does not have.",
        "## Hand-designed networks",
        "`search_space=baselines` searches all of them, as a baseline: `baseline=RUN`.",
        table(("Space", "Networks"), baselines),
    )


def _size(choices: Mapping[str, Any]) -> str:
    return f"{math.prod(len(options) for options in choices.values()):.2g}".replace("e+", "e")


def _backends() -> str:
    rows = [
        (
            f"`{d.name}`",
            sentence(d.about),
            ", ".join(map(code, d.dtypes)),
            ", ".join(map(code, d.costs)),
            f"`{d.install}`" if d.extra else "installed with hwnas" if d.needs else "",
        )
        for d in backends.known()
    ]
    sections = []
    for description in backends.known():
        if (settings := description.settings) is None:
            continue
        comments = field_comments(settings)
        fields = [
            (f"`target.{description.name}.{name}`", sentence(text))
            for name, text in comments.items()
            if not name.startswith("_")
        ]
        sections += [f"## `{description.name}`", table(("Option", "Meaning"), fields)]
    return page(
        "Backends",
        "`target.runtime` names the backend that compiles or runs networks. The first cost model "
        "is the default of `cost`; see {doc}`../explanation/cost-models`.",
        table(("Runtime", "Backend", "dtypes", "Cost models", "Installation"), rows),
        *sections,
    )


def _exit_codes() -> str:
    kinds = [
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.HwnasError) and error is not errors.HwnasError
    ]
    rows = [
        (f"`{kind.__name__}`", str(kind.exit_code), sentence(inspect.getdoc(kind) or ""))
        for kind in sorted(kinds, key=lambda kind: (kind.exit_code, kind.__name__))
    ]
    return page(
        "Exit codes",
        table(
            ("Code", "Meaning"),
            [
                ("0", "The command succeeded."),
                ("1", "An export does not match its proof. The folder is kept as `ID.failed`."),
                ("2", "Something that you can fix: one line on stderr says what, and how."),
                (
                    "130",
                    "Ctrl-C or SIGTERM. Nothing is lost; the message says how to continue.",
                ),
                ("141", "The reader of the output was closed, for example `| head`."),
            ],
        ),
        "In Python each of these is an exception derived from `hwnas.HwnasError`:",
        table(("Exception", "Exit code", "Meaning"), rows),
    )
