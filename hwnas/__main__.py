"""``hwnas <verb>``: help, and verbs whose errors become one line."""

import errno
import os
import signal
import sys
from collections.abc import Sequence

from hwnas.core.errors import ConfigError, HwnasError, cause_chain, unknown_name
from hwnas.core.package import __version__

VERBS = {
    "search": "find, verify and report a Pareto front of networks for a target",
    "train": "train the supernet of a search space, or one network of it alone",
    "profile": "measure a target's latency table, and say how wrong it is",
    "audit": "say whether a search's supernet ranks networks as training them alone does",
    "why": "say when and why a search proposed a candidate, what it beat and what beats it",
    "compare": "compare fronts: indicators with intervals, tests over seeds, tables, figures",
    "export": "write models of a front as files for the device, with a proof of what they do",
    "compress": "fit a network of a search into another budget: fewer bits, fewer channels",
    "verify": "repeat the proof of an export with the runtimes at hand",
    "split": "cut the network of an export in two, and time both parts on targets",
    "plan": "choose models, devices and replicas for a service, from fronts to a fleet",
    "simulate": "simulate a plan: latencies, failures, cost and energy, over several seeds",
    "replan": "change a plan by telemetry: what nothing changed stays, and little is moved",
    "serve-check": "hold simulated latencies against those of a real server of this machine",
}
_CONTINUE = {
    "search": "run.resume=<run folder>",
    "train": "the same command",
    "profile": "the same command",
    "audit": "the same command",
    "why": "the same command",
    "compare": "the same command",
    "export": "the same command",
    "compress": "the same command",
    "verify": "the same command",
    "split": "the same command",
    "plan": "the same command",
    "simulate": "the same command",
    "replan": "the same command",
    "serve-check": "the same command",
}
_INTERRUPTED = 130  #: exit code after Ctrl-C and SIGTERM, as shells have it for Ctrl-C
_CLOSED = 141  #: exit code of a command whose output is no longer read, as shells have it
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
#: How libraries that raise errors of their own say that there is no space: SQLite, safetensors.
_FULL = (
    "database or disk is full", "disk I/O error", "unable to open database file",
    "No space left on device", "File too large",
)  # fmt: skip


def main() -> None:
    """Run one verb and exit with its code."""
    from hwnas.core.processes import interrupt_on_signals

    interrupt_on_signals()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # who read the output has seen enough: ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at exit
        code = _CLOSED
    if code == _INTERRUPTED:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the process is ending
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one verb; return the exit code: 0, 2 for what the user can mend, 130 if interrupted.

    It is 1 where an export is not what its proof says.
    """
    from hwnas.cli.help import overview

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview(VERBS))
        return 0
    if arguments[0] == "--version":
        print(f"hwnas {__version__}")
        return 0
    try:
        _run_verb(arguments[0], arguments[1:])
    except HwnasError as error:
        return _refuse(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _refuse(
            f"Interrupted; nothing is lost: {_CONTINUE[arguments[0]]} continues.", _INTERRUPTED
        )
    except Exception as error:
        if (message := _place_problem(error, arguments)) is None:
            raise
        return _refuse(message, 2)
    return 0


def _refuse(message: str, code: int) -> int:
    print(f"hwnas: {' '.join(message.split())}", file=sys.stderr)
    return code


def _run_verb(verb: str, arguments: Sequence[str]) -> None:
    if verb not in VERBS:
        raise ConfigError(unknown_name("verb", verb, VERBS))
    if {"-h", "--help"} & {*arguments}:
        from hwnas.cli.help import verb_help
        from hwnas.workflows.config import SCHEMAS

        print(verb_help(verb, SCHEMAS[verb]))
        return
    from hwnas.cli.dispatch import run_verb  # and with it Hydra, which help does without

    run_verb(verb, arguments)


def _place_problem(error: Exception, arguments: Sequence[str]) -> str | None:
    """Return a sentence if a file or folder cannot be read or written, else ``None``."""
    cure = f"{_CONTINUE[arguments[0]]} continues; where nothing was begun, the same command does."
    for cause in cause_chain(error):
        if isinstance(cause, OSError) and cause.errno in _DISK:
            where = f" ({cause.filename})" if cause.filename else ""
            reason = os.strerror(cause.errno or 0)
            return f"Cannot write{where}: {reason}. Free space or choose another folder; {cure}"
        if isinstance(cause, OSError) and cause.errno and cause.filename is not None:
            where = _said(os.fsdecode(cause.filename), arguments[1:])
            return f"{where}: {os.strerror(cause.errno)}. Choose another file or folder."
        if any(words in str(cause) for words in _FULL):
            return f"Cannot write: the disk is full. Free space; {cure}"
    return None


def _said(path: str, arguments: Sequence[str]) -> str:
    """Return the option that named a path or a folder above it, with the path; else the path."""
    for argument in arguments:
        option, _, value = argument.partition("=")
        if value and os.path.abspath(path).startswith(os.path.abspath(value)):
            return f"{option} ({path})"
    return path


if __name__ == "__main__":
    main()
