"""Folders of image files: one folder per class, with or without folders of splits above them."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image

from hwnas.core.errors import DataError, counted
from hwnas.tasks.base import TaskType
from hwnas.training.data.encoded import SPLITS, ImageFiles, ImageSource

# Safe traversal: links to parent folders, devices and system folders are refused.

_MAX_DEPTH = 32
_SYSTEM = ("/proc", "/sys", "/dev")
_MEMORY = "/dev/shm"  # a RAM disk, which may hold data
_SYSTEM_FOLDERS = {
    "#recycle", "$recycle.bin", "lost+found", "system volume information",
    "@eadir", "@recycle", "__macosx", "__pycache__",
}  # fmt: skip


def files(where: str, path: Path) -> Iterator[Path]:
    """Yield all files below a folder that are not hidden: of each folder before its subfolders.

    Files and folders are in alphabetical order.

    Raises:
        DataError: a link leads to one of its parent folders, folders are nested too deeply or
            belong to the operating system, or an entry is neither file nor folder.
    """
    return _files(where, path, ())


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is skipped: hidden, or made by an operating system."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def _files(where: str, path: Path, parents: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    status = path.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in parents:
        raise DataError(f"{where}: {path} is a link to a folder that it lies in. Remove the link.")
    if len(parents) > _MAX_DEPTH:
        raise DataError(
            f"{where}: {path} is nested in {len(parents)} folders. Allowed: {_MAX_DEPTH}. Move it "
            "up, or set dataset.path to an inner folder."
        )
    resolved = path.resolve()
    if any(map(resolved.is_relative_to, _SYSTEM)) and not resolved.is_relative_to(_MEMORY):
        raise DataError(
            f"{where}: {path} is a folder of the operating system, not of images. Set dataset.path "
            "to another folder."
        )
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
        yield from _files(where, path / name, (*parents, identity))


# Files that are no images.

FORMATS = "JPEG, PNG, WebP, BMP, GIF or TIFF"  #: usual formats; Pillow reads some more
_REMEDIES = {
    (".heic", ".heif", ".hif", ".avif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw"): (
        f"Convert these photos to JPEG. Formats that are read: {FORMATS}."
    ),
    (".npy", ".npz", ".mat", ".h5", ".hdf5"): (
        "Arrays: set dataset.path to an .npz file with the arrays images and targets "
        "(numpy.savez), or in Python give dataset=(images, targets)."
    ),
    (".wav", ".mp3", ".flac", ".ogg", ".m4a"): (
        "Audio is not supported: convert the recordings to spectrograms, saved as images."
    ),
}
#: Names of usual files beside images, without suffix.
_SIDE_FILES = (
    "thumbs", "ehthumbs", "desktop", "metadata", "labels", "classes", "readme", "license",
)  # fmt: skip
_NOT_DECODED = ("BUFR", "GRIB", "HDF5", "MPEG", "WMF")  # Pillow reads their headers only
_N_SUFFIXES = 5  # that messages list


def remedy(suffixes: Iterable[str], default: str) -> str:
    """Return what to do with files that are no images, by their suffixes in lower case."""
    known = {suffix: text for group, text in _REMEDIES.items() for suffix in group}
    return next((known[suffix] for suffix in suffixes if suffix in known), default)


def no_images(where: str, paths: Iterable[Path], default: str) -> DataError:
    """Return the error of a folder without images, with the suffixes of its files.

    Args:
        where: Start of the message.
        paths: The files of the folder.
        default: What to do, if the suffixes do not tell.
    """
    suffixes = _other_suffixes(paths)
    only = f", only files {_listed(suffixes)}" if suffixes else ""
    return DataError(f"{where} holds no images{only}. {remedy(suffixes, default)}")


def left_out_notes(where: str, paths: Iterable[Path]) -> Iterator[str]:
    """Yield a note about files that are no images, by suffix."""
    if suffixes := _other_suffixes(paths):
        n = f"{counted(suffixes.total(), 'file')} left out (no image format)"
        yield f"{where}: {n}: {_listed(suffixes)}. {remedy(suffixes, '')}".rstrip()


def _other_suffixes(paths: Iterable[Path]) -> Counter[str]:
    """Count files that are no images by suffix, without tables and usual files beside images."""
    return Counter(
        f.suffix.lower() or "without suffix"
        for f in paths
        if not is_image(f)
        and f.stem.lower() not in _SIDE_FILES
        and f.suffix.lower() not in (".parquet", ".arrow")
    )


def _listed(suffixes: Counter[str]) -> str:
    parts = [f"{suffix} ({n})" for suffix, n in suffixes.most_common(_N_SUFFIXES)]
    return ", ".join(parts + ["..."] * (len(suffixes) > _N_SUFFIXES))


# Names of splits, in any case.

_ALIASES = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
_ARCHIVES = (".jsonl", ".json", ".tar", ".zip")  # that may hold images
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def split_of(name: str) -> str:
    """Return the standard name of a split: train, validation or test; other names unchanged."""
    return _ALIASES.get(name.strip().lower(), name)


def chosen_splits(where: str, given: Sequence[str], test_split: str) -> dict[str, str]:
    """Return the source's name of the splits ``train``, ``validation`` and ``test``, if it has it.

    Args:
        where: Start of error messages.
        given: Names of the source's splits.
        test_split: Name of the split to be used for verification only.

    Raises:
        DataError: there is no training split, no split ``test_split`` (unless it is ``test``), it
            is the training split, or two names mean the same.
    """
    folder_of_split: dict[str, str] = {}
    for name in given:
        other = folder_of_split.setdefault(split_of(name), name)
        if other != name:
            raise DataError(
                f"{where} has two {split_of(name)} splits: '{other}' and '{name}'. Remove one."
            )
    if "train" not in folder_of_split:
        raise DataError(
            f"{where} has no split 'train', only: {', '.join(given)}. Rename the split or folder "
            "of the training images to 'train'."
        )
    allowed = [folder_of_split[split] for split in folder_of_split if split != "train"] or ["test"]
    remedy = f"Set dataset.test_split={' or '.join(allowed)}."
    if split_of(test_split) == "train":
        raise DataError(f"{where}: '{test_split}' is the training split. {remedy}")
    test_split = split_of(test_split)
    if test_split not in folder_of_split and test_split != "test":
        raise DataError(
            f"{where} has no split '{test_split}' (dataset.test_split), only: {', '.join(given)}. "
            f"{remedy}"
        )
    chosen = {"train": "train", "validation": "validation", "test": test_split}
    if test_split == "validation":
        del chosen["validation"]
    return {
        split: folder_of_split[chosen[split]]
        for split in SPLITS
        if split in chosen and chosen[split] in folder_of_split
    }


def is_image_folder(where: str, path: Path) -> bool:
    """Return True if a folder holds image files, and False if tables hold or describe images.

    Raises:
        DataError: the folder has neither images nor tables.
    """
    paths = list(files(where, path))
    described = any(f.suffix in (".parquet", ".arrow") or is_metadata(f) for f in paths)
    if any(map(is_image, paths)):
        return not described
    if described or any(f.suffix in _ARCHIVES for f in paths):
        return False
    allowed = f"Allowed: Parquet files, or one folder per class. Formats: {FORMATS}."
    if any(f.suffix.lower() in (".csv", ".tsv", ".txt") for f in paths):
        allowed += " Convert each window of sensor data to an image."
    raise no_images(where, paths, allowed)


def read_folder(where: str, path: Path, test_split: str, kind: TaskType) -> ImageSource:
    """Return the images of ``CLASS/`` or ``SPLIT/CLASS/`` folders, in any number of outer folders.

    Raises:
        DataError: a split or a class has no images, an image has no class, it is not clear which
            folders are classes, the splits are not those of ``chosen_splits``, the only class has
            a CSV file beside it, or the task has no classes.
    """
    if not kind.categorical:
        raise DataError(
            f"{where} has no values. Add metadata.csv beside the images, with the columns "
            f"file_name and {kind.columns[0]}."
        )
    root = _skip_outer_folders(where, path)
    folders = _split_folders(where, root)
    notes = [*left_out_notes(where, files(where, path))]
    if folders:
        chosen = chosen_splits(where, list(folders), test_split)
        used = {split: _skip_outer_folders(where, folders[name]) for split, name in chosen.items()}
        for split in ("validation", "test"):
            if split in used and not _has_classes(where, used[split]):
                paths = [*files(where, folder := used.pop(split))]
                if not (n := sum(map(is_image, paths))):
                    raise no_images(f"{where}: folder {folder}", paths, "Remove it.")
                notes.append(
                    f"{where}: the {n} images of the {split} split have no class folders and are "
                    f"left out. The {split} split is made from the training images."
                )
        left_out = {f.name for f in _folders(root)} - {folders[name].name for name in folders}
        notes += [_left_out_note(where, root / name) for name in sorted(left_out)]
    else:
        if test_split != "test":
            chosen_splits(where, ["train"], test_split)
        used = {"train": root}
    images_of_split = {split: _images_by_class(where, folder) for split, folder in used.items()}
    labels = {split: [label for label, _ in images] for split, images in images_of_split.items()}
    _check_csv(where, path, labels["train"])
    if images_of_split.keys() != set(SPLITS):
        notes.append(_subfolder_note(where, used["train"], images_of_split["train"]))
    targets, names = kind.targets(where, labels, None)
    encoded = {
        split: ImageFiles(where, [file for _, file in images_of_split[split]])
        for split in images_of_split
    }
    return ImageSource(encoded, targets, names, tuple(filter(None, notes)))


def _subfolder_note(where: str, root: Path, images: Sequence[tuple[str, Path]]) -> str:
    """Return a warning if images that will be split lie in folders inside those of classes."""
    inner = [file.parent for _, file in images if len(file.relative_to(root).parts) > 2]
    if not inner:
        return ""
    return (
        f"{where}: {len(inner)} images lie in {counted(len(set(inner)), 'folder')} inside the "
        f"folders of classes, such as {inner[0].relative_to(root)}. They are split one by one: if "
        "such a folder holds one recording or one person, similar images are in the training and "
        "the test split, and accuracies are too high. Then make folders train, validation and "
        "test yourself."
    )


def _left_out_note(where: str, folder: Path) -> str:
    n = sum(map(is_image, files(where, folder)))
    return f"{where}: folder '{folder.name}' ({n} images) is no split and is left out." if n else ""


def _skip_outer_folders(where: str, path: Path) -> Path:
    """Return the innermost folder that holds everything and is not a class itself."""
    while len(folders := _folders(path)) == 1 and not _has_images(path):
        (only,) = folders
        if _has_images(only) or not _has_classes(where, only):
            break
        path = only
    return path


def _has_images(folder: Path) -> bool:
    return any(f.is_file() and is_image(f) and not is_hidden(f.name) for f in folder.iterdir())


def _has_classes(where: str, folder: Path) -> bool:
    """Return whether a folder has subfolders with images."""
    return any(any(map(is_image, files(where, f))) for f in _folders(folder))


def _split_folders(where: str, root: Path) -> Mapping[str, Path]:
    """Return the folders of splits by the name of the split; empty if they are classes.

    Names may share a prefix or suffix, such as ``seg_train`` and ``seg_test``. A folder ``train``
    with images directly in it is a class.
    """
    folders = {f.name: f for f in _folders(root)}
    exact = {name: f for name, f in folders.items() if split_of(name) in SPLITS}
    if any(split_of(name) == "train" for name in exact):
        is_class = not any(_has_classes(where, f) for f in exact.values())
        return {} if is_class and len(exact) == 1 else exact
    if exact and len(exact) == len(folders) and all(_has_classes(where, f) for f in exact.values()):
        return exact
    by_affixes: dict[tuple[str, str], dict[str, Path]] = {}
    for name, folder in folders.items():
        for separator in "_-":
            first, _, rest = name.partition(separator)
            start, _, last = name.rpartition(separator)
            if rest and split_of(first) in SPLITS:
                by_affixes.setdefault(("", rest), {})[first] = folder
            if start and split_of(last) in SPLITS:
                by_affixes.setdefault((start, ""), {})[last] = folder
    for group in by_affixes.values():
        splits = {split_of(name) for name in group}
        if "train" in splits and len(splits) > 1:
            return group
    return {}


def _images_by_class(where: str, folder: Path) -> list[tuple[str, Path]]:
    """Return class and path of each image of a split; names differ in more than outer spaces."""
    labelled_files = []
    subfolders: dict[str, set[str]] = {}
    for file in files(where, folder):
        if is_image(file):
            inside = file.relative_to(folder).parts
            if len(inside) == 1:
                raise DataError(
                    f"{where}: {file} has no class. Allowed: one folder per class, or "
                    "metadata.csv beside the images, with the columns file_name and label."
                )
            if any("\udc80" <= c <= "\udcff" for c in inside[0]):  # bytes of another encoding
                raise DataError(
                    f"{where}: the name of the folder {os.fsencode(inside[0])!r} is not UTF-8. "
                    "Rename the folder."
                )
            labelled_files.append((unicodedata.normalize("NFC", inside[0].strip()), file))
            subfolders.setdefault(inside[0], set()).add(inside[1] if len(inside) > 2 else "")
    empty = [f for f in _folders(folder) if f.name not in subfolders]
    if empty or not labelled_files:
        first = empty[0] if empty else folder
        raise no_images(f"{where}: folder {first}", files(where, first), "Remove it.")
    common = set.intersection(*subfolders.values()) - {""}
    if len(subfolders) > 1 and len(common) > 1:
        listed = ", ".join(f"'{name}'" for name in sorted(common)[:5])
        raise DataError(
            f"{where}: all folders in {folder} contain the folders {listed}. It is not clear which "
            "of them are classes. Allowed: SPLIT/CLASS/ and CLASS/."
        )
    return labelled_files


def _check_csv(where: str, path: Path, labels: Sequence[str]) -> None:
    """Refuse a single class beside a CSV file, which probably holds the labels."""
    if len(set(labels)) > 1:
        return
    for file in files(where, path):
        if file.suffix.lower() == ".csv":
            raise DataError(
                f"{where} holds one class only, '{labels[0]}', and {file.name} is not read. If it "
                "holds the labels, rename it to metadata.csv, beside the images and with the "
                "columns file_name and label."
            )


def _folders(path: Path) -> list[Path]:
    return sorted(f for f in path.iterdir() if f.is_dir() and not is_hidden(f.name))


def is_image(file: Path) -> bool:
    """Return whether the suffix of a file is that of an image that Pillow reads."""
    kind = Image.registered_extensions().get(file.suffix.lower())
    return kind in Image.OPEN and kind not in _NOT_DECODED


def is_metadata(file: Path) -> bool:
    """Return whether a file describes the images beside it."""
    return file.name.lower() in _METADATA
