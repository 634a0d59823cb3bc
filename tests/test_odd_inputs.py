"""Samples of the odd inputs; ``python -m benchmarks.odd_inputs`` runs all."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import few_of

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("every", few_of([31, 7], 1))
def test_sample_of_odd_inputs_is_refused_in_one_line_and_leaves_nothing(every: int) -> None:
    command = [sys.executable, "-m", "benchmarks.odd_inputs"]
    command += ["--every", str(every), "--only", "choice"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "inputs, 0 of them failed" in ended.stdout
