"""Data of practice: folders of splits, EXIF orientations, few images, unusual labels."""

import io
import math
import shutil
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from hwnas.core.errors import ConfigError, DataError
from hwnas.core.progress import NullProgress
from hwnas.training.data import DatasetConfig, ImageData, load_data
from hwnas.training.options import TrainingConfig
from tests.conftest import images_of
from tests.training.data.made import load_images, png, write, write_folder, write_hub

CLASSES = ("cat", "dog")


def _images(n: int) -> Sequence[bytes]:
    """Return different images."""
    return [png((8, 8), value=20 + i % 200) for i in range(n)]


def _classes(n: int) -> dict[str, Sequence[bytes]]:
    return {name: _images(n) for name in CLASSES}


def _sizes(data: ImageData) -> list[int]:
    return [len(split) for split in (data.train, data.validation, data.test)]


# Folders.


@pytest.mark.parametrize(
    "folders",
    [
        ("Training", "Testing"),
        ("Train", "Test"),
        ("TRAIN", "test"),
        ("seg_train/seg_train", "seg_test/seg_test"),
        ("train_images", "test_images"),
        ("outer/data/train", "outer/data/test"),
        ("outer/train/train", "outer/test/test"),
    ],
)
def test_folders_of_splits_are_found(tmp_path: Path, folders: tuple[str, str]) -> None:
    for folder, n in zip(folders, (20, 6), strict=True):
        write_folder(tmp_path / folder, _classes(n))
    data = load_images(tmp_path)
    assert data.task.names == CLASSES
    assert _sizes(data) == [36, 4, 12]


@pytest.mark.parametrize("name", ["val", "Valid", "VALIDATION", "dev"])
def test_validation_folders_are_found(tmp_path: Path, name: str) -> None:
    for folder, n in (("training", 20), (name, 5), ("testing", 6)):
        write_folder(tmp_path / folder, _classes(n))
    assert _sizes(load_images(tmp_path)) == [40, 10, 12]


def test_nested_class_folders_are_read(tmp_path: Path) -> None:
    for name in CLASSES:
        write_folder(tmp_path / "train" / name, {"images": _images(20)})
    assert load_images(tmp_path).task.names == CLASSES


def test_class_may_be_named_train(tmp_path: Path) -> None:
    write_folder(tmp_path, {"bus": _images(20), "train": _images(20)})
    assert load_images(tmp_path).task.names == ("bus", "train")


@pytest.mark.parametrize("folders", [("a", "b"), ("train", "test")])
def test_ambiguous_folders_are_refused(tmp_path: Path, folders: tuple[str, str]) -> None:
    for name in ("fold1", "fold2"):
        write_folder(tmp_path / name, {folder: _images(10) for folder in folders})
    with pytest.raises(DataError, match=r"contain the folders '.*', '.*'\. It is not clear which"):
        load_images(tmp_path)


def test_duplicate_split_folders_are_refused(tmp_path: Path) -> None:
    for folder in ("train", "Training", "test"):
        write_folder(tmp_path / folder, _classes(10))
    with pytest.raises(DataError, match="two train splits"):
        load_images(tmp_path)


def test_missing_training_split_is_refused(tmp_path: Path) -> None:
    for folder in ("val", "Test"):
        write_folder(tmp_path / folder, _classes(10))
    with pytest.raises(DataError, match="no split 'train', only: Test, val"):
        load_images(tmp_path)


def test_ignored_folders_are_noted(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", _classes(20))
    write_folder(tmp_path / "extra", {"cat": _images(3)})
    write_folder(tmp_path, {"test": _images(7)})
    data = load_images(tmp_path)
    assert data.task.names == CLASSES
    assert sum(_sizes(data)) == 40
    notes = " ".join(data.notes)
    assert "folder 'extra' (3 images) is no split and is left out" in notes
    assert "the 7 images of the test split have no class folders and are left out" in notes


def test_folders_of_tools_are_ignored(tmp_path: Path) -> None:
    write_folder(tmp_path, _classes(20))
    for name in ("@eaDir", ".ipynb_checkpoints", "__MACOSX"):
        write_folder(tmp_path, {name: _images(2)})
        write_folder(tmp_path / "cat", {name: _images(2)})
    data = load_images(tmp_path)
    assert (data.task.names, sum(_sizes(data))) == (CLASSES, 40)


def test_spaces_around_class_names_are_ignored(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"cat": _images(20), "dog": _images(20)})
    write_folder(tmp_path / "test", {"cat ": _images(5), "dog": _images(5)})
    data = load_images(tmp_path)
    assert data.class_counts["test"] == {"cat": 5, "dog": 5}
    labels = [["cat", "cat ", " dog", "dog"][i % 4] for i in range(40)]
    path = write(tmp_path / "table" / "x.parquet", _images(40), labels)
    assert load_images(path).task.names == CLASSES


