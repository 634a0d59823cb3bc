"""TVM as an engine: networks that are linked, exported and opened."""

import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from numpy.typing import NDArray

from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.backends.tvm import TvmSettings, find_compiler, layout
from hwnas.hardware.backends.tvm import compiler as compiling
from hwnas.hardware.backends.tvm.engine import LocalDevice, TvmEngine
from hwnas.hardware.backends.tvm.linker import ENTRY, plan_arena
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm, weights_of
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature, fuse
from hwnas.models.int8.quantised_network import Weights
from hwnas.testing import SessionContract
from hwnas.training.inference import recalibrate
from tests.conftest import few_of
from tests.hardware.runtimes import torch_reference as reference
from tests.hardware.runtimes.rpc_lab import HOST

TOLERANCE = 2e-5
TINY, VIT = (spaces.load_space(spaces.find(name)) for name in ("tiny", "vit_small"))
CPU_SMALL = spaces.load_space(spaces.find("cpu_small"))
#: A network of separable, plain, inverted and residual blocks.
KINDS = CPU_SMALL.genotype(
    {
        **{name: options[0] for name, options in CPU_SMALL.choices.items()},
        **{"stages.0.depth": 2, "stages.0.blocks.1.kind": "plain"},
        **{"stages.1.blocks.0.kind": "inverted", "stages.2.blocks.0.kind": "residual"},
    }
)

needs_linker = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "gcc", "clang"))), reason="no C++ compiler"
)


@pytest.fixture(scope="module")
def engine() -> TvmEngine:
    return TvmEngine(HOST, LocalDevice(1))


def _plans(engine: TvmEngine, lowered: Graph) -> dict[OpSpec, str]:
    return {node.op: engine.plans(node.op, 1)[0] for node in lowered}


def _op(
    kind: str, c_in: int, c_out: int, size: int = 6, kernel: int = 1, groups: int = 1
) -> OpSpec:
    return OpSpec(kind, (c_in, size, size), (c_out, size, size), kernel, 1, groups)


def _chain(*ops: OpSpec, batch: int = 1) -> Graph:
    nodes: list[Node] = []
    for step, op in enumerate(ops):
        source = nodes[-1].name if nodes else INPUT
        nodes.append(Node(f"{op.base}{step}", replace(op, dtype="float32", batch=batch), (source,)))
    return Graph.of(nodes)


def _branching(batch: int) -> Graph:
    """Return a network with every kind of operator and long-lived tensors."""
    wide, small = (20, 6, 6), (20, 3, 3)
    named: dict[str, tuple[OpSpec, tuple[str, ...]]] = {
        "stem": (_op("conv2d+bn+relu", 3, 20, kernel=3), (INPUT,)),
        "depthwise": (_op("conv2d+bn+hardswish", 20, 20, kernel=5, groups=20), ("stem",)),
        "squeeze": (OpSpec("mean", wide, (20, 1, 1)), ("depthwise",)),
        "gate": (_op("conv2d+hardsigmoid", 20, 20, size=1), ("squeeze",)),
        "scaled": (OpSpec("mul", wide, wide), ("depthwise", "gate")),
        "project": (_op("conv2d+bn+add", 20, 20), ("scaled", "stem")),
        "pool": (OpSpec("max_pool2d", wide, small, 3, 2), ("project",)),
        "norm": (OpSpec("layernorm", small, small), ("pool",)),
        "qkv": (_op("linear", 20, 60, size=3), ("norm",)),
        "mix": (OpSpec("attention", (60, 3, 3), small, groups=4), ("qkv",)),
        "sum": (OpSpec("add+relu", small, small), ("pool", "mix")),
        "mean": (OpSpec("mean", small, (20, 1, 1)), ("sum",)),
        "classifier": (_op("linear", 20, 7, size=1), ("mean",)),
    }
    return Graph.of(
        Node(name, replace(op, dtype="float32", batch=batch), inputs)
        for name, (op, inputs) in named.items()
    )


def _exported(engine: TvmEngine, lowered: Graph, weights: Weights, folder: Path) -> dict[str, Path]:
    files = {}
    for suffix, content in engine.export(lowered, _plans(engine, lowered), weights).items():
        files[suffix] = folder / f"network{suffix}"
        files[suffix].write_bytes(content)
    return files


def _images(lowered: Graph, n: int) -> NDArray[np.float32]:
    shape = (n, *lowered[0].op.in_shape)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@needs_linker
