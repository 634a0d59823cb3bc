"""Loads the test split of the data set of an export; needs torch."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas import tasks
from hwnas.core.errors import DataError
from hwnas.core.progress import NullProgress
from hwnas.core.schema import validate
from hwnas.export.proof_file import Proof
from hwnas.export.recomputation import same_values
from hwnas.tasks.base import Targets
from hwnas.training.data import DatasetConfig, ImageData, load_data

_SPLITS = ("train", "validation", "test")
Read = tuple[NDArray[np.float32], Targets]


def load(recorded: Proof, path: str | None) -> ImageData:
    """Read the data set that an export was made with, and return it with its splits.

    Args:
        recorded: The ``proof.json`` of the export.
        path: Path of the data set on this machine; ``None``: as in the proof.

    Raises:
        DataError: the data set is not found, cannot be read, or has another digest than in the
            proof.
        ConfigError: the data set has no path, but ``path`` is given.
    """
    dataset = recorded["dataset"]
    names = {field.name for field in fields(DatasetConfig)}
    known = {name: value for name, value in dataset.items() if name in names}
    config: DatasetConfig = validate(DatasetConfig, known, "dataset")
    if path is not None:
        config = replace(config, path=path)
    # Digests of images in memory and of encoded ones differ; the choice depends on the machine.
    for in_memory in dict.fromkeys([config.in_memory, True, False]):
        data = load_data(
            replace(config, in_memory=in_memory), dataset["max_resolution"], NullProgress()
        )
        if data.digest == dataset["digest"]:
            break
    if data.digest != dataset["digest"]:
        raise DataError(
            f"Data set '{config.path or config.hub_id or config.name}' is not that of the "
            "export: its images, targets or splits differ. Give the path of the right one: "
            "data=PATH."
        )
    return data


def contradictions(recorded: Proof, data: ImageData) -> list[str]:
    """Return a message per key of ``proof.json`` that does not match the data set.

    Compared are task, numbers of images, normalisation, classes and the constant answer.
    """
    dataset, task = recorded["dataset"], {**recorded["task"]}
    scored = data.with_metric(tasks.from_json(task).metric)
    expected_task = {name: value for name, value in scored.task.to_json().items() if name in task}
    pairs: dict[str, tuple[object, object]] = {
        "task": (task, expected_task),
        "dataset.images": (dataset["images"], {n: len(getattr(data, n)) for n in _SPLITS}),
        "dataset.normalisation": (
            dataset["normalisation"],
            {"mean": list(data.mean), "std": list(data.std)},
        ),
    }
    # Exports of earlier versions lack these.
    later = {"classes": scored.class_counts, "constant": scored.constant("test").to_json()}
    entries: Mapping[str, Any] = dataset
    pairs |= {f"dataset.{n}": (entries[n], value) for n, value in later.items() if n in entries}
    return [
        f"proof.json: '{key}' is not that of the data set"
        for key, (value, expected) in pairs.items()
        if not same_values(value, expected)
    ]


def batches(recorded: Proof, data: ImageData) -> Iterator[Read]:
    """Yield batches of the test split: normalised images ``(N, C, R, R)``, and their targets.

    Images are resized to the input of the exported network and rounded to uint8 before they are
    normalised.
    """
    resolution = recorded["model"]["input"][1]
    batches_ = data.batches(data.test, resolution, rounded=True)
    return ((images.numpy(), targets.numpy()) for images, targets in batches_)
