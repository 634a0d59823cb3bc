"""Runtime, provider and threads of the latencies of a model on each device."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwnas.core.errors import RunError
from hwnas.core.quantity import Quantity
from hwnas.fleet import models, plan_conversion
from hwnas.fleet.fleet_file import DeviceType, Fleet
from hwnas.fleet.plan import PoolType, TimedRuntime
from hwnas.models.spaces import Genotype
from tests.conftest import target

NAME = "0a-float32"


def _run(name: str, accuracy: float, **chosen: int) -> Any:
    """Return the part of a run folder that plans read: a front of one network."""
    genotype = Genotype("tiny", tuple(sorted(chosen.items())))
    figures = {"accuracy_fp32": accuracy, "latency_ms": 9.0}
    member = SimpleNamespace(
        is_deliverable=True, dtype=lambda of_target: of_target,
        figures={metric: Quantity(value, "measured") for metric, value in figures.items()},
        candidate=SimpleNamespace(id="0a", genotype=genotype),
    )  # fmt: skip
    return SimpleNamespace(members=[member], config={"target": asdict(target(name))})


def _device(**more: Any) -> DeviceType:
    return DeviceType("site", "bought", 1, 0.1, **more)


def _read(monkeypatch: pytest.MonkeyPatch, runs: dict[str, Any]) -> models.ModelCatalogue:
    monkeypatch.setattr(
        "hwnas.analysis.run_fronts.read_run_folder", lambda path, _: runs[str(path)]
    )
    catalogue = models.ModelCatalogue()
    for place in runs:
        models._read_run(catalogue, Path(place))
    return catalogue


def test_devices_have_separate_providers_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = _read(monkeypatch, {
        "run/cpu": _run("cpu", 0.9, threads=4, batch=2), "run/cuda": _run("cuda", 0.8),
        "run/l4": _run("nvidia_l4", 0.7),
    })  # fmt: skip
    assert catalogue.models[NAME].place == "run/cpu"
    assert {*catalogue.latency_ms["cpu", NAME]} == {2}
    catalogue.time("mine", NAME, 1, Quantity(3.0, "measured"))  # from a CSV file
    catalogue.time("cuda", NAME, 8, Quantity(9.0, "measured"))
    fleet = Fleet({
        "cpu": _device(), "gpu": _device(target="cuda"), "l4": _device(target="nvidia_l4"),
        "like": _device(like="gpu", speed=2.0), "mine": _device(),
        "said": _device(target="nvidia_l4", provider="cuda", threads=2),
    })  # fmt: skip
    cuda = TimedRuntime("cuda", "run/cuda", "onnxruntime", "cuda", 1)
    l4 = TimedRuntime("nvidia_l4", "run/l4", "offline", "", 1)
    assert {name: catalogue.ran_on(fleet, name, NAME, 8) for name in fleet.devices} == {
        "cpu": TimedRuntime("cpu", "run/cpu", "tvm", "cpu", 4), "gpu": cuda, "like": cuda, "l4": l4,
        "mine": TimedRuntime("mine"), "said": replace(l4, provider="cuda", threads=2),
    }  # fmt: skip


def test_plans_without_runtime_match_pool_types() -> None:
    """Plans of earlier versions lack the runtime; a different runtime is a change."""
    runtime = TimedRuntime("cpu", "run/cpu", "tvm", "cpu", 4)
    kind = PoolType("cpu", NAME, 1, 0.0, 9.0, 50.0, 1, None, {}, 3.5, "run/cpu", runtime)
    pool_types = [replace(kind, ran=None), kind, replace(kind, ran=replace(runtime, threads=2))]
    assert [plan_conversion._is_kind(kind, pool_type) for pool_type in pool_types] == [
        True,
        True,
        False,
    ]
    assert not plan_conversion._is_kind(kind, replace(pool_types[0], goodput=40.0))


def test_run_with_unknown_target_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run("cpu", 0.9)
    run.config["target"]["runtime"] = "abacus"
    with pytest.raises(
        RunError, match=r"fronts: run: its target .*'abacus'.* Restore its manifest"
    ):
        _read(monkeypatch, {"run": run})
