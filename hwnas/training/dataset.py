"""Options of a data set."""

from dataclasses import dataclass

from hwnas.errors import ConfigError


@dataclass
class DatasetConfig:
    """Where images with targets come from, and which changes of an image keep its target."""

    name: str
    hub_id: str | None = None  #: of the Hugging Face hub
    path: str | None = None  #: a folder or file on this machine; wins over hub_id
    image_column: str | None = None  #: of a table; null: the one that holds images
    label_column: str | None = None  #: of a table; null: the one that holds classes, or values
    test_split: str = "test"  #: the split of the source that search never sees
    validation: float = 0.1  #: fraction of the training images, where there is no such split
    test: float = 0.2  #: fraction of all images, where there is no such split
    #: whether decoded images are kept in memory; null: the splits that fit into a share of it
    in_memory: bool | None = None
    flip: bool = False  #: whether a mirror image has the same label
    task: str = "classification"  #: what networks are for; set by task=
    shift: float = 0.0  #: largest random shift in training, as a fraction of the image
    crop: float = 1.0  #: smallest random crop in training, as a fraction of the area; 1: none

    def __post_init__(self) -> None:
        for key in ("validation", "test"):
            if not 0 < getattr(self, key) < 1:
                raise ConfigError(f"dataset.{key} must lie between 0 and 1.")
        if not 0 <= self.shift < 0.5:
            raise ConfigError(f"dataset.shift must lie in [0, 0.5), got {self.shift}.")
        if not 0 < self.crop <= 1:
            raise ConfigError(f"dataset.crop must lie in (0, 1], got {self.crop}; 1 is no crop.")
        if self.test_split == "train":
            raise ConfigError("dataset.test_split=train: training images are no test images.")

    @property
    def augmentation(self) -> list[float]:
        """What changes training images; it decides the outcome of a training."""
        return [self.flip, self.shift] + ([self.crop] if self.crop < 1 else [])
