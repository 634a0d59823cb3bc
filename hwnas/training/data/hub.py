"""Tables of images and targets that Hugging Face ``datasets`` reads: of its hub, or local."""

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from hwnas.core.errors import DataError
from hwnas.tasks.base import TaskType
from hwnas.training.data.encoded import ImageColumn, ImageSource
from hwnas.training.data.folders import chosen_splits
from hwnas.training.options import DatasetConfig


def read_table(where: str, config: DatasetConfig, path: Path | None, kind: TaskType) -> ImageSource:
    """Return the images of ``path``, or else those of ``config.hub_id``.

    Raises:
        DataError: they cannot be read, or are not images with targets.
    """
    import datasets

    found = _open(where, config, path)
    chosen = chosen_splits(where, list(found), config.test_split)
    splits = {split: found[name] for split, name in chosen.items()}
    for split, table in splits.items():
        if not len(table):
            raise DataError(f"{where}: split '{split}' is empty. Remove it, or fill it.")
    kinds = (datasets.ClassLabel,) if kind.categorical else ()
    wanted = _RequestedColumn("label", kinds, kind.columns)
    picture = _RequestedColumn("image", (datasets.Image,), ("image", "img"))
    image = _column(where, splits["train"], config.image_column, picture)
    label = _column(where, splits["train"], config.label_column, wanted)
    images = {split: _images(where, split, table, image) for split, table in splits.items()}
    labels = {split: table.data.column(label).to_pylist() for split, table in splits.items()}
    names = getattr(splits["train"].features[label], "names", None)
    targets, names = kind.targets(f"{where}, column '{label}'", labels, names)
    return ImageSource(images, targets, names)


def _open(where: str, config: DatasetConfig, path: Path | None) -> dict[str, Any]:
    """Return the splits that there are."""
    import datasets  # slow to import, and not needed for folders of images

    datasets.disable_progress_bars()
    for noisy in ("huggingface_hub", "datasets"):  # they announce each retry and each failure
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        if path is None:
            return dict(datasets.load_dataset(config.hub_id))
        _check_parquet(where, path)
        if path.is_file():
            return dict(datasets.load_dataset("parquet", data_files={"train": str(path)}))
        return dict(datasets.load_dataset(str(path)))
    except DataError:
        raise
    except Exception as error:  # datasets, pyarrow and the hub raise many kinds
        raise _refused(where, config, path, error) from None


def _refused(
    where: str, config: DatasetConfig, path: Path | None, error: BaseException
) -> Exception:
    """Return what to raise for what ``datasets`` raised."""
    from huggingface_hub.errors import GatedRepoError

    root, gated = error, isinstance(error, GatedRepoError)
    while (deeper := root.__cause__ or root.__context__) is not None:
        root = deeper
        gated = gated or isinstance(root, GatedRepoError)
    if isinstance(root, OSError) and root.errno == errno.ENOSPC:
        return root
    if path is None and gated:
        return DataError(
            f"{where} is gated: accept its terms at https://huggingface.co/datasets/"
            f"{config.hub_id} and log in with: hf auth login"
        )
    # Of the hub the last error says that it is out of reach; of a file the first says why.
    cure = "" if path else " Without a network give local files: dataset.path=DIR."
    reason = " ".join(str(root if path else error).split())[:300].rstrip(".")
    return DataError(f"{where} cannot be read: {reason}.{cure}")


def _check_parquet(where: str, path: Path) -> None:
    """Refuse files that are damaged, hold no rows or name other classes than the first.

    Of the former ``datasets`` says little; the names of the latter it passes over.
    """
    import datasets

    first: dict[str, Any] = {}
    for file in [path] if path.is_file() else sorted(path.rglob("*.parquet")):
        try:
            content = pq.ParquetFile(file)
            n_rows = content.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise DataError(f"{where}: {file.name} cannot be read as Parquet: {reason}.") from None
        if n_rows == 0:
            raise DataError(
                f"{where}: {file.name} is empty: it has no rows. Remove it, or fill it."
            )
        for column, feature in datasets.Features.from_arrow_schema(content.schema_arrow).items():
            names = feature.names if isinstance(feature, datasets.ClassLabel) else None
            if names != first.setdefault(column, names):
                raise DataError(
                    f"{where}: column '{column}' of {file.name} has other classes than the files "
                    "before it. All splits must name the same classes in one order."
                )


