import numpy as np
import torch
from PIL import Image

from hwnas.training.data import AugmentationParameters, DatasetConfig, augment, draw_changes
from hwnas.training.data.augmentation import crop


def test_shift_moves_images_unchanged() -> None:
    images = torch.zeros(64, 9, 9, 1, dtype=torch.uint8)
    images[:, 4, 4] = 255
    rng = torch.Generator().manual_seed(0)
    moved = augment(images, DatasetConfig("x", shift=0.25), rng)
    assert moved.shape == images.shape
    assert torch.equal(moved.sum((1, 2, 3)), images.sum((1, 2, 3)))
    places = {tuple(torch.nonzero(image[..., 0])[0].tolist()) for image in moved}
    assert len(places) > 10
    assert all(abs(row - 4) <= 2 and abs(column - 4) <= 2 for row, column in places)


def test_shifted_images_are_filled_with_their_border() -> None:
    images = torch.full((64, 9, 9, 3), 200, dtype=torch.uint8)
    moved = augment(images, DatasetConfig("x", shift=0.25), torch.Generator().manual_seed(0))
    assert torch.equal(moved, images)


def test_only_fashion_is_mirrored() -> None:
    import yaml

    from hwnas.core import package

    folder = package.ROOT / "conf" / "dataset"
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


def test_augment_draws_as_it_always_did() -> None:
    """Trainings of earlier versions are continued, and their figures stay comparable."""
    images = torch.arange(3 * 8 * 8).view(3, 8, 8, 1).to(torch.uint8)
    rng = torch.Generator().manual_seed(1)
    changed = augment(images, DatasetConfig("x", flip=True, shift=0.25), rng)
    rng = torch.Generator().manual_seed(1)
    mirrored = torch.rand(3, generator=rng) < 0.5
    offset = torch.randint(0, 5, (2, 3), generator=rng)
    for i in range(3):
        image = images[i].flip(1) if mirrored[i] else images[i]
        padded = image.repeat_interleave(torch.tensor([3, 1, 1, 1, 1, 1, 1, 3]), 0)
        padded = padded.repeat_interleave(torch.tensor([3, 1, 1, 1, 1, 1, 1, 3]), 1)
        row, column = offset[:, i].tolist()
        assert torch.equal(changed[i], padded[row : row + 8, column : column + 8])


def test_crops_have_configured_area_and_ratio() -> None:
    changes = draw_changes(2000, 1, DatasetConfig("x", crop=0.25), torch.Generator().manual_seed(0))
    assert changes.crops is not None
    left, top, width, height = changes.crops.boxes(100, 80).T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (left + width <= 100 + 1e-9).all()
    assert (top + height <= 80 + 1e-9).all()
    inside = (width < 100) & (height < 80)  # not cut off
    area, ratio = (width * height / 8000)[inside], (width / height)[inside]
    assert 0.25 <= area.min() < 0.27
    assert area.max() > 0.8
    assert 0.75 - 1e-9 <= ratio.min() < 0.76
    assert 1.32 < ratio.max() <= 4 / 3 + 1e-9


def test_crop_is_enlarged_box() -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), np.uint8))
    image = np.asarray(coarse.resize((32, 32), Image.Resampling.BICUBIC))
    boxes = np.array([[0.0, 0.0, 32.0, 32.0], [4.0, 8.0, 16.0, 12.0], [7.3, 1.1, 20.5, 24.2]])
    cropped = crop(torch.from_numpy(np.stack([image] * 3)), boxes)
    assert np.array_equal(cropped[0].numpy(), image)
    for i in (1, 2):
        left, top, width, height = boxes[i]
        box = (left, top, left + width, top + height)
        expected = Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR, box)
        inner = (slice(3, -3), slice(3, -3))  # borders are padded differently
        assert (
            np.abs(cropped[i].numpy()[inner].astype(int) - np.asarray(expected)[inner]).max() <= 2
        )


def test_no_crop_uses_no_random_numbers() -> None:
    rng = torch.Generator().manual_seed(0)
    before = rng.get_state()
    assert draw_changes(8, 32, DatasetConfig("x"), rng) == AugmentationParameters()
    assert torch.equal(rng.get_state(), before)
