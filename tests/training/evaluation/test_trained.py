from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hwnas.core.errors import ConfigError
from hwnas.core.progress import NullProgress
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.models.int8.quantisation import quantise
from hwnas.models.onnx.writer import write_int8
from hwnas.tasks.base import Incumbent
from hwnas.training import supernet
from hwnas.training.batches import StepContext, TrainingBatch
from hwnas.training.data import DatasetConfig
from hwnas.training.evaluation.interfaces import TrainedConfig
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.training.finetuning import pipeline
from hwnas.training.finetuning.stages import NetworkSource
from hwnas.training.loop import StepOutcome
from hwnas.training.options import FinetuningConfig, FinishConfig, TrainingConfig
from hwnas.training.single_network import _SingleNetworkStep
from hwnas.training.supernet import TrainingSetup
from hwnas.workflows.search.finisher import Finetuner
from tests.models.families.test_precision import BOTH, WHEN, with_precision
from tests.training.fakes import equal_tensors

DIGITS = DatasetConfig("digits", validation=0.25, shift=0.125)
CONFIG = TrainedConfig(fidelities=[1, 3])


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    space, families, data = supernet.read_space_and_data(["tiny"], DIGITS, NullProgress())
    train = TrainingConfig(epochs=20, batch_size=64)
    folder = tmp_path_factory.mktemp("networks")
    (space,) = space.members
    return TrainingSetup(space, families["tiny"], data, DIGITS, train, 0, folder)


def _evaluator(setup: TrainingSetup, config: TrainedConfig = CONFIG) -> TrainedEvaluator:
    return TrainedEvaluator({"tiny": setup}, config)


@pytest.mark.slow
def test_network_is_scored_after_each_fidelity(
    setup: TrainingSetup,
) -> None:
    evaluator, genotype = _evaluator(setup), setup.space.largest()
    score = evaluator.score(genotype)
    assert list(score.details) == ["accuracy_after_1_epochs", "accuracy_after_4_epochs"]
    assert score.figure.value == score.details["accuracy_after_4_epochs"]
    assert score.figure.source == "measured"
    assert score.details["accuracy_after_4_epochs"] > score.details["accuracy_after_1_epochs"]
    assert evaluator.origin(genotype) == "scratch, epochs: 1 + 3"
    # A training without the first fidelity gives another result.
    alone = _evaluator(setup, TrainedConfig(fidelities=[3])).score(genotype)
    assert alone.figure != score.figure


