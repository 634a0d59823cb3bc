"""Studies in optuna-dashboard, through its program and JSON interface."""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from hwnas.core.progress import NullProgress
from hwnas.models.spaces import SearchSpace
from hwnas.nas import loop
from hwnas.nas.options import SamplerConfig
from hwnas.nas.study import LocalStudy
from hwnas.tasks.metrics.budget import Budget
from tests.nas.fakes import SizeAccuracy, SizeCost, size

PROGRAM = Path(sys.executable).with_name("optuna-dashboard")
OBJECTIVES = ("accuracy", "latency_ms")

pytestmark = pytest.mark.skipif(
    not PROGRAM.exists(), reason="no optuna-dashboard: pip install 'hwnas[dev]'"
)


@contextlib.contextmanager
def _dashboard(study: Path) -> Iterator[str]:
    """Run the dashboard on a study; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(PROGRAM), "--host", "127.0.0.1", "--port", str(port), f"sqlite:///{study}"]
    log = study.with_name("dashboard.log")
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            until = time.monotonic() + 60
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_dashboard_shows_running_search(tiny: SearchSpace, tmp_path: Path) -> None:
    limit = size(tiny.largest()) - 8
    problem = loop.SearchProblem(tiny, Budget({"latency_ms": limit}), SizeCost(), SizeAccuracy())
    path, random = tmp_path / "study.db", SamplerConfig("random")
    with contextlib.closing(LocalStudy(path, tiny, OBJECTIVES)) as study:
        loop.run_trials(problem, study, random, 0, 30, NullProgress())
        with _dashboard(path) as address:
            (listed,) = _get(f"{address}/api/studies")["study_summaries"]
            assert listed["study_name"] == "hwnas"
            assert listed["directions"] == ["maximize", "minimize"]
            detail = f"{address}/api/studies/{listed['study_id']}"
            assert len(_get(detail)["trials"]) == 30
            loop.run_trials(problem, study, random, 0, 40, NullProgress())
            until = time.monotonic() + 60
            while len((shown := _get(detail))["trials"]) < 40:  # it refreshes every two seconds
                assert time.monotonic() < until
                time.sleep(0.5)
    assert shown["objective_names"] == list(OBJECTIVES)
    assert {a["key"]: a["sortable"] for a in shown["union_user_attrs"]} == {
        "id": False, "state": False, "reason": False, "energy_mj": True, "sram_kib": True,
        "flash_kib": True, "macs_m": True, "params_m": True,
    }  # fmt: skip
    assert len(shown["trials"]) == 40
    assert {c.state for c in study.candidates} == {"complete", "infeasible"}
    for trial, candidate in zip(shown["trials"], study.candidates, strict=True):
        attributes = {a["key"]: a["value"] for a in trial["user_attrs"]}
        assert attributes["id"] == candidate.id
        assert attributes["state"] == candidate.state
        assert attributes.get("reason", "") == candidate.reason
        assert float(attributes["sram_kib"]) == candidate.figures["sram_kib"].value
        is_marked = any(value > 0 for value in trial["constraints"])
        assert is_marked == (candidate.state == "infeasible")


@pytest.mark.slow
def test_dashboard_constraints_do_not_affect_samplers(tiny: SearchSpace, tmp_path: Path) -> None:
    limit = size(tiny.largest()) - 8
    problem = loop.SearchProblem(tiny, Budget({"latency_ms": limit}), SizeCost(), SizeAccuracy())
    sampler = SamplerConfig("nsga2", 8)
    results = []
    for i, parts in enumerate([(24,), (12, 24)]):
        for n in parts:  # separate commands, each resumes the study
            with contextlib.closing(LocalStudy(tmp_path / f"{i}.db", tiny, OBJECTIVES)) as study:
                loop.run_trials(problem, study, sampler, 0, n, NullProgress())
        results.append(study.candidates)
    assert results[0] == results[1]
    assert any(candidate.state == "infeasible" for candidate in results[0])
    stored = optuna.load_study(study_name="hwnas", storage=f"sqlite:///{tmp_path / '1.db'}")
    assert {"latency_ms", "target"} <= stored.trials[-1].constraints.keys()
