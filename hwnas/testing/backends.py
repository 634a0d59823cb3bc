"""Contracts of backends, cost models and sessions."""

import dataclasses
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hwnas.core.errors import CompileError, ConfigError
from hwnas.core.quantity import SOURCES
from hwnas.hardware import backends
from hwnas.hardware.backends import base, onnx_files
from hwnas.hardware.backends.base import Artefacts, Floats, TimingBench, TrainedNetwork
from hwnas.hardware.backends.description import BackendDescription
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.hardware.latency_tables.latency_table import LatencyTable, table_name
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import TimingConfig
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm, weights_of
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature
from hwnas.models.int8.quantisation import quantise
from hwnas.models.spaces import SearchSpace
from hwnas.tasks import metrics

#: Maximum error of outputs, as a fraction of torch's largest output.
_TOLERANCES = {"float32": 1e-4, "int8": 0.1}
_HALVES = 0.02  #: tolerance of float16 and bfloat16


@final
@dataclass(frozen=True)
class _Tuned:
    """A device whose operators use the first plan."""

    worker: RetryingPool
    table: LatencyTable

    def plan(self, op: OpSpec) -> str:
        return self.worker.tune(op, 1)


class BackendContract:
    """Tests that every backend must pass; backends that measure are measured on this machine.

    A subclass provides the fixture ``backend_target``, a target with the backend's runtime. The
    fixture may have parameters to test several dtypes.
    """

    @pytest.fixture
    def description(self, backend_target: Target) -> BackendDescription:
        return backends.get(backend_target.runtime)

    @pytest.fixture
    def bench(
        self, backend_target: Target, description: BackendDescription
    ) -> Iterator[TimingBench | None]:
        if not description.measured:
            yield None
            return
        timing = TimingConfig(repeats=3, min_repeat_ms=0.1)
        with DevicePool(backend_target, timing, Remote(), 120) as pool:
            yield _Tuned(RetryingPool(pool), LatencyTable(Path(table_name(backend_target))))

    @pytest.fixture
    def artefacts(self, backend_target: Target, bench: TimingBench | None) -> Artefacts:
        return base.backend_of(backend_target).artefacts(bench)

    @pytest.fixture
    def network(self) -> tuple[TrainedNetwork, Floats, Floats]:
        """Return a network, 20 images for it, and the outputs of torch ``(20, 10)``."""
        torch.manual_seed(0)
        space, signature = spaces.load_space(spaces.find("tiny")), Signature(1, 10)
        family, genotype = families.get(space.family), space.largest()
        side = family.resolution(space, genotype)
        module = family.build(space, genotype, signature)
        images = torch.randn(20, 1, side, side)
        module.train()(images)  # batch norm statistics that differ from the initial ones
        folded, graph = fold_batch_norm(module.eval()), family.lower(space, genotype, signature)
        trained = TrainedNetwork(graph, weights_of(folded, graph), quantise(folded, graph, images))
        with torch.inference_mode():
            return trained, images.numpy(), folded(images).numpy()

    def test_description_is_read_without_the_backend(self, description: BackendDescription) -> None:
        """Reading a description imports no package of the backend, as it may be missing."""
        code = (
            "import sys, hwnas.hardware.target, hwnas.hardware.backends as b; b.known(); "
            f"print({{*{list(description.needs)!r}, 'torch'}} & {{*sys.modules}})"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ran.stdout.strip() == "set()", ran.stderr

    def test_description_says_what_the_backend_has(
        self, backend_target: Target, description: BackendDescription
    ) -> None:
        assert list(base.backend_of(backend_target).cost_models) == list(description.costs)
        assert {*description.precisions} <= {*description.dtypes}
        held = backends.artefacts()
        assert {*description.dtypes.values()} <= {*held}, "dtypes name artefacts of no backend"
        named = (name for runner in description.runners for name in runner.artefacts)
        # segments have the type of full networks
        ran = {name.replace("segment0", "model", 1) for name in named}
        assert ran <= {*held}
        assert all(artefact.files for artefact in description.artefacts)
        if description.settings is not None:
            assert dataclasses.is_dataclass(description.settings)

    def test_target_that_lacks_what_the_backend_requires_is_refused(
        self, backend_target: Target, description: BackendDescription
    ) -> None:
        for name in description.required:
            bare = {**vars(backend_target), name: None}
            with pytest.raises(ConfigError, match=f"needs target.{name}"):
                type(backend_target)(**bare)

    def test_operator_that_cannot_be_written_is_a_compile_error(
        self, backend_target: Target
    ) -> None:
        shape = (8, 4, 4)
        odd = (Node("odd", OpSpec("layernorm", shape, shape), (INPUT,)),)
        backend = base.backend_of(backend_target)
        if backend_target.dtype == "int8":
            with pytest.raises(CompileError, match="odd"):
                backend.check(Graph.of(odd))
        else:
            backend.check(Graph.of(odd))

    def test_verified_files_compute_what_the_network_does(
        self,
        backend_target: Target,
        artefacts: Artefacts,
        network: tuple[TrainedNetwork, Floats, Floats],
        tmp_path: Path,
    ) -> None:
        """``evaluate`` runs the written files in batches of any size, with outputs near torch's."""
        trained, images, expected = network
        files = _write_files(artefacts, trained, tmp_path)
        outputs, cost = artefacts.evaluate(files, trained.graph, iter([images[:3], images[3:]]))
        _assert_near(outputs, expected, backend_target.dtype)
        assert not cost.reason
        assert {*cost.figures} == {*metrics.BASE_COSTS}
        assert all(figure.value > 0 for figure in cost.figures.values())

    def test_files_are_timed_in_alternation_where_latencies_are_measured(
        self,
        description: BackendDescription,
        artefacts: Artefacts,
        network: tuple[TrainedNetwork, Floats, Floats],
        tmp_path: Path,
    ) -> None:
        files = _write_files(artefacts, network[0], tmp_path)
        timings = artefacts.interleaved(files, files)
        assert (timings is not None) is description.measured
        if timings is not None:
            assert timings.ratio.source == "measured"
            assert 0.3 < timings.ratio.value < 3
            assert timings.first.median_ms > 0

    def test_delivered_files_are_those_of_its_artefacts_and_run(
        self,
        backend_target: Target,
        description: BackendDescription,
        artefacts: Artefacts,
        bench: TimingBench | None,
        network: tuple[TrainedNetwork, Floats, Floats],
    ) -> None:
        """An export contains the file on which the target's metrics are measured, and it runs."""
        trained, images, expected = network
        files = artefacts.delivered(trained)
        expected_artefact = backends.artefacts()[description.dtypes[backend_target.dtype]]
        if expected_artefact.name not in (onnx_files.FLOAT32, onnx_files.INT8):
            assert {*expected_artefact.files} <= {*files}, (
                "the artefact of the dtype is not delivered"
            )
        names = {suffix for artefact in description.artefacts for suffix in artefact.files}
        assert {*files} <= names, "files that no artefact names"
        for artefact in description.artefacts:
            ours = artefact.dtype == backend_target.dtype and {*artefact.files} <= {*files}
            if artefact.opens and ours:
                contents = {suffix: files[suffix] for suffix in artefact.files}
                session = base.open_artefact(artefact.name, contents)
                _assert_near(session.run(images), expected, artefact.dtype)

    def test_network_in_int8_runs_here(
        self, backend_target: Target, network: tuple[TrainedNetwork, Floats, Floats]
    ) -> None:
        """Networks run in int8 on this machine for any dtype of the target: exports need it."""
        trained, images, expected = network
        assert trained.int8 is not None
        session = base.backend_of(backend_target).int8_session(trained.int8)
        _assert_near(session.run(images), expected, "int8")


def _write_files(artefacts: Artefacts, trained: TrainedNetwork, folder: Path) -> dict[str, Path]:
    """Return the files of a network by suffix."""
    files = {}
    for suffix, content in artefacts.build(trained).items():
        assert suffix in backends.columns(), f"tables have no column for {suffix}"
        files[suffix] = folder / f"model{suffix}"
        files[suffix].write_bytes(content)
    return files


def _assert_near(outputs: Floats, expected: Floats, dtype: str) -> None:
    assert outputs.shape == expected.shape
    apart = float(np.abs(outputs - expected).max() / np.abs(expected).max())
    assert apart <= _TOLERANCES.get(dtype, _HALVES), f"{dtype}: outputs differ by {apart:.3g}"


class CostModelContract:
    """Tests that every cost model must pass.

    A subclass provides the fixtures ``cost_model`` and ``cost_space``, a search space for it.
    """

    def test_same_genotype_costs_the_same(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        genotype = cost_space.sample(random.Random(3))
        assert cost_model.cost(genotype) == cost_model.cost(genotype)

    def test_every_figure_is_positive_and_has_a_source(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        cost = cost_model.cost(cost_space.sample(random.Random(4)))
        assert set(cost.figures) == set(metrics.BASE_COSTS)
        for figure in cost.figures.values():
            assert figure.value > 0
            assert figure.source in SOURCES
            if figure.low is not None and figure.high is not None:
                assert figure.low <= figure.value <= figure.high

    def test_largest_costs_more_than_smallest(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        small = cost_model.cost(cost_space.smallest()).figures
        large = cost_model.cost(cost_space.largest()).figures
        assert all(large[name].value > small[name].value for name in metrics.BASE_COSTS)


class SessionContract:
    """Tests that every session (a loaded model) must pass.

    A subclass provides the fixtures ``session`` (the session, its graph, and a function that
    returns the expected outputs for images) and ``tolerance`` (the maximum absolute error).
    """

    def test_output_is_within_tolerance_of_the_oracle(
        self,
        session: tuple[Session, Graph, Callable[[NDArray[np.float32]], NDArray[np.float32]]],
        tolerance: float,
    ) -> None:
        loaded, graph, oracle = session
        rng = np.random.default_rng(0)
        images = rng.normal(size=(20, *graph[0].op.in_shape)).astype(np.float32)
        outputs = loaded.run(images)
        assert outputs.shape == (20, graph.output.op.out_shape[0])
        assert np.abs(outputs - oracle(images)).max() <= tolerance
