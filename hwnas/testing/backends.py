"""What searches, exports and latency tables rely on in a backend."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pytest
import torch

from hwnas import backends, families, metrics, space
from hwnas.backends import base, portable
from hwnas.backends.base import Artefacts, Bench, Floats, Trained
from hwnas.backends.description import Description
from hwnas.errors import CompileError, ConfigError
from hwnas.families.blocks import fold_batch_norm, weights_of
from hwnas.graph import INPUT, Graph, Node
from hwnas.int8.quantise import quantise
from hwnas.latency_table import LatencyTable, setting
from hwnas.op import OpSpec, Signature
from hwnas.runtimes.pool import Pool, Retrying
from hwnas.target import Remote, Target
from hwnas.timing import TimingConfig

#: Largest error of outputs, as a fraction of the largest output of torch.
_TOLERANCES = {"float32": 1e-4, "int8": 0.1}
_HALVES = 0.02  #: of float16 and bfloat16


@final
@dataclass(frozen=True)
class _Tuned:
    """A device whose operators are compiled by the first plan."""

    worker: Retrying
    table: LatencyTable

    def plan(self, op: OpSpec) -> str:
        return self.worker.tune(op, 1)


class BackendContract:
    """A subclass gives the fixture ``backend_target``: a target of the backend.

    It may have parameters: several dtypes are tested so. What is measured is measured here.
    """

    @pytest.fixture
    def description(self, backend_target: Target) -> Description:
        return backends.get(backend_target.runtime)

    @pytest.fixture
    def bench(self, backend_target: Target, description: Description) -> Iterator[Bench | None]:
        if not description.measured:
            yield None
            return
        timing = TimingConfig(repeats=3, min_repeat_ms=0.1)
        with Pool(backend_target, timing, Remote(), 120) as pool:
            yield _Tuned(Retrying(pool), LatencyTable(Path(setting(backend_target))))

    @pytest.fixture
    def artefacts(self, backend_target: Target, bench: Bench | None) -> Artefacts:
        return base.of(backend_target).artefacts(bench)

    @pytest.fixture
    def network(self) -> tuple[Trained, Floats, Floats]:
        """Return a network with images and what torch answers."""
        torch.manual_seed(0)
        where, signature = space.load(space.find("tiny")), Signature(1, 10)
        family, genotype = families.get(where.family), where.largest()
        side = family.resolution(where, genotype)
        module = family.build(where, genotype, signature)
        images = torch.randn(20, 1, side, side)
        module.train()(images)  # statistics that are not those of a fresh batch norm
        folded, lowered = fold_batch_norm(module.eval()), family.lower(where, genotype, signature)
        trained = Trained(lowered, weights_of(folded, lowered), quantise(folded, lowered, images))
        with torch.inference_mode():
            return trained, images.numpy(), folded(images).numpy()

    def test_description_is_read_without_the_backend(self, description: Description) -> None:
        """What is not installed is described, too: nothing of it is imported before its use."""
        code = (
            "import sys, hwnas.target, hwnas.backends as b; b.known(); "
            f"print({{*{list(description.needs)!r}, 'torch'}} & {{*sys.modules}})"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ran.stdout.strip() == "set()", ran.stderr

    def test_description_says_what_the_backend_has(
        self, backend_target: Target, description: Description
    ) -> None:
        assert list(base.of(backend_target).cost_models) == list(description.costs)
        assert {*description.precisions} <= {*description.dtypes}
        held = backends.artefacts()
        assert {*description.dtypes.values()} <= {*held}, "dtypes name artefacts of no backend"
        named = (name for runner in description.runners for name in runner.artefacts)
        ran = {name.replace("segment0", "model", 1) for name in named}  # a segment is one as any
        assert ran <= {*held}
        assert all(artefact.files for artefact in description.artefacts)
        if description.settings is not None:
            assert dataclasses.is_dataclass(description.settings)

    def test_target_that_lacks_what_the_backend_requires_is_refused(
        self, backend_target: Target, description: Description
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
        backend = base.of(backend_target)
        if backend_target.dtype == "int8":
            with pytest.raises(CompileError, match="odd"):
                backend.check(Graph.of(odd))
        else:
            backend.check(Graph.of(odd))

    def test_verified_files_compute_what_the_network_does(
        self,
        backend_target: Target,
        artefacts: Artefacts,
        network: tuple[Trained, Floats, Floats],
        tmp_path: Path,
    ) -> None:
        """What ``judge`` reads are the files alone, in batches of any size."""
        trained, images, expected = network
        files = _built(artefacts, trained, tmp_path)
        outputs, cost = artefacts.judge(files, trained.lowered, iter([images[:3], images[3:]]))
        _assert_near(outputs, expected, backend_target.dtype)
        assert not cost.reason
        assert {*cost.figures} == {*metrics.GIVEN}
        assert all(figure.value > 0 for figure in cost.figures.values())

    def test_files_are_timed_in_turns_where_latencies_are_measured(
        self,
        description: Description,
        artefacts: Artefacts,
        network: tuple[Trained, Floats, Floats],
        tmp_path: Path,
    ) -> None:
        files = _built(artefacts, network[0], tmp_path)
        found = artefacts.in_turns(files, files)
        assert (found is not None) is description.measured
        if found is not None:
            assert found.ratio.source == "measured"
            assert 0.3 < found.ratio.value < 3
            assert found.first.median_ms > 0

    def test_delivered_files_are_those_of_its_artefacts_and_run(
        self,
        backend_target: Target,
        description: Description,
        artefacts: Artefacts,
        bench: Bench | None,
        network: tuple[Trained, Floats, Floats],
    ) -> None:
        """An export holds the artefact that the figures of the target are of."""
        trained, images, expected = network
        files = artefacts.delivered(trained)
        own = backends.artefacts()[description.dtypes[backend_target.dtype]]
        if own.name not in (portable.FLOAT32, portable.INT8):
            assert {*own.files} <= {*files}, "the artefact of the dtype is not delivered"
        names = {suffix for artefact in description.artefacts for suffix in artefact.files}
        assert {*files} <= names, "files that no artefact names"
        for artefact in description.artefacts:
            ours = artefact.dtype == backend_target.dtype and {*artefact.files} <= {*files}
            if artefact.opens and ours:
                contents = {suffix: files[suffix] for suffix in artefact.files}
                session = base.opened(artefact.name, contents)
                _assert_near(session.run(images), expected, artefact.dtype)

    def test_network_in_int8_runs_here(
        self, backend_target: Target, network: tuple[Trained, Floats, Floats]
    ) -> None:
        """Whatever the target computes in: every export holds an int8 file."""
        trained, images, expected = network
        assert trained.int8 is not None
        session = base.of(backend_target).int8_session(trained.int8)
        _assert_near(session.run(images), expected, "int8")


def _built(artefacts: Artefacts, trained: Trained, folder: Path) -> dict[str, Path]:
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
