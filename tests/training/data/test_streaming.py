"""Streamed data sets give the same results as data sets in memory."""

import io
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hwnas.__main__ import run
from hwnas.core.progress import NullProgress
from hwnas.core.run_folder import RunFolder
from hwnas.hardware.target import Target
from hwnas.nas.candidates import Candidate
from hwnas.nas.verification import verify
from hwnas.tasks.base import Incumbent
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.data import DatasetConfig, InMemorySplit, StreamedSplit, image_data
from hwnas.training.options import FinishConfig, TrainingConfig
from hwnas.workflows import components
from hwnas.workflows.components import Accuracies, accuracies
from hwnas.workflows.config import RunConfig, SearchConfig
from hwnas.workflows.search.finisher import Finetuner, verifier
from tests.conftest import SHARED_WEIGHTS
from tests.training.data.made import write

_N = 700


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first digits as a file of PNGs."""
    digits, contents = load_digits(), []
    for image in np.round(digits.images[:_N] * 255 / 16).astype(np.uint8):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        contents.append(buffer.getvalue())
    labels = digits.target[:_N].tolist()
    return write(tmp_path_factory.mktemp("digits") / "x.parquet", contents, labels)


def _parts(npu: Target, path: Path, in_memory: bool) -> components.SearchComponents:
    dataset = DatasetConfig("images", path=str(path), validation=0.4, in_memory=in_memory)
    runs = str(path.parent / f"supernets-{in_memory}")
    config = SearchConfig(
        target=npu,
        dataset=replace(dataset, flip=True, shift=0.125),
        search_space="tiny",
        train=TrainingConfig(epochs=1, batch_size=64),
        accuracy="supernet",
        finish=FinishConfig(epochs=0),
        run=RunConfig(supernets=runs),
    )
    return components.parts(config, NullProgress())


@pytest.fixture(scope="module")
def in_memory_parts(npu: Target, path: Path) -> components.SearchComponents:
    return _parts(npu, path, in_memory=True)


@pytest.fixture(scope="module")
def streamed_parts(npu: Target, path: Path) -> components.SearchComponents:
    return _parts(npu, path, in_memory=False)


@pytest.fixture(scope="module")
def evaluators(
    in_memory_parts: components.SearchComponents, streamed_parts: components.SearchComponents
) -> tuple[Accuracies, ...]:
    return tuple(accuracies(parts, NullProgress()) for parts in (in_memory_parts, streamed_parts))


@pytest.fixture(autouse=True)
def _several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_data, "_BATCH", 60)


def test_training_and_scoring(
    in_memory_parts: components.SearchComponents,
    streamed_parts: components.SearchComponents,
    evaluators: tuple[Accuracies, ...],
) -> None:
    assert isinstance(in_memory_parts.data.train, InMemorySplit)
    assert isinstance(streamed_parts.data.train, StreamedSplit)
    assert isinstance(streamed_parts.data.validation, StreamedSplit)
    rng = random.Random(0)
    genotypes = [in_memory_parts.space.sample(rng) for _ in range(4)]
    scores, expected = ([e.score(g) for g in genotypes] for e in reversed(evaluators))
    assert scores == expected
    incumbent = Incumbent(scores[0].per_image, tuple(score.per_image for score in scores))
    last = in_memory_parts.space.sample(rng)
    assert evaluators[0].score(last, incumbent) == evaluators[1].score(last, incumbent)


def test_verification(
    in_memory_parts: components.SearchComponents,
    streamed_parts: components.SearchComponents,
    evaluators: tuple[Accuracies, ...],
    tmp_path: Path,
) -> None:
    genotype = in_memory_parts.space.smallest()
    figures = dict(components.cost_model(in_memory_parts, None).cost(genotype).figures)
    results = []
    for parts, evaluator in zip((in_memory_parts, streamed_parts), evaluators, strict=True):
        bench = verifier(parts, Finetuner(parts, evaluator), None)
        folder = RunFolder(tmp_path / parts.data.search_digest)
        members = [Candidate(0, genotype, figures)]
        (member,) = verify(
            members, bench, Budget(), ("accuracy", "latency_ms"), folder, NullProgress()
        ).members
        results.append((member.figures, member.files))
    assert results[0] == results[1]


@pytest.mark.slow
def test_search_reports_streamed_splits(
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hwnas"])
    arguments = [
        "search",
        "+target=npu",
        "search_space=tiny",
        "n_trials=12",
        "train.epochs=1",
        *SHARED_WEIGHTS,
    ]
    arguments += ["dataset=images", f"dataset.path={path}", "dataset.in_memory=false"]
    assert run([*arguments, "dataset.crop=0.5", "run.dir=r"]) == 0
    out = capsys.readouterr().out
    assert "train streamed (" in out
    assert "dataset.in_memory=false" in out
    assert (tmp_path / "r" / "front.csv").exists()
