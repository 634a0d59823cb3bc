"""Runs each case in a forked process and an empty folder; hwnas is imported only once."""

import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.odd_inputs.case import Case, Chain
from hwnas.core import processes

LIMIT_S, LIMIT_MIB = 60.0, 3 * 1024
#: Parts of messages of libraries, which do not help users.
LIBRARY_MESSAGES = (
    "Traceback", "LexerNoViableAlt", "omegaconf", "hydra.errors", "hydra.cc", "sqlalchemy.",
    "StorageInternalError", "ListConfig", "no viable alternative", "Errno", "NoneType",
    "Allowed: .", "'None'", "ValidationError",
)  # fmt: skip

_MODULES = (
    "cli.compare", "workflows.compare", "workflows.search.run", "workflows.train",
    "workflows.config.compose", "workflows.export", "workflows.why", "workflows.verify",
    "workflows.profile", "workflows.plan",
)  # fmt: skip


@dataclass(frozen=True)
class CommandResult:
    """The result of a command."""

    code: int  #: exit code; -9 if it was killed at the time limit
    out: str
    err: str
    seconds: float
    peak_mib: float


def import_modules() -> None:
    """Import the modules of all commands, so that forked processes need not import them."""
    for name in _MODULES:
        importlib.import_module(f"hwnas.{name}")
    processes.tune_process()


def run(arguments: Sequence[str], folder: Path, limit_s: float = LIMIT_S) -> CommandResult:
    """Run a command in a folder; kill it at the time limit."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _run_child(arguments, folder, out.fileno(), err.fileno())
        code, peak = _wait(pid, start + limit_s)
        seconds = time.monotonic() - start
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return CommandResult(code, texts[0], texts[1], seconds, peak)


def _run_child(arguments: Sequence[str], folder: Path, out: int, err: int) -> None:
    """Run the command in the child process; never return."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = ["hwnas"]
        from hwnas.__main__ import run as hwnas

        code = hwnas(list(arguments))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, deadline: float) -> tuple[int, float]:
    """Return the exit code and the peak memory in MiB of a process; kill it at the deadline."""
    killed = False
    while True:
        ended_pid, status, usage = os.wait4(pid, os.WNOHANG)
        if ended_pid:
            code = -9 if killed else os.waitstatus_to_exitcode(status)
            return code, usage.ru_maxrss / 1024
        if time.monotonic() > deadline and not killed:
            os.killpg(pid, signal.SIGKILL)
            killed = True
        time.sleep(0.01)


def run_case(case: Case) -> tuple[str, CommandResult]:
    """Run a case; return the violated requirements (empty: none) and the result."""
    with tempfile.TemporaryDirectory(prefix="odd-") as name:
        folder = Path(name)
        case.prepare(folder)
        before = _tree(folder)
        result = run(case.arguments, folder)
        violations = [*_violations(case, result)]
        if new_files := _tree(folder) - before:
            violations.append(f"leaves {', '.join(sorted(new_files)[:3])}")
    return "; ".join(violations), result


def _violations(case: Case, result: CommandResult) -> list[str]:
    lines = [line for line in result.err.splitlines() if line.strip()]
    message = " ".join(lines)
    checks = {
        f"exit code {result.code}": result.code in case.codes,
        f"{len(lines)} lines": len(lines) == 1,
        "does not name the option": any(name in message for name in case.names or [case.option]),
        "exceeded the time limit": result.seconds < LIMIT_S,
        f"{result.peak_mib:.0f} MiB": result.peak_mib < LIMIT_MIB,
        "prints the password": not case.secret or case.secret not in result.out + result.err,
    }
    violations = [violation for violation, is_met in checks.items() if not is_met]
    output = result.out + result.err
    return violations + [f"prints {text}" for text in LIBRARY_MESSAGES if text in output]


def run_chain(chain: Chain, supernets: Path) -> tuple[str, CommandResult]:
    """Run the steps of a chain; return an error message (empty: none) and the last result."""
    with tempfile.TemporaryDirectory(prefix="odd-") as name:
        folder = Path(name)
        if supernets.is_dir():
            shutil.copytree(supernets, folder / "nets")
        for step in chain.steps:
            models = sorted((folder / chain.option / "out").glob("*/proof.json"))
            model_id = models[0].parent.name if models else ""
            result = run([argument.replace("{id}", model_id) for argument in step], folder)
            if result.code != 0:
                last = (result.err.strip().splitlines() or [""])[-1]
                return f"{step[0]} ended with {result.code}: {last}", result
        if not supernets.is_dir():
            shutil.copytree(folder / "nets", supernets)
    return "", result


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def limit_memory() -> None:
    """Limit the memory of this process and of its children, to protect the machine."""
    limit = 3 * LIMIT_MIB * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