@pytest.mark.parametrize("folder", ["", "images"])
def test_error_for_csv_of_labels_names_metadata_csv(tmp_path: Path, folder: str) -> None:
    (tmp_path / "labels.csv").write_text("file,label\n0.png,cat\n")
    (tmp_path / folder).mkdir(exist_ok=True)
    for i, content in enumerate(_images(10)):
        (tmp_path / folder / f"{i}.png").write_bytes(content)
    with pytest.raises(DataError, match=r"metadata\.csv.* file_name and label"):
        load_images(tmp_path)


# Images.

_UPRIGHT = np.zeros((24, 24, 3), np.uint8)
_UPRIGHT[:12, :, 0] = _UPRIGHT[:, :12, 1] = 200  # red above, green to the left


def _encode(orientation: int, kind: str) -> bytes:
    """Return an encoded image with an EXIF orientation that viewers show as ``_UPRIGHT``."""
    inverse = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    picture, exif, buffer = Image.fromarray(_UPRIGHT), Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    if orientation in inverse:
        picture = picture.transpose(inverse[orientation])
    picture.save(buffer, kind, exif=exif, quality=100, subsampling=0, lossless=True)
    return buffer.getvalue()


def _read_pixels(tmp_path: Path, images: Sequence[bytes]) -> tuple[NDArray[np.uint8], ImageData]:
    data = load_images(write(tmp_path / "x.parquet", [*images] * 4, [0, 1] * (2 * len(images))))
    return images_of(data.train).numpy(), data


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(tmp_path: Path, kind: str) -> None:
    images, data = _read_pixels(
        tmp_path, [_encode(orientation, kind) for orientation in range(1, 9)]
    )
    assert len(images) > 16
    assert np.abs(images.astype(int) - _UPRIGHT).max() < (0 if kind == "PNG" else 60) + 1
    exif_notes = [note for note in data.notes if "EXIF" in note]
    assert (
        exif_notes == [] if kind == "TIFF" else "28 images are rotated or mirrored" in exif_notes[0]
    )


def test_rotated_images_are_cropped_upright(tmp_path: Path) -> None:
    rng, sides = np.random.default_rng(0), []
    for kind in ("tagged", "upright"):
        rng = np.random.default_rng(0)
        pictures = [Image.fromarray(rng.integers(0, 256, (20, 32, 3), np.uint8)) for _ in range(20)]
        contents = []
        for picture in pictures:
            buffer, exif = io.BytesIO(), Image.Exif()
            exif[0x0112] = 6 if kind == "tagged" else 1
            stored = picture.transpose(Image.Transpose.ROTATE_90) if kind == "tagged" else picture
            stored.save(buffer, "PNG", exif=exif)
            contents.append(buffer.getvalue())
        path = write(tmp_path / kind / "x.parquet", contents, [0, 1] * 10)
        sides.append(images_of(load_images(path).train))
    assert torch.equal(*sides)


