import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hwnas.core.errors import CollapseError, ConfigError
from hwnas.core.progress import NullProgress, Progress
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.models.families.layers import weights_of
from hwnas.models.graph import fuse, n_macs
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.int8.simulation import DeployableNetwork, SimulatedInt8
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.onnx.writer import write_fp32
from hwnas.training import supernet
from hwnas.training.data import DatasetConfig
from hwnas.training.evaluation.interfaces import ScoringConfig
from hwnas.training.evaluation.shared_weights import SupernetEvaluator
from hwnas.training.finetuning.pipeline import finetune
from hwnas.training.finetuning.stages import (
    LargestSubnetTeacher,
    NetworkSource,
    TrainingStage,
    first_stage,
)
from hwnas.training.loop import CheckpointPolicy
from hwnas.training.options import FinetuningConfig, TrainingConfig
from hwnas.training.supernet import TrainingSetup
from tests.conftest import few_of, images_of
from tests.models.int8.networks import calibrate_coarsely
from tests.training.fakes import KillAfter, Killed, equal_tensors

DIGITS = DatasetConfig("digits", validation=0.25, shift=0.125)


def setup(name: str, folder: Path, train: TrainingConfig) -> TrainingSetup:
    arguments = supernet.read_space_and_data([name], DIGITS, NullProgress())
    return supernet.SupernetTraining(DIGITS, train, 0, folder).setups(*arguments)[name]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> NetworkSource:
    """Return a network of a trained supernet."""
    train = TrainingConfig(epochs=8, batch_size=64)
    learned = setup("tiny", tmp_path_factory.mktemp("supernets"), train)
    evaluator = learned.evaluator(learned.trained(NullProgress())[0], ScoringConfig())
    genotype = learned.space.sample(random.Random(1))
    return NetworkSource(learned, evaluator, genotype, LargestSubnetTeacher(evaluator))


def with_folder(origin: NetworkSource, folder: Path) -> NetworkSource:
    """Return the equal_tensors network with another folder for its trainings."""
    return replace(origin, setup=replace(origin.setup, supernets=folder))


def litert(network: QuantisedNetwork) -> LiteRTSession:
    return LiteRTSession(write_tflite(network))


def accuracies(finished: DeployableNetwork) -> dict[str, float]:
    return {step["step"]: step["accuracy"][0] for step in finished.record["steps"]}


@pytest.mark.slow
def test_fine_tuning_improves_accuracy_and_int8_matches_file(
    origin: NetworkSource, tmp_path: Path
) -> None:
    config = FinetuningConfig(epochs=3, max_int8_drop=100)
    finished = finetune(with_folder(origin, tmp_path), config, litert, NullProgress())
    result = accuracies(finished)
    assert list(result) == ["inherited", "fine-tuned", "int8"]
    assert result["fine-tuned"] > result["inherited"] + 0.02
    assert result["int8"] > result["fine-tuned"] - 0.05
    assert finished.graph == origin.graph()
    data = origin.setup.data
    images = data.prepare(images_of(data.validation), origin.resolution).numpy()
    labels = data.validation.targets.numpy()
    assert finished.int8 is not None
    for session, name in (
        (litert(finished.int8), "int8"),
        (OrtSession(write_fp32(finished.graph, weights_of(finished.network, finished.graph))),
         "fine-tuned"),
    ):  # fmt: skip
        accuracy = np.mean(session.run(images).argmax(1) == labels)
        assert accuracy == pytest.approx(result[name], abs=0.003)


def test_without_epochs_weights_are_those_of_search(origin: NetworkSource) -> None:
    finished = finetune(origin, FinetuningConfig(epochs=0, max_int8_drop=0), litert, NullProgress())
    assert isinstance(origin.weights, SupernetEvaluator)
    score = origin.weights.score(origin.genotype)
    steps = finished.record["steps"]
    assert [step["step"] for step in steps] == ["inherited", "int8"]
    assert steps[0]["accuracy"] == score.figure.to_json()
    assert finished.record["weights"] == "supernet, batch norm recalibrated"
    assert finished.record["int8"] == "post-training, 512 calibration images"


