"""Folders of image files: a folder a class, with or without folders for the splits above them."""

import os
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from hwnas.core.errors import DataError
from hwnas.tasks.base import TaskType
from hwnas.training.data.encoded import SPLITS, ImageFiles, ImageSource

# Walks folders of strangers: links that lead upwards and files that are none are refused.

_DEEPEST = 32  # folders within one another
_SYSTEM = ("/proc", "/sys", "/dev")  # what lies there are no files, and there is no end of them
_MEMORY = "/dev/shm"  # but here, where data are put to be read fast


def files(where: str, path: Path) -> Iterator[Path]:
    """Yield all files of a folder that are not hidden, in an order of their names alone.

    Raises:
        DataError: a link leads to a folder that it lies in, or something is neither file nor
            folder.
    """
    return _files(where, path, ())


def is_hidden(name: str) -> bool:
    """Return whether a file or a folder is left out."""
    return name.startswith((".", "__"))


def _files(where: str, path: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    said = path.stat()
    own = (said.st_dev, said.st_ino)
    if own in above:
        raise DataError(f"{where}: {path} is a link to a folder that it lies in. Remove it.")
    if len(above) > _DEEPEST:
        raise DataError(f"{where}: {path} lies in more than {_DEEPEST} folders.")
    found = path.resolve()
    if any(map(found.is_relative_to, _SYSTEM)) and not found.is_relative_to(_MEMORY):
        raise DataError(f"{where}: {path} is a folder of the operating system, not of images.")
    folders: list[str] = []
    names: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if not (entry.is_dir() or entry.is_file()):
                raise DataError(f"{where}: {entry.path} is neither a file nor a folder. Remove it.")
            (folders if entry.is_dir() else names).append(entry.name)
    yield from (path / name for name in sorted(names))
    for name in sorted(folders):
        yield from _files(where, path / name, (*above, own))


_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation"}
_TABLES = (".parquet", ".arrow", ".csv", ".jsonl", ".json", ".tar", ".zip")


def is_image_folder(where: str, path: Path) -> bool:
    """Return whether a folder holds image files, and no tables that hold or describe images.

    Raises:
        DataError: it holds neither.
    """
    paths = list(files(where, path))
    described = any(f.suffix in (".parquet", ".arrow") or f.stem == "metadata" for f in paths)
    if any(map(_is_image, paths)):
        return not described
    if any(f.suffix in _TABLES for f in paths):
        return False
    raise DataError(f"{where} holds no images: needs Parquet files or a folder a class.")


def read_folder(where: str, path: Path, test_split: str, kind: TaskType) -> ImageSource:
    """Return the images of ``path/CLASS/`` or of ``path/{train,validation,test}/CLASS/``.

    Raises:
        DataError: a split or a class has no images, or an image no class.
    """
    if not kind.categorical:
        raise DataError(
            f"{where} has no values: say them in metadata.csv beside the images, with the columns "
            f"file_name and {kind.columns[0]}."
        )
    folders = {f.name: f for f in _folders(path)}
    if "train" not in folders:
        folders = {"train": path}
    chosen = chosen_splits(where, list(folders), test_split)
    found = {split: _of_classes(where, folders[name]) for split, name in chosen.items()}
    labels = {split: [label for label, _ in files] for split, files in found.items()}
    targets, names = kind.targets(where, labels, None)
    images = {split: ImageFiles(where, [file for _, file in found[split]]) for split in found}
    return ImageSource(images, targets, names)


def chosen_splits(where: str, given: list[str], test_split: str) -> dict[str, str]:
    """Return which of the splits of a source serves as train, validation and test, if any does.

    Raises:
        DataError: there is none for training, or not the one that is to serve for the test.
    """
    found = {_ALIASES.get(name, name): name for name in given}
    test_split = _ALIASES.get(test_split, test_split)
    if "train" not in found:
        raise DataError(f"{where} has no split 'train', only: {', '.join(found)}.")
    if test_split not in found and test_split != "test":
        raise DataError(
            f"{where} has no split '{test_split}' (dataset.test_split), only: {', '.join(found)}."
        )
    chosen = {"train": "train", "validation": "validation", "test": test_split}
    if test_split == "validation":
        del chosen["validation"]
    return {split: found[name] for split in SPLITS if (name := chosen.get(split)) in found}


def _of_classes(where: str, folder: Path) -> list[tuple[str, Path]]:
    """Return class and path of each image of a split."""
    found = []
    for file in files(where, folder):
        if _is_image(file):
            inside = file.relative_to(folder).parts
            if len(inside) == 1:
                raise DataError(f"{where}: {file} has no class: images lie in a folder a class.")
            found.append((inside[0], file))
    classes = {label for label, _ in found}
    if empty := [f.name for f in _folders(folder) if f.name not in classes]:
        raise DataError(f"{where}: folder {folder / empty[0]} holds no images. Remove it?")
    if not found:
        raise DataError(f"{where}: folder {folder} holds no images. Remove it?")
    return found


def _folders(path: Path) -> list[Path]:
    return sorted(f for f in path.iterdir() if f.is_dir() and not is_hidden(f.name))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in Image.registered_extensions()