def _save(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


RED = Image.new("RGB", (8, 8), (200, 10, 10))


@pytest.mark.parametrize(
    ("content", "colour"),
    [
        (_save(RED.convert("P"), "PNG"), (200, 10, 10)),
        (_save(RED.convert("P"), "GIF"), (200, 10, 10)),
        (_save(RED.convert("RGBA"), "PNG"), (200, 10, 10)),
        (_save(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), "PNG"), (255, 255, 255)),
        (_save(RED.convert("CMYK"), "JPEG", quality=100), (200, 10, 10)),
        (_save(RED, "TIFF"), (200, 10, 10)),
        (_save(RED, "BMP"), (200, 10, 10)),
    ],
)
def test_colours_match_viewers(tmp_path: Path, content: bytes, colour: tuple[int, ...]) -> None:
    images, _ = _read_pixels(tmp_path, [content] * 4)
    pixel = np.broadcast_to(images[0, 4, 4], 3).astype(int)
    assert np.abs(pixel - colour).max() <= 25  # the web palette has steps of 51


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_save(Image.new("I;16", (8, 8), 40000), "PNG"), "mode I;16"),
        (_save(Image.new("F", (8, 8), 0.5), "TIFF"), "mode F"),
        (_save(Image.new("LAB", (8, 8)), "TIFF"), "mode LAB"),
        *(
            (
                _save(RED, kind, save_all=True, append_images=[Image.new("RGB", (8, 8))]),
                f"a {kind} image of several frames",
            )
            for kind in ("GIF", "PNG", "WEBP", "TIFF")
        ),
    ],
)
def test_unsupported_image_modes_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"row 0 is .*{message}"):
        _read_pixels(tmp_path, [content] * 4)


# Options without an effect.


@pytest.mark.parametrize(
    "option",
    [
        {"path": "x"}, {"hub_id": "a/b"}, {"test_split": "validation"}, {"image_column": "x"},
        {"label_column": "x"}, {"in_memory": True},
    ],
)  # fmt: skip
def test_options_without_effect_on_embedded_data_are_refused(option: dict[str, object]) -> None:
    config = DatasetConfig("digits", **option)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=rf"digits is embedded: dataset\.{next(iter(option))}=.*effect"
    ):
        load_data(config, 16, NullProgress())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"label_column": "x"}, "consists of folders: dataset.label_column=x has no effect"),
        ({"test": 0.3}, "dataset.test=0.3 has no effect: .* has a test split"),
    ],
)
def test_options_without_effect_on_folders_are_refused(
    tmp_path: Path, option: dict[str, object], message: str
) -> None:
    for folder in ("train", "test"):
        write_folder(tmp_path / folder, _classes(20))
    with pytest.raises(ConfigError, match=message):
        load_images(tmp_path, **option)


# Few images.


@pytest.mark.parametrize(("n_classes", "n_each"), [(10, 5), (102, 4), (5, 4), (20, 3)])
def test_error_for_few_images_gives_working_options(
    tmp_path: Path, n_classes: int, n_each: int
) -> None:
    labels = [i % n_classes for i in range(n_classes * n_each)]
    path = write(tmp_path / "x.parquet", _images(len(labels)), labels)
    with pytest.raises(DataError, match=r"the (test|validation) split would have") as error:
        load_images(path)
    options = dict(
        word.rstrip(".").removeprefix("dataset.").split("=")
        for word in str(error.value).split()
        if word.startswith("dataset.")
    )
    data = load_images(path, **{name: float(value) for name, value in options.items()})
    assert len(data.train) >= n_classes
    assert sum(_sizes(data)) == len(labels)


def test_default_batch_size_fits_data() -> None:
    assert TrainingConfig().for_images(48).images_per_step == 8
    assert TrainingConfig().for_images(127).images_per_step == 16
    assert TrainingConfig().for_images(3).images_per_step == 2
    assert TrainingConfig().for_images(128).images_per_step == 32
    assert TrainingConfig().for_images(1023).images_per_step == 32
    assert TrainingConfig().for_images(1024).images_per_step == 64
    assert TrainingConfig().for_images(2048).images_per_step == 128
    assert TrainingConfig(batch_size=64).for_images(48).images_per_step == 64


def test_class_counts_and_imbalance_are_noted(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"normal": _images(120), "defect": _images(12)})
    write_folder(tmp_path / "test", {"normal": _images(5)})
    data = load_images(tmp_path)
    assert data.class_counts["train"] == {"defect": 11, "normal": 107}
    assert data.class_counts["validation"] == {"defect": 1, "normal": 13}
    assert data.class_counts["test"] == {"defect": 0, "normal": 5}
    notes = " ".join(data.notes)
    assert "'normal' has 107 training images, 'defect' has 11" in notes
    assert "The test split has no images of the classes 'defect'." in notes


# Labels and columns.


@pytest.mark.parametrize("label", [[0, 1], [1], ["a", "b"]])
def test_several_labels_per_image_are_refused(tmp_path: Path, label: list[object]) -> None:
    path = write(tmp_path / "x.parquet", _images(20), [label] * 20)
    with pytest.raises(
        DataError, match=r"has several labels .* Multi-label data are not supported"
    ):
        load_images(path)


