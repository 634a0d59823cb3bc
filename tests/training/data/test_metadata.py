"""Tables ``metadata.csv`` and Parquet files: which split they are, and what they are read as."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hwnas.core.errors import DataError
from hwnas.training.data import ImageData
from tests.training.data.made import load_images, png, write

CLASSES = ("cat", "dog")
HEADER = "file_name,label"


def _rows(names: Sequence[str], labels: Sequence[str] = CLASSES) -> str:
    rows = [f"{name},{labels[i % len(labels)]}" for i, name in enumerate(names)]
    return "\n".join([HEADER, *rows])


def _write(folder: Path, names: Sequence[str], table: str = "", *, first: int = 0) -> Path:
    """Write images of different values, and a table of all of them."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png((8, 8), value=first + i))
    (folder / "metadata.csv").write_text(table or _rows(names))
    return folder


def _sizes(data: ImageData) -> list[int]:
    return [len(split) for split in (data.train, data.validation, data.test)]


def _names(n: int) -> list[str]:
    return [f"{i}.png" for i in range(n)]


@pytest.mark.parametrize("folders", [("train", "test"), ("Train", "Test"), ("Training", "TEST")])
def test_names_of_splits_may_have_capital_letters(tmp_path: Path, folders: tuple[str, str]) -> None:
    for n, folder in zip((20, 10), folders, strict=True):
        _write(tmp_path / "csv" / folder, _names(n), first=100 * (n == 10))
        images = [png((8, 8), value=100 * (n == 10) + i) for i in range(n)]
        write(tmp_path / "parquet" / f"{folder}.parquet", images, [*CLASSES] * (n // 2))
    for form in ("csv", "parquet"):
        data = load_images(tmp_path / form)
        assert _sizes(data) == [18, 2, 10]
        assert min(x.min() for x in images_of_test(data)) >= 100


def images_of_test(data: ImageData) -> list[np.ndarray]:
    return [data.test.take(torch.arange(len(data.test))).images.numpy()]


def test_table_above_folders_of_splits_is_read(tmp_path: Path) -> None:
    names = [f"train/cam{i % 2}/{i}.png" for i in range(20)]
    names += [f"test/cam{i % 2}/{i}.png" for i in range(10)]
    data = load_images(_write(tmp_path, names))
    assert _sizes(data) == [18, 2, 10]
    assert data.task.names == CLASSES
    splits = ["train"] * 12 + ["val"] * 8 + ["test"] * 10
    rows = [f"{row},{split}" for row, split in zip(_rows(names).split()[1:], splits, strict=True)]
    (tmp_path / "metadata.csv").write_text("\n".join([f"{HEADER},split", *rows]))
    assert _sizes(load_images(tmp_path)) == [12, 8, 10]


def test_words_in_names_of_files_are_no_splits(tmp_path: Path) -> None:
    names = ["train_1.png", "test_2.png", "IMG_test.png", *_names(27)]
    assert sum(_sizes(load_images(_write(tmp_path, names)))) == 30


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("None", "scratch"), ("None", "scratch")),
        (("NA", "null", "N/A"), ("N/A", "NA", "null")),
        (("001", "002", "010"), ("001", "002", "010")),
        (("1", "2", "10"), ("1", "2", "10")),
    ],
)
def test_labels_are_read_as_they_are_written(
    tmp_path: Path, labels: Sequence[str], classes: Sequence[str]
) -> None:
    names = _names(30)
    data = load_images(_write(tmp_path, names, _rows(names, labels)))
    assert data.task.names == tuple(classes)


