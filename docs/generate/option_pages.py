"""Pages of verbs: their options with type, range, default and description."""

import types
import typing
from collections.abc import Iterator
from typing import Any

from text import code, page, plain, sentence, table

from hwnas.cli import help as command_help
from hwnas.cli import help_texts
from hwnas.core.options import Option, allowed_range, iter_options
from hwnas.tasks import metrics
from hwnas.workflows.config import SCHEMAS
from hwnas.workflows.config.option_sentences import option_sentences

_TYPES = {str: "text", int: "int", float: "number", bool: "true or false", Any: "text, or a list"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of each verb."""
    for verb, schema in SCHEMAS.items():
        yield f"reference/cli/{verb}.md", _page(verb, schema)


def _page(verb: str, schema: type) -> str:
    if verb == "tabular":
        title, about, lines = "hwnas search accuracy=table", _TABULAR, ""
    else:
        title, about = f"hwnas {verb}", " ".join(help_texts.ABOUT[verb])
        lines = "\n".join(f"hwnas {example}" for example in help_texts.EXAMPLES[verb])
    return page(
        title,
        plain(about),
        f"```sh\n{lines}\n```" if lines else "",
        *_sections(verb, schema),
    )


_TABULAR = (
    "Search in a benchmark table: a Parquet or CSV file with the accuracy and the costs of every "
    "network of a search space. Nothing is trained or compiled. The last line of the output is the "
    "fraction of the exact front's hypervolume that was found."
)


def _sections(verb: str, schema: type) -> Iterator[str]:
    """Yield a heading and a table for each section of options."""
    defaults, sentences = command_help.values(verb), option_sentences(schema)
    sections: dict[str, list[Option]] = {"": []}
    for option in iter_options(schema):
        sections.setdefault(option.name.rpartition(".")[0], []).append(option)
    for name, options in sorted(sections.items(), key=lambda section: _is_of_target(section[0])):
        rows = [_row(option, defaults, sentences) for option in options if option.name != "budget"]
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
    option: Option, defaults: dict[str, Any], sentences: dict[str, str]
) -> tuple[str, str, str, str]:
    allowed = allowed_range(option.field)
    kind = type_name(option.hint) + (f" in {allowed}" if allowed else "")
    default = defaults.get(option.name, option.default)
    default = "" if default in ("???", None) else default
    return f"`{option.name}`", kind, code(default), sentence(sentences[option.name])


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
