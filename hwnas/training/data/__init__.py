"""Images with targets: fixed train, validation and test splits, in memory or streamed."""

from hwnas.training.data.augmentation import AugmentationParameters, augment, draw_changes
from hwnas.training.data.image_data import ImageBatch, ImageData
from hwnas.training.data.loading import load_data
from hwnas.training.data.splits import DataSplit, InMemorySplit, StreamedSplit, prefetched, sample
from hwnas.training.options import DatasetConfig

__all__ = [
    "AugmentationParameters",
    "DataSplit",
    "DatasetConfig",
    "ImageBatch",
    "ImageData",
    "InMemorySplit",
    "StreamedSplit",
    "augment",
    "draw_changes",
    "load_data",
    "prefetched",
    "sample",
]
