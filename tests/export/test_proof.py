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


def test_agreement_is_the_distance_from_torch() -> None:
    found = EXPECTED + np.array([[0.5, 0], [0, 0], [0, -1.0]], np.float32)
    near = agreement(TASK, found, EXPECTED)
    assert (near.n_images, near.max_error, near.largest_output) == (3, 1.0, 8.0)
    assert near.mean_error == pytest.approx(0.25)
    assert near.same == pytest.approx(2 / 3)


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
def test_errors_are_held_against_the_largest_output(error: float, dtype: str, holds: bool) -> None:
    near = agreement(TASK, EXPECTED + np.float32(8.0 * error), EXPECTED)
    assert near.check("model", dtype).holds is holds


def test_broken_int8_file_does_not_pass() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((256, 10)).astype(np.float32)
    near = agreement(TASK, rng.permutation(expected), expected)
    assert near.check("model", "int8").found > 2 * INT8_ERROR


def test_drop_is_what_chance_does_not_explain() -> None:
    reference = np.ones(1000, bool)
    for lost, holds in ((0, True), (6, True), (30, False)):
        right = np.arange(1000) >= lost
        check = drop(TASK, "int8", right, reference, 0.5)
        assert check.holds is holds
        assert f"{lost / 10:.2f}" in check.words
    # Images that are won count as much as those that are lost.
    half = np.arange(1000) % 2 == 0
    assert drop(TASK, "int8", half, ~half, 0.5).found < 0


def test_budget_is_met_by_the_upper_end() -> None:
    figures = {
        "latency_ms": Quantity(0.9, "measured", 0.8, 1.1),
        "sram_kib": Quantity(2, "modelled"),
    }
    latency, sram = within_budget({"latency_ms": 1.0, "sram_kib": 2.0}, figures)
    assert (latency.name, latency.holds, latency.found) == ("budget.latency_ms", False, 1.1)
    assert sram.holds


def test_images_are_prepared_as_verification_does(digits: ImageData) -> None:
    pixels = images_of(digits.test)
    expected = digits.prepare(pixels, 8)
    found = prepared(pixels.numpy(), list(digits.mean), list(digits.std))
    assert torch.equal(torch.from_numpy(found), expected)


def test_resized_images_are_rounded_as_a_device_is_given_them(digits: ImageData) -> None:
    pixels = pixels_of(images_of(digits.test), 20)
    (batch,) = digits.batches(digits.test, 20, rounded=True)
    found = prepared(pixels, list(digits.mean), list(digits.std))
    assert torch.equal(torch.from_numpy(found), batch[0])
    (plain,) = digits.batches(digits.test, 20)
    assert not torch.equal(plain[0], batch[0])


def _proof(side: int, n: int) -> Proof:
    """Return as much of a proof as the images of an export are held against."""
    op = {"out_shape": [EXPECTED.shape[1], 1, 1]}
    model = {"input": [1, side, side], "operators": [{"op": op}]}
    return cast(Proof, {"model": model, "n_images": n})


def test_kept_images_are_the_same_bytes_and_come_back(tmp_path: Path) -> None:
    kept = ReferenceImages(
        np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1), np.arange(3), EXPECTED
    )
    (tmp_path / "images.npz").write_bytes(kept.packed())
    assert kept.packed() == (tmp_path / "images.npz").read_bytes()
    back = read_reference_images(tmp_path, _proof(2, 3))
    assert np.array_equal(back.pixels, kept.pixels)
    assert np.array_equal(back.expected, kept.expected)
    assert back.expected_int8 is None


def test_int8_is_compared_with_the_network_that_was_trained_for_it(tmp_path: Path) -> None:
    pixels, labels = np.zeros((3, 2, 2, 1), np.uint8), np.arange(3)
    for trained, reference in ((None, "float32"), (EXPECTED + 1, TRAINED)):
        (tmp_path / "images.npz").write_bytes(
            ReferenceImages(pixels, labels, EXPECTED, trained).packed()
        )
        kept = read_reference_images(tmp_path, _proof(2, 3))
        found = EXPECTED if trained is None else trained
        near = kept.agreement(TASK, found, "int8")
        assert (near.reference, near.max_error) == (reference, 0)
        assert kept.agreement(TASK, found + 0.2, "int8").check("model", "int8").holds == (
            trained is None
        )
        near = kept.agreement(TASK, found, "float32")
        assert (near.reference, near.max_error) == ("float32", 0 if trained is None else 1)


def test_operators_come_back_from_json(small: SearchSpace, task: Signature) -> None:
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
def test_folder_that_is_no_export_is_refused(
    content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "proof.json").write_text(content)
    with pytest.raises(RunError, match=message):
        read_proof(tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "hub_id", "shown"),
    [
        ("images", "/data/leaves", None, "leaves"),
        ("images", "leaves.v2/", None, "leaves.v2"),
        ("images", "data/3f2a.npz", None, "images"),
        ("images", None, "owner/leaves", "owner/leaves"),
        ("plants", "/data/leaves", None, "plants"),
        ("digits", None, None, "digits"),
    ],
)
def test_card_names_the_folder_of_the_images(
    name: str, path: str | None, hub_id: str | None, shown: str
) -> None:
    assert _data_name({"name": name, "path": path, "hub_id": hub_id}) == shown
