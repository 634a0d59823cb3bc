"""Processes that are started do not run the program that starts them again."""

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
print("script")
from concurrent.futures import ProcessPoolExecutor
from operator import add
from hwnas.core.processes import CleanSpawnContext
process = CleanSpawnContext().Process(target=print, args=("process",))
process.start()
process.join()
assert process.exitcode == 0
with ProcessPoolExecutor(1, CleanSpawnContext(), print, ("pool",)) as pool:
    assert pool.submit(add, 1, 2).result() == 3
assert __name__ == "__main__" and __import__("__main__").add is add
"""


def test_scripts_without_a_guard_run_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    printed = subprocess.check_output([sys.executable, "-u", script], text=True)
    assert printed.split() == ["script", "process", "pool"]