class TestTvm(SessionContract):
    """A network of each family, its weights from torch, batch norm folded."""

    @pytest.fixture(
        params=few_of([(KINDS, 2), (VIT.smallest(), 3), (TINY.sample(random.Random(1)), 1)], 2)
    )
    def session(
        self,
        request: pytest.FixtureRequest,
        engine: TvmEngine,
        task: Signature,
        tmp_path: Path,
    ) -> tuple[Session, Graph, Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
        genotype, batch = request.param
        result = spaces.load_space(spaces.find(genotype.space))
        family = families.get(result.family)
        torch.manual_seed(0)
        network = family.build(result, genotype, task)
        size = family.resolution(result, genotype)
        recalibrate(network, torch.randn(32, task.in_channels, size, size))
        fold_batch_norm(network)
        lowered = fuse(family.lower(result, genotype, task), "float32", batch)
        assert any("add" in node.op.fused for node in lowered)

        def oracle(images: NDArray[np.float32]) -> NDArray[np.float32]:
            with torch.no_grad():
                outputs: NDArray[np.float32] = network(torch.from_numpy(images)).numpy()
            return outputs

        files = _exported(engine, lowered, weights_of(network, lowered), tmp_path)
        return engine.open(files).session, lowered, oracle

    @pytest.fixture
    def tolerance(self) -> float:
        return 1e-5


@pytest.mark.slow
@needs_linker
@pytest.mark.parametrize("batch", few_of([3, 1], 1))
def test_exported_network_supports_all_operators(
    engine: TvmEngine, batch: int, tmp_path: Path
) -> None:
    lowered = _branching(batch)
    weights = random_weights(lowered, 0)
    loaded = engine.open(_exported(engine, lowered, weights, tmp_path))
    images = _images(lowered, 4)
    expected = reference.network(lowered, weights, images)
    result = loaded.session.run(images)
    assert reference.relative_error(result[..., None, None], expected) < TOLERANCE
    assert np.array_equal(loaded.session.run(images), result)
    assert loaded.timer(3) > 0
    assert loaded.uncounted == 1  # what TVM runs before it times
    assert np.array_equal(loaded.session.run(images), result)


@pytest.mark.parametrize("batch", [1, 3])
def test_linked_network_matches_reference(engine: TvmEngine, batch: int) -> None:
    lowered = _branching(batch)
    weights = random_weights(lowered, 0)
    device, compiler = LocalDevice(1), engine._compiler
    linked = compiler.link(lowered, {node.op: compiler.plans(node.op, 1)[0] for node in lowered})
    images = _images(lowered, batch)
    lanes = compiler.cpu.lanes
    packed = compiler.pack_weights(lowered, weights)
    shapes = [parameter.shape for parameter in linked.parameters]
    assert shapes[:2] == [images.transpose(0, 2, 3, 1).shape, packed.shape]
    arrays = [images.transpose(0, 2, 3, 1), packed]
    # Nothing in the arena is read before it is written.
    arrays += [np.full(shape, np.nan, np.float32) for shape in shapes[2:]]
    tensors = [device.tensor(np.ascontiguousarray(array)) for array in arrays]
    device.call(device.load(linked.module), ENTRY, tensors)
    result = device.array(tensors[2]).reshape(batch, layout.padded(7, lanes))[:, :7]
    expected = reference.network(lowered, weights, images)
    assert reference.relative_error(result[..., None, None], expected) < TOLERANCE
    assert engine.network(lowered, _plans(engine, lowered))(2) > 0


@needs_linker
def test_repeated_operators_have_separate_weights(engine: TvmEngine, tmp_path: Path) -> None:
    conv, mean = _op("conv2d+bn+relu", 16, 16, kernel=3), OpSpec("mean", (16, 6, 6), (16, 1, 1))
    lowered = _chain(conv, conv, conv, mean)
    assert len({node.op for node in lowered}) == 2
    weights = random_weights(lowered, 0)
    session = engine.open(_exported(engine, lowered, weights, tmp_path)).session
    images = _images(lowered, 2)
    expected = reference.network(lowered, weights, images)
    assert reference.relative_error(session.run(images)[..., None, None], expected) < TOLERANCE
    assert engine.network(lowered, _plans(engine, lowered))(1) > 0


@needs_linker
@pytest.mark.parametrize(
    "op", [OpSpec("mean", (5, 4, 4), (5, 1, 1)), OpSpec("add", (12, 1, 1), (12, 1, 1))], ids=str
)
def test_single_operator_without_weights_runs(
    engine: TvmEngine, op: OpSpec, tmp_path: Path
) -> None:
    n_inputs = len(reference.shapes(op))
    lowered = (Node("only", replace(op, dtype="float32"), (INPUT,) * n_inputs),)
    session = engine.open(_exported(engine, Graph.of(lowered), {}, tmp_path)).session
    images = _images(Graph.of(lowered), 3)
    expected = reference.network(Graph.of(lowered), {}, images)
    assert reference.relative_error(session.run(images)[..., None, None], expected) < TOLERANCE


@needs_linker
def test_several_exported_networks_work_together(engine: TvmEngine, tmp_path: Path) -> None:
    ops = _op("conv2d+relu", 3, 16, kernel=3), OpSpec("mean", (16, 6, 6), (16, 1, 1))
    first, second = _chain(*ops), _chain(*ops, batch=2)
    sessions = []
    for i, (lowered, seed) in enumerate([(first, 0), (first, 1), (second, 1)]):
        (tmp_path / str(i)).mkdir()
        weights = random_weights(lowered, seed)
        files = _exported(engine, lowered, weights, tmp_path / str(i))
        sessions.append((engine.open(files).session, lowered, weights))
    images = _images(first, 3)
    for session, lowered, weights in [*sessions, *reversed(sessions)]:
        expected = reference.network(lowered, weights, images)
        assert reference.relative_error(session.run(images)[..., None, None], expected) < TOLERANCE


@pytest.fixture(scope="module")
def batched(
    engine: TvmEngine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Session, Graph, Weights]:
    lowered = _chain(
        _op("conv2d+bn+relu", 5, 12, kernel=3),
        OpSpec("mean", (12, 6, 6), (12, 1, 1)),
        _op("linear", 12, 3, size=1),
        batch=3,
    )
    weights = random_weights(lowered, 0)
    files = _exported(engine, lowered, weights, tmp_path_factory.mktemp("batched"))
    with safetensors.safe_open(str(files[".safetensors"]), "numpy") as file:
        assert json.loads(file.metadata()["network"])["images"] == [5, 6, 6]
    return engine.open(files).session, lowered, weights


@needs_linker
@pytest.mark.parametrize("n_images", [0, 1, 3, 4, 7])
def test_any_number_of_images_is_run_in_batches(
    batched: tuple[Session, Graph, Weights], n_images: int
) -> None:
    session, lowered, weights = batched
    images = _images(lowered, n_images)
    result = session.run(images)
    assert result.shape == (n_images, 3)
    if n_images:
        expected = reference.network(lowered, weights, images)
        assert reference.relative_error(result[..., None, None], expected) < TOLERANCE


@needs_linker
@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 6, 6), (5, 1, 1), (5, 6, 7), (6, 6)])
def test_images_of_another_shape_are_refused(
    batched: tuple[Session, Graph, Weights], shape: tuple[int, ...]
) -> None:
    with pytest.raises(CompileError, match=r"reads images \(C, H, W\) of \[5, 6, 6\], not"):
        batched[0].run(np.zeros((2, *shape), np.float32))


