from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwnas import supernets
from hwnas.export import finishing
from hwnas.export.finishing import Finished, FinishingConfig, Origin, finish
from hwnas.families.blocks import weights_of
from hwnas.int8.network import QuantisedNetwork, Scale
from hwnas.int8.quantise import Scales
from hwnas.int8.tflite import write
from hwnas.op import n_macs
from hwnas.progress import Silent
from hwnas.runtimes.litert import LiteRTSession
from hwnas.runtimes.onnx_writer import write_fp32
from hwnas.runtimes.ort import OrtSession
from hwnas.supernets import Course
from hwnas.training.config import TrainingConfig
from hwnas.training.data import DatasetConfig
from tests.conftest import images_of

DIGITS = DatasetConfig("digits", validation=0.25, shift=0.125)


def course(name: str, folder: Path, epochs: int = 6) -> Course:
    space, family, data = supernets.read(name, DIGITS, Silent())
    train = TrainingConfig(epochs=epochs, batch_size=128)
    return Course(space, family, data, DIGITS, train, 0, folder)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """Return the smallest network of a space of tiny ones, in a trained supernet."""
    learned = course("tiny", tmp_path_factory.mktemp("supernets"))
    return Origin(learned, learned.trained(Silent())[0], learned.space.smallest())


def elsewhere(origin: Origin, folder: Path) -> Origin:
    """Return the same with trainings of its own."""
    return replace(origin, course=replace(origin.course, supernets=folder))


def litert(network: QuantisedNetwork) -> LiteRTSession:
    return LiteRTSession(write(network))


def accuracies(finished: Finished) -> dict[str, float]:
    return {step.name: step.accuracy.value for step in finished.steps}


def test_fine_tuning_pays_and_int8_is_what_its_file_says(origin: Origin, tmp_path: Path) -> None:
    config = FinishingConfig(epochs=3, max_int8_drop=100)
    finished = finish(elsewhere(origin, tmp_path), config, Silent(), litert)
    found = accuracies(finished)
    assert list(found) == ["inherited", "fine-tuned", "int8"]
    assert found["fine-tuned"] > found["inherited"] + 0.02
    assert found["int8"] > found["fine-tuned"] - 0.05
    assert finished.lowered == origin.lowered()
    data = origin.course.data
    images = data.prepare(images_of(data.validation), origin.resolution).numpy()
    labels = data.validation.labels.numpy()
    assert finished.int8 is not None
    for session, name in (
        (litert(finished.int8), "int8"),
        (OrtSession(write_fp32(finished.lowered, weights_of(finished.network, finished.lowered))),
         "fine-tuned"),
    ):  # fmt: skip
        accuracy = np.mean(session.run(images).argmax(1) == labels)
        assert accuracy == pytest.approx(found[name], abs=0.003)


def test_without_epochs_the_weights_are_those_that_search_scored(origin: Origin) -> None:
    finished = finish(origin, FinishingConfig(epochs=0, max_int8_drop=0), Silent(), litert)
    course = origin.course
    score = course.evaluator(origin.supernet, origin.scoring).score(origin.genotype)
    assert [step.name for step in finished.steps] == ["inherited", "int8"]
    assert finished.steps[0].accuracy == score.accuracy


def test_pruned_network_is_trained_again_and_described_by_its_operators(
    origin: Origin, tmp_path: Path
) -> None:
    config = FinishingConfig(epochs=3, prune=0.3)
    finished = finish(elsewhere(origin, tmp_path), config, Silent())
    found = accuracies(finished)
    assert list(found) == ["inherited", "fine-tuned", "narrowed", "pruned"]
    assert found["narrowed"] < found["fine-tuned"]
    assert found["pruned"] > found["narrowed"]
    assert finished.int8 is None
    assert finished.int8_step is None
    assert n_macs(finished.lowered) < 0.7 * n_macs(origin.lowered())


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate so badly that int8 loses much."""
    real = finishing.calibrate

    def calibrate(*arguments: object) -> Scales:
        scales: Scales = real(*arguments)  # type: ignore[arg-type]
        inputs = {name: Scale(2.5 * s.scale, s.zero_point) for name, s in scales.out.items()}
        return Scales(inputs, scales.inner)

    monkeypatch.setattr(finishing, "calibrate", calibrate)


@pytest.mark.usefixtures("coarse")
def test_training_for_int8_wins_back_what_int8_loses(origin: Origin, tmp_path: Path) -> None:
    config = FinishingConfig(epochs=3)
    finished = finish(elsewhere(origin, tmp_path), config, Silent(), litert)
    found = accuracies(finished)
    print(found)
    assert found["int8"] < found["fine-tuned"] - 0.01
    assert found["int8-trained"] > found["int8"]
    step = finished.int8_step
    assert step is not None
    assert step.name == "int8-trained"
