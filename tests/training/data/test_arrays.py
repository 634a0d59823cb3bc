"""Images and targets given in Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from hwnas.core.errors import ConfigError
from hwnas.core.progress import NullProgress
from hwnas.training.data import DatasetConfig, ImageData, load_data
from hwnas.workflows.python_data import save_data
from tests.conftest import images_of

N = 40
IMAGES = np.arange(N, dtype=np.uint8)[:, None, None] * np.ones((8, 8), np.uint8)


@pytest.mark.parametrize("n_values", [1, 2])
def test_values_match_their_images(tmp_path: Path, n_values: int) -> None:
    values = np.stack([np.arange(N) / 4, np.arange(N) - 7.5], axis=1)[:, :n_values]
    path = save_data((IMAGES, values), tmp_path)
    data = load_data(DatasetConfig("images", path=str(path), task="regression"), 8, NullProgress())
    assert data.task.n_outputs == n_values
    for split in (data.train, data.validation, data.test):
        images, targets = split.content()
        first_pixels = np.frombuffer(images, np.uint8).reshape(-1, 64)[:, 0]
        result = np.frombuffer(targets, np.float32).reshape(-1, n_values)
        assert np.array_equal(result, values[first_pixels].astype(np.float32))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.arange(N) / 4, "must be a whole number or text"),
        (np.zeros((N, 2), np.int64), r"not one-hot\. Multi-label data are not supported"),
    ],
)
def test_values_are_refused_as_classes(
    tmp_path: Path, targets: NDArray[np.generic], message: str
) -> None:
    path = save_data((IMAGES, targets), tmp_path)
    with pytest.raises(ConfigError, match=f"^dataset: .*{message}"):
        load_data(DatasetConfig("images", path=str(path)), 8, NullProgress())


def test_duplicate_images_are_noted(tmp_path: Path) -> None:
    path = save_data((np.concatenate([IMAGES, IMAGES]), [*"ab"] * N), tmp_path)
    notes = load_data(DatasetConfig("images", path=str(path)), 8, NullProgress()).notes
    assert any("images are training images, too, for example image " in note for note in notes)
    path = save_data((IMAGES, [*"ab"] * (N // 2)), tmp_path)
    notes = load_data(DatasetConfig("images", path=str(path)), 8, NullProgress()).notes
    assert not any("training images, too" in note for note in notes)


def test_palette_image_keeps_colours(tmp_path: Path) -> None:
    red = Image.new("RGB", (8, 8), (200, 10, 10)).convert("P")
    path = save_data([(red, "a"), (red, "b")] * 10, tmp_path)
    data = load_data(DatasetConfig("images", path=str(path)), 8, NullProgress())
    assert data.mean == pytest.approx((200 / 255, 10 / 255, 10 / 255), abs=0.05)


def test_list_of_arrays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset: item 0 is a ndarray.*\(images, targets\)"):
        save_data([IMAGES, np.zeros(N)], tmp_path)


def test_text_targets_may_have_object_dtype(tmp_path: Path) -> None:
    labels = np.array([*"ab"] * (N // 2), dtype=object)
    assert save_data((IMAGES, labels), tmp_path) == save_data((IMAGES, labels.tolist()), tmp_path)
    labels[0] = None
    with pytest.raises(ConfigError, match="dataset: image 0 has no target"):
        save_data((IMAGES, labels), tmp_path)


@pytest.mark.parametrize("data", [(IMAGES[:0], []), []])
def test_empty_data_are_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(ConfigError, match=r"there are no images"):
        save_data(data, tmp_path)


def test_missing_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"for each of the {N} images"):
        save_data((IMAGES, np.zeros(N - 1)), tmp_path)


# Other types of the same data.

LABELS = np.arange(N) % 2
PICTURES = [Image.fromarray(image) for image in IMAGES]
TENSORS = torch.from_numpy(IMAGES)[:, None]


class Items(torch.utils.data.Dataset[object]):
    """A data set with given items."""

    def __init__(self, item: Callable[[int], object], n: int = N):
        self._item, self._n = item, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> object:
        return self._item(i)


def _named() -> Items:
    items = Items(lambda i: (PICTURES[i], int(LABELS[i])))
    items.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    return items


def _hub_dataset(rows: slice = slice(None)) -> datasets.Dataset:
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    content = {"image": PICTURES[rows], "label": LABELS[rows].tolist()}
    return datasets.Dataset.from_dict(content, features=features)


@pytest.mark.parametrize(
    "data",
    [
        lambda: (IMAGES, LABELS),
        lambda: (IMAGES[..., None], LABELS[:, None]),
        lambda: (IMAGES[:, None], LABELS),
        lambda: (TENSORS, torch.from_numpy(LABELS)),
        lambda: (IMAGES / 255, LABELS.astype(np.float32)),
        lambda: ((TENSORS / 255).to(torch.bfloat16), torch.from_numpy(LABELS)),
        lambda: (IMAGES.astype(np.float32), np.eye(2)[LABELS]),
        lambda: (IMAGES.astype(np.int64).tolist(), LABELS.tolist()),
        lambda: (IMAGES, pd.Series(LABELS, index=range(100, 100 + N))),
        lambda: (PICTURES, [*LABELS]),
        lambda: [*zip(PICTURES, LABELS, strict=True)],
        lambda: TensorDataset(TENSORS.float() / 255, torch.from_numpy(LABELS)),
        lambda: DataLoader(TensorDataset(TENSORS, torch.from_numpy(LABELS)), 8, shuffle=True),
        lambda: Subset(Items(lambda i: (PICTURES[i], torch.tensor(LABELS[i])), 99), range(N)),
        lambda: Items(lambda i: {"image": TENSORS[i], "label": LABELS[i]}),
        lambda: {"train": (IMAGES, LABELS)},
    ],
)
def test_types_of_data_give_equal_digests(tmp_path: Path, data: Callable[[], object]) -> None:
    expected = _load(save_data((IMAGES, LABELS), tmp_path))
    loaded = _load(save_data(data(), tmp_path))
    assert loaded.digest == expected.digest
    assert loaded.task.names == ("0", "1")


@pytest.mark.parametrize("data", [_named, _hub_dataset, lambda: DataLoader(_named())])
def test_class_names_of_data_set_are_kept(tmp_path: Path, data: Callable[[], object]) -> None:
    assert _load(save_data(data(), tmp_path)).task.names == ("cat", "dog")


def test_splits_with_other_classes_are_refused(tmp_path: Path) -> None:
    """For example, ``ImageFolder`` of a test folder without one of the classes."""
    other = _named()
    other.classes = ["dog"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="of split test are dog, those of train cat, "):
        save_data((_named(), other), tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        lambda: ((IMAGES[:30], LABELS[:30]), (IMAGES[30:], LABELS[30:])),
        lambda: {"train": (IMAGES[:30], LABELS[:30]), "Test": (IMAGES[30:], LABELS[30:])},
        lambda: datasets.DatasetDict(
            train=_hub_dataset(slice(30)), test=_hub_dataset(slice(30, N))
        ),
        lambda: (_hub_dataset(slice(30)), _hub_dataset(slice(30, N))),
    ],
)
def test_given_test_split_is_kept(tmp_path: Path, data: Callable[[], object]) -> None:
    data_read = _load(save_data(data(), tmp_path))
    assert [len(split) for split in (data_read.train, data_read.validation, data_read.test)] == [
        27,
        3,
        10,
    ]
    assert sorted(images_of(data_read.test)[:, 0, 0, 0].tolist()) == [*range(30, N)]


def test_given_validation_split_is_kept(tmp_path: Path) -> None:
    parts = {"train": slice(20), "val": slice(20, 30), "test": slice(30, N)}
    path = save_data({name: (IMAGES[rows], LABELS[rows]) for name, rows in parts.items()}, tmp_path)
    assert sorted(images_of(_load(path).validation)[:, 0, 0, 0].tolist()) == [*range(20, 30)]


def _load(path: Path) -> ImageData:
    return load_data(DatasetConfig("images", path=str(path)), 8, NullProgress())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: (IMAGES, LABELS, IMAGES), "a tuple of 3 parts"),
        (lambda: ((IMAGES, LABELS),) * 3, "a tuple of 3 data sets"),
        (lambda: {"train": (IMAGES, LABELS), "extra": (IMAGES, LABELS)}, "the splits .*'extra'"),
        (lambda: (IMAGES, np.where(LABELS, np.nan, 0)), "row 1 has no label"),
        (lambda: (IMAGES, [None, *LABELS[1:]]), "image 0 has no target"),
        (lambda: (IMAGES, [[0], [0, 1]] * (N // 2)), "Multi-label data are not supported"),
        (lambda: (IMAGES, np.ones((N, 2))), "Multi-label data are not supported"),
        (lambda: (IMAGES / 127.5 - 1, LABELS), "images are float64 with fractions, from -1 to "),
        (lambda: (np.where(IMAGES > 9, np.nan, IMAGES), LABELS), r"image \d+ has pixels that"),
        (lambda: (np.zeros((N, 128, 3), np.uint8), LABELS), "3x128 pixels would be cropped to 3x3"),
        (lambda: (np.zeros((N, 3, 128)), LABELS), "128x3 pixels would be cropped to 3x3"),
        (lambda: (np.zeros((N, 50, 9)), LABELS), "convert sensor or audio data to images"),
        (lambda: ((IMAGES, LABELS), (IMAGES[:0], LABELS[:0])), "split 'test': there are no images"),
        (lambda: ([], []), "there are no images"),
        (lambda: {"test": (IMAGES, LABELS)}, "has no split train, only test"),
        (lambda: Items(lambda i: (None, 0)), "image 0 is missing"),
        (lambda: (np.repeat(IMAGES[..., None], 4, 3), LABELS), "images have 4 channels"),
        (lambda: (IMAGES.reshape(N, -1), LABELS), r"of shape \(40, 64\)"),
        (lambda: (IMAGES.astype(str), LABELS), "images are of type <U"),
        (lambda: Items(lambda i: (PICTURES[i], 0, i)), "item 0 is a tuple of 3 values"),
        (lambda: Items(lambda i: {"x": PICTURES[i], "label": 0}), "has the keys x, label"),
        (lambda: Items(lambda i: (IMAGES[i, i:], 0)), "images must have one shape"),
        (lambda: Items(lambda i: 1 // 0), "item 0 cannot be read: ZeroDivisionError"),
        (lambda: DataLoader(_named(), sampler=WeightedRandomSampler([1] * N, N)), "a sampler that"),
        (lambda: IMAGES, "of type ndarray"),
        (lambda: 3, "of type int"),
        (lambda: iter([]), "of type list_iterator"),
        (lambda: ((IMAGES, LABELS), (IMAGES[:, 1:], LABELS)), "have different shapes"),
        (lambda: (IMAGES, np.arange(N)), "every class needs at least 3 images"),
        (lambda: ([Image.new("F", (8, 8))] * N, LABELS), "image 0 is an image of mode F"),
    ],
)  # fmt: skip
def test_unsupported_data_are_refused_in_one_line(
    tmp_path: Path, data: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^dataset.*{message}") as error:
        _load(save_data(data(), tmp_path))
    assert "\n" not in str(error.value)
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES, "y": LABELS}, "has the arrays x, y. Allowed: images and targets"),
        ({}, "has the arrays none"),
        (
            {"images": IMAGES, "targets": LABELS, "test_images": IMAGES},
            "targets, test_images. Allo",
        ),
        (
            {"images": IMAGES, "targets": LABELS, "images_test": IMAGES},
            "images_test, targets. Allo",
        ),
        (
            {"images": IMAGES, "targets": LABELS, "names": np.array(["a", "a"])},
            "two classes have the name",
        ),
    ],
)
def test_files_with_other_arrays_are_refused(
    tmp_path: Path, arrays: dict[str, NDArray[np.generic]], message: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        _load(tmp_path / "x.npz")


def test_random_transforms_are_refused(tmp_path: Path) -> None:
    class Mirrored(Dataset[Any]):
        def __init__(self, probability: float) -> None:
            self._probability, self._rng = probability, np.random.default_rng(0)

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> tuple[Tensor, str]:
            image = torch.arange(64, dtype=torch.uint8).reshape(8, 8) + i
            mirrored = self._rng.random() < self._probability
            return (image.flip(1) if mirrored else image), "ab"[i % 2]

    with pytest.raises(ConfigError, match="changes images at random"):
        save_data(Mirrored(0.5), tmp_path)
    assert save_data(Mirrored(1.0), tmp_path).is_file()
    assert save_data(DataLoader(Mirrored(0.0), shuffle=True), tmp_path).is_file()


class _Digits(Dataset[Any]):
    """A data set with class names and, as those of torchvision, a transform of labels."""

    classes = ("zero", "one", "two", "three")

    def __init__(self, target_transform: Callable[[int], int] | None):
        self.target_transform = target_transform

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        label = i % 4
        return PICTURES[i], label if self.target_transform is None else self.target_transform(label)


def test_names_of_transformed_labels_are_not_used(tmp_path: Path) -> None:
    def names(transform: Callable[[int], int] | None) -> list[str]:
        path = save_data(_Digits(transform), tmp_path)
        data = load_data(DatasetConfig("images", path=str(path)), 8, NullProgress())
        return [*data.task.names]

    assert names(None) == ["zero", "one", "two", "three"]
    assert names(lambda label: int(label == 3)) == ["0", "1"]


def test_own_collate_function_is_refused(tmp_path: Path) -> None:
    def swapped(items: Any) -> Any:
        return [(image, 1 - label) for image, label in items]

    loader = DataLoader(_Digits(None), collate_fn=swapped)
    with pytest.raises(ConfigError, match=r"its own collate_fn.*dataset=loader\.dataset"):
        save_data(loader, tmp_path)
    assert save_data(DataLoader(_Digits(None)), tmp_path)


def test_size_before_cropping_is_known(tmp_path: Path) -> None:
    wide = np.repeat(IMAGES, 3, axis=2)
    path = save_data((wide, LABELS), tmp_path)
    data = load_data(DatasetConfig("images", path=str(path)), 8, NullProgress())
    assert data.train.side == 8
    assert data.file_sizes == {(24, 8): N}
