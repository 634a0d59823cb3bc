"""Tables of a folder: metadata files that describe images, and splits of Parquet files."""

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from hwnas.core.errors import DataError
from hwnas.training.data.encoded import SPLITS
from hwnas.training.data.folders import FORMATS, files, is_image, is_metadata, split_of

IMAGE = "image"  #: column of images in the results
_FILE = "file_name"  #: column of paths, relative to the folder of the table
_FOLDER = "hwnas:folder"  #: column of the first folders of paths, while tables are read
#: The name of one of several files of a split.
_PART = re.compile(r"(.+)-\d{5}-of-\d{5}(-[0-9a-f]{16})?")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)


def read_metadata(where: str, path: Path, *, categorical: bool) -> dict[str, pa.Table]:
    """Return the tables that describe the images of a folder, by split; empty if there are none.

    A table belongs to the split of the outermost folder with such a name, else to ``train``.
    Without such folders and without a column ``split``, rows belong to the split with which their
    path begins, if there are several. The column ``image`` has paths relative to ``path``.

    Args:
        where: Start of error messages.
        path: The folder.
        categorical: Whether labels are classes. Then texts such as ``NA`` and ``007`` are kept as
            they are, and all texts of formats that distinguish texts from numbers.

    Raises:
        DataError: a table cannot be read, has no rows or no column ``file_name``, tables have
            different columns, only some folders or paths are of a split, or there are no images.
    """
    parts: dict[str, list[pa.Table]] = {}
    paths = [*files(where, path)]
    outside: list[Path] = []
    for file in paths:
        if is_metadata(file):
            folder = file.relative_to(path).parent
            split = next((s for s in map(split_of, folder.parts) if s in SPLITS), "")
            outside += [folder] if folder.parts and not split else []
            parts.setdefault(split, []).append(_read(where, file, folder))
    if outside and len(parts) > 1:
        raise DataError(
            f"{where}: '{outside[0]}' has a metadata file, but is no split, and other folders are. "
            "Rename it to train, validation or test, or move it out of this folder."
        )
    if "" in parts:
        parts["train"] = [*parts.get("train", ()), *parts.pop("")]
    if not parts:
        return {}
    if not any(map(is_image, paths)):
        raise only_a_table(where)
    formats = {file.suffix.lower() for file in paths if is_metadata(file)}
    if len(formats) > 1:
        raise DataError(
            f"{where}: there are metadata files of several formats. Remove all but one."
        )
    tables = {split: _joined(where, some) for split, some in parts.items()}
    if formats == {".csv"} or not categorical:
        tables = _typed(tables, categorical=categorical)
    names = {name.lower() for table in tables.values() for name in table.column_names}
    if len(tables) == 1 and "split" not in names:
        tables = _by_folder(where, tables)
    return {split: table.drop_columns([_FOLDER]) for split, table in tables.items()}


def only_a_table(where: str) -> DataError:
    """Return the error of a folder with a table of images, but without images."""
    return DataError(
        f"{where} holds no images, only a table that names them. Put the images into this folder, "
        f"as {FORMATS} files, and write paths relative to it in the column file_name."
    )


def _joined(where: str, tables: Sequence[pa.Table]) -> pa.Table:
    columns = [sorted(table.column_names) for table in tables]
    if any(names != columns[0] for names in columns):
        raise DataError(
            f"{where}: the metadata files of a split have different columns. All need the same."
        )
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        raise DataError(
            f"{where}: a column of the metadata files has texts and numbers. Correct them."
        ) from None