@pytest.mark.parametrize(
    "labels", [("cat", "cat|dog", "dog"), ("a;b", "b; c", "c;a"), ("cat", "cat, dog", "dog")]
)
def test_joined_labels_are_refused(tmp_path: Path, labels: tuple[str, ...]) -> None:
    path = write(tmp_path / "x.parquet", _images(21), [*labels] * 7)
    with pytest.raises(
        DataError, match=r"has several labels .* Multi-label data are not supported"
    ):
        load_images(path)


def test_label_may_contain_separator(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.parquet", _images(75), ["a|b", "c", "d;e", "crane, bird", "crane"] * 15
    )
    assert load_images(path).task.description.outputs == "5 classes"


def _write_metadata(folder: Path, table: bytes, n: int = 12) -> Path:
    """Write images with a metadata.csv."""
    for i, content in enumerate(_images(n)):
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.png").write_bytes(content)
    (folder / "metadata.csv").write_bytes(table)
    return folder


def test_images_without_row_are_noted(tmp_path: Path) -> None:
    rows = "".join(f"{i}.png,{CLASSES[i % 2]}\n" for i in range(40))
    data = load_images(_write_metadata(tmp_path / "d", f"file_name,label\n{rows}".encode(), 42))
    assert "2 of 42 image files have no row in the table and are left out" in " ".join(data.notes)
    assert sum(_sizes(data)) == 40


def test_paths_are_relative_to_table(tmp_path: Path) -> None:
    write_folder(tmp_path, {"photos": _images(40)})
    paths = [f"photos/{i}.png" for i in range(40)]
    pq.write_table(pa.table({"image": paths, "label": [*CLASSES] * 20}), tmp_path / "x.parquet")
    assert sum(_sizes(load_images(tmp_path / "x.parquet"))) == 40
    (tmp_path / "photos" / "3.png").unlink()
    with pytest.raises(DataError, match=r"row 3: .*photos/3.png was not found"):
        load_images(tmp_path / "x.parquet")


def test_whole_floats_are_classes_and_gaps_are_refused(tmp_path: Path) -> None:
    """pandas converts integers with missing values to floats."""
    path = tmp_path / "x.parquet"
    for labels in ([0.0, 1.0], [Decimal("0.00"), Decimal("1.00")]):
        assert load_images(write(path, _images(40), labels * 20)).task.names == ("0", "1")
    assert load_images(path, task="regression", label_column="label").train.targets.max() == 1
    write(path, _images(40), [0.0, 1.0, math.nan, 1.0] * 10)
    with pytest.raises(DataError, match="row 2 has no label"):
        load_images(path)


def test_error_for_unknown_label_names_column(tmp_path: Path) -> None:
    write_hub(tmp_path / "x.parquet", _images(12), {"label": (CLASSES, [0, 1] * 6)})
    table = pq.read_table(tmp_path / "x.parquet")
    labels = pa.array([0, 2] * 6, pa.int64())
    pq.write_table(table.set_column(1, table.schema.field("label"), labels), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="column 'label': split 'train', row 1 has the label 2"):
        load_images(tmp_path / "x.parquet")


def test_splits_with_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", _images(12), [*CLASSES] * 6)
    table = pq.read_table(tmp_path / "train.parquet").rename_columns(["img", "lbl"])
    pq.write_table(table, tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"train.parquet has the columns image, label, but the"):
        load_images(tmp_path)


def test_classes_with_few_images_are_noted(tmp_path: Path) -> None:
    for split, n_dogs in (("train", 20), ("val", 1), ("test", 4)):
        write_folder(tmp_path / split, {"cat": _images(19), "dog": _images(n_dogs)})
    notes = " ".join(load_images(tmp_path).notes)
    assert "The validation split has few images of the classes 'dog' (1): one image is 5 " in notes
    assert "points of accuracy, and 100 points of the recall of 'dog'" in notes
    assert "The test split has few images of the classes 'dog' (4)" in notes


