"""Pages of verbs: their options with type, range, default and description."""

import types
import typing
from collections.abc import Iterator
from typing import Any

from text import code, page, plain, sentence, table

from hwnas.cli import help as command_help
from hwnas.cli import help_texts
from hwnas.cli.help_texts import VERBS
from hwnas.core.options import Option, allowed_range, iter_options, option_sentences
from hwnas.tasks import metrics
from hwnas.workflows.config import SCHEMAS

_TYPES = {str: "text", int: "int", float: "number", bool: "true or false", Any: "text, or a list"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of each verb, and the list of verbs."""
    for verb in help_texts.VERBS:
        yield f"reference/cli/{verb}.md", _page(verb)
    yield (
        "reference/cli/tabular.md",
        page("hwnas search accuracy=table", _TABULAR, *_sections("tabular", SCHEMAS["tabular"])),
    )
    rows = [(f"{{doc}}`{verb} <cli/{verb}>`", sentence(text)) for verb, text in VERBS.items()]
    rows.insert(1, ("{doc}`search accuracy=table <cli/tabular>`", "Search in a benchmark table."))
    yield "reference/cli.md", page("Command line", _INTRODUCTION, table(("Verb", ""), rows), _REST)


def _page(verb: str) -> str:
    lines = "\n".join(f"hwnas {example}" for example in help_texts.EXAMPLES[verb])
    options = _sections(verb, SCHEMAS[verb]) if verb in SCHEMAS else ()
    return page(
        f"hwnas {verb}",
        f"```text\nhwnas {verb} {help_texts.USAGE[verb]}\n```",
        plain(help_texts.ABOUT.get(verb, sentence(VERBS[verb]))),
        f"```sh\n{lines}\n```",
        _OF_SEARCH if verb == "resume" else "",
        *options,
    )


_OF_SEARCH = "Options are those of {doc}`search`; what decides the outcome cannot change."
_INTRODUCTION = """\
`hwnas VERB OPTION=VALUE ...` runs one verb. `python -m hwnas` is the same.
`hwnas VERB --help` prints the common options of a verb, `hwnas VERB --help all` all of them, and
`hwnas VERB --help train` those of one section. The pages below have all options."""
_REST = """\
```{toctree}
:hidden:
:glob:
cli/*
```

## How values are written

- Paths, names, ids and URLs are taken literally, whatever characters they contain. A value in
  quotes is the text inside the quotes. `null` is no value.
- `[A,B]` is a list, where an option takes several values. An element with a comma needs quotes.
- `{NAME: VALUE}` is a mapping, for example `'objectives={accuracy: max, latency_ms: min}'`. Quote
  it for the shell.
- What a verb works on needs no name: `hwnas export RUN`, `hwnas compare RUN RUN`,
  `hwnas why RUN ID`.
- Limits may have units: `budget.latency=0.5ms`, `budget.flash=100KB`.
- `+target=NAME` has a plus sign, because a search has no default target.
- `--config-dir DIR` adds a folder with your own files: `DIR/target/NAME.yaml`,
  `DIR/budget/NAME.yaml`, `DIR/dataset/NAME.yaml`.
- `--all` makes `search` list all verified networks, not only those on the front.
- `json=true` prints the result of a verb as one JSON document for scripts; messages go to stderr.
- `-m` (multirun) runs one command for each combination of values with commas:
  `hwnas search -m +target=npu sampler=pareto,nsga2 seed=0,1,2`. Run folders are in
  `runs/multirun/TIME/NUMBER`.
- `--cfg job` prints the complete configuration and runs nothing. The configuration is
  [Hydra's](https://hydra.cc).

## In Python

Every option is a keyword of the Python functions: `train__epochs=3`, `train={"epochs": 3}` and
`**{"train.epochs": 3}` are the same. See {doc}`python/index`."""
_TABULAR = (
    "Search in a benchmark table: a Parquet or CSV file with the accuracy and the costs of every "
    "network of a search space. Nothing is trained or compiled. The last line of the output is the "
    "fraction of the exact front's hypervolume that was found."
)


def _sections(verb: str, schema: type) -> Iterator[str]:
    """Yield a heading and a table for each section of options."""
    defaults, sentences = command_help.values(verb), option_sentences(schema)
    data = command_help.default_groups(verb).get("dataset")
    of_data = {} if data is None else command_help.group_values("dataset", data)
    where = {name: f" with `dataset={data}`" for name in of_data if name != "dataset.name"}
    sections: dict[str, list[Option]] = {"": []}
    for option in iter_options(schema):
        sections.setdefault(option.name.rpartition(".")[0], []).append(option)
    for name, options in sorted(sections.items(), key=lambda section: _is_of_target(section[0])):
        rows = [
            _row(option, defaults, sentences, where.get(option.name, ""))
            for option in options
            if option.name != "budget"
        ]
        if not rows:
            continue
        yield f"## `{name}.*`" if name else "## General options"
        if name:
            yield sentence(sentences.get(name, ""))
        yield table(("Option", "Type and range", "Default", "Meaning"), rows)
        if not name and "budget" in sentences:
            yield _budget(defaults.get("budget.name"))


def _is_of_target(section: str) -> bool:
    """Return whether options describe a target; they come last, because few users set them."""
    return section.partition(".")[0] in ("target", "rpc", "timing", "tuning", "table")


def _row(
    option: Option, defaults: dict[str, Any], sentences: dict[str, str], where: str
) -> tuple[str, str, str, str]:
    allowed = allowed_range(option.field)
    kind = type_name(option.hint) + (f" in {allowed}" if allowed else "")
    default = defaults.get(option.name, option.default)
    if isinstance(default, str) and default.startswith("${"):  # derived from other options
        default = option.default
    default = "" if default in ("???", None) else default
    shown = code(default) + (where if default != option.default else "")
    return f"`{option.name}`", kind, shown, sentence(sentences[option.name])


def _budget(default: str | None) -> str:
    names = ", ".join(f"`budget.{name}`" for name in metrics.cost_names())
    start = f"`budget=NAME` chooses a budget (default: `{default}`)" if default else "`budget=NAME`"
    return (
        f"{start}; see {{doc}}`../budgets`. Single limits, in the unit of the name: {names}. "
        "`budget.NAME=null` removes a limit."
    )


def type_name(hint: Any) -> str:
    """Return the name of an option's type as users write values."""
    arguments = [a for a in typing.get_args(hint) if a is not types.NoneType]
    if typing.get_origin(hint) is list:
        return f"list of {type_name(arguments[0])}"
    if typing.get_origin(hint) is dict:
        return f"mapping to {type_name(arguments[1])}"
    if isinstance(hint, types.UnionType):
        return " or ".join(map(type_name, arguments))
    return _TYPES[hint]
