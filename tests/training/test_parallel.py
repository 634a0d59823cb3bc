"""Training by two processes, started by torchrun."""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.nn import functional as F

from hwnas.models.families import elastic_layers
from hwnas.models.families.elastic_layers import ElasticNorm
from hwnas.training.checkpoints import Checkpoint

ROOT = Path(__file__).parents[2]
OPTIONS = ("search_space=tiny", "train.epochs=1", "train.mixup=0.2", "train.ema=0.9")
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "--module")


def _run(folder: Path, *module: str) -> str:
    command = [sys.executable, "-m", *module, "train", *OPTIONS, "run.dir=r", "run.supernets=s"]
    folder.mkdir()
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
    )  # fmt: skip
    return done.stdout if done.returncode == 0 else done.stderr


def _log(folder: Path) -> list[dict[str, float]]:
    with (folder / "r" / "log.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path: Path) -> None:
    printed = _run(tmp_path / "one", "hwnas"), _run(tmp_path / "two", *TORCHRUN, "hwnas")
    for text in printed:
        assert text.count("Run folder:") == 1, text  # only the first process writes and prints
    one, two = _log(tmp_path / "one"), _log(tmp_path / "two")
    assert len(one) == len(two) == 16
    for a, b in zip(one, two, strict=True):
        for name in ("step", "lr", "loss_largest", "loss_random", "loss_smallest"):
            assert b[name] == pytest.approx(a[name], rel=1e-4), (name, a["step"])
    paths = [next((tmp_path / name / "s").rglob("*.safetensors")) for name in ("one", "two")]
    assert paths[0].parent.name == paths[1].parent.name  # a search finds either
    weights = [Checkpoint(path).weights() for path in paths]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0.02, atol=0.01)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_synchronised_batch_norm_of_one_process_is_batch_norm() -> None:
    torch.manual_seed(0)
    norm, x = ElasticNorm(6), torch.randn(5, 4, 3, 3) * 3 + 1
    a, b = (x.clone().requires_grad_() for _ in range(2))
    weight, bias = norm.weight[:4], norm.bias[:4]
    expected = F.batch_norm(a, None, None, weight, bias, training=True)
    result = elastic_layers.synchronised_batch_norm(b, weight, bias)
    torch.testing.assert_close(result, expected)
    direction = torch.randn_like(x)
    torch.autograd.backward([(expected * direction).sum(), (result * direction).sum()])
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)
