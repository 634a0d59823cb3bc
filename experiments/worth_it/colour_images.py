"""Write Fashion-MNIST as colour images of 32x32 pixels, JPEG files in one folder per class.

    python -m experiments.worth_it.colour_images DIR OUT

Each of the 60,000 training images in DIR is shifted by up to two pixels and mirrored at random. It
gets one colour on a background of two colours, and noise is added. The images have the size and
format of CIFAR-10, and are harder to classify than Fashion-MNIST. Each run writes the same images.
"""

import argparse
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image


def colour_image(grey: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a colour image ``(32, 32, 3)`` of bytes for a grey image ``(28, 28)`` of 0 to 1."""
    top, left = rng.integers(0, 5, 2)
    mask = np.zeros((32, 32), np.float32)
    mask[top : top + 28, left : left + 28] = grey[:, ::-1] if rng.random() < 0.5 else grey
    first, second, colour = rng.uniform(0, 1, (3, 3)).astype(np.float32)
    position = np.linspace(0, 1, 32, dtype=np.float32)
    slope = position[:, None] if rng.random() < 0.5 else position[None, :]
    slope = np.broadcast_to(slope, (32, 32))[..., None]
    background = first * (1 - slope) + second * slope
    image = background + mask[..., None] * (colour - background)
    image += rng.normal(0, 0.05, image.shape).astype(np.float32)
    pixels: np.ndarray = (255 * image.clip(0, 1)).astype(np.uint8)
    return pixels


def main() -> None:
    """Write the images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    (file,) = arguments.folder.glob("train-*.parquet")
    table = pq.read_table(file)
    rng = np.random.default_rng(0)
    for index, (image, label) in enumerate(
        zip(table["image"].to_pylist(), table["label"].to_pylist(), strict=True)
    ):
        grey = np.asarray(Image.open(io.BytesIO(image["bytes"])), np.float32) / 255
        folder = arguments.out / f"class_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(colour_image(grey, rng)).save(folder / f"{index:05d}.jpg", quality=95)


if __name__ == "__main__":
    main()
