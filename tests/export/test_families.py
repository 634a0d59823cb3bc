"""Artefacts of random networks of each family agree with torch."""

import copy
import dataclasses
import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast, final

import numpy as np
import onnx
import pytest
import safetensors
import torch
from numpy.typing import NDArray
from torch import nn

from hwnas.core.errors import CompileError
from hwnas.export import artefacts, runtimes
from hwnas.export.checks import agreement
from hwnas.export.reference_images import prepared
from hwnas.hardware.backends import base
from hwnas.hardware.backends.base import Artefacts
from hwnas.hardware.backends.tvm import linker
from hwnas.hardware.backends.tvm.engine import TvmDevice, TvmEngine, open_device
from hwnas.hardware.runtimes.bench import DeviceBench
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import TimingConfig
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph, Signature
from hwnas.models.int8.quantisation import quantise
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.onnx import BATCH
from hwnas.models.onnx.opsets import check_opset
from hwnas.models.onnx.writer import OPSET, check_int8
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.tasks.classification import ClassificationTask
from hwnas.training.data import ImageData, InMemorySplit
from tests.conftest import few_of, target
from tests.export.blocked import LARGE, run_file, run_snippet
from tests.export.fakes import FakeDevice
from tests.hardware.runtimes.emulator import CROSS, emulate, needs_cross_compiler, needs_emulator

SPACES = ("tiny", "mbconv_mixed", "resnet_small", "vit_small")
#: Number of exported networks per space.
FEW_OR_MANY = (3, pytest.param(20, marks=pytest.mark.slow))


def network(space: SearchSpace, genotype: Genotype, task: Signature) -> tuple[nn.Module, Graph]:
    """Return a network with batch-norm statistics and its graph."""
    family = families.get(space.family)
    module = family.build(space, genotype, task)
    resolution = family.resolution(space, genotype)
    module.train()
    with torch.no_grad():
        module(torch.randn(16, task.in_channels, resolution, resolution))
    return module.eval(), family.lower(space, genotype, task)


def deployable(module: nn.Module, lowered: Graph, images: torch.Tensor) -> DeployableNetwork:
    int8, folded = None, fold_batch_norm(copy.deepcopy(module))
    try:
        check_int8(lowered)
        int8 = quantise(folded, lowered, images)
    except CompileError:
        pass
    return DeployableNetwork(folded, lowered, int8)


def image_data(task: Signature) -> ImageData:
    split = InMemorySplit(
        torch.zeros(4, 8, 8, task.in_channels, dtype=torch.uint8), torch.arange(4)
    )
    classes = tuple(map(str, range(task.n_outputs)))
    ones = (0.5,) * task.in_channels
    return ImageData("made-up", split, split, split, ClassificationTask(classes), ones, ones)


