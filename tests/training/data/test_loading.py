import io
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.progress import NullProgress
from hwnas.training.data import (
    DatasetConfig,
    DataSplit,
    ImageData,
    InMemorySplit,
    StreamedSplit,
    folders,
    load_data,
)
from tests.conftest import SHARED, images_of, needs_fashion_mnist
from tests.training.data.made import load_images, photo, png, write, write_folder, write_hub


def test_digits_splits_are_deterministic(digits: ImageData) -> None:
    reloaded = load_data(DatasetConfig("digits", validation=0.25), 28, NullProgress())
    assert digits.digest == reloaded.digest
    assert [len(s) for s in (digits.train, digits.validation, digits.test)] == [1077, 360, 360]
    assert digits.task.n_outputs == 10


def test_splits_are_disjoint_and_stratified(digits: ImageData) -> None:
    splits = (digits.train, digits.validation, digits.test)
    assert sum(len(split) for split in splits) == 1797
    counts = [torch.bincount(split.targets, minlength=10) for split in splits]
    assert all(int(count.min()) > 0.08 * int(count.sum()) for count in counts)  # stratified


def test_search_digest_is_independent_of_test_split(digits: ImageData) -> None:
    import dataclasses

    other = dataclasses.replace(digits, test=digits.test.take(torch.arange(10)))
    assert other.search_digest == digits.search_digest
    assert other.digest != digits.digest


def test_prepared_images_are_normalised_and_resized(digits: ImageData) -> None:
    images = digits.prepare(images_of(digits.train), 20)
    assert images.shape == (1077, 1, 20, 20)
    assert abs(float(digits.prepare(images_of(digits.train), 8).mean())) < 1e-3
    assert images.stride()[1] == 1  # channels last, also where there is one channel


def test_large_splits_are_prepared_in_parts(
    digits: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch,) = digits.batches(digits.train, 20)
    monkeypatch.setattr("hwnas.training.data.image_data._MAX_BYTES", 500 * 20 * 20 * 4)
    images, targets = zip(*digits.batches(digits.train, 20), strict=True)
    assert [len(part) for part in images] == [500, 500, 77]
    assert torch.equal(torch.cat(images), batch[0])
    assert torch.equal(torch.cat(targets), batch[1])


def test_mean_and_std_are_those_of_all_pixels(digits: ImageData) -> None:
    pixels = images_of(digits.train).numpy() / 255
    assert digits.mean[0] == pytest.approx(pixels.mean(), rel=1e-12)
    assert digits.std[0] == pytest.approx(pixels.std(), rel=1e-12)


@pytest.fixture(scope="module")
def fashion_mnist() -> ImageData:
    return load_data(
        DatasetConfig("fashion_mnist", path=str(SHARED / "fashion_mnist")), 28, NullProgress()
    )


@pytest.mark.slow
@needs_fashion_mnist
def test_fashion_mnist_is_read_from_folder(fashion_mnist: ImageData) -> None:
    data = fashion_mnist
    assert images_of(data.train).shape == (54000, 28, 28, 1)
    assert (len(data.validation), len(data.test)) == (6000, 10000)
    assert data.task.names[-1] == "Ankle boot"
    assert data.mean[0] == pytest.approx(0.286, abs=0.002)


def test_colour_images_of_many_sizes_with_text_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [png((int(w), int(h)), "RGB") for w, h in rng.integers(10, 60, (40, 2))]
    write(tmp_path / "train.parquet", images, ["cat", "dog"] * 20)
    data = load_images(tmp_path / "train.parquet", test=0.25, validation=0.25)
    assert images_of(data.train).shape[1:] == (16, 16, 3)
    assert data.task.names == ("cat", "dog")
    assert len(data.test) == 10
    assert torch.unique(images_of(data.train)[..., 0]).tolist() == [100]


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    picture = Image.new("LA", (8, 8), (0, 0))  # black, fully transparent
    picture.paste((0, 255), (0, 0, 4, 8))  # black, opaque
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    write(tmp_path / "x.parquet", [buffer.getvalue()] * 20, [0, 1] * 10)
    image = images_of(load_images(tmp_path / "x.parquet").train)[0]
    assert image.shape == (8, 8, 1)
    assert image[0, :, 0].tolist() == [0] * 4 + [255] * 4