def test_untuned_network_is_refused(engine: TvmEngine) -> None:
    lowered = _branching(1)
    plans = _plans(engine, Graph.of(lowered[:-2]))
    refused = pytest.raises(
        CompileError, match="2 operators have no compilation plan, for example mean 20x"
    )
    with refused:
        engine.network(lowered, plans)
    with refused:
        engine.export(lowered, plans, {})


def test_operator_is_timed_and_released(engine: TvmEngine) -> None:
    small, large = (
        replace(_op("conv2d+bn+relu", c, c, size=16, kernel=3), dtype="float32") for c in (4, 64)
    )
    took = {}
    for op in (small, large):
        plan = engine.plans(op, 1)[0]
        timer = engine.operator(op, plan)
        took[op] = min(timer(20) for _ in range(5))
        engine.forget(op, plan)
        engine.forget(op, plan)
        assert timer(1) > 0  # a timer in use stays valid
    assert took[large] > 3 * took[small] > 0


def test_error_for_missing_compiler_names_package(
    engine: TvmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = _chain(_op("linear", 16, 16, size=1))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"'g\+\+' is not installed .* apt-get install g\+\+$"
    ) as error:
        engine.export(lowered, _plans(engine, lowered), random_weights(lowered, 0))
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"target.tvm.cc.* install g\+\+-aarch64-linux-gnu$"):
        find_compiler("aarch64-linux-gnu-g++")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "clang" else None)
    assert find_compiler("") == "clang"