@dataclass(frozen=True)
class _RequestedColumn:
    """A column that is looked for."""

    what: str  #: as options call it
    kinds: tuple[type, ...]  #: of features
    usual: Sequence[str]  #: names, where no feature is of the kinds


def _column(where: str, table: Any, chosen: str | None, wanted: _RequestedColumn) -> str:
    """Return the name of the column that holds images, or targets."""
    what, usual = wanted.what, wanted.usual
    if chosen is not None:
        if chosen not in table.column_names:
            raise DataError(
                f"{where} has no column '{chosen}' (dataset.{what}_column), "
                f"only: {', '.join(table.column_names)}."
            )
        return chosen
    found = [name for name, of in table.features.items() if isinstance(of, wanted.kinds)]
    found = found or [name for name in table.column_names if name in usual]
    if not found:
        raise DataError(
            f"{where} is not images with {usual[0]}s: needs a column 'image' and a column "
            f"'{usual[0]}', has: {', '.join(table.column_names)}. Other names are given by "
            "dataset.image_column=NAME and dataset.label_column=NAME."
        )
    if len(found) > 1:
        raise DataError(
            f"{where} has several columns of {what}s: {', '.join(found)}. "
            f"Choose one with dataset.{what}_column=NAME."
        )
    return str(found[0])


def _images(where: str, split: str, table: Any, column: str) -> ImageColumn:
    import datasets

    try:
        cast = table.cast_column(column, datasets.Image(decode=False))
        return ImageColumn(f"{where}, split '{split}',", cast.data.column(column))
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(f"{where}: column '{column}' does not hold images: {reason}.") from None


# Data sets that need no network and no files.

_SEED = 0  # the angles are part of the data set: they never follow the run's seed
_SIDE = 16  # pixels, that digits are enlarged to before they are rotated
_MOST = 60.0  # degrees, to either side: beyond, a 6 becomes a 9


@dataclass(frozen=True)
class EmbeddedData:
    """Images ``(N, H, W, C)`` in uint8 with targets."""

    task: str  #: what the targets are for
    images: NDArray[np.uint8]
    targets: NDArray[Any]
    names: tuple[str, ...]  #: of what networks answer


def digits() -> EmbeddedData:
    """Return 1,797 handwritten digits of 8x8 pixels with their labels."""
    found = load_digits()
    images = np.round(found.images * 255 / 16).astype(np.uint8)[..., None]
    names = tuple(map(str, found.target_names))
    return EmbeddedData("classification", images, found.target, names)


def digit_angles() -> EmbeddedData:
    """Return the digits, enlarged to 16x16 pixels and rotated, with their angles in degrees.

    Angles are uniform in [-60, 60], counter-clockwise. How a writer slants digits is not known, so
    that nobody can be right to the degree.
    """
    upright = digits().images[..., 0]
    angles = np.random.default_rng(_SEED).uniform(-_MOST, _MOST, len(upright))
    rotated = [_rotated(image, angle) for image, angle in zip(upright, angles, strict=True)]
    return EmbeddedData("regression", np.stack(rotated)[..., None], angles, ("angle_deg",))


def _rotated(image: NDArray[np.uint8], angle: float) -> NDArray[np.uint8]:
    picture = Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    return np.asarray(picture.rotate(angle, Image.Resampling.BICUBIC), np.uint8)


#: By the name of the data set.
EMBEDDED: Mapping[str, Callable[[], EmbeddedData]] = {
    "digits": digits,
    "digit_angles": digit_angles,
}
