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
from tests.training.fakes import same

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
def test_network_is_read_after_each_fidelity_and_goes_on_from_the_one_before(
    setup: TrainingSetup,
) -> None:
    evaluator, genotype = _evaluator(setup), setup.space.largest()
    score = evaluator.score(genotype)
    assert list(score.details) == ["accuracy_after_1_epochs", "accuracy_after_4_epochs"]
    assert score.figure.value == score.details["accuracy_after_4_epochs"]
    assert score.figure.source == "measured"
    assert score.details["accuracy_after_4_epochs"] > score.details["accuracy_after_1_epochs"]
    assert evaluator.origin(genotype) == "scratch, epochs: 1 + 3"
    # Less than a whole training: what was learned first counts.
    alone = _evaluator(setup, TrainedConfig(fidelities=[3])).score(genotype)
    assert alone.figure != score.figure


def test_what_was_trained_is_not_trained_again(
    setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    genotype = setup.space.smallest()
    first, network = _evaluator(setup).score(genotype), _evaluator(setup).extracted(genotype)

    def step(*_: object) -> None:
        raise AssertionError("trained twice")

    monkeypatch.setattr("hwnas.training.single_network._SingleNetworkStep.__call__", step)
    again = _evaluator(setup)
    assert again.score(genotype) == first
    assert same(again.extracted(genotype).state_dict(), network.state_dict())
    longer = replace(setup, train=replace(setup.train, epochs=50))  # of finishing, not of search
    assert _evaluator(longer).score(genotype) == first


def test_trainings_in_a_row_see_what_one_training_sees(
    setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, genotype = list[bytes](), setup.space.smallest()
    learned = _SingleNetworkStep.__call__

    def step(
        self: _SingleNetworkStep, batch: TrainingBatch, step_context: StepContext
    ) -> StepOutcome:
        shown.append(batch.images.numpy().tobytes())
        return learned(self, batch, step_context)

    def seen(setup: TrainingSetup, fidelities: list[int], left: int | None = None) -> list[bytes]:
        shown.clear()
        weights = _evaluator(setup, TrainedConfig(fidelities=fidelities))
        if left is None:
            weights.score(genotype)
        else:  # of finishing alone
            weights.at_recorded_fidelity({genotype.id: left}).extracted(genotype)
            shown.clear()
            origin = NetworkSource(
                setup, weights.at_recorded_fidelity({genotype.id: left}), genotype
            )
            pipeline.finetune_float(origin, FinetuningConfig(epochs=2), NullProgress())
        return [*shown]

    monkeypatch.setattr("hwnas.training.single_network._SingleNetworkStep.__call__", step)
    one, several = (replace(setup, supernets=tmp_path / name) for name in ("one", "several"))
    whole, n = seen(one, [5]), len(setup.data.train) // 64
    assert len(set(whole)) == 5 * n, "each step sees images of its own"
    assert seen(several, [1, 2]) == whole[: 3 * n]
    for left in (1, 2):  # all that are finished see the same, however far search took them
        assert seen(several, [1, 2], left) == whole[3 * n :]


def _incumbent(accuracy: float, n: int) -> Incumbent:
    details = tuple(
        {"accuracy_after_1_epochs": 0.3 + 0.05 * i, "accuracy_after_4_epochs": 0.5 + 0.04 * i}
        for i in range(n)
    )
    return Incumbent(b"", (), accuracy, details)


def test_training_stops_where_a_incumbent_is_out_of_reach(setup: TrainingSetup) -> None:
    genotype = setup.space.largest()
    evaluator = _evaluator(setup)
    stopped = evaluator.score(genotype, _incumbent(0.9999, 8))
    assert stopped.stopped
    assert stopped.figure.source == "modelled"
    assert list(stopped.details) == ["accuracy_after_1_epochs"]
    assert not evaluator.score(genotype, _incumbent(0.01, 8)).stopped
    assert not evaluator.score(genotype, _incumbent(0.9999, 4)).stopped, "too little is known"
    never = _evaluator(setup, TrainedConfig(fidelities=[1, 3], confidence=None))
    assert not never.score(genotype, _incumbent(0.9999, 8)).stopped


def test_networks_are_as_a_search_left_them_whatever_others_did(
    setup: TrainingSetup, tmp_path: Path
) -> None:
    setup = replace(setup, supernets=tmp_path)
    genotype, config = setup.space.largest(), TrainedConfig(fidelities=[1, 2])
    found = _evaluator(setup, config)
    left = {
        genotype.id: config.n_read("accuracy", {"accuracy_after_1_epochs": 0.5, "n_images": 90.0})
    }
    assert left == {genotype.id: 1}
    assert not found.at_recorded_fidelity(left).is_kept(genotype)
    found.score(genotype, _incumbent(0.01, 8))  # goes on to the end
    assert found.origin(genotype) == "scratch, epochs: 1 + 2"
    assert found.at_recorded_fidelity(left).origin(genotype) == "scratch, epochs: 1"
    assert found.at_recorded_fidelity(left).is_kept(genotype)
    assert found.at_recorded_fidelity({}).is_kept(setup.space.smallest()), "nothing was left of it"


def test_weights_that_were_not_asked_for_yet_are_trained(setup: TrainingSetup) -> None:
    evaluator = _evaluator(setup, TrainedConfig(fidelities=[2]))
    network = evaluator.network(setup.space.largest())
    images = evaluator.calibration_images(setup.space.largest())
    with torch.no_grad():
        assert network(images).shape == (512, 10)


def test_the_time_to_finish_a_network_counts_what_was_not_trained_yet(
    setup: TrainingSetup, tmp_path: Path
) -> None:
    setup, genotype = replace(setup, supernets=tmp_path), setup.space.smallest()
    finish = FinishConfig(epochs=2, alpha=0)
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(accuracy="trained", finish=finish, train=setup.train),
        setup_of=lambda _: setup,
    )
    weights = _evaluator(setup)
    finisher = Finetuner(parts, weights)
    n = len(setup.data.train) // 64
    assert (weights.n_missing(genotype), finisher._first(genotype).n_left) == (n, 3 * n)
    weights.extracted(genotype)
    assert (weights.n_missing(genotype), finisher._first(genotype).n_left) == (0, 2 * n)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="trains nothing"):
        TrainedConfig(fidelities=[])
    with pytest.raises(ConfigError, match=r"fidelities must be whole numbers, each in .*, got 0"):
        TrainedConfig(fidelities=[0, 2])
    with pytest.raises(ConfigError, match=r"confidence must be a number in \[0\.5, 1\)"):
        TrainedConfig(confidence=1.0)


