"""Shell completion of verbs, options, names and paths."""

import argparse
from collections.abc import Iterator, Sequence

import argcomplete.shell_integration
from argcomplete.completers import FilesCompleter

from hwnas.cli.catalog import kinds, names_of
from hwnas.cli.help_texts import VERBS
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import iter_options
from hwnas.tasks import metrics
from hwnas.workflows.config import SCHEMAS

_SHELLS = ("bash", "zsh", "fish")
#: Kinds of the names that are values of options.
_NAMES = {
    "target": "targets",
    "budget": "budgets",
    "dataset": "datasets",
    "sampler": "samplers",
    "search_space": "spaces",
    "target.runtime": "backends",
}


def completion_script(words: Sequence[str]) -> str:
    """Return the completion script of a shell.

    Args:
        words: The words after ``completion``; the first one is the shell.

    Raises:
        ConfigError: the shell is missing or unknown.
    """
    if not words:
        raise ConfigError("completion needs a shell: hwnas completion bash|zsh|fish.")
    shell = words[0]
    if shell not in _SHELLS:
        raise ConfigError(unknown_name("shell", shell, _SHELLS))
    script: str = argcomplete.shell_integration.shellcode(["hwnas"], shell=shell)
    return script


def complete() -> None:
    """Print the completions of the command line that a shell passes in ``COMP_LINE``, and exit."""
    parser = argparse.ArgumentParser(add_help=False)
    words = parser.add_argument("words", nargs="*")
    words.completer = _completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _completer(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    before = [word for word in parsed_args.words or [] if word != prefix]
    return [*completions(before, prefix)]


def completions(before: Sequence[str], prefix: str) -> Iterator[str]:
    """Yield the words that begin with ``prefix`` and may stand at the cursor.

    Args:
        before: The words of the command before the cursor, without ``hwnas``.
        prefix: The beginning of the word at the cursor.
    """
    verb = before[0] if before else ""
    key, sign, value = prefix.partition("=")
    if not verb:
        candidates: Sequence[str] = [*VERBS, "--help", "--version"]
    elif verb == "list":
        known = len(before) > 1 and before[1] in kinds()
        candidates = names_of(before[1]) if known else [] if len(before) > 1 else kinds()
    elif verb == "completion":
        candidates = _SHELLS
    elif sign:
        candidates = [f"{key}={name}" for name in _values(verb, key.lstrip("+"), value)]
    else:
        candidates = [*_options(verb), *FilesCompleter()(prefix)]
    yield from (word for word in candidates if word.startswith(prefix))


def _options(verb: str) -> Iterator[str]:
    names = [option.name for option in iter_options(SCHEMAS.get(verb, SCHEMAS["search"]))]
    groups = {name.partition(".")[0] for name in names} & {"dataset", "sampler", "budget"}
    groups |= {"task"} if "dataset.task" in names else set()
    names = [name for name in names if name not in _REPLACED]
    yield from (f"{name}=" for name in [*groups, *names, "json"])
    if "budget" in groups:
        yield from (f"budget.{name}=" for name in metrics.cost_names())
    if any(name == "target" or name.startswith("target.") for name in names):
        yield "+target="
    yield "--help"


_REPLACED = ("dataset.name", "sampler.name", "budget")


def _values(verb: str, key: str, value: str) -> Sequence[str]:
    if (group := key.removesuffix(".name")) in _NAMES:
        return names_of(_NAMES[group])
    option = next(
        (o for o in iter_options(SCHEMAS.get(verb, SCHEMAS["search"])) if o.name == key), None
    )
    if key == "json" or (option is not None and option.hint in (bool, bool | None)):
        return ["true", "false"]
    if option is not None and "str" in str(option.hint):
        files: list[str] = FilesCompleter()(value)
        return files
    return []