def _read(where: str, file: Path, folder: Path) -> pa.Table:
    """Return a table with the column ``image``; values of CSV files are texts or null."""
    try:
        if file.suffix.lower() == ".csv":
            table = _read_csv(file)
        elif file.suffix.lower() == ".jsonl":
            table = pa.json.read_json(file)
        else:
            table = pq.read_table(file)
    except (OSError, UnicodeDecodeError, ValueError, csv.Error, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        form = ", with commas between them, in UTF-8" * (file.suffix.lower() == ".csv")
        raise DataError(
            f"{where}: {file} cannot be read: {reason}. It needs the columns file_name and "
            f"label{form}."
        ) from None
    if _FILE not in table.column_names:
        raise DataError(
            f"{where}: {file} has no column '{_FILE}', only: {', '.join(table.column_names)}. It "
            "needs the columns file_name and label, with commas between them."
        )
    if not len(table):
        raise DataError(f"{where}: {file} has no rows. Add one for each image.")
    names = [str(name or "").replace("\\", "/") for name in table.column(_FILE).to_pylist()]
    paths = [(folder / name).as_posix() if name.strip() else None for name in names]
    images = [{"bytes": None, "path": place} for place in paths]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    others = [name for name in table.column_names if name not in (_FILE, IMAGE)]
    table = table.select(others).append_column(IMAGE, pa.array(images, kind))
    first = [next(iter(PurePosixPath(name).parts), "") for name in names]
    return table.append_column(_FOLDER, pa.array(first, pa.string()))


def _read_csv(file: Path) -> pa.Table:
    with file.open(encoding="utf-8-sig", newline="") as content:
        names = next(filter(None, csv.reader(content)), [])
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column '{twice}' occurs twice")
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    return pa.csv.read_csv(file, parse_options=parsing, convert_options=options)


def _typed(tables: dict[str, pa.Table], *, categorical: bool) -> dict[str, pa.Table]:
    """Return tables whose columns of texts are numbers, if the texts of all splits are numbers."""
    result = dict(tables)
    for name in tables["train"].column_names if "train" in tables else ():
        columns = [table.column(name) for table in tables.values() if name in table.column_names]
        if name == _FOLDER or not all(pa.types.is_string(column.type) for column in columns):
            continue
        texts = [text.strip() for c in columns for text in c.to_pylist() if text and text.strip()]
        convert = _conversion(texts, categorical=categorical)
        if convert is not None:
            for split, table in result.items():
                if name in table.column_names:
                    known = table[name].to_pylist()
                    values = [convert(t) if t and t.strip() else None for t in known]
                    i = table.column_names.index(name)
                    result[split] = table.set_column(i, name, pa.array(values))
    return result


def _conversion(texts: Sequence[str], *, categorical: bool) -> Callable[[str], Any] | None:
    """Return the type of texts that are all numbers; ``None``: they stay texts.

    Texts such as ``007`` are names of classes.
    """
    if not texts:
        return None
    if all(map(_INTEGER.fullmatch, texts)):
        return int
    if not all(map(_NUMBER.fullmatch, texts)):
        return None
    return float if not categorical or any("." in text for text in texts) else None


def _by_folder(where: str, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the only table, divided by the first folders of paths if these are splits."""
    (table,) = tables.values()
    folders = table[_FOLDER].to_pylist()
    splits = [split_of(folder) for folder in folders]
    named = {*splits} & {*SPLITS}
    if "train" not in named or len(named) < 2:
        return tables
    pairs = zip(folders, splits, strict=True)
    if others := [folder for folder, split in pairs if split not in named]:
        raise DataError(
            f"{where}: {len(others)} of {len(folders)} paths of the table begin with another "
            f"folder than train, validation and test, for example '{others[0]}'. Add a column "
            "'split', or move these images."
        )
    return {
        split: table.filter(pa.array([s == split for s in splits]))
        for split in SPLITS
        if split in named
    }


def parquet_files(where: str, path: Path) -> dict[str, list[Path]]:
    """Return the Parquet files of a folder by split, by the names of files and folders.

    Splits are the names of files such as ``NAME-00000-of-00001.parquet`` if one is train, else
    train, validation and test in the path. ``datasets`` would read images beside them alone,
    without their labels, and accepts names of splits in lower case only.
    """
    if path.is_file():
        return {"train": [path]}
    paths = [f for f in files(where, path) if f.suffix == ".parquet" and not is_metadata(f)]
    parts = {f: split_of(part[1]) for f in paths if (part := _PART.fullmatch(f.stem))}
    if "train" not in parts.values():
        parts = {}
    tables: dict[str, list[Path]] = {}
    for file in paths:
        split = parts.get(file) or _split_in(file.relative_to(path))
        tables.setdefault(split, []).append(file)
    if (unnamed := tables.pop("", [])) and tables:
        raise DataError(
            f"{where}: the name of {unnamed[0].relative_to(path)} has no split, but those of other "
            "files have. Write train, validation or test into it, or remove it."
        )
    return {"train": unnamed} if unnamed else tables


def _split_in(path: Path) -> str:
    """Return the split that a path names: as a whole name, else as a word; the innermost first."""
    names = [path.stem, *reversed(path.parts[:-1])]
    words = [word for name in names for word in re.split(r"[\W\d_]+", name)]
    return next((split for split in map(split_of, [*names, *words]) if split in SPLITS), "")
