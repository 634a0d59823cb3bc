"""Tables of images and targets, read by Hugging Face ``datasets`` from its hub or from files."""

import errno
import glob
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from hwnas.training.data.encoded import SPLITS, ImageColumn, ImageSource
from hwnas.training.data.folders import (
    chosen_splits,
    files,
    is_image,
    left_out_notes,
    remedy,
    split_of,
)
from hwnas.training.data.metadata import IMAGE, only_a_table, parquet_files, read_metadata
from hwnas.training.options import DatasetConfig

#: Columns that name a group of related images.
_GROUP = re.compile(
    "(patient|subject|speaker|participant|person|user|session|recording|video|scene|group)"
    "([_ -]?(id|nr|no|number|name))?"
)


def read_table(where: str, config: DatasetConfig, path: Path | None, kind: TaskType) -> ImageSource:
    """Return the images and targets of ``path``, or without a path those of ``config.hub_id``.

    Raises:
        DataError: they cannot be read, or are not images with targets.
        OSError: the disk is full.
    """
    import datasets
    from huggingface_hub import constants

    notes: list[str] = []
    tables = _open(where, config, path, categorical=kind.categorical)
    tables = _split_by_column(where, tables, config, notes)
    chosen = chosen_splits(where, list(tables), config.test_split)
    splits = {split: tables[name] for split, name in chosen.items()}
    for split, table in splits.items():
        if not len(table):
            raise DataError(f"{where}: split '{split}' is empty. Remove it, or add rows.")
    notes += [
        f"{where}: split '{name}' ({len(table)} images) is no train, validation or test split and "
        "is left out."
        for name, table in tables.items()
        if split_of(name) not in SPLITS and name not in chosen.values()
    ]
    kinds = (datasets.ClassLabel,) if kind.categorical else ()
    requests = (
        _RequestedColumn("image", (datasets.Image,), ("image", "img")),
        _RequestedColumn("label", kinds, kind.columns),
    )
    image = _column(where, splits["train"], config.image_column, requests, 0)
    label = _column(where, splits["train"], config.label_column, requests, 1)
    labels = {
        split: table.data.column(label).to_pylist()
        if label in table.column_names
        else [None] * len(table)
        for split, table in splits.items()
    }
    for split in ("validation", "test"):
        if kind.categorical and all(value in (None, -1) for value in labels.get(split, [0])):
            notes.append(
                f"{where}: the {len(labels.pop(split))} images of the {split} split have no labels "
                f"and are left out. The {split} split is made from the training images."
            )
    # Files that ``datasets`` downloaded or extracted.
    folders = [Path(datasets.config.DOWNLOADED_DATASETS_PATH), Path(constants.HF_HUB_CACHE)]
    if path is not None:
        folder = path if path.is_dir() else path.parent
        folders[:0] = [folder, folder.resolve()]  # ``datasets`` may return either
    images = {split: _images(where, split, splits[split], image, folders) for split in labels}
    notes += _unlisted_note(where, path, tables.values(), image)
    names = getattr(splits["train"].features[label], "names", None)
    targets, names = kind.targets(f"{where}, column '{label}'", labels, names)
    return ImageSource(images, targets, names, tuple(notes))


def _open(
    where: str, config: DatasetConfig, path: Path | None, *, categorical: bool
) -> dict[str, Any]:
    """Return the tables of all splits."""
    import datasets  # slow to import, and not needed for folders of images

    datasets.disable_progress_bars()
    for noisy in ("huggingface_hub", "datasets"):  # they print each retry and failure
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        if path is None:
            return dict(datasets.load_dataset(config.hub_id))
        if path.is_dir() and _has_card(path):
            return dict(datasets.load_dataset(str(path)))
        if tables := parquet_files(where, path):
            _check_parquet(where, [file for paths in tables.values() for file in paths])
            # These names are patterns.
            escaped = {s: [glob.escape(str(file)) for file in p] for s, p in tables.items()}
            return dict(datasets.load_dataset("parquet", data_files=escaped))
        if described := read_metadata(where, path, categorical=categorical):
            image = datasets.Image(decode=False)
            return {
                split: datasets.Dataset(table).cast_column(IMAGE, image)
                for split, table in described.items()
            }
        return dict(datasets.load_dataset(str(path)))
    except DataError:
        raise
    except Exception as error:  # datasets, pyarrow and the hub raise many kinds
        raise _reading_error(where, config, path, error) from None


