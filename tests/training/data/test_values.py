"""Values of images: from a CSV file or from a column of a table."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from hwnas.core.errors import DataError
from hwnas.core.progress import NullProgress
from hwnas.training.data import DatasetConfig, load_data

N = 40


def _image(path: Path, value: float) -> None:
    Image.fromarray(np.full((8, 8), int(value), np.uint8)).save(path)


def _folder(path: Path, column: str = "value") -> Path:
    (path / "train").mkdir(parents=True)
    rows = [(f"{i}.png", 2.0 * i) for i in range(N)]
    for name, value in rows:
        _image(path / "train" / name, value)
    with (path / "train" / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", column), *rows])
    return path


def _config(path: Path, label_column: str | None = None) -> DatasetConfig:
    return DatasetConfig("images", path=str(path), task="regression", label_column=label_column)


def test_values_are_read_from_metadata_csv(tmp_path: Path) -> None:
    data = load_data(_config(_folder(tmp_path / "of")), 8, NullProgress())
    assert data.task.names == ("value",)
    for split in (data.train, data.validation, data.test):
        part = split.take(torch.arange(len(split)))
        assert part.targets[:, 0].tolist() == part.images[:, 0, 0, 0].tolist()


def test_table_may_have_several_values_per_image(tmp_path: Path) -> None:
    source = _folder(tmp_path / "of") / "train"
    images = [{"bytes": (source / f"{i}.png").read_bytes(), "path": None} for i in range(N)]
    values = [[float(i), float(-i)] for i in range(N)]
    pq.write_table(pa.table({"image": images, "xy": values}), tmp_path / "t.parquet")
    data = load_data(_config(tmp_path / "t.parquet", label_column="xy"), 8, NullProgress())
    assert data.task.n_outputs == 2
    assert data.task.names == ("value_0", "value_1")


def test_error_for_missing_values_names_metadata_csv(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        _image(tmp_path / name / "0.png", 3)
    with pytest.raises(DataError, match=r"metadata\.csv"):
        load_data(_config(tmp_path), 8, NullProgress())
