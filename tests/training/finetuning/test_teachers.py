from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hwnas.core.progress import NullProgress
from hwnas.training import soft_targets, supernet
from hwnas.training.batches import StepContext, TrainingBatch
from hwnas.training.data import DatasetConfig
from hwnas.training.evaluation.interfaces import TrainedConfig
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.training.finetuning import pipeline
from hwnas.training.finetuning.stages import FinetunedTeacher, NetworkSource
from hwnas.training.inference import forward
from hwnas.training.options import FinetuningConfig, TrainingConfig
from hwnas.training.single_network import TeacherNetwork
from hwnas.training.supernet import TrainingSetup

DIGITS = DatasetConfig("digits", validation=0.25, shift=0.125)
CONFIG = FinetuningConfig(epochs=2)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    space, families, data = supernet.read_space_and_data(["tiny"], DIGITS, NullProgress())
    (space,) = space.members
    folder = tmp_path_factory.mktemp("networks")
    train = TrainingConfig(epochs=2, batch_size=128)
    return TrainingSetup(space, families["tiny"], data, DIGITS, train, 0, folder)


def _teacher(setup: TrainingSetup, weights: TrainedEvaluator) -> FinetunedTeacher:
    genotype = setup.space.largest()
    done = pipeline.finetune_float(NetworkSource(setup, weights, genotype), CONFIG, NullProgress())
    return FinetunedTeacher(done.network, genotype, setup, done.past, NullProgress())


@pytest.mark.slow
def test_teacher_outputs_are_computed_once_for_all_students(
    setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = replace(setup, supernets=tmp_path)
    weights = TrainedEvaluator({"tiny": setup}, TrainedConfig(fidelities=[1, 2]))
    teacher, student = _teacher(setup, weights), setup.space.smallest()
    loss_targets, n_answers, n_learned = TeacherNetwork.loss_targets, [0], [0]

    def counting_forward(network: Callable[[], Tensor], images: Tensor, dtype: str) -> Tensor:
        n_answers[0] += 1
        return forward(network, images, dtype)

    def compare_targets(
        self: TeacherNetwork, batch: TrainingBatch, step_context: StepContext
    ) -> Tensor:
        targets, unrecorded = loss_targets(self, batch, step_context), replace(self, recorded=None)
        assert torch.allclose(targets, loss_targets(unrecorded, batch, step_context), atol=2e-3)
        n_learned[0] += 1
        return targets

    monkeypatch.setattr(soft_targets, "forward", counting_forward)
    monkeypatch.setattr(TeacherNetwork, "loss_targets", compare_targets)
    n_steps = CONFIG.epochs * (len(setup.data.train) // setup.train.images_per_step)
    for n, n_fidelities in enumerate((1, 2), 1):  # with different fidelities of the search
        student_weights = weights.at_recorded_fidelity({student.id: n_fidelities})
        pipeline.finetune_float(
            NetworkSource(setup, student_weights, student, teacher), CONFIG, NullProgress()
        )
        assert (n_answers[0], n_learned[0]) == (n_steps, n * n_steps)