def test_a_network_in_int8_is_scored_so_and_shares_its_training(
    setup: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = with_precision(setup.space, **BOTH, when=WHEN)
    setup, evaluator = replace(setup, space=space), _evaluator(replace(setup, space=space))
    some = {name: options[-1] for name, options in space.choices.items()}
    reals, whole, edges = (
        space.genotype({**some, "precision": dtype, "float_edges": kept})
        for dtype, kept in (("float32", 0), ("int8", 0), ("int8", 1))
    )
    first = evaluator.score(reals)

    def step(*_: object) -> None:
        raise AssertionError("trained twice")

    monkeypatch.setattr("hwnas.training.single_network._SingleNetworkStep.__call__", step)
    for genotype in (whole, edges):
        found = evaluator.score(genotype).figure
        lowered, network = setup.graph(genotype), evaluator.network(genotype)
        int8 = quantise(network, lowered, evaluator.calibration_images(genotype))
        session = OrtSession(write_int8(int8, any_batch=True))
        batches = setup.data.batches(setup.data.validation, setup.resolution(genotype))
        answers = [(session.run(x.numpy()).argmax(1), y.numpy()) for x, y in batches]
        correct = sum(int((said == y).sum()) for said, y in answers)
        assert found.value == pytest.approx(correct / len(setup.data.validation), abs=0.01)
        assert found.value == pytest.approx(first.figure.value, abs=0.1)
    assert evaluator.score(reals) == first
