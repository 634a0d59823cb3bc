"""Child processes do not run the main script again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hwnas.core import machine, processes

_SCRIPT = """
print("script")
from concurrent.futures import ProcessPoolExecutor
from operator import add
from hwnas.core.processes import CleanSpawnContext, WorkerContext
for context in (CleanSpawnContext(), WorkerContext()):
    process = context.Process(target=print, args=("process",))
    process.start()
    process.join()
    assert process.exitcode == 0
    with ProcessPoolExecutor(1, context, print, ("pool",)) as pool:
        assert pool.submit(add, 1, 2).result() == 3
assert __name__ == "__main__" and __import__("__main__").add is add
"""


def test_script_without_main_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    printed = subprocess.check_output([sys.executable, "-u", script], text=True)
    assert printed.split() == ["script", *["process", "pool"] * 2]


_THREADS = """
import torch
from hwnas.core.processes import WorkerContext
from hwnas.nas import engine  # is imported before the fork
from tests.core.test_processes import print_state
for n in (1, 2):
    process = WorkerContext().Process(target=print_state, args=(n,))
    process.start()
    process.join()
"""


def print_state(n: int) -> None:
    """Print whether hwnas is imported, the threads of torch, and whether SIGINT is blocked."""
    imported = "hwnas.nas.engine" in sys.modules
    processes.tune_worker(n)
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print(imported, torch.get_num_threads(), blocked)


@pytest.mark.slow
def test_workers_start_with_imports_and_share_of_cores() -> None:
    root = Path(__file__).parents[2]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    printed = subprocess.check_output(
        [sys.executable, "-u", "-c", _THREADS], text=True, cwd=root, env=environment
    )
    cores = machine.available_cores()
    assert printed.splitlines() == [f"True {cores} True", f"True {max(1, cores // 2)} True"]