@pytest.mark.parametrize(
    "wrong",
    [
        TvmSettings(mcpu="pentium-9"),
        TvmSettings(mcpu="cortex-a72"),  # of another architecture
        TvmSettings(mcpu="x86-64-v3", mtriple="aarch64-linux-gnu"),
    ],
)
def test_unknown_cpu_is_refused(wrong: TvmSettings) -> None:
    with pytest.raises(ConfigError, match=r"target\.tvm") as error:
        compiling.tvm_target(wrong, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("facts", "lanes", "registers"),
    [
        (TvmSettings(mcpu="x86-64-v2", mtriple="x86_64-linux-gnu"), 4, 16),
        (TvmSettings(mcpu="haswell", mtriple="x86_64-linux-gnu"), 8, 16),
        (TvmSettings(mcpu="znver4", mtriple="x86_64-linux-gnu"), 16, 32),
        (TvmSettings(mcpu="cortex-a72", mtriple="aarch64-linux-gnu"), 4, 32),
    ],
)
def test_vector_width_is_queried_from_llvm(facts: TvmSettings, lanes: int, registers: int) -> None:
    cpu = compiling.cpu_facts(compiling.tvm_target(facts, 3), 3)
    assert (cpu.lanes, cpu.registers, cpu.threads) == (lanes, registers, 3)


def test_more_threads_than_cores_are_refused() -> None:
    n_cores = len(os.sched_getaffinity(0))
    with pytest.raises(ConfigError, match=f"target.threads={n_cores + 1}, but only {n_cores} "):
        LocalDevice(n_cores + 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_timing_keeps_affinity_of_process(threads: int) -> None:
    cores = os.sched_getaffinity(0)
    if threads > len(cores):
        pytest.skip(f"needs {threads} cores")
    engine = TvmEngine(replace(HOST, threads=threads), LocalDevice(threads))
    op = replace(_op("conv2d", 16, 16), dtype="float32")
    try:
        assert all(engine.operator(op, plan)(2) > 0 for plan in engine.plans(op, 2))
        assert os.sched_getaffinity(0) == cores
    finally:
        LocalDevice(1)


def _random_network(rng: random.Random) -> tuple[Graph, dict[str, int]]:
    names = [INPUT]
    nodes = []
    for step in range(rng.randrange(2, 25)):
        recent = names[-rng.choice([1, 2, 20]) :]
        inputs = tuple(rng.choice(recent) for _ in range(rng.choice([1, 1, 2])))
        nodes.append(Node(f"n{step}", _op("add", 1, 1), inputs))
        names.append(f"n{step}")
    sizes = {node.name: 16 * rng.choice([1, 1, 2, 3, 10, 50]) for node in nodes[:-1]}
    return Graph.of(nodes), sizes


@pytest.mark.parametrize("first_seed", range(0, 500, 100))
def test_simultaneous_tensors_do_not_overlap(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        _check_arena(*_random_network(random.Random(seed)))


def _check_arena(lowered: Graph, sizes: dict[str, int]) -> None:
    offsets, size = plan_arena(lowered, sizes)
    assert {*offsets} == {*sizes}
    needed = 0
    for step, node in enumerate(lowered):
        # The tensors of this step, and those that are read later.
        later = {source for n in lowered[step:] for source in n.inputs}
        alive = ({n.name for n in lowered[:step]} & later | {node.name}) & {*sizes}
        used = sorted((offsets[name], offsets[name] + sizes[name]) for name in alive)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(used))
        needed = max(needed, sum(sizes[name] for name in alive))
    assert needed <= size <= sum(sizes.values())
    assert all(0 <= offsets[name] <= size - sizes[name] for name in sizes)


def test_memory_is_reused() -> None:
    lowered = _chain(*[_op("conv2d", 16, 16)] * 20)
    sizes = {node.name: 64 for node in lowered[:-1]}
    assert plan_arena(lowered, sizes)[1] == 2 * 64
    one_large = {name: 256 if name == "conv2d7" else 64 for name in sizes}
    assert plan_arena(lowered, one_large)[1] == 256 + 64
