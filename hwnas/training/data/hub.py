"""Tables of images and targets that Hugging Face ``datasets`` reads: of its hub, or local."""

import errno
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hwnas.errors import DataError
from hwnas.tasks.base import Kind
from hwnas.training.data.folder import chosen_splits
from hwnas.training.data.source import Column, Source
from hwnas.training.dataset import DatasetConfig


def read_table(where: str, config: DatasetConfig, path: Path | None, kind: Kind) -> Source:
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
    wanted = _Wanted("label", kinds, kind.columns)
    picture = _Wanted("image", (datasets.Image,), ("image", "img"))
    image = _column(where, splits["train"], config.image_column, picture)
    label = _column(where, splits["train"], config.label_column, wanted)
    images = {split: _images(where, split, table, image) for split, table in splits.items()}
    labels = {split: table.data.column(label).to_pylist() for split, table in splits.items()}
    names = getattr(splits["train"].features[label], "names", None)
    targets, names = kind.targets(f"{where}, column '{label}'", labels, names)
    return Source(images, targets, names)


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
class _Wanted:
    """A column that is looked for."""

    what: str  #: as options call it
    kinds: tuple[type, ...]  #: of features
    usual: Sequence[str]  #: names, where no feature is of the kinds


def _column(where: str, table: Any, chosen: str | None, wanted: _Wanted) -> str:
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


def _images(where: str, split: str, table: Any, column: str) -> Column:
    import datasets

    try:
        cast = table.cast_column(column, datasets.Image(decode=False))
        return Column(f"{where}, split '{split}',", cast.data.column(column))
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(f"{where}: column '{column}' does not hold images: {reason}.") from None