def _split_by_column(
    where: str, tables: dict[str, Any], config: DatasetConfig, notes: list[str]
) -> dict[str, Any]:
    """Return the tables by the values of the column ``split``, if there is one table that has it.

    Adds a note about columns that name a group of related images and are not used.
    """
    import datasets

    table = tables.get("train", next(iter(tables.values())))
    known = {config.image_column, config.label_column}
    columns = [c for c in table.column_names if c not in known]
    column = next((c for c in columns if c.lower() == "split"), None)
    if len(tables) > 1 or column is None:
        drawn = [s for s in ("test", "validation") if s not in map(split_of, tables)]
        groups = [f"'{c}'" for c in columns if _GROUP.fullmatch(c.lower())]
        if groups and drawn:
            notes.append(
                f"{where}: {' and '.join(groups)} is not used: images of one group are in the "
                f"training and the {drawn[0]} split, and accuracies may be too high. Give the "
                "validation and the test split, or a single table with a column 'split' (train, "
                "validation, test)."
            )
        return tables
    values = table.data.column(column).to_pylist()
    splits = np.array([split_of(str(value)) for value in values])
    is_split = np.isin(splits, SPLITS)
    if not is_split.all():
        wrong = f"{where}: column '{column}' has the value '{values[int(is_split.argmin())]}'"
        if is_split.any():
            raise DataError(f"{wrong}. Allowed: train, validation, test. Correct it.")
        notes.append(f"{wrong} and is not used.")
        return tables
    content = table.data.table
    return {
        split: datasets.Dataset(content.filter(pa.array(splits == split)), table.info)
        for split in SPLITS
        if (splits == split).any()
    }


def _has_card(path: Path) -> bool:
    """Return whether a folder has a file ``README.md`` of the hub that says what to read."""
    card = path / "README.md"
    return card.is_file() and "data_files:" in card.read_text(encoding="utf-8", errors="replace")


def _reading_error(
    where: str, config: DatasetConfig, path: Path | None, error: BaseException
) -> Exception:
    """Return the error to raise for an error of ``datasets``."""
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
    # The root cause tells that the hub is not reachable; for a file, the outer error is clearer.
    remedy = "Check the files" if path else "Without a network, use local files: dataset.path=DIR"
    if "Config name is missing" in str(error):
        remedy = (
            "hwnas cannot choose one: download the Parquet files of a configuration, and set "
            "dataset.path to their folder"
        )
    reason = " ".join(str(root if path else error).split())[:300].rstrip(".") or type(root).__name__
    return DataError(f"{where} cannot be read: {reason}. {remedy}.")


def _check_parquet(where: str, files: Sequence[Path]) -> None:
    """Check that files are readable, have rows, and agree on the names of classes.

    The messages of ``datasets`` are unclear about the former, and it ignores the latter.
    """
    import datasets

    first: dict[str, Any] = {}
    columns: set[str] = set()
    for file in files:
        try:
            content = pq.ParquetFile(file)
            n_rows = content.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise _not_parquet(where, file, error) from None
        if n_rows == 0:
            raise DataError(f"{where}: {file.name} is empty. Remove it, or add rows.")
        of_file = set(content.schema_arrow.names)
        if of_file != (columns := columns or of_file):
            raise DataError(
                f"{where}: {file.name} has the columns {', '.join(sorted(of_file))}, but the files "
                f"before it have {', '.join(sorted(columns))}. All files need the same columns."
            )
        for column, feature in datasets.Features.from_arrow_schema(content.schema_arrow).items():
            names = feature.names if isinstance(feature, datasets.ClassLabel) else None
            if names != first.setdefault(column, names):
                raise DataError(
                    f"{where}: column '{column}' of {file.name} has other classes than the files "
                    "before it. All splits must name the same classes in one order."
                )


def _not_parquet(where: str, file: Path, error: Exception) -> DataError:
    suffix, reason = file.suffix.lower(), " ".join(str(error).split())[:200].rstrip(".")
    if suffix == ".parquet":
        action = "Replace or remove the file."
        return DataError(f"{where}: {file.name} cannot be read as Parquet: {reason}. {action}")
    if suffix == ".csv":
        action = (
            "A CSV table must be named metadata.csv, lie beside the images and have a column "
            "file_name: give its folder as dataset.path."
        )
    else:
        allowed = (
            "Set dataset.path to a Parquet file, an .npz file of arrays, or a folder of images."
        )
        action = remedy([suffix], allowed)
    return DataError(f"{where} cannot be read: it is no Parquet file. {action}")


@dataclass(frozen=True)
class _RequestedColumn:
    """A column of images or targets."""

    what: str  #: image or label, as in the option
    kinds: tuple[type, ...]  #: feature types
    usual: Sequence[str]  #: names to look for if no feature has these types


