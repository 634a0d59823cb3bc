"""Invalid data are refused in one line with the place and the allowed values."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hwnas.__main__ import run
from hwnas.core.errors import ConfigError, DataError
from hwnas.training.data import DatasetConfig
from tests.conftest import images_of
from tests.training.data.made import load_images, photo, png, write, write_folder, write_hub

TEN = [png((8, 8))] * 10


def _no_images(folder: Path) -> Path:
    pq.write_table(pa.table({"text": ["a", "b"], "score": [1.0, 2.0]}), folder / "x.parquet")
    return folder / "x.parquet"


def _not_image_bytes(folder: Path) -> Path:
    return write(folder / "x.parquet", [*TEN[:7], b"no image"], [0, 1] * 4)


def _no_bytes(folder: Path) -> Path:
    images = [{"bytes": content, "path": None} for content in [*TEN, None]]
    pq.write_table(pa.table({"image": images, "label": [0, 1] * 5 + [0]}), folder / "x.parquet")
    return folder / "x.parquet"


def _truncated(folder: Path) -> Path:
    path = write(folder / "x.parquet", TEN * 4, [0, 1] * 20)
    path.write_bytes(path.read_bytes()[:-50])
    return path


def _empty_test(folder: Path) -> Path:
    write(folder / "train-0.parquet", TEN, [0, 1] * 5)
    return write(folder / "test-0.parquet", [], []).parent


def _one_class(folder: Path) -> Path:
    return write(folder / "x.parquet", TEN, [3] * 10)


def _damaged(folder: Path) -> Path:
    images = [photo(np.random.default_rng(0), (40, 40))] * 40
    images[5] = images[5][:-200]
    return write(folder / "x.parquet", images, [0, 1] * 20)


def _sixteen_bits(folder: Path) -> Path:
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(buffer, "PNG")
    return write(folder / "x.parquet", [*TEN[:3], buffer.getvalue()] * 2, [0, 1] * 4)


def _single_image(folder: Path) -> Path:
    return write(folder / "x.parquet", TEN * 2, ["cat", "dog"] * 9 + ["cat", "eel"])


def _too_few_for_fraction(folder: Path) -> Path:
    return write(folder / "x.parquet", TEN, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])


def _negative(folder: Path) -> Path:
    write(folder / "train-0.parquet", TEN, [0, 1] * 5)
    return write(folder / "test-0.parquet", TEN[:4], [0, 1, -1, -1]).parent


def _unknown_label(folder: Path) -> Path:
    labels = [0, 1, 2, 7, 0, 1, 2, 0, 1, 2]
    return write_hub(folder / "x.parquet", TEN, {"label": (("a", "b", "c"), labels)})


def _no_label(folder: Path) -> Path:
    return write(folder / "x.parquet", TEN, [0, 1, 0, 1, None, 1, 0, 1, 0, 1])


def _fraction_for_label(folder: Path) -> Path:
    return write(folder / "x.parquet", TEN, [0.5, 1.5] * 5)


def _other_classes(folder: Path) -> Path:
    write(folder / "train-0.parquet", TEN, ["cat", "dog"] * 5)
    return write(folder / "test-0.parquet", TEN[:4], ["cat", "eel"] * 2).parent


def _other_order_of_classes(folder: Path) -> Path:
    write_hub(folder / "test-0.parquet", TEN, {"label": (("b", "a"), [0, 1] * 5)})
    return write_hub(folder / "train-0.parquet", TEN, {"label": (("a", "b"), [0, 1] * 5)}).parent


def _several_label_columns(folder: Path) -> Path:
    columns = {"fine": (("a", "b"), [0, 1] * 5), "coarse": (("c", "d"), [0, 1] * 5)}
    return write_hub(folder / "x.parquet", TEN, columns)


def _only_a_test_split(folder: Path) -> Path:
    return write(folder / "test-0.parquet", TEN, [0, 1] * 5).parent


def _folder_without_images(folder: Path) -> Path:
    (folder / "a").mkdir()
    (folder / "a" / "notes.txt").write_text("none yet")
    return folder


def _empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def _empty_class(folder: Path) -> Path:
    return write_folder(folder, {"cat": TEN, "dog": TEN, "eel": []})


def _no_class_folders(folder: Path) -> Path:
    write_folder(folder, {"cat": TEN})
    (folder / "stray.png").write_bytes(TEN[0])
    return folder


def _folder_of_one_class(folder: Path) -> Path:
    return write_folder(folder, {"cat": TEN})


def _folder_with_empty_split(folder: Path) -> Path:
    write_folder(folder / "train", {"cat": TEN, "dog": TEN})
    (folder / "test").mkdir()
    return folder


def _folder_of_other_classes(folder: Path) -> Path:
    write_folder(folder / "train", {"cat": TEN, "dog": TEN})
    write_folder(folder / "val", {"cat": TEN, "eel": TEN})
    return folder


def _damaged_file(folder: Path) -> Path:
    write_folder(folder, {"cat": TEN, "dog": TEN})
    (folder / "dog" / "3.png").write_bytes(photo(np.random.default_rng(0), (40, 40))[:-200])
    return folder


def _missing(folder: Path) -> Path:
    return folder / "nowhere"


def _text_file(folder: Path) -> Path:
    (folder / "x.txt").write_text("not Parquet")
    return folder / "x.txt"


def _array(folder: Path) -> Path:
    np.save(folder / "x.npy", np.zeros(3))
    return folder / "x.npy"


def _heic_only(folder: Path) -> Path:
    for name in ("cat.HEIC", "dog.heic"):
        (folder / name).touch()
    return folder


def _heic_class(folder: Path) -> Path:
    (_empty_class(folder) / "eel" / "0.HEIC").touch()
    return folder


def _read_all(path: Path, in_memory: bool) -> None:
    data = load_images(path, in_memory=in_memory, validation=0.25, test=0.25)
    for split in (data.train, data.validation, data.test):  # streamed images are decoded here
        images_of(split)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_no_images, "needs a column 'image'.*has: text, score"),
        (_not_image_bytes, "split 'train', row 7 is not an image"),
        (_no_bytes, "split 'train', row 10 has no image"),
        (_truncated, "x.parquet cannot be read as Parquet"),
        (_empty_test, "test-0.parquet is empty"),
        (_one_class, "has only one class, '3'"),
        (_damaged, "split 'train', row 5 is damaged"),
        (_sixteen_bits, "row 3 is an image of mode I;16, .*convert it to 8-bit RGB"),
        (_single_image, "too small to split.*at least 3 images.*fewer of 'eel'"),
        (_too_few_for_fraction, "too small to split"),
        (_negative, "split 'test', row 2 has the label -1: must not be negative. Label or remove"),
        (_unknown_label, "row 3 has the label 7: must be 0 to 2"),
        (_no_label, "split 'train', row 4 has no label"),
        (_fraction_for_label, "label 0.5: must be a whole number or text"),
        (_other_classes, "split 'test' has classes without any image in split 'train' .1.: 'eel'"),
        (_other_order_of_classes, "column 'label' of train-0.parquet has other classes"),
        (_several_label_columns, "several columns of labels: fine, coarse.*dataset.label_column="),
        (_only_a_test_split, "no split 'train', only: test"),
        (
            _folder_without_images,
            "holds no images, only files .txt .1.. Allowed: Parquet files, or one folder per class",
        ),
        (_empty_folder, "holds no images"),
        (_empty_class, "eel holds no images"),
        (_no_class_folders, "stray.png has no class"),
        (_folder_of_one_class, "has only one class, 'cat'"),
        (_folder_with_empty_split, "test holds no images"),
        (_folder_of_other_classes, "split 'validation' has classes without any.*'eel'"),
        (_damaged_file, "dog/3.png is damaged"),
        (_missing, "no such file or folder"),
        (_text_file, "x.txt' cannot be read: it is no Parquet file"),
        (_array, "to an .npz file with the arrays images and targets"),
        (_heic_only, "holds no images, only files .heic .2.. Convert these photos to JPEG"),
        (_heic_class, "eel holds no images, only files .heic .1.. Convert these photos to JPEG"),
    ],
)
@pytest.mark.parametrize("in_memory", [True, False])
def test_invalid_data_are_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], Path], message: str, in_memory: bool
) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError, match=message) as error:
        _read_all(path, in_memory)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "fine_labels"}, "no column 'fine_labels'.*only: image, label"),
        ({"image_column": "img"}, "no column 'img'.*only: image, label"),
        ({"image_column": "label", "label_column": "label"}, "does not hold images"),
        ({"test_split": "validation"}, "no split 'validation'.*only: train.*test_split=test"),
        ({"test_split": "Training"}, "'Training' is the training split.*test_split=test"),
    ],
)
def test_missing_columns_and_splits_are_refused(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_images(write(tmp_path / "x.parquet", TEN, [0, 1] * 5), **options)


def test_missing_split_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'validation'.*only: train.*test_split=test"):
        load_images(write_folder(tmp_path, {"a": TEN, "b": TEN}), test_split="validation")


def test_left_out_files_are_reported(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": TEN, "b": TEN})
    for name in ("a/x.HEIC", "a/y.heic", "b/notes.txt", "b/Thumbs.db", "labels.txt", ".hidden"):
        (tmp_path / name).touch()
    note = load_images(tmp_path, validation=0.25).notes[0]
    assert "3 files left out (no image format): .heic (2), .txt (1). Convert" in note


@pytest.mark.parametrize("error", ["401 Client Error", "403 Forbidden"])
def test_error_for_gated_data_set_explains_login(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import datasets
    import httpx2
    from huggingface_hub.errors import GatedRepoError

    from hwnas.core.progress import NullProgress
    from hwnas.training.data import load_data

    def refuse(name: str) -> None:
        request = httpx2.Request("GET", "https://huggingface.co")
        try:
            raise GatedRepoError(error, response=httpx2.Response(int(error[:3]), request=request))
        except GatedRepoError as gated:
            raise datasets.exceptions.DatasetNotFoundError(f"'{name}' is gated") from gated

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataError, match=r"is gated.*hf auth login"):
        load_data(DatasetConfig("imagenet1k", hub_id="ILSVRC/imagenet-1k"), 224, NullProgress())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"crop": 0.0}, r"dataset\.crop"),
        ({"crop": 1.2}, r"dataset\.crop"),
        ({"test_split": "train"}, r"dataset\.test_split=train"),
    ],
)
def test_invalid_options_are_refused(option: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetConfig("x", **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_negative, "row 2 has the label -1"),
        (_empty_test, "test-0.parquet is empty"),
        (_damaged, "row 5 is damaged"),
        (_folder_without_images, "holds no images"),
    ],
)
def test_command_refuses_invalid_data_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Path],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    (tmp_path / "data").mkdir()
    path = make(tmp_path / "data")
    arguments = ["search", "+target=npu", "search_space=tiny", "dataset=images"]
    assert run([*arguments, f"dataset.path={path}"]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert message in captured.err


def _write_class_folders(path: Path) -> Path:
    rng = np.random.default_rng(0)
    photos = [photo(rng, (16, 16)) for _ in range(40)]
    return write_folder(path, {"a": photos[:20], "b": photos[20:]})


def _linked_to_parent(path: Path) -> str:
    (_write_class_folders(path) / "a" / "again").symlink_to(path, target_is_directory=True)
    return "is a link to a folder that it lies in"


def _with_pipe(path: Path) -> str:
    os.mkfifo(_write_class_folders(path) / "a" / "x.png")
    return "is neither a file nor a folder"


def _linked_to_device(path: Path) -> str:
    (_write_class_folders(path) / "a" / "x.png").symlink_to("/dev/zero")
    return "is neither a file nor a folder"


def _with_huge_file(path: Path) -> str:
    with (_write_class_folders(path) / "a" / "x.png").open("wb") as file:
        file.truncate(1 << 40)
    return "cannot be read: it is larger than 256 MiB"


def _linked_to_system(path: Path) -> str:
    (_write_class_folders(path) / "c").symlink_to("/proc/self", target_is_directory=True)
    return "is a folder of the operating system"


@pytest.mark.parametrize(
    "make", [_linked_to_parent, _with_pipe, _linked_to_device, _with_huge_file, _linked_to_system]
)
def test_endless_folders_are_refused(make: Callable[[Path], str], tmp_path: Path) -> None:
    message = make(tmp_path / "images")
    with pytest.raises(DataError, match=message) as error:
        load_images(tmp_path / "images")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["/proc/self", "/dev/zero", "/dev"])
def test_system_paths_are_refused(path: str) -> None:
    with pytest.raises(DataError):
        load_images(Path(path))


def test_dict_labels_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", TEN, [{"a": i} for i in range(10)])
    with pytest.raises(DataError, match="must be a whole number or text"):
        load_images(tmp_path)


def test_images_in_several_splits_are_noted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photos = [photo(rng, (16, 16)) for _ in range(60)]
    write_folder(tmp_path / "train", {"a": photos[:20], "b": photos[20:40]})
    write_folder(tmp_path / "test", {"a": photos[40:50], "b": [*photos[50:58], *photos[38:40]]})
    notes = " ".join(load_images(tmp_path).notes)
    assert "2 of 20 test images are training images, too" in notes
    assert f"{tmp_path / 'test' / 'b'}" in notes
    assert "validation images are" not in notes
    assert "different labels" not in notes


def test_images_with_several_labels_are_noted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photos = [photo(rng, (16, 16)) for _ in range(40)]
    write_folder(tmp_path / "images", {"a": photos[:20], "b": [*photos[20:], *photos[17:20]]})
    (note,) = [note for note in load_images(tmp_path).notes if "different labels" in note]
    assert "3 images occur with different labels, for example " in note
    assert {"a", "b"} == {Path(word).parent.name for word in note.split() if ".jpg" in word}