def test_trained_network_is_reused(setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    genotype = setup.space.smallest()
    first, network = _evaluator(setup).score(genotype), _evaluator(setup).extracted(genotype)

    def step(*_: object) -> None:
        raise AssertionError("trained twice")

    monkeypatch.setattr("hwnas.training.single_network._SingleNetworkStep.__call__", step)
    second = _evaluator(setup)
    assert second.score(genotype) == first
    assert equal_tensors(second.extracted(genotype).state_dict(), network.state_dict())
    longer = replace(
        setup, train=replace(setup.train, epochs=50)
    )  # epochs of fine-tuning, not of search
    assert _evaluator(longer).score(genotype) == first


def test_staged_training_sees_batches_of_one_training(
    setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, genotype = list[bytes](), setup.space.smallest()
    original_step = _SingleNetworkStep.__call__

    def step(
        self: _SingleNetworkStep, batch: TrainingBatch, step_context: StepContext
    ) -> StepOutcome:
        batches.append(batch.images.numpy().tobytes())
        return original_step(self, batch, step_context)

    def batches_of(
        setup: TrainingSetup, fidelities: list[int], n_fidelities: int | None = None
    ) -> list[bytes]:
        batches.clear()
        weights = _evaluator(setup, TrainedConfig(fidelities=fidelities))
        if n_fidelities is None:
            weights.score(genotype)
        else:  # only fine-tuning
            weights.at_recorded_fidelity({genotype.id: n_fidelities}).extracted(genotype)
            batches.clear()
            origin = NetworkSource(
                setup, weights.at_recorded_fidelity({genotype.id: n_fidelities}), genotype
            )
            pipeline.finetune_float(origin, FinetuningConfig(epochs=2), NullProgress())
        return [*batches]

    monkeypatch.setattr("hwnas.training.single_network._SingleNetworkStep.__call__", step)
    single, several = (replace(setup, supernets=tmp_path / name) for name in ("one", "several"))
    expected, n = batches_of(single, [5]), len(setup.data.train) // 64
    assert len(set(expected)) == 5 * n, "each step has other images"
    assert batches_of(several, [1, 2]) == expected[: 3 * n]
    for n_fidelities in (1, 2):  # fine-tuning is independent of the fidelity reached
        assert batches_of(several, [1, 2], n_fidelities) == expected[3 * n :]


def _incumbent(accuracy: float, n: int) -> Incumbent:
    details = tuple(
        {"accuracy_after_1_epochs": 0.3 + 0.05 * i, "accuracy_after_4_epochs": 0.5 + 0.04 * i}
        for i in range(n)
    )
    return Incumbent(b"", (), accuracy, details)


def test_training_stops_if_incumbent_cannot_be_reached(setup: TrainingSetup) -> None:
    genotype = setup.space.largest()
    evaluator = _evaluator(setup)
    stopped = evaluator.score(genotype, _incumbent(0.9999, 8))
    assert stopped.stopped
    assert stopped.figure.source == "modelled"
    assert list(stopped.details) == ["accuracy_after_1_epochs"]
    assert not evaluator.score(genotype, _incumbent(0.01, 8)).stopped
    assert not evaluator.score(genotype, _incumbent(0.9999, 4)).stopped, "too few pairs"
    never = _evaluator(setup, TrainedConfig(fidelities=[1, 3], confidence=None))
    assert not never.score(genotype, _incumbent(0.9999, 8)).stopped


def test_networks_keep_recorded_fidelity(setup: TrainingSetup, tmp_path: Path) -> None:
    setup = replace(setup, supernets=tmp_path)
    genotype, config = setup.space.largest(), TrainedConfig(fidelities=[1, 2])
    evaluator = _evaluator(setup, config)
    fidelities = {
        genotype.id: config.n_read("accuracy", {"accuracy_after_1_epochs": 0.5, "n_images": 90.0})
    }
    assert fidelities == {genotype.id: 1}
    assert not evaluator.at_recorded_fidelity(fidelities).is_kept(genotype)
    evaluator.score(genotype, _incumbent(0.01, 8))  # completes the training
    assert evaluator.origin(genotype) == "scratch, epochs: 1 + 2"
    assert evaluator.at_recorded_fidelity(fidelities).origin(genotype) == "scratch, epochs: 1"
    assert evaluator.at_recorded_fidelity(fidelities).is_kept(genotype)
    assert evaluator.at_recorded_fidelity({}).is_kept(setup.space.smallest()), (
        "not trained in the search"
    )


def test_network_is_trained_on_demand(setup: TrainingSetup) -> None:
    evaluator = _evaluator(setup, TrainedConfig(fidelities=[2]))
    network = evaluator.network(setup.space.largest())
    images = evaluator.calibration_images(setup.space.largest())
    with torch.no_grad():
        assert network(images).shape == (512, 10)


def test_fine_tuning_time_includes_missing_training(setup: TrainingSetup, tmp_path: Path) -> None:
    setup, genotype = replace(setup, supernets=tmp_path), setup.space.smallest()
    finish = FinishConfig(epochs=2, alpha=0)
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(accuracy="trained", finish=finish, train=setup.train),
        setup_of=lambda _: setup,
    )
    weights = _evaluator(setup)
    finisher = Finetuner(parts, weights)
    n = len(setup.data.train) // 64
    assert (weights.n_missing(genotype), finisher._first_stage(genotype).n_left) == (n, 3 * n)
    weights.extracted(genotype)
    assert (weights.n_missing(genotype), finisher._first_stage(genotype).n_left) == (0, 2 * n)


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="trains nothing"):
        TrainedConfig(fidelities=[])
    with pytest.raises(ConfigError, match=r"fidelities must be whole numbers, each in .*, got 0"):
        TrainedConfig(fidelities=[0, 2])
    with pytest.raises(ConfigError, match=r"confidence must be a number in \[0\.5, 1\)"):
        TrainedConfig(confidence=1.0)


def test_int8_network_shares_training_of_float_network(
    setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = with_precision(setup.space, **BOTH, when=WHEN)
    setup, evaluator = replace(setup, space=space), _evaluator(replace(setup, space=space))
    assignment = {name: options[-1] for name, options in space.choices.items()}
    reals, in_int8, edges = (
        space.genotype({**assignment, "precision": dtype, "float_edges": float_edges})
        for dtype, float_edges in (("float32", 0), ("int8", 0), ("int8", 1))
    )
    first = evaluator.score(reals)

    def step(*_: object) -> None:
        raise AssertionError("trained twice")

    monkeypatch.setattr("hwnas.training.single_network._SingleNetworkStep.__call__", step)
    for genotype in (in_int8, edges):
        figure = evaluator.score(genotype).figure
        lowered, network = setup.graph(genotype), evaluator.network(genotype)
        int8 = quantise(network, lowered, evaluator.calibration_images(genotype))
        session = OrtSession(write_int8(int8, any_batch=True))
        batches = setup.data.batches(setup.data.validation, setup.resolution(genotype))
        answers = [(session.run(x.numpy()).argmax(1), y.numpy()) for x, y in batches]
        correct = sum(int((predicted == y).sum()) for predicted, y in answers)
        assert figure.value == pytest.approx(correct / len(setup.data.validation), abs=0.01)
        assert figure.value == pytest.approx(first.figure.value, abs=0.1)
    assert evaluator.score(reals) == first
