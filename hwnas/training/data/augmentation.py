"""Augmentation of training images: random crops, flips and shifts, on batches in uint8."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hwnas.training.options import DatasetConfig

_MAX_ASPECT_RATIO = 4 / 3  # of a crop


@dataclass(frozen=True)
class CropParameters:
    """Random crops of N images, relative to their sizes."""

    min_area: float  #: minimum area of a crop, as a fraction of the image, in (0, 1]
    #: random numbers in [0, 1), ``(N, 4)``: area, aspect ratio, horizontal and vertical position
    draws: NDArray[np.float64]

    def boxes(self, width: int, height: int) -> NDArray[np.float64]:
        """Return the crops of images of one size: left, top, width, height, ``(N, 4)`` in pixels.

        The area is uniform in ``[min_area, 1]`` of the image, and the logarithm of the aspect ratio
        is uniform between those of 3/4 and 4/3. Boxes are clipped to the image.

        Source: Szegedy et al., 2015, https://arxiv.org/abs/1409.4842, section 6.
        """
        draws = self.draws
        area = (self.min_area + (1 - self.min_area) * draws[:, 0]) * width * height
        ratio = np.exp((2 * draws[:, 1] - 1) * math.log(_MAX_ASPECT_RATIO))
        w = np.minimum(np.sqrt(area * ratio), width)
        h = np.minimum(np.sqrt(area / ratio), height)
        return np.stack([draws[:, 2] * (width - w), draws[:, 3] * (height - h), w, h], axis=1)

    def select(self, i: int) -> "CropParameters":
        """Return the crop of image ``i`` alone."""
        return CropParameters(self.min_area, self.draws[i : i + 1])


@dataclass(frozen=True)
class AugmentationParameters:
    """Random augmentations of N images; ``None``: not applied."""

    crops: CropParameters | None = None
    mirrored: Tensor | None = None  #: bool, ``(N,)``
    #: shift up and to the left, in pixels, int64, ``(2, N)``
    moved: Tensor | None = None

    @property
    def none(self) -> bool:
        """True if no image is changed."""
        return self.crops is None and self.mirrored is None and self.moved is None

    def at(self, index: Tensor) -> "AugmentationParameters":
        """Return the augmentations of the images at ``index``."""
        crops = self.crops and replace(self.crops, draws=self.crops.draws[index.numpy()])
        mirrored = None if self.mirrored is None else self.mirrored[index]
        return AugmentationParameters(
            crops, mirrored, None if self.moved is None else self.moved[:, index]
        )

    def apply(self, images: Tensor) -> Tensor:
        """Return cropped, mirrored and shifted images.

        Images and result are uint8, ``(N, H, W, C)``. Shifted images are filled with their border
        pixels: with black, batch norm statistics would not suit images that are not shifted.
        """
        n, h, w, _ = images.shape
        if self.crops is not None:
            images = crop(images, self.crops.boxes(w, h))
        if self.mirrored is not None:
            images = torch.where(self.mirrored.view(-1, 1, 1, 1), images.flip(2), images)
        if self.moved is not None:
            reach = int(self.moved.abs().max()) if n else 0
            widths = ((0, 0), (reach, reach), (reach, reach), (0, 0))
            padded = torch.from_numpy(np.pad(images.numpy(), widths, mode="edge"))
            # A view of all windows of the image's size; one per image is copied.
            windows = padded.unfold(1, h, 1).unfold(2, w, 1).permute(0, 1, 2, 4, 5, 3)
            down, right = self.moved + reach
            images = windows[torch.arange(n), down, right]
        return images


def draw_changes(
    n: int, side: int, config: DatasetConfig, rng: torch.Generator
) -> AugmentationParameters:
    """Return random augmentations of ``n`` images of ``side`` pixels, as ``config`` says."""
    crops, mirrored, moved = None, None, None
    if config.crop < 1:
        crops = CropParameters(
            config.crop, torch.rand(n, 4, generator=rng, dtype=torch.float64).numpy()
        )
    if config.flip:
        mirrored = torch.rand(n, generator=rng) < 0.5
    if reach := round(config.shift * side):
        moved = torch.randint(0, 2 * reach + 1, (2, n, 1), generator=rng)[..., 0] - reach
    return AugmentationParameters(crops, mirrored, moved)


def augment(images: Tensor, config: DatasetConfig, rng: torch.Generator) -> Tensor:
    """Return images ``(N, H, W, C)`` in uint8, randomly augmented as ``config`` says."""
    n, h, w, _ = images.shape
    return draw_changes(n, max(h, w), config, rng).apply(images)


def crop(images: Tensor, boxes: NDArray[np.float64]) -> Tensor:
    """Return one crop of each image, resized to the size of the images.

    Args:
        images: uint8, ``(N, H, W, C)``, as the result.
        boxes: Left, top, width and height in pixels, ``(N, 4)``.
    """
    n, height, width, channels = images.shape
    left, top, w, h = torch.from_numpy(boxes).float().unbind(1)
    theta = torch.zeros(n, 2, 3)  # from the crop's coordinates to the image's, both in [-1, 1]
    theta[:, 0, 0], theta[:, 0, 2] = w / width, (2 * left + w) / width - 1
    theta[:, 1, 1], theta[:, 1, 2] = h / height, (2 * top + h) / height - 1
    grid = F.affine_grid(theta, [n, channels, height, width], align_corners=False)
    x = images.permute(0, 3, 1, 2).float()
    x = F.grid_sample(x, grid, "bilinear", padding_mode="border", align_corners=False)
    return x.round_().to(torch.uint8).permute(0, 2, 3, 1)
