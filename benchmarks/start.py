"""Start-up time of commands: processor time until the first output, each in a separate process.

    python -m benchmarks.start [N]

The script searches a tiny space twice and exports a network. Then it prints the median and the
maximum over N starts (default 7) of user and system time together, including child processes.
"""

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hwnas.cli.help_texts import VERBS

_SEARCH = (
    "search", "+target=npu", "search_space=tiny", "accuracy=supernet", "train.epochs=1",
    "finish.epochs=0", "n_trials=20", "budget=none",
)  # fmt: skip


def main(n: int = 7) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("a", "b"):
            _run([*_SEARCH, f"run.dir={name}", f"seed={int(name == 'b')}"])
        _run(["export", "run=a", "dir=e"])
        (export,) = (path for path in Path("e").iterdir() if path.is_dir())
        for arguments in _commands(str(export)):
            times = [_seconds_to_first_output(arguments) for _ in range(n)]
            print(f"{statistics.median(times):5.2f} s  {max(times):5.2f} s  {' '.join(arguments)}")


def _commands(export: str) -> Iterator[Sequence[str]]:
    yield []
    for verb in VERBS:
        yield [verb, "--help"]
    yield ["why", "run=a", "id=front"]
    yield ["compare", "runs=[a,b]"]
    yield ["verify", export]


def _run(command: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "hwnas", *command], check=True, stdout=subprocess.DEVNULL)


def _seconds_to_first_output(arguments: Sequence[str]) -> float:
    """Return the processor seconds of a command until its first output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "hwnas", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(1), arguments
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