def _column(
    where: str, table: Any, chosen: str | None, requests: Sequence[_RequestedColumn], i: int
) -> str:
    """Return the name of the column that holds images, or targets."""
    what, usual = requests[i].what, requests[i].usual
    if chosen is not None:
        if chosen not in table.column_names:
            raise DataError(
                f"{where} has no column '{chosen}' (dataset.{what}_column), "
                f"only: {', '.join(table.column_names)}. Set dataset.{what}_column to one of these."
            )
        return chosen
    candidates = [
        name for name, feature in table.features.items() if isinstance(feature, requests[i].kinds)
    ]
    named = [name for name in table.column_names if name in usual]
    if not candidates or (what == "label" and not {*named} & {*candidates}):
        candidates += named
    if not candidates and "file_name" in table.column_names:  # of a folder without image files
        raise only_a_table(where)
    if not candidates:
        raise DataError(
            f"{where} needs a column '{requests[0].usual[0]}' and a column "
            f"'{requests[1].usual[0]}', has: {', '.join(table.column_names)}. Choose other names "
            "with dataset.image_column=NAME and dataset.label_column=NAME."
        )
    if len(candidates) > 1:
        raise DataError(
            f"{where} has several columns of {what}s: {', '.join(candidates)}. "
            f"Choose one with dataset.{what}_column=NAME."
        )
    return str(candidates[0])


def _unlisted_note(
    where: str, path: Path | None, tables: Iterable[Any], column: str
) -> Iterator[str]:
    """Yield a note about image files of a folder that no row names."""
    if path is None or not path.is_dir():
        return
    paths = [*files(where, path)]
    if not (images := [*filter(is_image, paths)]):
        return
    yield from left_out_notes(where, paths)
    chunks = [chunk for table in tables for chunk in table.data.column(column).chunks]
    parts = [c.field("path") if pa.types.is_struct(c.type) else c for c in chunks]
    names = [name for part in parts for name in part.to_pylist() if isinstance(name, str)]
    listed = {os.path.abspath(path / name) for name in names}
    if unlisted := [file for file in images if os.path.abspath(file) not in listed]:
        yield (
            f"{where}: {len(unlisted)} of {len(images)} image files have no row in the table and "
            f"are left out, for example {unlisted[0]}."
        )


def _images(
    where: str, split: str, table: Any, column: str, folders: Sequence[Path]
) -> ImageColumn:
    import datasets

    kind = table.data.schema.field(column).type
    is_array = hasattr(kind, "storage_type")  # an extension type
    if is_array or (pa.types.is_nested(kind) and not pa.types.is_struct(kind)):
        raise DataError(
            f"{where}: column '{column}' holds lists of numbers. Store the bytes of PNG or JPEG "
            "files, or pass arrays from Python: hwnas.search(dataset=(images, labels))."
        )
    try:
        only = table.select_columns([column])  # labels are checked by the task
        cast = only.cast_column(column, datasets.Image(decode=False))
        return ImageColumn(f"{where}, split '{split}',", cast.data.column(column), folders)
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(
            f"{where}: column '{column}' does not hold images: {reason}. Choose another column "
            "with dataset.image_column=NAME."
        ) from None


# Embedded data sets, which need no network and no files.

_SEED = 0  # of the angles, independent of the seed of a run
_SIDE = 16  # pixels, of enlarged digits before rotation
_MAX_ANGLE = 60.0  # degrees; beyond, a 6 looks like a 9


@dataclass(frozen=True)
class EmbeddedData:
    """Images ``(N, H, W, C)`` in uint8 with targets."""

    task: str  #: ``classification`` or ``regression``
    images: NDArray[np.uint8]
    targets: NDArray[Any]
    names: tuple[str, ...]  #: names of the network outputs: classes or values


def digits() -> EmbeddedData:
    """Return 1,797 handwritten digits of 8x8 pixels with their labels."""
    digits = load_digits()
    images = np.round(digits.images * 255 / 16).astype(np.uint8)[..., None]
    names = tuple(map(str, digits.target_names))
    return EmbeddedData("classification", images, digits.target, names)


def digit_angles() -> EmbeddedData:
    """Return the digits, enlarged to 16x16 pixels and rotated, with their angles in degrees.

    Angles are uniform in [-60, 60], counter-clockwise. They cannot be predicted exactly, because
    the slant of the handwriting is unknown.
    """
    upright = digits().images[..., 0]
    angles = np.random.default_rng(_SEED).uniform(-_MAX_ANGLE, _MAX_ANGLE, len(upright))
    rotated = [_rotated_image(image, angle) for image, angle in zip(upright, angles, strict=True)]
    return EmbeddedData("regression", np.stack(rotated)[..., None], angles, ("angle_deg",))


def _rotated_image(image: NDArray[np.uint8], angle: float) -> NDArray[np.uint8]:
    picture = Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    return np.asarray(picture.rotate(angle, Image.Resampling.BICUBIC), np.uint8)


#: Embedded data sets by name.
EMBEDDED: Mapping[str, Callable[[], EmbeddedData]] = {
    "digits": digits,
    "digit_angles": digit_angles,
}
