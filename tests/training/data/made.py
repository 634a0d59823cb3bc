"""Images and data sets for tests."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from hwnas.core.progress import NullProgress
from hwnas.training.data import DatasetConfig, ImageData, load_data


def png(size: tuple[int, int], mode: str = "L", value: int = 100) -> bytes:
    buffer = io.BytesIO()
    colour = value if mode == "L" else (value, 0, 255 - value)
    Image.new(mode, size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def photo(rng: np.random.Generator, size: tuple[int, int]) -> bytes:
    """Return a JPEG of a smooth random image, similar to a photo."""
    coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def write(path: Path, images: Sequence[bytes], labels: Sequence[object]) -> Path:
    """Write a Parquet file without metadata on the types of its columns."""
    image = [{"bytes": content, "path": None} for content in images]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": image, "label": labels}), path)
    return path


def write_hub(
    path: Path, images: Sequence[bytes], columns: Mapping[str, tuple[Sequence[str], Sequence[Any]]],
    image: str = "image",
) -> Path:  # fmt: skip
    """Write a Parquet file with the metadata of the Hugging Face hub."""
    kinds = {name: datasets.ClassLabel(names=list(names)) for name, (names, _) in columns.items()}
    features = datasets.Features({image: datasets.Image(), **kinds})
    content = {name: labels for name, (_, labels) in columns.items()}
    content[image] = [{"bytes": content, "path": None} for content in images]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(content, schema=features.arrow_schema), path)
    return path


def write_folder(path: Path, classes: dict[str, Sequence[bytes]]) -> Path:
    """Write one folder per class."""
    for name, images in classes.items():
        (path / name).mkdir(parents=True)
        for i, content in enumerate(images):
            suffix = "jpg" if content.startswith(b"\xff\xd8") else "png"
            (path / name / f"{i}.{suffix}").write_bytes(content)
    return path


def load_images(path: Path, **options: Any) -> ImageData:
    return load_data(DatasetConfig("mine", path=str(path), **options), 16, NullProgress())
