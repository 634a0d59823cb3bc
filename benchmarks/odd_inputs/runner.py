"""Runs each case in a forked process and a separate folder; hwnas is imported once."""

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
#: Messages of libraries that are of no use to users.
GRAMMAR = (
    "Traceback", "LexerNoViableAlt", "omegaconf", "hydra.errors", "hydra.cc", "sqlalchemy.",
    "StorageInternalError", "ListConfig", "no viable alternative", "Errno", "NoneType",
    "Allowed: .", "'None'", "ValidationError",
)  # fmt: skip

_WARM = (
    "cli.compare", "workflows.compare", "workflows.search.run", "workflows.train",
    "workflows.config.compose", "workflows.export", "workflows.why", "workflows.verify",
    "workflows.profile", "workflows.plan",
)  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """The result of a command."""

    code: int  #: exit code; -9 if it was killed at the time limit
    out: str
    err: str
    seconds: float
    peak_mib: float


def warm() -> None:
    """Import the modules that commands import, for all forked processes."""
    for name in _WARM:
        importlib.import_module(f"hwnas.{name}")
    processes.tune_process()


def run(arguments: Sequence[str], folder: Path, limit_s: float = LIMIT_S) -> Ran:
    """Run a command in a folder; kill it at the time limit."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _work(arguments, folder, out.fileno(), err.fileno())
        code, peak = _waited(pid, start + limit_s)
        seconds = time.monotonic() - start
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ran(code, texts[0], texts[1], seconds, peak)


def _work(arguments: Sequence[str], folder: Path, out: int, err: int) -> None:
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
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(pid: int, until: float) -> tuple[int, float]:
    """Return the exit code and the peak memory in MiB of a process; kill it at the time limit."""
    killed = False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            code = -9 if killed else os.waitstatus_to_exitcode(status)
            return code, usage.ru_maxrss / 1024
        if time.monotonic() > until and not killed:
            os.killpg(pid, signal.SIGKILL)
            killed = True
        time.sleep(0.01)


def judged(case: Case) -> tuple[str, Ran]:
    """Run a case; return the violated requirements, empty if there are none."""
    with tempfile.TemporaryDirectory(prefix="odd-") as name:
        folder = Path(name)
        case.prepare(folder)
        before = _tree(folder)
        ran = run(case.arguments, folder)
        wrong = [*_wrong(case, ran)]
        if left := _tree(folder) - before:
            wrong.append(f"leaves {', '.join(sorted(left)[:3])}")
    return "; ".join(wrong), ran


def _wrong(case: Case, ran: Ran) -> list[str]:
    lines = [line for line in ran.err.splitlines() if line.strip()]
    said = " ".join(lines)
    checks = {
        f"exit code {ran.code}": ran.code in case.codes,
        f"{len(lines)} lines": len(lines) == 1,
        "does not name the option": any(name in said for name in case.names or [case.option]),
        "exceeded the time limit": ran.seconds < LIMIT_S,
        f"{ran.peak_mib:.0f} MiB": ran.peak_mib < LIMIT_MIB,
        "prints the password": not case.secret or case.secret not in ran.out + ran.err,
    }
    found = [what for what, holds in checks.items() if not holds]
    return found + [f"says {word}" for word in GRAMMAR if word in ran.out + ran.err]


def ended(chain: Chain, nets: Path) -> tuple[str, Ran]:
    """Run the steps of a chain; return the failed ones and the last that was run."""
    with tempfile.TemporaryDirectory(prefix="odd-") as name:
        folder = Path(name)
        if nets.is_dir():
            shutil.copytree(nets, folder / "nets")
        for step in chain.steps:
            models = sorted((folder / chain.option / "out").glob("*/proof.json"))
            known = models[0].parent.name if models else ""
            ran = run([argument.replace("{id}", known) for argument in step], folder)
            if ran.code != 0:
                last = (ran.err.strip().splitlines() or [""])[-1]
                return f"{step[0]} ended with {ran.code}: {last}", ran
        if not nets.is_dir():
            shutil.copytree(folder / "nets", nets)
    return "", ran


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def spare_memory() -> None:
    """Limit the memory of a case, so that it cannot use all memory of the machine."""
    most = 3 * LIMIT_MIB * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
