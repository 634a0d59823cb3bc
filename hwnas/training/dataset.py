"""Options of a data set."""

from dataclasses import dataclass

from hwnas.bounds import check, within
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
    #: fraction of the training images, where there is no such split
    validation: float = within("(0, 1)", 0.1)
    test: float = within("(0, 1)", 0.2)  #: fraction of all images, where there is no such split
    #: whether decoded images are kept in memory; null: the splits that fit into a share of it
    in_memory: bool | None = None
    flip: bool = False  #: whether a mirror image has the same label
    task: str = "classification"  #: what networks are for; set by task=
    #: largest random shift in training, as a fraction of the image
    shift: float = within("[0, 0.5)", 0.0)
    #: smallest random crop in training, as a fraction of the area; 1: none
    crop: float = within("[0.01, 1]", 1.0)

    def __post_init__(self) -> None:
        check(self, "dataset.")
        if self.test_split == "train":
            raise ConfigError("dataset.test_split=train: training images are no test images.")

    @property
    def augmentation(self) -> list[float]:
        """What changes training images; it decides the outcome of a training."""
        return [self.flip, self.shift] + ([self.crop] if self.crop < 1 else [])
