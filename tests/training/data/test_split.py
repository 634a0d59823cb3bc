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
    ahead,
    augment,
    draw_changes,
)
from tests.training.data.made import loaded, photo, write


@pytest.fixture
def streamed(tmp_path: Path) -> StreamedSplit:
    rng = np.random.default_rng(0)
    path = write(tmp_path / "x.parquet", [photo(rng, (48, 32)) for _ in range(60)], [0, 1] * 30)
    train = loaded(path, in_memory=False).train
    assert isinstance(train, StreamedSplit)
    return train


KEPT = InMemorySplit(torch.arange(4 * 9 * 9).view(4, 9, 9, 1).to(torch.uint8), torch.arange(4))
CONFIG = DatasetConfig("x", flip=True, shift=0.25, crop=0.3)


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_images_in_memory_are_changed_as_augment_does() -> None:
    index = torch.tensor([3, 1, 1])
    part = KEPT.take(index, draw_changes(3, KEPT.side, CONFIG, _rng()))
    assert torch.equal(part.images, augment(KEPT.images[index], CONFIG, _rng()))
    assert part.targets.tolist() == [3, 1, 1]


def test_a_part_of_a_batch_is_changed_as_in_the_whole(streamed: StreamedSplit) -> None:
    for split in (KEPT, streamed):
        index = torch.tensor([3, 1, 0, 2])
        changes = draw_changes(4, split.side, CONFIG, _rng())
        whole = split.take(index, changes)
        part = split.take(index[2:], changes.at(torch.tensor([2, 3])))
        assert torch.equal(part.images, whole.images[2:])


def test_crops_of_streamed_images_reach_beyond_the_middle(streamed: StreamedSplit) -> None:
    n = 40
    config = DatasetConfig("x", crop=0.1)
    changes = draw_changes(n, 16, config, _rng())
    assert changes.crops is not None
    boxes = changes.crops.boxes(48, 32)
    i = int(boxes[:, 0].argmin())  # furthest to the left of what the middle shows: 8 to 40
    assert boxes[i, 0] + boxes[i, 2] < 40
    image = streamed.take(torch.arange(n), changes).images[i].float()
    content = streamed.encoded.read(int(streamed.rows[i]))
    left, top, width, height = boxes[i]
    box = (left, top, left + width, top + height)
    picture = Image.open(io.BytesIO(content)).resize((16, 16), Image.Resampling.BILINEAR, box)
    assert torch.equal(image, torch.from_numpy(np.array(picture)).float())


def test_steps_ahead_come_in_order_and_the_same_in_any_time(streamed: StreamedSplit) -> None:
    made: list[int] = []

    def make(step: int) -> torch.Tensor:
        made.append(step)
        index = torch.randperm(len(streamed), generator=torch.Generator().manual_seed(step))[:5]
        return streamed.take(index, draw_changes(5, 16, CONFIG, _rng())).images

    alone = [make(step) for step in range(2, 9)]
    made.clear()
    for expected, found in zip(alone, ahead(streamed, make, range(2, 9)), strict=True):
        assert torch.equal(found, expected)
    assert made == list(range(2, 9))
    resumed = list(ahead(streamed, make, range(6, 9)))
    assert all(map(torch.equal, resumed, alone[4:]))
    assert not any(thread.name.startswith("ahead") for thread in threading.enumerate())


def _counting(made: list[int]) -> Callable[[int], int]:
    def make(step: int) -> int:
        made.append(step)
        return step

    return make


def test_steps_ahead_are_few_and_end_with_who_asks(streamed: StreamedSplit) -> None:
    made: list[int] = []
    steps = ahead(streamed, _counting(made), range(1000))
    assert next(steps) == 0
    steps.close()  # type: ignore[attr-defined]
    assert len(made) <= 4


def test_error_of_a_step_ahead_is_raised_where_the_step_is_taken(streamed: StreamedSplit) -> None:
    def make(step: int) -> int:
        if step == 2:
            raise ValueError("damaged")
        return step

    steps = ahead(streamed, make, range(5))
    assert [next(steps), next(steps)] == [0, 1]
    with pytest.raises(ValueError, match="damaged"):
        next(steps)


def test_images_in_memory_are_made_when_they_are_asked_for() -> None:
    made: list[int] = []
    steps = ahead(KEPT, _counting(made), range(1000))
    assert next(steps) == 0
    assert made == [0]