@pytest.mark.parametrize("missing", [-1, None])
def test_test_split_without_labels_is_ignored(tmp_path: Path, missing: int | None) -> None:
    for split, labels in (("train", [0, 1] * 20), ("test", [missing] * 6)):
        write_hub(
            tmp_path / f"{split}-0.parquet", _images(len(labels)), {"label": (CLASSES, labels)}
        )
    data = load_images(tmp_path)
    assert sum(_sizes(data)) == 40
    assert "the 6 images of the test split have no labels and are left out" in " ".join(data.notes)


def _base64(contents: Sequence[bytes]) -> pa.Array:
    import base64

    return pa.array([base64.b64encode(content * 9).decode() for content in contents])


def _pixels(contents: Sequence[bytes]) -> pa.Array:
    return pa.array([np.asarray(Image.open(io.BytesIO(c))).tolist() for c in contents])


@pytest.mark.parametrize(
    ("convert", "message"),
    [(_base64, "which is no path of an image"), (_pixels, "holds lists of numbers")],
)
def test_columns_without_images_are_refused(
    tmp_path: Path, convert: Callable[[Sequence[bytes]], pa.Array], message: str
) -> None:
    table = pa.table({"image": convert(_images(20)), "label": [0, 1] * 10})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=message) as error:
        load_images(tmp_path / "x.parquet")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("column", ["image", "label"])
def test_error_for_missing_column_names_both(tmp_path: Path, column: str) -> None:
    images = [{"bytes": content, "path": None} for content in _images(4)]
    table = pa.table({"image": images, "label": [0, 1, 0, 1]}).drop_columns([column])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="needs a column 'image' and a column 'label', has: "):
        load_images(tmp_path / "x.parquet")


def test_images_with_alpha_channel_are_noted(tmp_path: Path) -> None:
    for split, n in (("train", 12), ("test", 6)):
        for i in range(n):
            folder = tmp_path / split / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            mode, colour = ("RGBA", (9, 9, 9, 90)) if i % 3 == 0 else ("RGB", (9, 9, i))
            Image.new(mode, (8, 8), colour).save(folder / f"{i}.png")
    config = DatasetConfig("images", path=str(tmp_path))
    (note,) = (n for n in load_data(config, 8, NullProgress()).notes if "alpha channel" in n)
    assert "6 images have an alpha channel" in note
    assert "transparent pixels become white" in note


# Names of classes and values of pixels that were probably not meant.


def _labels(path: Path, names: Sequence[str], form: str) -> ImageData:
    """Return 15 images of each class, in one of the forms of a data set."""
    content = _images(15 * len(names))
    labels = [name for name in names for _ in range(15)]
    if form == "folder":
        parts = {name: content[15 * i : 15 * i + 15] for i, name in enumerate(names)}
        return load_images(write_folder(path, parts))
    if form == "parquet":
        return load_images(write(path / "a.parquet", content, labels))
    if form == "csv":
        for i, image in enumerate(content):
            (path / f"{i}.png").write_bytes(image)
        rows = [f"{i}.png,{label}" for i, label in enumerate(labels)]
        (path / "metadata.csv").write_text("\n".join(["file_name,label", *rows]))
        return load_images(path)
    arrays = np.stack([np.asarray(Image.open(io.BytesIO(encoded))) for encoded in content])
    np.savez(path / "a.npz", images=arrays, targets=np.array(labels))
    return load_images(path / "a.npz")


@pytest.mark.parametrize("form", ["folder", "parquet", "csv", "npz"])
def test_classes_with_similar_names_are_reported(tmp_path: Path, form: str) -> None:
    data = _labels(tmp_path, ["Cat", "cat", "dog", "big_dog", "big  dog"], form)
    assert data.task.n_outputs == 5
    similar = [note for note in data.notes if "differ only in case, blanks or underscores" in note]
    assert len(similar) == 2
    assert "'Cat' (11 training images), 'cat' (11 training images)" in similar[0]
    assert "'big  dog'" in similar[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 1), "values from 0 to 1; white is 255"),
        ((0, 16), "values from 0 to 16; white is 255"),
        ((7, 7), "have the value 7: they show nothing"),
        ((0, 120), ""),
    ],
)
@pytest.mark.parametrize("form", ["npz", "png"])
def test_range_of_pixels_is_reported(
    tmp_path: Path, values: tuple[int, int], message: str, form: str
) -> None:
    images = np.random.default_rng(0).choice(np.array(values, np.uint8), (40, 8, 8))
    path = tmp_path / "a.npz"
    if form == "npz":
        np.savez(path, images=images, targets=np.arange(40) % 2)
    else:
        path = tmp_path / "png"
        for i, image in enumerate(images):
            (path / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path / "ab"[i % 2] / f"{i}.png")
    data = load_images(path)
    assert data.values == values
    notes = " ".join(data.notes)
    assert message in notes
    assert ("values from" in notes or "show nothing" in notes) == bool(message)


