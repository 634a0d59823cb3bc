"""Images with targets: fixed train, validation and test splits, in memory or streamed."""

from hwnas.training.data.augment import Changes, augment, draw_changes
from hwnas.training.data.image_data import Batch, ImageData
from hwnas.training.data.loading import load
from hwnas.training.data.split import InMemorySplit, Split, StreamedSplit, ahead, some
from hwnas.training.dataset import DatasetConfig

__all__ = [
    "Batch",
    "Changes",
    "DatasetConfig",
    "ImageData",
    "InMemorySplit",
    "Split",
    "StreamedSplit",
    "ahead",
    "augment",
    "draw_changes",
    "load",
    "some",
]