@pytest.mark.parametrize("validation", ["validation", "valid", "val"])
def test_given_validation_and_test_splits_are_used(tmp_path: Path, validation: str) -> None:
    for name, n in (("train", 20), (validation, 6), ("test", 8)):
        write(tmp_path / f"{name}-00000.parquet", [png((8, 8))] * n, [0, 1] * (n // 2))
    data = load_images(tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 6, 8)


def test_data_set_without_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs dataset\.path=DIR"):
        load_data(DatasetConfig("images"), 16, NullProgress())


def test_cifar_100_has_fine_labels(tmp_path: Path) -> None:
    for split, n in (("train", 40), ("test", 8)):
        columns = {
            "fine_label": (("apple", "bear", "can", "dolphin"), [0, 1, 2, 3] * (n // 4)),
            "coarse_label": (("fruit", "other"), [0, 1, 1, 1] * (n // 4)),
        }
        path = tmp_path / f"{split}-00000-of-00001.parquet"
        write_hub(path, [png((32, 32), "RGB")] * n, columns, "img")
    conf = yaml.safe_load((package.ROOT / "conf/dataset/cifar100.yaml").read_text())["dataset"]
    data = load_data(DatasetConfig(**conf | {"path": str(tmp_path)}), 32, NullProgress())
    assert data.task.names == ("apple", "bear", "can", "dolphin")
    assert (len(data.train), len(data.validation), len(data.test)) == (36, 4, 8)
    assert images_of(data.train).shape == (36, 32, 32, 3)


def test_imagenet_validation_is_test_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = {"train": [0, 1] * 100, "validation": [0, 1] * 5, "test": [-1] * 6}
    for split, values in labels.items():
        photos = [photo(rng, (60, 50)) for _ in values]
        names = ("tench", "goldfish")
        write_hub(tmp_path / f"{split}-0.parquet", photos, {"label": (names, values)})
    conf = yaml.safe_load((package.ROOT / "conf/dataset/imagenet1k.yaml").read_text())["dataset"]
    data = load_data(DatasetConfig(**conf | {"path": str(tmp_path)}), 32, NullProgress())
    assert (len(data.train), len(data.validation), len(data.test)) == (198, 2, 10)
    assert data.test.targets.tolist() == labels["validation"]
    assert any("60x50 pixels are resized to 32x32" in note for note in data.notes)


@pytest.mark.parametrize("names", [("train", "val", "test"), ("train", "validation", "test")])
def test_folders_of_splits_are_read(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name, n in zip(names, (8, 4, 6), strict=True):
        write_folder(tmp_path / name, {"cat": [png((8, 8))] * n, "dog": [png((8, 8), "RGB")] * n})
    (tmp_path / "train" / ".DS_Store").write_bytes(b"x")
    data = load_images(tmp_path)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [16, 8, 12]
    assert data.task.names == ("cat", "dog")
    assert any("modes L, RGB" in note for note in data.notes)
    other = load_images(tmp_path, test_split=names[1])
    assert other.test.targets.tolist() == data.validation.targets.tolist()
    assert len(other.train) + len(other.validation) == 16


def test_folder_without_splits_is_divided(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photos = [photo(rng, (20 + i, 24)) for i in range(20)]
    data = load_images(write_folder(tmp_path, {"b": photos, "a": [png((9, 9))] * 20}))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [28, 4, 8]
    assert data.task.names == ("a", "b")
    assert images_of(data.train).shape == (28, 16, 16, 3)
    assert any("of 21 sizes are resized to 16x16" in note for note in data.notes)


@pytest.mark.slow
@needs_fashion_mnist
def test_digests_of_fashion_mnist_are_unchanged(fashion_mnist: ImageData) -> None:
    """They are part of the keys of trained supernets and of digests of runs."""
    assert fashion_mnist.search_digest == "ff5a6b1ad90a8dd9"
    assert fashion_mnist.digest == "bd3ab20d118c12d1"
    assert fashion_mnist.mean == (0.2857984328916752,)
    assert fashion_mnist.std == (0.3528536557590371,)


def test_digests_of_digits_are_unchanged(digits: ImageData) -> None:
    assert digits.search_digest == "b689f93855fbd5ec"
    assert digits.digest == "c9050821b2b69dba"


def test_splits_are_kept_in_memory_if_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.parquet", [png((8, 8))] * 100, [0, 1] * 50)
    assert all(isinstance(s, InMemorySplit) for s in _splits(load_images(path)))
    assert not any(
        isinstance(s, InMemorySplit) for s in _splits(load_images(path, in_memory=False))
    )
    # 8 images for validation, 20 for the test, 72 to train; they may take a quarter of memory.
    monkeypatch.setattr("hwnas.core.machine.memory_bytes", lambda: 4 * 64 * 50)
    data = load_images(path)
    assert isinstance(data.validation, InMemorySplit)
    assert isinstance(data.test, InMemorySplit)
    assert isinstance(data.train, StreamedSplit)
    assert "train streamed (72 images" in " ".join(data.notes)
    assert all(isinstance(s, InMemorySplit) for s in _splits(load_images(path, in_memory=True)))


def _splits(data: ImageData) -> tuple[DataSplit, ...]:
    return data.train, data.validation, data.test


def test_streamed_images_equal_images_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photos = [photo(rng, (40, 30)) for _ in range(50)] + [png((20, 50), "RGB")] * 50
    path = write(tmp_path / "x.parquet", photos, ["a", "b", "c", "d"] * 25)
    in_memory, streamed = load_images(path, in_memory=True), load_images(path, in_memory=False)
    for expected, part in zip(_splits(in_memory), _splits(streamed), strict=True):
        assert torch.equal(images_of(expected), images_of(part))
        assert torch.equal(expected.targets, part.targets)
    assert (in_memory.mean, in_memory.std) == (streamed.mean, streamed.std)  # fewer than the sample
    batches = list(streamed.batches(streamed.validation, 12, torch.tensor([3, 0])))
    ((images, labels),) = in_memory.batches(in_memory.validation, 12, torch.tensor([3, 0]))
    assert torch.equal(batches[0][0], images)
    assert torch.equal(batches[0][1], labels)


def test_streamed_digests_depend_on_images_and_splits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photos = [photo(rng, (24, 24)) for _ in range(50)]
    path = write(tmp_path / "x.parquet", photos, [0, 1] * 25)
    data = load_images(path, in_memory=False)
    assert load_images(path, in_memory=False).digest == data.digest
    assert load_images(path, in_memory=False, validation=0.2).search_digest != data.search_digest
    assert isinstance(data.test, StreamedSplit)
    photos[int(data.test.rows[0])] = photo(rng, (24, 24))
    other = load_images(write(tmp_path / "y.parquet", photos, [0, 1] * 25), in_memory=False)
    assert other.digest != data.digest
    assert other.search_digest == data.search_digest


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no folder in memory")
def test_folder_in_memory_is_read() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / "a.png").touch()
        assert [*folders.files("", Path(folder))] == [Path(folder) / "a.png"]