def test_error_for_numbers_that_are_no_classes(tmp_path: Path) -> None:
    names = _names(30)
    _write(tmp_path, names, _rows(names, ("1.50", "2.25")))
    with pytest.raises(DataError, match="must be a whole number or text"):
        load_images(tmp_path)
    assert load_images(tmp_path, task="regression", label_column="label").task.names == ("value",)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (HEADER, "Empty CSV file"),
        (HEADER + "\n", "has no rows"),
        ("file_name;label\n0.png;cat\n", "has no column 'file_name', only: file_name;label"),
        ("name,label\n0.png,cat\n", "has no column 'file_name', only: name, label"),
        ("file_name,label,label\n0.png,cat,dog\n", "column 'label' occurs twice"),
        ("file_name,label\n0.png,cat,dog\n", "Expected 2 columns, got 3"),
        ("file_name,label\n0.png,\n1.png,cat\n", "row 0 has no label"),
    ],
)
def test_error_for_unreadable_table_gives_format(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_images(_write(tmp_path, _names(2), table))


def test_error_for_other_encodings(tmp_path: Path) -> None:
    _write(tmp_path, _names(2))
    (tmp_path / "metadata.csv").write_bytes("file_name,label\n0.png,Käse\n".encode("latin-1"))
    with pytest.raises(DataError, match="in UTF-8"):
        load_images(tmp_path)


def test_folder_may_be_a_link(tmp_path: Path) -> None:
    _write(tmp_path / "disk" / "photos", _names(30))
    (tmp_path / "photos").symlink_to(tmp_path / "disk" / "photos")
    assert sum(_sizes(load_images(tmp_path / "photos"))) == 30


def test_other_files_named_metadata_are_no_tables(tmp_path: Path) -> None:
    for i, breed in enumerate(("cat/tabby", "cat/siamese", "dog/beagle")):
        (tmp_path / breed).mkdir(parents=True)
        for n in range(10):
            (tmp_path / breed / f"{n}.png").write_bytes(png((8, 8), value=20 * i + n))
    (tmp_path / "metadata.json").write_text("{}")
    assert load_images(tmp_path).task.names == CLASSES


def test_error_for_parquet_file_without_split_beside_others(tmp_path: Path) -> None:
    images = [png((8, 8), value=i) for i in range(30)]
    for name in ("train", "test", "more"):
        write(tmp_path / f"{name}.parquet", images, [*CLASSES] * 15)
    with pytest.raises(DataError, match=r"the name of more\.parquet has no split"):
        load_images(tmp_path)


def test_tables_of_values_may_be_parquet_or_jsonl(tmp_path: Path) -> None:
    for suffix in ("parquet", "jsonl"):
        folder = _write(tmp_path / suffix, _names(30))
        (folder / "metadata.csv").unlink()
        rows = [{"file_name": f"{i}.png", "value": i / 2} for i in range(30)]
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / "metadata.parquet")
        else:
            text = "".join(
                f'{{"file_name": "{r["file_name"]}", "value": {r["value"]}}}\n' for r in rows
            )
            (folder / "metadata.jsonl").write_text(text)
        data = load_images(folder, task="regression")
        part = data.train.take(torch.arange(len(data.train)))
        assert part.targets[:, 0].tolist() == [v / 2 for v in part.images[:, 0, 0, 0].tolist()]


@pytest.mark.parametrize("name", ["photos/manual.pdf", "photos/data.h5", "photos/clip.mpg"])
def test_files_that_pillow_cannot_decode_are_left_out(tmp_path: Path, name: str) -> None:
    for label in CLASSES:
        (tmp_path / "photos" / label).mkdir(parents=True)
        for n in range(15):
            (tmp_path / "photos" / label / f"{n}.png").write_bytes(png((8, 8), value=n))
    (tmp_path / name).write_bytes(b"content")
    data = load_images(tmp_path / "photos")
    assert sum(_sizes(data)) == 30
    assert f"1 file left out (no image format): {Path(name).suffix} (1)" in " ".join(data.notes)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("audio/a.wav", "audio/b.wav", "meta/esc50.csv"), "Audio is not supported"),
        (("walk/1.csv", "run/1.csv"), "Convert each window of sensor data to an image"),
    ],
)
def test_error_for_audio_and_sensor_data(
    tmp_path: Path, files: Sequence[str], message: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=message):
        load_images(tmp_path)


def test_images_in_validation_and_test_are_reported(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("val", 100), ("test", 100)):
        _write(tmp_path / split, _names(20), first=first)
    notes = " ".join(load_images(tmp_path).notes)
    assert "20 of 20 test images are validation images, too" in notes


def test_error_for_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    for name in (b"K\xe4se", b"Brot"):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        for n in range(15):
            (folder / f"{n}.png").write_bytes(png((8, 8), value=n))
    with pytest.raises(DataError, match=r"K\\xe4se' is not UTF-8. Rename the folder"):
        load_images(tmp_path)


def test_error_for_fraction_that_leaves_one_image_of_a_class(tmp_path: Path) -> None:
    for name, n in (("rare", 3), ("common", 50)):
        (tmp_path / name).mkdir()
        for i in range(n):
            (tmp_path / name / f"{i}.png").write_bytes(png((8, 8), value=i))
    with pytest.raises(DataError, match="one image of class 'rare' is left for two splits"):
        load_images(tmp_path, test=0.5)


def test_rows_belong_to_folder_of_their_split(tmp_path: Path) -> None:
    """The table is in an inner folder, and was written on Windows."""
    names = [f"train/{i}.png" for i in range(20)] + [f"test/{i}.png" for i in range(10)]
    table = _rows([name.replace("/", "\\") for name in names]).replace("\n", "\r\n")
    _write(tmp_path / "photos", names, table)
    assert _sizes(load_images(tmp_path)) == [18, 2, 10]
    table = _rows([*names[:-1], "more/0.png"])
    (tmp_path / "photos" / "metadata.csv").write_text(table)
    with pytest.raises(DataError, match="1 of 30 paths of the table begin with another folder"):
        load_images(tmp_path)


