import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from hwnas.core.errors import RunError
from hwnas.core.quantity import Quantity
from hwnas.core.schema import validate
from hwnas.export.artefacts import pixels_of
from hwnas.export.card import _data_name
from hwnas.export.checks import INT8_ERROR, TRAINED, agreement, drop, within_budget
from hwnas.export.proof_file import (
    OperatorRecord,
    Proof,
    operators_from_json,
    operators_to_json,
    read_proof,
)
from hwnas.export.reference_images import ReferenceImages, prepared, read_reference_images
from hwnas.models.graph import Signature
from hwnas.models.spaces import SearchSpace
from hwnas.tasks.classification import ClassificationTask
from hwnas.training.data import ImageData
from tests.conftest import images_of

TASK = ClassificationTask(("a", "b"))
EXPECTED = np.array([[4.0, 1.0], [-8.0, 2.0], [1.0, 1.5]], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_outputs_of_zero_prove_nothing(dtype: str) -> None:
    zeros = np.zeros_like(EXPECTED)
    check = agreement(TASK, zeros, zeros).check("model", dtype)
    assert not check.holds
    assert check.words.endswith("all its outputs are 0")


def test_agreement_measures_distance_to_reference() -> None:
    outputs = EXPECTED + np.array([[0.5, 0], [0, 0], [0, -1.0]], np.float32)
    result = agreement(TASK, outputs, EXPECTED)
    assert (result.n_images, result.max_error, result.largest_output) == (3, 1.0, 8.0)
    assert result.mean_error == pytest.approx(0.25)
    assert result.same == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("error", "dtype", "holds"),
    [
        (1e-6, "float32", True),
        (1e-2, "float32", False),
        (1e-2, "int8", True),
        (0.2, "int8", False),
        (float("nan"), "int8", False),
        (float("nan"), "float32", False),
    ],
)
def test_errors_are_relative_to_largest_output(error: float, dtype: str, holds: bool) -> None:
    result = agreement(TASK, EXPECTED + np.float32(8.0 * error), EXPECTED)
    assert result.check("model", dtype).holds is holds


def test_permuted_int8_outputs_fail() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((256, 10)).astype(np.float32)
    result = agreement(TASK, rng.permutation(expected), expected)
    assert result.check("model", "int8").found > 2 * INT8_ERROR


def test_drop_must_be_significant() -> None:
    reference = np.ones(1000, bool)
    for n_lost, holds in ((0, True), (6, True), (30, False)):
        correct = np.arange(1000) >= n_lost
        check = drop(TASK, "int8", correct, reference, 0.5)
        assert check.holds is holds
        assert f"{n_lost / 10:.2f}" in check.words
    # Gained images count as much as lost ones.
    half = np.arange(1000) % 2 == 0
    assert drop(TASK, "int8", half, ~half, 0.5).found < 0


def test_budget_check_uses_upper_end() -> None:
    figures = {
        "latency_ms": Quantity(0.9, "measured", 0.8, 1.1),
        "sram_kib": Quantity(2, "modelled"),
    }
    latency, sram = within_budget({"latency_ms": 1.0, "sram_kib": 2.0}, figures)
    assert (latency.name, latency.holds, latency.found) == ("budget.latency_ms", False, 1.1)
    assert sram.holds


def test_prepared_images_equal_those_of_verification(digits: ImageData) -> None:
    pixels = images_of(digits.test)
    expected = digits.prepare(pixels, 8)
    images = prepared(pixels.numpy(), list(digits.mean), list(digits.std))
    assert torch.equal(torch.from_numpy(images), expected)


def test_resized_images_are_rounded_to_uint8(digits: ImageData) -> None:
    pixels = pixels_of(images_of(digits.test), 20)
    (batch,) = digits.batches(digits.test, 20, rounded=True)
    images = prepared(pixels, list(digits.mean), list(digits.std))
    assert torch.equal(torch.from_numpy(images), batch[0])
    (plain,) = digits.batches(digits.test, 20)
    assert not torch.equal(plain[0], batch[0])


def _proof(side: int, n: int) -> Proof:
    """Return the parts of a proof that reference images are checked against."""
    op = {"out_shape": [EXPECTED.shape[1], 1, 1]}
    model = {"input": [1, side, side], "operators": [{"op": op}]}
    return cast(Proof, {"model": model, "n_images": n})


def test_reference_images_round_trip(tmp_path: Path) -> None:
    reference_images = ReferenceImages(
        np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1), np.arange(3), EXPECTED
    )
    (tmp_path / "images.npz").write_bytes(reference_images.packed())
    assert reference_images.packed() == (tmp_path / "images.npz").read_bytes()
    loaded = read_reference_images(tmp_path, _proof(2, 3))
    assert np.array_equal(loaded.pixels, reference_images.pixels)
    assert np.array_equal(loaded.expected, reference_images.expected)
    assert loaded.expected_int8 is None


def test_int8_reference_is_int8_trained_network(tmp_path: Path) -> None:
    pixels, labels = np.zeros((3, 2, 2, 1), np.uint8), np.arange(3)
    for trained, reference in ((None, "float32"), (EXPECTED + 1, TRAINED)):
        (tmp_path / "images.npz").write_bytes(
            ReferenceImages(pixels, labels, EXPECTED, trained).packed()
        )
        reference_images = read_reference_images(tmp_path, _proof(2, 3))
        outputs = EXPECTED if trained is None else trained
        result = reference_images.agreement(TASK, outputs, "int8")
        assert (result.reference, result.max_error) == (reference, 0)
        assert reference_images.agreement(TASK, outputs + 0.2, "int8").check(
            "model", "int8"
        ).holds == (trained is None)
        result = reference_images.agreement(TASK, outputs, "float32")
        assert (result.reference, result.max_error) == ("float32", 0 if trained is None else 1)


def test_operators_round_trip_json(small: SearchSpace, task: Signature) -> None:
    from hwnas.models import families

    lowered = families.get(small.family).lower(small, small.largest(), task)
    rows = json.loads(json.dumps(operators_to_json(lowered)))
    assert operators_from_json([validate(OperatorRecord, row) for row in rows]) == lowered


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not an export: it has no proof.json"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (
            '{"format": 99}',
            "format 99 is from a newer version of hwnas; this version reads format 2",
        ),
        ("{}", "format 1 is from an earlier version of hwnas; this version reads format 2"),
        ('{"format": 2, "files": {}}', "cannot be read: 'artefacts' is missing"),
        ('{"format": 2, "format": 2}', "cannot be read: duplicate key 'format'"),
    ],
)
def test_folder_without_valid_proof_raises(
    content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "proof.json").write_text(content)
    with pytest.raises(RunError, match=message):
        read_proof(tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "hub_id", "expected"),
    [
        ("images", "/data/leaves", None, "leaves"),
        ("images", "leaves.v2/", None, "leaves.v2"),
        ("images", "data/3f2a.npz", None, "images"),
        ("images", None, "owner/leaves", "owner/leaves"),
        ("plants", "/data/leaves", None, "plants"),
        ("digits", None, None, "digits"),
    ],
)
def test_card_names_image_folder(
    name: str, path: str | None, hub_id: str | None, expected: str
) -> None:
    assert _data_name({"name": name, "path": path, "hub_id": hub_id}) == expected
