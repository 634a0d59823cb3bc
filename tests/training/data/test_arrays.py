"""Images and targets of a user's own, given from Python."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hwnas.core.errors import DataError
from hwnas.core.progress import NullProgress
from hwnas.training.data import DatasetConfig, load_data
from hwnas.workflows.python_data import UserData, save_data

N = 40
IMAGES = np.arange(N, dtype=np.uint8)[:, None, None] * np.ones((8, 8), np.uint8)


@pytest.mark.parametrize("n_values", [1, 2])
def test_values_stay_with_their_images(tmp_path: Path, n_values: int) -> None:
    values = np.stack([np.arange(N) / 4, np.arange(N) - 7.5], axis=1)[:, :n_values]
    path = save_data((IMAGES, values), tmp_path)
    data = load_data(DatasetConfig("images", path=str(path), task="regression"), 8, NullProgress())
    assert data.task.n_outputs == n_values
    for split in (data.train, data.validation, data.test):
        images, targets = split.content()
        of = np.frombuffer(images, np.uint8).reshape(-1, 64)[:, 0]
        found = np.frombuffer(targets, np.float32).reshape(-1, n_values)
        assert np.array_equal(found, values[of].astype(np.float32))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.arange(N) / 4, "must be a whole number or text"),
        (np.zeros((N, 2), np.int64), r"classes are of shape \(N,\)"),
    ],
)
def test_values_are_no_classes(tmp_path: Path, targets: NDArray[np.generic], message: str) -> None:
    path = save_data((IMAGES, targets), tmp_path)
    with pytest.raises(DataError, match=message):
        load_data(DatasetConfig("images", path=str(path)), 8, NullProgress())


def test_images_that_are_there_several_times_are_told(tmp_path: Path) -> None:
    path = save_data((np.concatenate([IMAGES, IMAGES]), [*"ab"] * N), tmp_path)
    notes = load_data(DatasetConfig("images", path=str(path)), 8, NullProgress()).notes
    assert any("images are training images, too, for example image " in note for note in notes)
    path = save_data((IMAGES, [*"ab"] * (N // 2)), tmp_path)
    assert load_data(DatasetConfig("images", path=str(path)), 8, NullProgress()).notes == ()


def test_a_picture_with_a_palette_has_its_colours(tmp_path: Path) -> None:
    red = Image.new("RGB", (8, 8), (200, 10, 10)).convert("P")
    path = save_data([(red, "a"), (red, "b")] * 10, tmp_path)
    data = load_data(DatasetConfig("images", path=str(path)), 8, NullProgress())
    assert data.mean == pytest.approx((200 / 255, 10 / 255, 10 / 255), abs=0.05)


def test_a_list_of_arrays_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"give a tuple dataset=\(images, targets\)"):
        save_data([IMAGES, np.zeros(N)], tmp_path)  # type: ignore[list-item]


def test_words_may_be_objects_as_pandas_keeps_them(tmp_path: Path) -> None:
    words = np.array([*"ab"] * (N // 2), dtype=object)
    assert save_data((IMAGES, words), tmp_path) == save_data((IMAGES, words.tolist()), tmp_path)
    words[0] = None
    with pytest.raises(DataError, match="they must be numbers or words"):
        save_data((IMAGES, words), tmp_path)


@pytest.mark.parametrize("data", [(IMAGES[:0], []), []])
def test_no_images_are_refused_in_words(tmp_path: Path, data: UserData) -> None:
    with pytest.raises(DataError, match=r"no images\.$"):
        save_data(data, tmp_path)


def test_every_image_needs_a_target(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"for each of {N} images"):
        save_data((IMAGES, np.zeros(N - 1)), tmp_path)