def test_pruned_network_is_fine_tuned_and_lowered(origin: NetworkSource, tmp_path: Path) -> None:
    config, source = FinetuningConfig(epochs=3, prune=0.3), with_folder(origin, tmp_path)
    finetune(source, replace(config, prune=0.0), litert, NullProgress())
    finished = finetune(source, config, litert, NullProgress())
    assert finished.record["steps"][1]["seconds"] == 0, "fine-tuned before"
    result = accuracies(finished)
    assert list(result)[:4] == ["inherited", "fine-tuned", "narrowed", "pruned"]
    assert result["narrowed"] < result["fine-tuned"]
    assert result["pruned"] > result["narrowed"]
    assert finished.record["weights"] == (
        "supernet, batch norm recalibrated, fine-tuned for 3 epochs, 30% of the channels pruned, "
        "fine-tuned for 3 epochs"
    )
    assert n_macs(finished.graph) < 0.7 * n_macs(origin.graph())


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate with steps of four bits, for a large loss in int8."""

    monkeypatch.setattr(
        "hwnas.training.finetuning.pipeline.calibrate", partial(calibrate_coarsely, times=16)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_quantisation_aware_training_recovers_accuracy(
    origin: NetworkSource, tmp_path: Path
) -> None:
    finished = finetune(
        with_folder(origin, tmp_path), FinetuningConfig(epochs=8), litert, NullProgress()
    )
    result = accuracies(finished)
    assert result["int8"] < result["fine-tuned"] - 0.03
    assert result["int8-trained"] > result["int8"]
    assert finished.record["int8"].startswith("trained for int8, 8 epochs")
    assert finished.int8 is not None
    assert finished.simulated is not None
    data = origin.setup.data
    images = data.prepare(images_of(data.validation), origin.resolution)
    answers = litert(finished.int8).run(images.numpy())
    with torch.no_grad():
        errors = [
            np.abs(answers - network(images).numpy()).mean()
            for network in (finished.simulated, finished.network)
        ]
    assert errors[0] < errors[1] / 10, "int8 matches the simulation it was trained in"


@pytest.mark.usefixtures("coarse")
def test_quantisation_aware_training_requires_time(origin: NetworkSource, tmp_path: Path) -> None:
    source, config = with_folder(origin, tmp_path), FinetuningConfig(epochs=1)
    finished = finetune(source, config, litert, NullProgress(), lambda: 0.0)
    assert finished.without_int8_training
    assert "int8-trained" not in accuracies(finished)
    assert finished.record["int8"].endswith("no time was left for int8 training")
    trained = finetune(source, config, litert, NullProgress())
    assert "int8-trained" in accuracies(trained)
    resumed = finetune(
        source, config, litert, NullProgress(), lambda: 0.0
    )  # no time needed: already trained
    assert not resumed.without_int8_training
    assert "int8-trained" in accuracies(resumed)


@pytest.mark.usefixtures("coarse")
def test_calibrated_network_is_kept_if_int8_training_collapses(
    origin: NetworkSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TrainingStage.run

    def collapse_in_int8(stage: TrainingStage, progress: Progress) -> float:
        if isinstance(stage.student.network, SimulatedInt8):
            raise CollapseError("Training collapsed")
        return run(stage, progress)

    monkeypatch.setattr(TrainingStage, "run", collapse_in_int8)
    config = FinetuningConfig(epochs=1)
    finished = finetune(with_folder(origin, tmp_path), config, litert, NullProgress())
    assert finished.int8 is not None
    assert finished.record["int8"].endswith("int8 training collapsed")


@pytest.mark.usefixtures("coarse")
def test_no_quantisation_aware_training_within_allowed_drop(
    origin: NetworkSource, tmp_path: Path
) -> None:
    config = FinetuningConfig(epochs=1, max_int8_drop=100)
    finished = finetune(with_folder(origin, tmp_path), config, litert, NullProgress())
    assert "int8-trained" not in accuracies(finished)
    assert finished.simulated is None


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("killed_after", few_of([40, 20, 5], 1))
def test_interrupted_fine_tuning_ends_with_equal_weights(
    origin: NetworkSource, tmp_path: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in each of the three trainings of 16 steps."""
    config = FinetuningConfig(epochs=1, prune=0.3, max_int8_drop=0)
    uninterrupted = finetune(
        with_folder(origin, tmp_path / "whole"), config, litert, NullProgress()
    )
    monkeypatch.setattr(
        "hwnas.training.supernet.CheckpointPolicy", partial(CheckpointPolicy, every_s=0.0)
    )
    interrupted = with_folder(origin, tmp_path / "cut")
    with pytest.raises(Killed):
        finetune(interrupted, config, litert, KillAfter(killed_after))
    resumed = finetune(interrupted, config, litert, NullProgress())
    assert equal_tensors(uninterrupted.network.state_dict(), resumed.network.state_dict())
    assert uninterrupted.int8 is not None
    assert resumed.int8 is not None
    assert write_tflite(uninterrupted.int8) == write_tflite(resumed.int8)
    assert accuracies(uninterrupted) == accuracies(resumed)
    assert "int8-trained" in accuracies(uninterrupted)
    result = finetune(interrupted, config, litert, NullProgress())
    assert [step["seconds"] for step in result.record["steps"]] == [0.0] * 6


