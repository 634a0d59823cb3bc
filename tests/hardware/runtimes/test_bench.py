from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.hardware.meters.meter import EnergyMeter
from hwnas.hardware.runtimes import bench as bench_module
from hwnas.hardware.runtimes.bench import DeviceBench
from hwnas.hardware.runtimes.interfaces import LoadedNetwork, OperatorPlans
from hwnas.hardware.timing import Timer, Timing, TimingConfig, measure
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
from hwnas.models.int8.quantised_network import Parameters

OP = OpSpec("linear", (16, 1, 1), (16, 1, 1), dtype="float32")
NETWORK = (Node("linear", OP, (INPUT,)),)
CONFIG = TimingConfig(repeats=3, min_repeat_ms=1, retries=2)
MS = 1e-3


@dataclass
class FakeEngine:
    """An engine with a given duration for each plan, or None if it does not compile."""

    seconds: Mapping[str, float | None]
    slowdown: float = 1.0
    uncounted: int = 0
    requested: list[tuple[OpSpec, int]] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        self.requested.append((op, limit))
        return [*self.seconds][:limit] if op == OP else ["sentinel"]

    def operator(self, op: OpSpec, plan: str) -> Timer:
        seconds = self.seconds[plan] if op == OP else MS
        if seconds is None:
            raise CompileError(f"cannot compile {plan}")
        self.compiled.append(plan)
        return self._timer(plan, seconds)

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        return measure(self.operator(op, plan), config)

    def network(self, lowered: Graph, plans: OperatorPlans) -> Timer:
        self.compiled.append("network")
        return self._timer(
            "network", sum(self.seconds[plans.get(node.op, "")] or 0 for node in lowered)
        )

    def forget(self, op: OpSpec, plan: str) -> None:
        self.forgotten.append(plan)

    def export(
        self, lowered: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        return {".bin": plans[lowered[0].op].encode()}

    def open(self, files: Mapping[str, Path]) -> LoadedNetwork:
        plan = files[".bin"].read_text()
        timer = self._timer(plan, self.seconds[plan] or 0)
        return LoadedNetwork(timer, FakeSession(), self.uncounted)

    def _timer(self, plan: str, seconds: float) -> Timer:
        def run(n: int) -> float:
            self.runs[plan] = self.runs.get(plan, 0) + n
            return n * seconds * self.slowdown

        return run


class FakeSession:
    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        sums: NDArray[np.float32] = images.sum(axis=(2, 3))
        return sums


def _bench(engine: FakeEngine) -> DeviceBench:
    bench = DeviceBench(engine, CONFIG, "float32")
    assert engine.compiled == ["sentinel"]
    engine.compiled.clear()
    return bench


def test_fastest_plan_is_chosen_and_others_released() -> None:
    engine = FakeEngine({"a": 3e-6, "b": 1e-6, "c": 2e-6})
    assert _bench(engine).tune(OP, 3) == "b"
    assert sorted(engine.forgotten) == ["a", "c"]
    assert engine.requested[-1] == (OP, 3)


def test_number_of_tried_plans_is_limited() -> None:
    engine = FakeEngine({"a": 3e-6, "b": 2e-6, "c": 1e-6})
    assert _bench(engine).tune(OP, 2) == "b"
    assert engine.compiled == ["a", "b"]


@pytest.mark.parametrize("failing", [["a"], ["a", "c"], ["c"]])
def test_plan_that_does_not_compile_is_skipped(failing: list[str]) -> None:
    engine = FakeEngine({plan: None if plan in failing else 1e-6 for plan in "abc"})
    assert _bench(engine).tune(OP, 3) == min({*"abc"} - {*failing})


def test_operator_without_compiling_plan_is_refused() -> None:
    with pytest.raises(CompileError, match="cannot compile"):
        _bench(FakeEngine({"a": None, "b": None})).tune(OP, 2)


def test_single_plan_is_not_compiled() -> None:
    engine = FakeEngine({"a": None})
    assert _bench(engine).tune(OP, 5) == "a"
    assert engine.compiled == []


def test_slow_plan_is_stopped_early() -> None:
    engine = FakeEngine({"fast": 1e-6, "hopeless": 4e-6, "slow": 2e-6})
    assert _bench(engine).tune(OP, 3) == "fast"
    assert engine.runs["hopeless"] == 4
    assert engine.runs["slow"] > 1000


def test_plan_of_seconds_has_few_runs() -> None:
    engine = FakeEngine({"slow": 5.0, "slower": 6.0})
    assert _bench(engine).tune(OP, 2) == "slow"
    assert max(engine.runs["slow"], engine.runs["slower"]) <= 7


def test_operators_are_timed_between_sentinel_readings() -> None:
    engine = FakeEngine({"a": 2 * MS, "b": 5 * MS})
    bench = _bench(engine)
    before = len(bench.sentinel_ms())
    timings = bench.time_operators([(OP, "b"), (OP, "a")])
    assert [timing.median_ms for timing in timings] == pytest.approx([5, 2])
    assert len(bench.sentinel_ms()) == before + 2
    assert not any(timing.drifted for timing in timings)


def test_repeated_timing_compiles_network_once() -> None:
    engine = FakeEngine({"a": 2 * MS})
    bench = _bench(engine)
    engine.slowdown = 2
    timing = bench.time_network(Graph.of(NETWORK), {OP: "a"})
    assert timing.drifted
    assert timing.median_ms == pytest.approx(4)
    assert engine.compiled == ["network"]


def test_percentiles_match_network() -> None:
    result = _bench(FakeEngine({"a": 2 * MS})).percentiles(Graph.of(NETWORK), {OP: "a"}, 20)
    assert result == {f"p{p}_ms": pytest.approx(2) for p in (50, 90, 99)}


def test_exported_network_is_evaluated_from_files(tmp_path: Path) -> None:
    bench = _bench(FakeEngine({"a": 1 * MS, "b": 2 * MS}))
    files = bench.export(Graph.of(NETWORK), {OP: "b"}, {})
    (tmp_path / "network.bin").write_bytes(files[".bin"])
    images = np.ones((4, 3, 2, 2), np.float32)
    judged = bench.evaluate({".bin": tmp_path / "network.bin"}, images)
    assert np.array_equal(judged.outputs, np.full((4, 3), 4.0))
    assert np.array_equal(bench.run({".bin": tmp_path / "network.bin"}, images), judged.outputs)
    assert judged.timing.median_ms == pytest.approx(2)
    assert judged.energy is None
    assert judged.p99 is None


def test_p99_and_latency_have_same_runs(tmp_path: Path) -> None:
    engine = FakeEngine({"a": 2 * MS})
    bench = DeviceBench(engine, CONFIG, "float32", p99_limit_s=60.0)
    (tmp_path / "network.bin").write_text("a")
    evaluation = bench.evaluate({".bin": tmp_path / "network.bin"}, np.ones((1, 3, 2, 2), "f4"))
    assert evaluation.p99 is not None
    assert evaluation.p99.value == pytest.approx(2)
    assert evaluation.timing.n_repeats == 2000
    assert not evaluation.timing.drifted
    engine.slowdown = 2
    assert bench.evaluate(
        {".bin": tmp_path / "network.bin"}, np.ones((1, 3, 2, 2), "f4")
    ).timing.drifted


def test_p99_beyond_time_limit_is_omitted(tmp_path: Path) -> None:
    engine = FakeEngine({"a": 0.1}, uncounted=1)
    bench = DeviceBench(engine, CONFIG, "float32", p99_limit_s=60.0)
    (tmp_path / "network.bin").write_text("a")
    judged = bench.evaluate({".bin": tmp_path / "network.bin"}, np.ones((1, 3, 2, 2), np.float32))
    assert judged.p99 is None
    assert judged.timing.median_ms == pytest.approx(100)
    assert engine.runs["a"] < 20


def test_energy_counts_all_inferences_of_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine({"a": 1 * MS}, uncounted=1)
    calls = list[dict[str, int]]()
    monkeypatch.setattr(bench_module, "measure_energy", lambda *_, **options: calls.append(options))
    bench = DeviceBench(engine, CONFIG, "float32", cast(EnergyMeter, object()))
    (tmp_path / "network.bin").write_text("a")
    bench.evaluate({".bin": tmp_path / "network.bin"}, np.ones((1, 3, 2, 2), np.float32))
    assert calls == [{"uncounted": 1}]


def test_networks_and_files_are_interleaved(tmp_path: Path) -> None:
    bench = _bench(FakeEngine({"a": 2 * MS, "b": 4 * MS, "": 3 * MS}))
    files = []
    for plan in ("a", "b"):
        files.append({".bin": tmp_path / plan})
        files[-1][".bin"].write_text(plan)
    result = bench.interleaved(*files)
    assert (result.first.median_ms, result.second.median_ms) == pytest.approx((2.0, 4.0))
    assert result.ratio.value == pytest.approx(0.5)
    assert bench.interleaved_networks(Graph.of(NETWORK), Graph.of(NETWORK)).ratio.value == 1.0
