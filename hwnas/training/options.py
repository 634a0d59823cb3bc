"""Options of training ``train.*``, data sets ``dataset.*`` and fine-tuning ``finish.*``."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import (
    ADDED_AFTER_RELEASE,
    bounded,
    check_bounds,
    fingerprint_options,
    limits,
)
from hwnas.models.families.base import TrainingRecipe

_BATCH_SIZE, _SMALL_BATCH_SIZE = 128, 32  # large batches leave few steps to few images
DTYPES = ("auto", "float32", "bfloat16")

_FINE_TUNING_LR = 0.1  # of the learning rate for training from scratch
#: Options that change no weights (except by rounding), and a path whose content counts instead.
_IRRELEVANT = ("device", "tensorboard", "from_supernet", "fine_tuning_epochs", "init_from")

#: Recipes of optimisers that are not the family's default.
_RECIPES = {
    "sgd": TrainingRecipe("sgd", lr=0.3, weight_decay=5e-5),
    "adamw": TrainingRecipe("adamw", lr=2e-3, weight_decay=0.05),
    "muon": TrainingRecipe("muon", lr=0.2, weight_decay=5e-5),
}
_REASON = "at a second an epoch, so many take more than a day"


ARRAYS_SUFFIX = ".npz"  #: of files with images and targets as arrays


@dataclass
class TrainingConfig:
    """Options for training a supernet or a single network."""

    epochs: int = bounded("[0, 100_000]", 20, _REASON)  #: passes over the training images
    #: training images per step over all processes; default: 128, 64 for fewer than 2,048 training
    #: images, 32 for fewer than 1,024, less for fewer than 128
    batch_size: int | None = bounded("[2, 1_000_000]", None)
    #: optimiser: sgd, adamw or muon; default: that of the family, for supernets sgd instead of muon
    optimiser: str | None = None
    #: maximum learning rate of the cosine schedule; default: that of the family; for another
    #: optimiser 0.3 (sgd), 0.002 (adamw), 0.2 (muon)
    lr: float | None = bounded("(0, 1000]", None)
    #: weight decay, decoupled for adamw; default: that of the family, or of another optimiser 5e-5
    #: (sgd, muon), 0.05 (adamw)
    weight_decay: float | None = bounded("[0, 100]", None)
    momentum: float = bounded("[0, 1)", 0.9)  #: momentum of sgd and muon
    warmup: float = bounded("[0, 1)", 0.05)  #: first fraction of the steps, with a rising rate
    label_smoothing: float = bounded("[0, 1)", 0.1)  #: smoothing of class labels
    #: weights of classes in the loss on labels: none: each image counts the same; balanced: each
    #: class counts the same, and outputs are not calibrated to the frequencies of classes;
    #: distillation and int8 calibration do not use the weights
    class_weights: str = field(default="none", metadata=ADDED_AFTER_RELEASE)
    #: alpha of the Beta distribution for mixup; 0: no mixup
    mixup: float = bounded("[0, 100]", 0.0)
    #: last fraction of the steps, without augmentation and mixup
    plain_fraction: float = bounded("[0, 1)", 0.0, digest_key="unaugmented")
    #: decay of the exponential moving average of the weights, which is the result; 0: none
    ema: float = bounded("[0, 1)", 0.0)
    #: random subnets per step, in addition to the largest and the smallest
    n_random: int = bounded("[0, 100]", 2)
    distillation: bool = True  #: whether subnets learn from the largest subnet's outputs
    #: fraction of the steps after which all options of the space are sampled
    progressive: float = bounded("[0, 1]", 0.0)
    #: dtype of the forward pass: float32, bfloat16, or auto (the faster one for each network)
    dtype: str = "auto"
    #: torch device, such as cpu or cuda:1; default: cuda where torch finds one, else cpu
    device: str | None = None
    #: initial weights of a supernet: a checkpoint, or a file of Once-for-all's MobileNetV3;
    #: with epochs=0 they are used without training
    init_from: str | None = None
    tensorboard: bool = False  #: whether `hwnas train` writes logs for TensorBoard
    #: whether a single network of `hwnas train` starts from the supernet's weights
    from_supernet: bool = False
    #: epochs of a network of `hwnas train` that starts from the supernet's weights
    fine_tuning_epochs: int = bounded("[1, 100_000]", 4, _REASON)

    def __post_init__(self) -> None:
        check_bounds(self, "train.")
        if self.epochs == 0 and self.init_from is None:
            raise ConfigError(
                "train.epochs=0 trains nothing. Set train.epochs=1 or more, or give trained "
                "weights with train.init_from=FILE."
            )
        choices = (
            ("optimiser", tuple(_RECIPES)),
            ("dtype", DTYPES),
            ("class_weights", ("none", "balanced")),
        )
        for key, allowed in choices:
            if (value := getattr(self, key)) is not None and value not in allowed:
                raise ConfigError(unknown_name(f"train.{key}", value, allowed))

    @property
    def images_per_step(self) -> int:
        """Training images per step, which are ``batch_size``, or 128 if that is not set."""
        return self.batch_size or _BATCH_SIZE

    def for_images(self, n_images: int) -> "TrainingConfig":
        """Return the options with ``batch_size`` set for fewer than 2,048 training images.

        A given ``batch_size`` is kept.
        """
        largest = max(2.0, n_images / 16, min(_SMALL_BATCH_SIZE, n_images / 4))
        if self.batch_size is not None or largest >= _BATCH_SIZE:
            return self
        return replace(self, batch_size=1 << int(math.log2(largest)))

    def recipe(self, default: TrainingRecipe) -> TrainingRecipe:
        """Return a family's recipe, changed by ``optimiser``, ``lr`` and ``weight_decay``.

        Another optimiser has its own defaults of the other two.
        """
        if self.optimiser not in (None, default.optimiser):
            default = _RECIPES[self.optimiser]
        return TrainingRecipe(
            default.optimiser,
            default.lr if self.lr is None else self.lr,
            default.weight_decay if self.weight_decay is None else self.weight_decay,
        )

    def with_epochs(self, epochs: int) -> "TrainingConfig":
        """Return the options with other epochs and without optimiser, rate and weight decay.

        The latter three are passed as a recipe.
        """
        return replace(self, epochs=epochs, optimiser=None, lr=None, weight_decay=None)

    def decisive(self, default: TrainingRecipe) -> dict[str, Any]:
        """Return the options that determine a supernet's weights, by name, for its fingerprint.

        Args:
            default: The family's recipe.
        """
        options = fingerprint_options(self) | asdict(self.recipe(default))
        options["batch_size"] = self.images_per_step
        return {name: value for name, value in options.items() if name not in _IRRELEVANT}


def without_muon(recipe: TrainingRecipe) -> TrainingRecipe:
    """Return a family's recipe with SGD in place of Muon.

    Muon orthogonalises whole weights, of which subnets use parts, and preserves norms, which
    matter once batch norm is folded.
    """
    return _RECIPES["sgd"] if recipe.optimiser == "muon" else recipe


def fine_tuning(recipe: TrainingRecipe) -> TrainingRecipe:
    """Return a recipe with a tenth of its learning rate, for fine-tuning."""
    return TrainingRecipe(recipe.optimiser, recipe.lr * _FINE_TUNING_LR, recipe.weight_decay)


@dataclass
class DatasetConfig:
    """Source of images and targets, and augmentations that preserve the targets."""

    name: str  #: the same as dataset=NAME; other names are used in records and titles only
    hub_id: str | None = None  #: data set of the Hugging Face hub, as OWNER/NAME
    path: str | None = None  #: local folder or file; takes precedence over hub_id
    #: column of a table that holds images; default: the only such column
    image_column: str | None = None
    #: column of a table that holds classes or values; default: the only such column
    label_column: str | None = None
    test_split: str = "test"  #: split of the source that is used for verification only
    #: fraction of the remaining training images for validation, if the source has no such split
    validation: float = bounded("(0, 1)", 0.1)
    #: fraction of the source's training images for the test split, if the source has none
    test: float = bounded("(0, 1)", 0.2)
    #: whether decoded images are kept in memory; default: splits that fit into a quarter of it
    in_memory: bool | None = None
    flip: bool = False  #: whether training images are mirrored at random
    task: str = "classification"  #: task of the data set: classification or regression
    #: largest random shift in training, as a fraction of the image
    shift: float = bounded("[0, 0.5)", 0.0)
    #: minimum area of random crops in training, as a fraction of the image; 1: no crops
    crop: float = bounded("[0.01, 1]", 1.0)

    def __post_init__(self) -> None:
        check_bounds(self, "dataset.")
        if self.test_split == "train":
            raise ConfigError(
                "dataset.test_split=train: the test split must differ from the training split. Set "
                "it to test or validation."
            )

    @property
    def is_files(self) -> bool:
        """True if the images are decoded from files or tables, not embedded or given as arrays."""
        return bool(self.path or self.hub_id) and not self.is_arrays

    @property
    def is_arrays(self) -> bool:
        """True if ``path`` is a file of arrays."""
        return self.path is not None and self.path.endswith(ARRAYS_SUFFIX)

    @property
    def augmentation(self) -> list[float]:
        """``[flip, shift]``, or ``[flip, shift, crop]`` with crops, for digests of trainings."""
        return [self.flip, self.shift] + ([self.crop] if self.crop < 1 else [])


@dataclass
class FinetuningConfig:
    """Options for fine-tuning one network."""

    #: epochs of each training: fine-tuning, after pruning, for int8; 0: none
    epochs: int = bounded("[0, 100_000]", 4)
    alpha: float = bounded("[0, 1]", 0.5)  #: weight of the distillation loss
    prune: float = bounded("[0, 1)", 0.0)  #: fraction of the channels to remove; 0: none
    #: maximum loss by int8, above which the network is trained for int8, too: in points of
    #: accuracy, or for values in percent of the error of a constant prediction
    max_int8_drop: float = bounded("[0, 1000]", 0.5)
    rate: float = bounded("(0, 1000]", 0.1)  #: factor of the learning rate from scratch
    #: bits of weights by name of the operator, fewer than 8
    bits: dict[str, int] = field(default_factory=dict, metadata=limits("[2, 8]"))
    #: epochs of each training after fine-tuning; default: ``epochs``
    later_epochs: int | None = bounded("[0, 100_000]", None)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.prune and not self.later:
            raise ConfigError(
                f"prune={self.prune} needs training afterwards: set epochs=1 or more."
            )

    @property
    def later(self) -> int:
        """Epochs of each training after fine-tuning."""
        return self.epochs if self.later_epochs is None else self.later_epochs


_NO_FINETUNING = "for no fine-tuning, set finish.epochs=0"


@dataclass
class FinishConfig:
    """Options for fine-tuning the candidates of a search."""

    #: epochs per network; 0: none; default: train.epochs, or 4 from a supernet's weights; with a
    #: time limit as many of these as fit
    epochs: int | None = bounded("[0, 100_000]", None)
    #: weight of the distillation loss, with the best network as teacher; 0: none
    alpha: float = bounded("[0, 1]", 0.5)
    #: factor of the learning rate; default: 1, or 0.1 from a supernet's weights
    rate: float | None = bounded("(0, 1000]", None)
    #: maximum loss by int8, above which the network is trained for int8, too: in points of
    #: accuracy, or for values in percent of the error of a constant prediction
    max_int8_drop: float = bounded("[0, 1000]", 0.5)
    #: minimum probability of being on the front for a candidate to be fine-tuned; in time that is
    #: left, less probable ones are fine-tuned, too
    probability: float = bounded("(0, 1]", 0.2)
    #: candidates that are fine-tuned whatever their probability
    min_candidates: int = bounded("[1, 1_000_000]", 12, digest_key="n_least")
    #: maximum number of candidates per target; default: as many as ``minutes`` allow, or without
    #: ``minutes`` a fifth of the scored ones, but at least ``min_candidates``
    max_candidates: int | None = field(
        default=None,
        metadata={**limits("[1, 1_000_000]", below=_NO_FINETUNING), **ADDED_AFTER_RELEASE},
    )
    #: time limit of fine-tuning in minutes, over all resumes; a training that would probably not
    #: end in time is not started, except the teacher's and one network per target
    minutes: float | None = bounded("(0, 525_600]", None, below=_NO_FINETUNING)

    def __post_init__(self) -> None:
        check_bounds(self, "finish.")

    def max_networks(self, n_scored: int, *, is_limited: bool) -> int:
        """Return the maximum number of candidates to be fine-tuned per target.

        Args:
            n_scored: Number of scored candidates.
            is_limited: Whether there is a time limit.
        """
        if self.max_candidates is not None:
            return self.max_candidates
        return n_scored if is_limited else max(self.min_candidates, n_scored // 5)

    def of_one(self, epochs: int, rate: float) -> FinetuningConfig:
        """Return the options for fine-tuning one network.

        Args:
            epochs: Number of epochs, if the option is not set.
            rate: Factor of the learning rate, if the option is not set.
        """
        return FinetuningConfig(
            epochs=epochs if self.epochs is None else self.epochs,
            alpha=self.alpha,
            max_int8_drop=self.max_int8_drop,
            rate=rate if self.rate is None else self.rate,
        )
