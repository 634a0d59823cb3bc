"""Errors that a user can cause and fix. Each becomes one line on stderr and an exit code."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

_SHORT_LIST = 12
_MARGIN = 0.1  # in similarity: how much worse than the best match a suggestion may be


class HwnasError(Exception):
    """A problem that the user can fix; the message says what is wrong, what is allowed and how."""

    exit_code = 2  #: exit code of the command that ends with this error


class ConfigError(HwnasError):
    """An option, target, budget or other setting is invalid."""


class SpaceError(HwnasError):
    """A search space or a genotype is invalid."""


class DataError(HwnasError):
    """A data set cannot be read as images with targets."""


class RunError(HwnasError):
    """A run folder cannot be used for the requested operation."""


class LockedError(RunError):
    """Another process has locked the folder."""


class TrainingError(HwnasError):
    """Training failed, and more training would not help."""


class CollapseError(TrainingError):
    """Training diverged (NaN or infinity), or a network stayed at or fell back to chance level."""


class CompileError(HwnasError):
    """The compiler of the target rejected a network."""


class DeviceError(HwnasError):
    """A device does not respond in time."""


class DeviceCrashError(DeviceError):
    """Devices respond, but one network makes them fail repeatedly."""


class TableError(HwnasError):
    """A latency table is missing, corrupt, incomplete or from another machine."""


class ProofError(HwnasError):
    """An export does not match its proof."""

    exit_code = 1


class RunInterruptedError(HwnasError):
    """Ctrl-C ended a command that can be resumed."""

    exit_code = 130


class BudgetError(HwnasError):
    """No candidate meets the budget."""


class UnfinishedError(BudgetError):
    """A time limit ended before the first result; the run is kept and can be resumed."""


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Return the message ``Unknown KIND 'NAME'.`` with up to three similar allowed names.

    It lists all allowed names if there are at most 12, or if none is similar, and says if there
    are none.
    """
    options = sorted(allowed)
    near = _closest_names(name, options)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = f" Allowed: {', '.join(options)}." if options else " None exists."
    every = "" if near and len(options) > _SHORT_LIST else listed
    return f"Unknown {kind} '{name}'.{hint}{every}"


def _closest_names(name: str, options: Sequence[str]) -> list[str]:
    """Return the most similar names: those nearly as similar as the best match."""
    if same := [option for option in options if option.casefold() == name.casefold()]:
        return same
    matches = difflib.get_close_matches(name, options, n=3, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, match, name).ratio() for match in matches]
    return [match for match, r in zip(matches, ratios, strict=True) if r > ratios[0] - _MARGIN]


#: Control characters, but tab and newline, and signs that change the direction of text.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return a text for a terminal: control and direction characters are escaped, as ``\x1b``."""
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 network`` or ``1,024 networks``."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def short_reason(error: Exception) -> str:
    """Return the reason of an error as one line.

    It is the operating system's text of an ``OSError``, else the first line of the message, else
    the name of the class.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.partition(". Detail")[0].partition(" '")[0]
    return (str(error).splitlines() or [type(error).__name__])[0]


def last_line(error: Exception) -> str:
    """Return the last line of an error's message, cut to 300 characters.

    Without a message, it is the name of the error's class.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then its cause or context, then the cause of that, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
