"""Sample of unusual inputs; ``python -m benchmarks.odd_inputs`` runs all."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import few_of

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("every", few_of([31, 7], 1))
def test_odd_inputs_are_reported_without_output(every: int) -> None:
    command = [sys.executable, "-m", "benchmarks.odd_inputs"]
    command += ["--every", str(every), "--only", "choice"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "inputs, 0 of them failed" in completed.stdout