def untrained(name: str, folder: Path) -> NetworkSource:
    training = setup(name, folder, TrainingConfig(epochs=1, batch_size=512))
    evaluator = training.evaluator(training.untrained(), ScoringConfig(n_recalibration=64))
    return NetworkSource(
        training, evaluator, training.space.smallest(), LargestSubnetTeacher(evaluator)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", few_of(["vit_small", "resnet_small", "mbconv_mixed"], 2))
def test_networks_of_every_family_are_fine_tuned(name: str, tmp_path: Path) -> None:
    convolutional = name != "vit_small"
    config = FinetuningConfig(epochs=1, prune=0.3 if convolutional else 0.0)
    finished = finetune(untrained(name, tmp_path), config, litert, NullProgress())
    images = torch.randn(2, *finished.graph[0].op.in_shape)
    fused = fuse(finished.graph, "float32")
    session = OrtSession(write_fp32(fused, weights_of(finished.network, fused)))
    with torch.no_grad():
        expected = finished.network(images).numpy()
    np.testing.assert_allclose(session.run(images.numpy()), expected, atol=1e-3)
    assert (finished.int8 is not None) == convolutional
    assert ("cannot be written in int8" in finished.record.get("no_int8", "")) != convolutional


def test_pruning_of_transformers_is_refused_before_training(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"are not pruned\. Omit prune"):
        finetune(
            untrained("vit_small", tmp_path), FinetuningConfig(prune=0.3), litert, NullProgress()
        )
    assert not list(tmp_path.iterdir())


def test_collapse_message_names_option_of_fine_tuning(tmp_path: Path) -> None:
    config = FinetuningConfig(epochs=1, alpha=0, rate=0.1)
    stage = first_stage(untrained("tiny", tmp_path), config)
    with torch.no_grad():
        next(stage.student.network.parameters()).fill_(torch.nan)
    with pytest.raises(
        CollapseError, match=r"the loss is nan\. .*: finish\.rate=0\.025 in a search"
    ):
        stage.run(NullProgress())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, r"epochs must be a whole number in \[0, 100000\], got -1"),
        ({"alpha": 1.5}, r"alpha must be a number in \[0, 1\], got 1.5"),
        ({"prune": 1.0}, r"prune must be a number in \[0, 1\), got 1.0"),
        ({"max_int8_drop": -0.1}, r"max_int8_drop must be a number in \[0, 1000\], got -0.1"),
        ({"prune": 0.2, "epochs": 0}, "prune=0.2 needs training afterwards"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FinetuningConfig(**options)
