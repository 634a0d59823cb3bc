import io
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hwnas.training.data import (
    DatasetConfig,
    InMemorySplit,
    StreamedSplit,
    augment,
    draw_changes,
    prefetched,
)
from tests.training.data.made import load_images, photo, write


@pytest.fixture
def streamed(tmp_path: Path) -> StreamedSplit:
    rng = np.random.default_rng(0)
    path = write(tmp_path / "x.parquet", [photo(rng, (48, 32)) for _ in range(60)], [0, 1] * 30)
    train = load_images(path, in_memory=False).train
    assert isinstance(train, StreamedSplit)
    return train


IN_MEMORY = InMemorySplit(torch.arange(4 * 9 * 9).view(4, 9, 9, 1).to(torch.uint8), torch.arange(4))
CONFIG = DatasetConfig("x", flip=True, shift=0.25, crop=0.3)


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_images_in_memory_are_augmented() -> None:
    index = torch.tensor([3, 1, 1])
    part = IN_MEMORY.take(index, draw_changes(3, IN_MEMORY.side, CONFIG, _rng()))
    assert torch.equal(part.images, augment(IN_MEMORY.images[index], CONFIG, _rng()))
    assert part.targets.tolist() == [3, 1, 1]


def test_part_of_batch_is_augmented_like_whole(streamed: StreamedSplit) -> None:
    for split in (IN_MEMORY, streamed):
        index = torch.tensor([3, 1, 0, 2])
        changes = draw_changes(4, split.side, CONFIG, _rng())
        batch = split.take(index, changes)
        part = split.take(index[2:], changes.at(torch.tensor([2, 3])))
        assert torch.equal(part.images, batch.images[2:])


def test_crops_of_streamed_images_cover_whole_image(streamed: StreamedSplit) -> None:
    n = 40
    config = DatasetConfig("x", crop=0.1)
    changes = draw_changes(n, 16, config, _rng())
    assert changes.crops is not None
    boxes = changes.crops.boxes(48, 32)
    i = int(boxes[:, 0].argmin())  # the leftmost box; the centre is 8 to 40
    assert boxes[i, 0] + boxes[i, 2] < 40
    image = streamed.take(torch.arange(n), changes).images[i].float()
    content = streamed.encoded.read(int(streamed.rows[i]))
    left, top, width, height = boxes[i]
    box = (left, top, left + width, top + height)
    picture = Image.open(io.BytesIO(content)).resize((16, 16), Image.Resampling.BILINEAR, box)
    assert torch.equal(image, torch.from_numpy(np.array(picture)).float())


def test_prefetched_steps_are_ordered_and_deterministic(streamed: StreamedSplit) -> None:
    steps_made: list[int] = []

    def make(step: int) -> torch.Tensor:
        steps_made.append(step)
        index = torch.randperm(len(streamed), generator=torch.Generator().manual_seed(step))[:5]
        return streamed.take(index, draw_changes(5, 16, CONFIG, _rng())).images

    expected_steps = [make(step) for step in range(2, 9)]
    steps_made.clear()
    for expected, batch in zip(
        expected_steps, prefetched(streamed, make, range(2, 9)), strict=True
    ):
        assert torch.equal(batch, expected)
    assert steps_made == list(range(2, 9))
    resumed = list(prefetched(streamed, make, range(6, 9)))
    assert all(map(torch.equal, resumed, expected_steps[4:]))
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


def _counting(produced: list[int]) -> Callable[[int], int]:
    def make(step: int) -> int:
        produced.append(step)
        return step

    return make


def test_prefetching_is_limited_and_ends_with_iterator(streamed: StreamedSplit) -> None:
    produced: list[int] = []
    steps = prefetched(streamed, _counting(produced), range(1000))
    assert next(steps) == 0
    steps.close()  # type: ignore[attr-defined]
    assert len(produced) <= 4


def test_error_of_prefetched_step_is_raised_at_that_step(streamed: StreamedSplit) -> None:
    def make(step: int) -> int:
        if step == 2:
            raise ValueError("damaged")
        return step

    steps = prefetched(streamed, make, range(5))
    assert [next(steps), next(steps)] == [0, 1]
    with pytest.raises(ValueError, match="damaged"):
        next(steps)


def test_images_in_memory_are_not_prefetched() -> None:
    produced: list[int] = []
    steps = prefetched(IN_MEMORY, _counting(produced), range(1000))
    assert next(steps) == 0
    assert produced == [0]
