"""Write Fashion-MNIST as colour images of 32x32 pixels, JPEG files in one folder per class.

python -m experiments.worth_it.tinted DIR OUT

Each of the 60,000 training images of ``DIR`` is moved by up to two pixels, mirrored at random,
given one colour on a background of two colours, and disturbed by noise. The images have the size
and format of CIFAR-10 and are harder to classify than Fashion-MNIST. They are the same for each
call.
"""

import argparse
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image


def tinted(grey: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an image ``(32, 32, 3)`` of bytes made of one ``(28, 28)`` in 0 to 1."""
    top, left = rng.integers(0, 5, 2)
    mask = np.zeros((32, 32), np.float32)
    mask[top : top + 28, left : left + 28] = grey[:, ::-1] if rng.random() < 0.5 else grey
    first, second, colour = rng.uniform(0, 1, (3, 3)).astype(np.float32)
    position = np.linspace(0, 1, 32, dtype=np.float32)
    slope = position[:, None] if rng.random() < 0.5 else position[None, :]
    slope = np.broadcast_to(slope, (32, 32))[..., None]
    background = first * (1 - slope) + second * slope
    mixed = background + mask[..., None] * (colour - background)
    mixed += rng.normal(0, 0.05, mixed.shape).astype(np.float32)
    rounded: np.ndarray = (255 * mixed.clip(0, 1)).astype(np.uint8)
    return rounded


def main() -> None:
    """Write the images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    (file,) = options.folder.glob("train-*.parquet")
    table = pq.read_table(file)
    rng = np.random.default_rng(0)
    for index, (image, label) in enumerate(
        zip(table["image"].to_pylist(), table["label"].to_pylist(), strict=True)
    ):
        grey = np.asarray(Image.open(io.BytesIO(image["bytes"])), np.float32) / 255
        folder = options.out / f"class_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(tinted(grey, rng)).save(folder / f"{index:05d}.jpg", quality=95)


if __name__ == "__main__":
    main()