# Paths in tables.


def _paths(folder: Path, paths: Sequence[str]) -> Path:
    folder.mkdir(exist_ok=True)
    labels = [CLASSES[i % 2] for i in range(len(paths))]
    pq.write_table(pa.table({"image": paths, "label": labels}), folder / "a.parquet")
    return folder


def test_paths_in_a_table_stay_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine" / "images").mkdir(parents=True)
    for i, image in enumerate(_images(30)):
        (tmp_path / "mine" / "images" / f"{i}.png").write_bytes(image)
        (tmp_path / f"{i}.png").write_bytes(image)
    relative = [f"images/{i}.png" for i in range(30)]
    inside = [relative, [str(tmp_path / "mine" / name) for name in relative]]
    for paths in inside:
        folder = _paths(tmp_path / "mine", paths)
        assert (
            sum(_sizes(load_images(folder))) == sum(_sizes(load_images(folder / "a.parquet"))) == 30
        )
    outside = [f"../{i}.png" for i in range(30)]
    for paths in (outside, [str(tmp_path / f"{i}.png") for i in range(30)]):
        folder = _paths(tmp_path / "mine", paths)
        with pytest.raises(DataError, match=rf"row 0: {tmp_path}/0.png is outside the folder of"):
            load_images(folder)


def test_paths_into_archives_are_refused(tmp_path: Path) -> None:
    folder = _paths(tmp_path, [f"zip://{i}.png::{tmp_path}/a.zip" for i in range(30)])
    with pytest.raises(DataError, match=r"row 0: zip://0.png::.* Extract archives"):
        load_images(folder)


def test_table_beside_no_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name,label\n/a/1.png,0\n/a/2.png,1\n")
    with pytest.raises(DataError, match="holds no images, only a table that names them"):
        load_images(tmp_path)


def test_column_split_divides_images(tmp_path: Path) -> None:
    splits = ["train"] * 24 + ["val"] * 6 + ["Test"] * 10
    rows = [f"{i}.png,{CLASSES[i % 2]},{split},{i // 4}" for i, split in enumerate(splits)]
    table = "\n".join(["file_name,label,split,patient", *rows])
    data = load_images(_write_metadata(tmp_path / "d", table.encode(), 40))
    assert _sizes(data) == [24, 6, 10]
    assert "patient" not in " ".join(data.notes)
    images = pa.array([{"bytes": content, "path": None} for content in _images(40)])
    mixed = ["train", "train", "test", "test"] * 10
    for names, sizes in ((splits, [24, 6, 10]), (mixed, [18, 2, 20])):
        columns = {"image": images, "label": [*CLASSES] * 20, "Split": names}
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        assert _sizes(load_images(tmp_path / "x.parquet")) == sizes
    columns["Split"] = ["train", "fold2"] * 20
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="column 'Split' has the value 'fold2'"):
        load_images(tmp_path / "x.parquet")
    columns["Split"] = ["fold1", "fold2"] * 20
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    data = load_images(tmp_path / "x.parquet")
    assert "column 'Split' has the value 'fold1' and is not used" in " ".join(data.notes)
    assert sum(_sizes(data)) == 40


