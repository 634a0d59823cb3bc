"""``hwnas <verb>``: help, and verbs whose errors become one line."""

import errno
import os
import signal
import sys
from collections.abc import Sequence

from hwnas.cli.help_texts import VERBS
from hwnas.core.errors import ConfigError, HwnasError, cause_chain, printable, unknown_name

_CONTINUE = dict.fromkeys(VERBS, "the same command") | {"search": "hwnas resume RUN"}
_INTERRUPTED = 130  #: exit code after Ctrl-C and SIGTERM, as shells have it for Ctrl-C
_CLOSED = 141  #: exit code of a command whose output is no longer read, as shells have it
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
#: Messages about a full disk of libraries with their own exceptions: SQLite, safetensors.
_FULL = (
    "database or disk is full", "disk I/O error", "unable to open database file",
    "No space left on device", "File too large",
)  # fmt: skip


def main() -> None:
    """Run the verb in ``sys.argv`` and exit with its code, see :func:`run`."""
    if "_ARGCOMPLETE" in os.environ:
        from hwnas.cli.completion import complete

        complete()
    from hwnas.core.processes import interrupt_on_signals

    interrupt_on_signals()
    if sys.stdout is None:  # closed: ``>&-``
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (until the end)
    try:
        code = _flushed(run(sys.argv[1:]))
    except BrokenPipeError:  # who read the output has seen enough: ``| head``
        _discard_output()
        code = _CLOSED
    if code == _INTERRUPTED:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the process is ending
    sys.exit(code)


def _flushed(code: int) -> int:
    """Write the rest of the output; return the exit code, or another one if the disk is full."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        return _refuse(f"The output cannot be written: {error.strerror}.", 2)
    return code


def _discard_output() -> None:
    """Discard the rest of the output, which Python writes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: Sequence[str]) -> int:
    """Run one verb, print errors as one line on stderr, and return the exit code.

    0: success; 1: an export does not match its proof; 2: another error that the user can fix; 130:
    interrupted.
    """
    verb = arguments[0] if arguments else ""
    try:
        _run_verb(verb, arguments[1:])
    except HwnasError as error:
        return _refuse(str(error), error.exit_code)
    except KeyboardInterrupt as interrupt:
        default = "hwnas: Interrupted; nothing is lost: the same command continues."
        print(interrupt.args[0] if interrupt.args else default, file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        if (message := _place_problem(error, arguments)) is None:
            raise
        return _refuse(message, 2)
    return 0


def _refuse(message: str, code: int) -> int:
    print(f"hwnas: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


_VERSION = "The version: hwnas --version"
#: Answers to words that are no verbs.
_OTHER_WAYS = {
    **dict.fromkeys(("version", "-v", "-V"), _VERSION),
    **dict.fromkeys(("status", "progress", "show"), "Progress and front of a run: hwnas why RUN"),
}


def _run_verb(verb: str, arguments: Sequence[str]) -> None:
    from hwnas.cli.help import help_words, overview, verb_help

    if verb in ("-h", "--help", "help"):
        verb, *arguments = [*arguments, "--help"] if arguments else ["", "--help"]
    if verb == "--version":
        from hwnas.cli.catalog import versions

        print(versions())
    elif not verb:
        print(overview())
    elif verb in _OTHER_WAYS:
        raise ConfigError(f"Unknown verb '{verb}'. {_OTHER_WAYS[verb]}")
    elif verb not in VERBS:
        raise ConfigError(unknown_name("verb", verb, VERBS))
    elif (group := help_words(arguments)) is not None:
        print(verb_help(verb, group))
    elif verb == "list":
        from hwnas.cli.catalog import catalog

        print(catalog(arguments))
    elif verb == "completion":
        from hwnas.cli.completion import completion_script

        print(completion_script(arguments))
    else:
        from hwnas.cli.dispatch import run_verb  # and with it Hydra, which help does without

        run_verb(verb, arguments)


def _place_problem(error: Exception, arguments: Sequence[str]) -> str | None:
    """Return a sentence if a file or folder cannot be read or written, else ``None``."""
    verb = arguments[0] if arguments else ""
    cure = f"{_CONTINUE.get(verb)} continues; if no run was started yet, repeat the command."
    for cause in cause_chain(error):
        if isinstance(cause, OSError) and cause.errno in _DISK:
            where = f" ({cause.filename})" if cause.filename else ""
            reason = os.strerror(cause.errno or 0)
            return f"Cannot write{where}: {reason}. Free space or choose another folder; {cure}"
        if isinstance(cause, OSError) and cause.errno and cause.filename is not None:
            where = _option_and_path(os.fsdecode(cause.filename), arguments[1:])
            return f"{where}: {os.strerror(cause.errno)}. Choose another file or folder."
        if any(words in str(cause) for words in _FULL):
            return f"Cannot write: the disk is full. Free space; {cure}"
    return None


def _option_and_path(path: str, arguments: Sequence[str]) -> str:
    """Return the option that named a path or a folder above it, with the path; else the path."""
    for argument in arguments:
        option, _, value = argument.partition("=")
        if value and os.path.abspath(path).startswith(os.path.abspath(value)):
            return f"{option} ({path})"
    return path


if __name__ == "__main__":
    main()
