"""Throughput of training images compared with a plain torch ``DataLoader`` with PIL.

    python -m benchmarks.data_pipeline [ROUNDS]

The script runs all variants interleaved, several times, and prints the median of each: small images
in memory on one core, and 224-pixel crops of JPEGs, streamed with one and with two threads. The
plain loader applies the same operations to each image in Python, in as many processes.
"""

import io
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hwnas.core.progress import NullProgress
from hwnas.tasks.classification import ClassificationTask
from hwnas.training.data import DatasetConfig, ImageData, InMemorySplit, StreamedSplit, load_data
from hwnas.training.data.augmentation import draw_changes
from hwnas.training.data.splits import Decoder, prefetched

_SMALL, _PHOTOS = 10_000, 2_000
_BATCH, _PHOTO_BATCH = 256, 100
Rate = tuple[float, float]  # images per second of wall-clock time and of processor time
_MEAN, _STD = np.float32(0.5), np.float32(0.25)


class PlainDataset(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one by one in Python, as in a tutorial."""

    def __init__(self, images: list[Any], config: DatasetConfig, side: int):
        self._images, self._config, self._side = images, config, side

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        """Return one normalised image and its label."""
        image, side = self._images[i], self._side
        if isinstance(image, bytes):
            picture = Image.open(io.BytesIO(image)).convert("RGB")
        else:
            picture = Image.fromarray(image)
        changes = draw_changes(1, side, self._config, torch.default_generator)
        if changes.crops is not None:
            left, top, w, h = changes.crops.boxes(*picture.size)[0]
            box = (left, top, left + w, top + h)
            picture = picture.resize((side, side), Image.Resampling.BILINEAR, box)
        if changes.moved is not None:
            down, right = changes.moved[:, 0].tolist()
            picture = picture.crop((right, down, right + side, down + side))
        if changes.mirrored is not None and changes.mirrored[0]:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        array = (np.asarray(picture, np.float32) / 255 - _MEAN) / _STD
        return torch.from_numpy(array).permute(2, 0, 1).contiguous(), 0


def dataloader_rate(images: list[Any], config: DatasetConfig, side: int, n_processes: int) -> Rate:
    """Return the images per second of a ``DataLoader`` over one epoch."""
    batch = _BATCH if side == 32 else _PHOTO_BATCH
    loader = DataLoader(
        PlainDataset(images, config, side), batch, shuffle=True, num_workers=n_processes
    )
    return _measure_rate(lambda: ((x, y) for x, y in loader), len(images))


def pipeline_rate(data: ImageData, config: DatasetConfig, side: int, threads: int) -> Rate:
    """Return the images per second of the training pipeline over one epoch."""
    train, batch = data.train, _BATCH if side == 32 else _PHOTO_BATCH
    if isinstance(train, StreamedSplit):
        pool = ThreadPoolExecutor(threads)
        train = replace(train, decoder=Decoder(train.decoder.shape, pool))
    order = torch.randperm(len(train))

    def step(n: int) -> tuple[Tensor, Tensor]:
        index = order[n * batch : (n + 1) * batch]
        rng = torch.Generator().manual_seed(n)
        changes = draw_changes(len(index), train.side, config, rng)
        part = train.take(index, changes)
        return data.prepare(part.images, side), part.targets

    steps = range(-(-len(train) // batch))
    return _measure_rate(lambda: prefetched(train, step, steps), len(train))


def _measure_rate(batches: Callable[[], Iterator[Any]], n: int) -> Rate:
    clock, processor = time.perf_counter(), _processor_s()
    assert sum(len(images) for images, _ in batches()) == n
    return n / (time.perf_counter() - clock), n / (_processor_s() - processor)


def _processor_s() -> float:
    """Return the processor seconds of this process and of its terminated children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _photos(folder: Path) -> tuple[ImageData, list[bytes]]:
    """Return JPEGs of 500x375 pixels: smooth shapes with noise, about 90 kB each."""
    rng, contents = np.random.default_rng(0), []
    noise = rng.normal(0, 14, (375, 500, 3))
    for _ in range(_PHOTOS):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.float32)
        buffer = io.BytesIO()
        picture = Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))
        picture.save(buffer, "JPEG", quality=90)
        contents.append(buffer.getvalue())
    images = [{"bytes": content, "path": None} for content in contents]
    for name, part in (("train", images), ("validation", images[:4]), ("test", images[:4])):
        labels = [i % 2 for i in range(len(part))]
        pq.write_table(pa.table({"image": part, "label": labels}), folder / f"{name}-0.parquet")
    config = DatasetConfig("photos", path=str(folder), in_memory=False)
    return load_data(config, 224, NullProgress()), contents


def main() -> None:
    """Print images per second."""
    n_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    small = np.random.default_rng(0).integers(0, 256, (_SMALL, 32, 32, 3), np.uint8)
    split = InMemorySplit(torch.from_numpy(small), torch.zeros(_SMALL, dtype=torch.int64))
    small_data = ImageData(
        "small", split, split, split, ClassificationTask(("a", "b")), (0.5,) * 3, (0.25,) * 3
    )
    shift = DatasetConfig("small", flip=True, shift=0.125)
    crop = DatasetConfig("photos", flip=True, crop=0.08)
    with tempfile.TemporaryDirectory() as folder:
        photos, contents = _photos(Path(folder))
        size = sum(map(len, contents)) / len(contents) / 1000
        print(f"{_SMALL} images of 32x32x3, {_PHOTOS} JPEGs of 500x375 ({size:.0f} kB each)")
        cases = {
            "32x32 shift, flip, one core": (
                partial(pipeline_rate, small_data, shift, 32, 1),
                partial(dataloader_rate, list(small), shift, 32, 0),
            ),
            "32x32 crop, flip, one core": (
                partial(pipeline_rate, small_data, crop, 32, 1),
                partial(dataloader_rate, list(small), crop, 32, 0),
            ),
        }
        for n in (1, 2):
            cases[f"224x224 crop, flip, {n} threads or processes"] = (
                partial(pipeline_rate, photos, crop, 224, n),
                partial(dataloader_rate, contents, crop, 224, n),
            )
        rates: dict[str, list[tuple[Rate, Rate]]] = {name: [] for name in cases}
        for _ in range(n_rounds):
            for name, (pipeline, loader) in cases.items():
                rates[name].append((pipeline(), loader()))
    for name, rounds in rates.items():
        print(name)
        for i, clock in enumerate(("wall clock", "processor time")):
            pairs = [(a[i], b[i]) for a, b in rounds]
            ratios = sorted(a / b for a, b in pairs)
            ours, plain = (statistics.median(r) for r in zip(*pairs, strict=True))
            print(
                f"    images/s, {clock:<15} {ours:7.0f}   plain {plain:7.0f}   ratio "
                f"{statistics.median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main()
