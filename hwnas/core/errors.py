"""Errors that a user can cause and cure. Each becomes one line on stderr and an exit code."""

import difflib
from collections.abc import Iterable, Iterator, Sequence

_SHORT_LIST = 12
_MARGIN = 0.1  # of likeness, by which a name may be farther than the nearest to be meant, too


class HwnasError(Exception):
    """Something the user can mend: the message says what, where, what is allowed and the cure."""

    exit_code = 2
    shown = ""  #: lines that are printed as they are below the message


class ConfigError(HwnasError):
    """An option, a target, a budget or another setting is wrong."""


class SpaceError(HwnasError):
    """A search space or a genotype contradicts itself."""


class DataError(HwnasError):
    """A data set cannot be read as images with labels."""


class RunError(HwnasError):
    """A run folder cannot be used as asked."""


class LockedError(RunError):
    """Another process is working in a folder."""


class TrainingError(HwnasError):
    """Training went wrong in a way that more training does not cure."""


class CollapseError(TrainingError):
    """A network learned nothing, or forgot all that it had learned."""


class CompileError(HwnasError):
    """The target's compiler refuses a network."""


class DeviceError(HwnasError):
    """A device does not answer, or does not answer in time."""


class DeviceCrashError(DeviceError):
    """Devices answer, but again and again not with the one network that they were given."""


class TableError(HwnasError):
    """A latency table is missing, damaged, foreign or incomplete."""


class ProofError(HwnasError):
    """What was exported is not what its proof says."""

    exit_code = 1


class RunInterruptedError(HwnasError):
    """Ctrl-C ended a command that can be continued."""

    exit_code = 130


class BudgetError(HwnasError):
    """No candidate meets the budget."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence that refuses ``name`` and offers the nearest valid names, or all."""
    options = sorted(known)
    near = _near(name, options)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = f" Allowed: {', '.join(options)}." if options else " There is none."
    every = "" if near and len(options) > _SHORT_LIST else listed
    return f"Unknown {what} '{name}'.{hint}{every}"


def _near(name: str, options: Sequence[str]) -> list[str]:
    """Return the names that are nearly as like as the nearest one, which is like enough."""
    found = difflib.get_close_matches(name, options, n=3, cutoff=0.6)
    likeness = [difflib.SequenceMatcher(None, each, name).ratio() for each in found]
    return [each for each, r in zip(found, likeness, strict=True) if r > likeness[0] - _MARGIN]


def why(error: Exception) -> str:
    """Return in words why something failed: of the system the reason alone, else the first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.partition(". Detail")[0].partition(" '")[0]
    return (str(error).splitlines() or [type(error).__name__])[0]


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what caused it, what caused that, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
