import random

import numpy as np
import pytest
import torch

from hwnas.models import families
from hwnas.models.families import annotations
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.int8.simulation import with_graph_precision
from hwnas.models.spaces import SearchSpace
from hwnas.tasks.base import Incumbent
from hwnas.training.data import ImageData
from hwnas.training.evaluation.interfaces import ScoringConfig
from hwnas.training.evaluation.shared_weights import SupernetEvaluator
from hwnas.training.inference import per_sample, recalibrate
from tests.conftest import images_of
from tests.models.families.test_precision import with_precision


def _evaluator(
    space: SearchSpace, data: ImageData, confidence: float | None = 0.99
) -> SupernetEvaluator:
    family = families.get(space.family)
    torch.manual_seed(0)
    supernet = family.supernet(space, data.signature)
    supernet.module.eval()
    config = ScoringConfig(n_recalibration=256, confidence=confidence)
    return SupernetEvaluator(supernet, family, space, data, config)


def test_recalibrated_statistics_match_images(tiny: SearchSpace, digits: ImageData) -> None:
    family = families.get("mbconv")
    network = family.build(tiny, tiny.largest(), digits.signature)
    images = digits.prepare(images_of(digits.train)[:200], 12)  # one batch
    recalibrate(network, images)
    norm = network.get_submodule("stem.norm")
    assert isinstance(norm, torch.nn.BatchNorm2d)
    assert norm.running_mean is not None
    with torch.no_grad():
        out = network.get_submodule("stem.conv")(images)
    torch.testing.assert_close(norm.running_mean, out.mean((0, 2, 3)), atol=1e-5, rtol=1e-4)


def test_folded_batch_norm_has_equal_outputs(tiny: SearchSpace, digits: ImageData) -> None:
    network = families.get("mbconv").build(tiny, tiny.largest(), digits.signature)
    images = digits.prepare(images_of(digits.train)[:100], 12)
    recalibrate(network, images)
    with torch.no_grad():
        before = network(images)
        after = fold_batch_norm(network)(images)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-3)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())


def test_accuracy_is_that_of_validation_split(tiny: SearchSpace, digits: ImageData) -> None:
    evaluator = _evaluator(tiny, digits)
    genotype = tiny.sample(random.Random(0))
    figure = evaluator.score(genotype).figure
    network = evaluator.network(genotype)
    resolution = families.get("mbconv").resolution(tiny, genotype)
    with torch.no_grad():
        logits = network(digits.prepare(images_of(digits.validation), resolution))
    expected = float((logits.argmax(1) == digits.validation.targets).float().mean())
    assert abs(figure.value - expected) < 1e-6
    assert figure.source == "measured"
    assert evaluator.score(genotype).figure == figure


def test_accuracy_is_equal_without_image_cache(
    tiny: SearchSpace, digits: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    genotype = tiny.sample(random.Random(0))
    expected = _evaluator(tiny, digits).score(genotype)
    monkeypatch.setattr("hwnas.training.evaluation.shared_weights._MAX_CACHED_BYTES", 0)
    evaluator = _evaluator(tiny, digits)
    assert evaluator.score(genotype) == expected
    assert not evaluator._prepared


def test_scoring_stops_early_only_below_incumbent(tiny: SearchSpace, digits: ImageData) -> None:
    evaluator = _evaluator(tiny, digits)
    rng = random.Random(1)
    scores = [evaluator.score(tiny.sample(rng)) for _ in range(6)]
    earlier = tuple(score.per_image for score in scores)
    genotype = tiny.sample(rng)
    full = evaluator.score(genotype)
    assert (
        evaluator.score(genotype, Incumbent(full.per_image, earlier)) == full
    )  # equal to the incumbent
    perfect = np.packbits(np.ones(len(digits.validation), np.bool_)).tobytes()
    stopped = evaluator.score(genotype, Incumbent(perfect, earlier))
    assert stopped.stopped
    assert stopped.n_images is not None
    assert stopped.n_images < len(digits.validation) == full.n_images
    unstoppable = _evaluator(tiny, digits, confidence=None)
    assert unstoppable.score(genotype, Incumbent(perfect, earlier)).figure == full.figure


def test_int8_subnet_has_simulated_accuracy(tiny: SearchSpace, digits: ImageData) -> None:
    space = with_precision(tiny, precision=("float32", "int8"))
    evaluator, assignment = _evaluator(space, digits), tiny.largest().to_dict()
    reals, in_int8 = (space.genotype({**assignment, "precision": d}) for d in ("float32", "int8"))
    plain = _evaluator(tiny, digits).score(tiny.largest())
    assert evaluator.score(reals).figure == plain.figure
    network = evaluator.network(in_int8)
    lowered = annotations.lower(families.family_of(space), space, in_int8, digits.signature)
    simulated = with_graph_precision(
        network, lowered, lambda: evaluator.calibration_images(in_int8)
    )
    resolution = families.family_of(space).resolution(space, in_int8)
    batches = digits.batches(digits.validation, resolution)
    per_image = np.concatenate([per_sample(digits.task, simulated, *batch) for batch in batches])
    assert evaluator.score(in_int8).figure == digits.task.score(per_image)
    assert not np.array_equal(
        per_image,
        np.concatenate(
            [
                per_sample(digits.task, network, *b)
                for b in digits.batches(digits.validation, resolution)
            ]
        ),
    )