def write(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("n", FEW_OR_MANY)
@pytest.mark.parametrize(
    ("name", "target_name"),
    [
        ("tiny", "npu"),
        ("tiny", "ethos_u55_256"),
        ("mbconv_mixed", "ethos_u65_256"),
        ("resnet_small", "ethos_u85_256"),
        ("vit_small", "sketch"),
    ],
)
def test_artefacts_of_random_networks_agree_with_torch(
    name: str, target_name: str, n: int, tmp_path: Path
) -> None:
    space, task, rng = (
        spaces.load_space(spaces.find(name)),
        Signature(3, 7),
        random.Random(name),
    )
    device = target(target_name)
    if name == "vit_small":
        device = dataclasses.replace(device, dtype="float32")
    torch.manual_seed(0)
    genotypes = {g.id: g for g in (space.sample(rng) for _ in range(n))}
    for genotype in genotypes.values():
        module, lowered = network(space, genotype, task)
        side = lowered[0].op.in_shape[1]
        images = torch.randn(24, 3, side, side)
        deployable_network = deployable(module, lowered, images)
        files = artefacts.build(
            deployable_network, device, image_data(task), "Network.", _artefacts(device, None)
        )
        write(files, tmp_path)
        with torch.inference_mode():
            expected = module(images).numpy()
        names = [
            kind
            for kind in runtimes.kinds()
            if kind in files and not runtimes.unavailable_reason(kind)
        ]
        assert len(names) == (2 if name == "vit_small" else 4)
        for kind in names:
            result = agreement(
                image_data(task).task,
                runtimes.session(tmp_path, kind, None).run(images.numpy()),
                expected,
            )
            check = result.check(kind, runtimes.kinds()[kind].dtype)
            assert check.holds, f"{genotype.to_dict()}: {check}"
            if kind.endswith(".onnx"):
                assert check_opset(files[kind]) == OPSET
                loaded = onnx.load_model_from_string(files[kind])
                assert loaded.graph.input[0].type.tensor_type.shape.dim[0].dim_param == BATCH


class LocalWorker:
    """Worker that runs in this process."""

    def __init__(self, device: Target):
        engine = TvmEngine(device, open_device(device, Remote()))
        self.bench = DeviceBench(engine, TimingConfig(repeats=3, min_repeat_ms=0.1), "float32")
        self.engine = engine

    def plan(self, op: object) -> str:
        return self.engine.plans(op, 1)[0]  # type: ignore[arg-type]


@contextmanager
def local_device(device: Target) -> Iterator[FakeDevice]:
    worker = LocalWorker(device)
    yield FakeDevice(cast(RetryingPool, worker.bench), worker.plan)


def _artefacts(device: Target, lent: FakeDevice | None) -> Artefacts:
    return base.backend_of(device).artefacts(lent)


@pytest.mark.parametrize("n", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", few_of(["tiny", "vit_small", "resnet_small", "mbconv_mixed"], 1))
def test_libraries_of_random_networks_agree_with_torch(name: str, n: int, tmp_path: Path) -> None:
    space, task, rng = (
        spaces.load_space(spaces.find(name)),
        Signature(1, 10),
        random.Random(name),
    )
    torch.manual_seed(0)
    genotypes = {g.id: g for g in (space.sample(rng) for _ in range(n))}
    device = target("cpu")
    with local_device(device) as lent:
        for genotype in genotypes.values():
            module, lowered = network(space, genotype, task)
            side = lowered[0].op.in_shape[1]
            images = torch.randn(5, 1, side, side)
            deployable_network = deployable(module, lowered, images)
            files = artefacts.build(
                deployable_network, device, image_data(task), "Network.", _artefacts(device, lent)
            )
            folder = tmp_path / genotype.id  # a loaded library cannot be overwritten
            folder.mkdir()
            write(files, folder)
            with torch.inference_mode():
                expected = module(images).numpy()
            for kind in ("model.so", "model.tar"):
                outputs = runtimes.session(folder, kind, lent.worker).run(images.numpy())
                check = agreement(image_data(task).task, outputs, expected).check(kind, "float32")
                assert check.holds, f"{genotype.to_dict()}: {check}"
                assert np.isfinite(outputs).all()


@pytest.mark.slow
def test_runner_needs_only_tvm_and_library_can_be_relinked(tmp_path: Path) -> None:
    space, task = spaces.load_space(spaces.find("tiny")), Signature(1, 10)
    torch.manual_seed(0)
    module, lowered = network(space, space.largest(), task)
    side = lowered[0].op.in_shape[1]
    deployable_network = deployable(module, lowered, torch.randn(5, 1, side, side))
    device = target("cpu")
    with local_device(device) as lent:
        files, repeated = (
            artefacts.build(
                deployable_network, device, image_data(task), "Network.", _artefacts(device, lent)
            )
            for _ in range(2)
        )
    assert files == repeated
    write(files, tmp_path)
    _check_runner(tmp_path, module, side)
    (tmp_path / "model.so").unlink()
    command = "tar -xf model.tar && g++ -shared -fPIC -o model.so *.o"
    assert command in Path("docs/how-to/use-in-python.md").read_text(encoding="utf-8")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    _check_runner(tmp_path, module, side)


@final
class CrossLinker:
    """Device that only links libraries for a Raspberry Pi."""

    def link(self, objects: bytes) -> bytes:
        return linker.shared_library(objects, CROSS)


@pytest.mark.slow
@needs_cross_compiler
@needs_emulator
@pytest.mark.parametrize("name", SPACES)
def test_libraries_for_another_cpu_agree_with_torch(name: str, tmp_path: Path) -> None:
    space, task, rng = (
        spaces.load_space(spaces.find(name)),
        Signature(1, 10),
        random.Random(name),
    )
    device = target("raspi4")
    engine = TvmEngine(device, cast(TvmDevice, CrossLinker()))
    lent = FakeDevice(cast(RetryingPool, engine), lambda op: engine.plans(op, 1)[0])
    torch.manual_seed(0)
    for genotype in (space.sample(rng) for _ in range(4)):
        module, lowered = network(space, genotype, task)
        side = lowered[0].op.in_shape[1]
        images = torch.randn(1, 1, side, side)
        deployable_network = deployable(module, lowered, images)
        data, target_artefacts = image_data(task), _artefacts(device, lent)
        write(
            artefacts.build(deployable_network, device, data, "Network.", target_artefacts),
            tmp_path,
        )
        linked = linker.shared_library((tmp_path / "model.tar").read_bytes(), CROSS)
        assert (tmp_path / "model.so").read_bytes() == linked
        with torch.inference_mode():
            expected = module(images).numpy()
        check = agreement(image_data(task).task, _emulate(tmp_path, images), expected).check(
            "model.so", "float32"
        )
        assert check.holds, f"{genotype.to_dict()}: {check}"


def _emulate(folder: Path, images: torch.Tensor) -> NDArray[np.float32]:
    """Return the output of a library for one image."""
    with safetensors.safe_open(folder / "model.tvm.safetensors", "numpy") as file:
        facts = json.loads(file.metadata()["network"])
        weights = file.get_tensor("weights")
    arguments = [np.zeros(shape, np.float32) for shape in facts["parameters"]]
    arguments[0][0, ..., : images.shape[1]] = images.numpy()[0].transpose(1, 2, 0)
    arguments[1] = weights
    _, _, output, _ = emulate(folder / "model.so", facts["entry"], arguments, folder)
    return output.reshape(1, -1)[:, : facts["n_outputs"]]


def _check_runner(folder: Path, module: nn.Module, side: int) -> None:
    """Run ``run_tvm.py`` with only TVM installed, and compare its predictions with torch."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, side, side, 1), np.uint8)
    np.save(folder / "images.npy", pixels)
    blocked = (*LARGE, "hwnas", "onnxruntime", "ai_edge_litert", "safetensors")
    script, images = str(folder / "run_tvm.py"), str(folder / "images.npy")
    completed = run_file(script, images, blocked=blocked)
    assert completed.returncode == 0, completed.stderr
    with torch.inference_mode():
        logits = module(torch.from_numpy(prepared(pixels, [0.5], [0.5])))
    assert [*map(int, completed.stdout.split())] == logits.argmax(1).tolist()
    np.savez(folder / "images.npz", pixels=pixels)
    completed = run_snippet("tvm", folder, blocked=blocked)
    assert completed.returncode == 0, completed.stderr
    assert [*map(int, completed.stdout.split())] == logits.argmax(1).tolist()
    np.save(folder / "images.npy", pixels[:, 1:])
    completed = run_file(script, images, blocked=blocked)
    assert completed.returncode == 1
    assert "Expected uint8 (N, *[" in completed.stderr