def test_columns_of_groups_are_noted(tmp_path: Path) -> None:
    images = pa.array([{"bytes": content, "path": None} for content in _images(40)])
    columns = {"image": images, "label": [*CLASSES] * 20, "Patient_ID": [i // 4 for i in range(40)]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    data = load_images(tmp_path / "x.parquet")
    assert "'Patient_ID' is not used: images of one group" in " ".join(data.notes)


def test_columns_of_groups_are_noted_if_validation_is_drawn(tmp_path: Path) -> None:
    images = pa.array([{"bytes": content, "path": None} for content in _images(40)])
    columns = {"image": images, "label": [*CLASSES] * 20, "speaker": [i // 4 for i in range(40)]}
    for split in ("train", "test"):
        pq.write_table(pa.table(columns), tmp_path / f"{split}.parquet")
    (note,) = (n for n in load_images(tmp_path).notes if "speaker" in n)
    assert "in the training and the validation split" in note
    pq.write_table(pa.table(columns), tmp_path / "validation.parquet")
    assert not any("speaker" in n for n in load_images(tmp_path).notes)


def test_metadata_outside_the_splits_is_refused(tmp_path: Path) -> None:
    for name in ("train", "test", "external_test"):
        rows = "".join(f"{i}.png,{CLASSES[i % 2]}\n" for i in range(12))
        _write_metadata(tmp_path / name, f"file_name,label\n{rows}".encode())
    with pytest.raises(DataError, match=r"'external_test' has a metadata file, but is no split"):
        load_images(tmp_path)
    shutil.rmtree(tmp_path / "external_test")
    assert _sizes(load_images(tmp_path))[-1] == 12


def test_folders_inside_classes_are_noted_if_images_are_split(tmp_path: Path) -> None:
    for name in CLASSES:
        write_folder(tmp_path / "train" / name, {f"{name}{i}": _images(10) for i in range(3)})
    note = "60 images lie in 6 folders inside the folders of classes, such as cat/cat0"
    assert note in " ".join(load_images(tmp_path).notes)
    for split in ("validation", "test"):
        write_folder(tmp_path / split, _classes(5))
    assert "inside the folders of classes" not in " ".join(load_images(tmp_path).notes)


def test_class_names_may_begin_with_underscores(tmp_path: Path) -> None:
    write_folder(tmp_path, {**_classes(20), "__background__": _images(20), "@home": _images(20)})
    assert load_images(tmp_path).task.names == ("@home", "__background__", *CLASSES)


def test_grey_images_stored_in_colour_are_noted(tmp_path: Path) -> None:
    def folders(*, is_grey: bool) -> dict[str, Sequence[bytes]]:
        pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
        grey = np.repeat(pixels[..., :1], 3, axis=-1)
        return {
            name: [_save(Image.fromarray(image), "PNG") for image in (grey if is_grey else pixels)]
            for name in CLASSES
        }

    for is_grey in (True, False):
        write_folder(tmp_path / str(is_grey), folders(is_grey=is_grey))
        data = load_images(tmp_path / str(is_grey))
        assert len(data.mean) == 3
        assert ("they are grey images stored in colour" in " ".join(data.notes)) is is_grey


def test_values_of_different_scales_are_noted(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(0, 1, (40, 2))
    for scale in (1, 100):
        path = write(tmp_path / f"{scale}.parquet", _images(40), (values * [scale, 1]).tolist())
        config = DatasetConfig("mine", path=str(path), task="regression", label_column="label")
        notes = " ".join(load_data(config, 16, NullProgress()).notes)
        assert ("hardly depends on 'value_1'" in notes) is (scale == 100)


# Tables with several columns or splits.


def test_class_column_beside_label_is_ambiguous(tmp_path: Path) -> None:
    image = [{"bytes": content, "path": None} for content in _images(40)]
    features = datasets.Features({
        "image": datasets.Image(), "scene": datasets.ClassLabel(names=["in", "out"]),
        "label": datasets.Value("string"),
    })  # fmt: skip
    content = {"image": image, "scene": [0, 1] * 20, "label": ["cat", "cat", "dog", "dog"] * 10}
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table(content, schema=features.arrow_schema), path)
    with pytest.raises(DataError, match=r"scene.*label.*dataset\.label_column"):
        load_images(path)
    assert load_images(path, label_column="label").task.names == ("cat", "dog")


def test_further_split_of_table_is_noted(tmp_path: Path) -> None:
    labels = ["a", "b"]
    for split, n in (("train", 40), ("test", 10), ("extra", 6)):
        write(tmp_path / f"{split}-00000-of-00001.parquet", _images(n), labels * (n // 2))
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        + "".join(f"  - split: {s}\n    path: {s}-*.parquet\n" for s in ("train", "test", "extra"))
        + "---\n"
    )
    notes = load_images(tmp_path).notes
    assert any("split 'extra' (6 images) is no train, validation or test split" in n for n in notes)
