import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from hwnas.errors import ConfigError, DataError
from hwnas.progress import Silent
from hwnas.training.data import DatasetConfig, ImageData, augment, load
from tests.conftest import SHARED, needs_fashion_mnist


def _png(size: tuple[int, int], mode: str = "L", value: int = 100) -> bytes:
    buffer = io.BytesIO()
    colour = value if mode == "L" else (value, 0, 255 - value)
    Image.new(mode, size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def _write(path: Path, images: list[bytes], labels: list[object]) -> Path:
    image = [{"bytes": content, "path": None} for content in images]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": image, "label": labels}), path)
    return path


def _load(path: Path, **options: object) -> ImageData:
    return load(DatasetConfig("mine", path=str(path), **options), 16, Silent())  # type: ignore[arg-type]


def test_digits_are_split_the_same_way_every_time(digits: ImageData) -> None:
    again = load(DatasetConfig("digits", validation=0.25), 28, Silent())
    assert digits.digest == again.digest
    assert [len(s) for s in (digits.train, digits.validation, digits.test)] == [1077, 360, 360]
    assert digits.task.n_classes == 10


def test_splits_share_no_image_position(digits: ImageData) -> None:
    splits = (digits.train, digits.validation, digits.test)
    assert sum(len(split) for split in splits) == 1797
    counts = [torch.bincount(split.labels, minlength=10) for split in splits]
    assert all(int(count.min()) > 0.08 * int(count.sum()) for count in counts)  # stratified


def test_search_digest_does_not_depend_on_the_test_split(digits: ImageData) -> None:
    import dataclasses

    other = dataclasses.replace(digits, test=digits.test.take(torch.arange(10)))
    assert other.search_digest == digits.search_digest
    assert other.digest != digits.digest


def test_prepared_images_are_normalised_and_resized(digits: ImageData) -> None:
    images = digits.prepare(digits.train.images, 20)
    assert images.shape == (1077, 1, 20, 20)
    assert abs(float(digits.prepare(digits.train.images, 8).mean())) < 1e-3
    assert images.stride()[1] == 1  # channels last, also where there is one channel


@needs_fashion_mnist
def test_fashion_mnist_is_read_from_a_folder() -> None:
    data = load(DatasetConfig("fashion_mnist", path=str(SHARED / "fashion_mnist")), 28, Silent())
    assert data.train.images.shape == (54000, 28, 28, 1)
    assert (len(data.validation), len(data.test)) == (6000, 10000)
    assert data.classes[-1] == "Ankle boot"
    assert data.mean[0] == pytest.approx(0.286, abs=0.002)


def test_colour_images_of_many_sizes_and_words_for_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [_png((int(w), int(h)), "RGB") for w, h in rng.integers(10, 60, (40, 2))]
    _write(tmp_path / "train.parquet", images, ["cat", "dog"] * 20)
    data = _load(tmp_path / "train.parquet", test=0.25, validation=0.25)
    assert data.train.images.shape[1:] == (16, 16, 3)
    assert data.classes == ("cat", "dog")
    assert len(data.test) == 10
    assert torch.unique(data.train.images[..., 0]).tolist() == [100]


def test_drawing_on_a_transparent_ground_is_not_lost(tmp_path: Path) -> None:
    picture = Image.new("LA", (8, 8), (0, 0))  # black, and nothing to be seen of it
    picture.paste((0, 255), (0, 0, 4, 8))  # black to be seen
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    _write(tmp_path / "x.parquet", [buffer.getvalue()] * 20, [0, 1] * 10)
    image = _load(tmp_path / "x.parquet").train.images[0]
    assert image.shape == (8, 8, 1)
    assert image[0, :, 0].tolist() == [0] * 4 + [255] * 4


def test_own_validation_and_test_splits_are_used(tmp_path: Path) -> None:
    for name, n in (("train", 20), ("validation", 6), ("test", 8)):
        _write(tmp_path / f"{name}-00000.parquet", [_png((8, 8))] * n, [0, 1] * (n // 2))
    data = _load(tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 6, 8)


def _no_images(folder: Path) -> Path:
    pq.write_table(pa.table({"text": ["a", "b"], "score": [1.0, 2.0]}), folder / "x.parquet")
    return folder / "x.parquet"


def _not_image_bytes(folder: Path) -> Path:
    return _write(folder / "x.parquet", [b"no image"] * 8, [0, 1] * 4)


def _truncated(folder: Path) -> Path:
    path = _write(folder / "x.parquet", [_png((8, 8))] * 40, [0, 1] * 20)
    path.write_bytes(path.read_bytes()[:-50])
    return path


def _one_class(folder: Path) -> Path:
    return _write(folder / "x.parquet", [_png((8, 8))] * 8, [3] * 8)


def _cut_png(folder: Path) -> Path:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40), np.uint8))
    buffer = io.BytesIO()
    noise.save(buffer, "PNG")
    return _write(folder / "x.parquet", [buffer.getvalue()[:-800]] * 8, [0, 1] * 4)