def test_test_images_without_labels_are_left_out(tmp_path: Path) -> None:
    _write(tmp_path / "train", _names(20))
    _write(tmp_path / "test", _names(10), "\n".join(["file_name", *_names(10)]), first=50)
    data = load_images(tmp_path)
    assert "the 10 images of the test split have no labels and are left out" in " ".join(data.notes)


def test_columns_may_be_in_another_order_in_each_folder(tmp_path: Path) -> None:
    _write(tmp_path / "a", _names(15), _rows(_names(15)))
    rows = [f"{CLASSES[i % 2]},{i}.png" for i in range(15)]
    _write(tmp_path / "b", _names(15), "\n".join(["label,file_name", *rows]), first=50)
    assert sum(_sizes(load_images(tmp_path))) == 30


def test_error_for_value_that_is_no_number_names_its_row(tmp_path: Path) -> None:
    values = ["1.5", "2.5", "N/A", *(f"{i}.25" for i in range(27))]
    _write(tmp_path, _names(30), _rows(_names(30), values).replace(",label", ",value"))
    with pytest.raises(DataError, match=r"row 2 .*has the value 'N/A'"):
        load_images(tmp_path, task="regression")


def test_folders_of_images_may_be_numbers(tmp_path: Path) -> None:
    """The first folders of paths are compared with names of splits."""
    for task in ("classification", "regression"):
        folder = tmp_path / task
        names = [f"{i % 3}0{i % 3}/{i}.png" for i in range(30)]
        labels = CLASSES if task == "classification" else ("1.5", "2.5")
        table = _rows(names, labels)
        _write(folder, names, table if labels is CLASSES else table.replace("label", "value", 1))
        assert sum(_sizes(load_images(folder, task=task))) == 30


def test_metadata_beside_parquet_files_with_images_is_no_table(tmp_path: Path) -> None:
    for split, n in (("train", 20), ("eval", 10)):
        images = [png((8, 8), value=100 * (n == 10) + i) for i in range(n)]
        write(tmp_path / f"{split}.parquet", images, [*CLASSES] * (n // 2))
    (tmp_path / "metadata.csv").write_text("name,licence\nx,y\n")
    assert _sizes(load_images(tmp_path)) == [18, 2, 10]


@pytest.mark.parametrize(
    "layout",
    [
        "photos [2024]/{}.parquet",
        "split={}/0b1c-0.parquet",
        "train_test_split/{}.parquet",
        "cross_validation/{}.parquet",
        "{}/data-00000-of-00001.parquet",
        "cifar10-{}-00000-of-00001.parquet",
        "{}.parquet/part-00000-0b1c.snappy.parquet",
        "{}(1).parquet",
    ],
)
def test_splits_of_parquet_files_are_words_of_paths(tmp_path: Path, layout: str) -> None:
    for split, n in (("train", 20), ("test", 10)):
        images = [png((8, 8), value=100 * (n == 10) + i) for i in range(n)]
        write(tmp_path / layout.format(split), images, [*CLASSES] * (n // 2))
    assert _sizes(load_images(tmp_path)) == [18, 2, 10]


def test_names_of_sharded_parquet_files_are_splits(tmp_path: Path) -> None:
    for split, n in (("train", 20), ("test", 10), ("test_hard", 6)):
        images = [png((8, 8), value=40 * (n % 7) + i) for i in range(n)]
        name = f"{split}-00000-of-00001-b16cd7ea4d0ae1f1.parquet"
        write(tmp_path / "data" / name, images, [*CLASSES] * (n // 2))
    assert _sizes(load_images(tmp_path)) == [18, 2, 10]
    assert _sizes(load_images(tmp_path, test_split="test_hard"))[2] == 6


def test_image_column_is_that_of_the_files(tmp_path: Path) -> None:
    """``datasets`` would also take ``img`` for a column of images."""
    rows = [f"{i}.png,x,{CLASSES[i % 2]}" for i in range(30)]
    table = "\n".join(["file_name,img,label", *rows])
    assert sum(_sizes(load_images(_write(tmp_path, _names(30), table)))) == 30


def test_texts_of_jsonl_files_are_classes_as_written(tmp_path: Path) -> None:
    folder = _write(tmp_path, _names(30))
    (folder / "metadata.csv").unlink()
    rows = [f'{{"file_name": "{i}.png", "label": "{1 + i % 2}.0"}}' for i in range(30)]
    (folder / "metadata.jsonl").write_text("\n".join(rows))
    assert load_images(folder).task.names == ("1.0", "2.0")