def _sixteen_bits(folder: Path) -> Path:
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(buffer, "PNG")
    return _write(folder / "x.parquet", [buffer.getvalue()] * 8, [0, 1] * 4)


def _too_few(folder: Path) -> Path:
    return _write(folder / "x.parquet", [_png((8, 8))] * 3, [0, 1, 1])


def _missing(folder: Path) -> Path:
    return folder / "nowhere"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_no_images, "needs a column 'image'.*has: text, score"),
        (_not_image_bytes, "row 0 of 'train' is not an image"),
        (_truncated, "cannot be read"),
        (_one_class, "holds one class only"),
        (_cut_png, "row 0 of 'train' is damaged"),
        (_too_few, "too small to split"),
        (_sixteen_bits, "convert to 8 bits"),
        (_missing, "no such file or folder"),
    ],
)
def test_bad_data_is_refused_in_one_line(tmp_path: Path, make: object, message: str) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(DataError, match=message) as error:
        _load(path)
    assert "\n" not in str(error.value)


def test_data_set_without_a_place_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs dataset\.path=DIR"):
        load(DatasetConfig("images"), 16, Silent())


def test_shift_moves_images_without_changing_them() -> None:
    images = torch.zeros(64, 9, 9, 1, dtype=torch.uint8)
    images[:, 4, 4] = 255
    rng = torch.Generator().manual_seed(0)
    moved = augment(images, DatasetConfig("x", shift=0.25), rng)
    assert moved.shape == images.shape
    assert torch.equal(moved.sum((1, 2, 3)), images.sum((1, 2, 3)))
    places = {tuple(torch.nonzero(image[..., 0])[0].tolist()) for image in moved}
    assert len(places) > 10
    assert all(abs(row - 4) <= 2 and abs(column - 4) <= 2 for row, column in places)


def test_digits_are_not_mirrored_and_fashion_is() -> None:
    import yaml

    from hwnas import content

    folder = content.ROOT / "conf" / "dataset"
    flips = {
        name: yaml.safe_load((folder / f"{name}.yaml").read_text())["dataset"]["flip"]
        for name in ("digits", "fashion_mnist")
    }
    assert flips == {"digits": False, "fashion_mnist": True}


def test_mirroring_mirrors_about_half() -> None:
    images = torch.arange(4, dtype=torch.uint8).view(1, 1, 4, 1).repeat(200, 2, 1, 1)
    rng = torch.Generator().manual_seed(0)
    flipped = augment(images, DatasetConfig("x", flip=True), rng)
    n_mirrored = int((flipped[:, 0, 0, 0] == 3).sum())
    assert 60 < n_mirrored < 140
    assert torch.equal(flipped.sum((1, 2, 3)), images.sum((1, 2, 3)))
