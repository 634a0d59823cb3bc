"""The test split of the data set that an export was made on; needs torch."""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import DataError
from hwnas.core.progress import NullProgress
from hwnas.core.schema import validate
from hwnas.export.proof_file import Proof
from hwnas.tasks.base import Targets
from hwnas.training.data import DatasetConfig, load_data

Read = tuple[NDArray[np.float32], Targets]


def batches(recorded: Proof, path: str | None) -> Iterator[Read]:
    """Return normalised test images and their targets, in batches.

    Args:
        recorded: The proof.
        path: Where the data set is on this machine; default: as in the proof.

    Raises:
        DataError: it is not there, or another one is.
    """
    said = recorded["dataset"]
    names = {field.name for field in fields(DatasetConfig)}
    known = {name: value for name, value in said.items() if name in names}
    config: DatasetConfig = validate(DatasetConfig, known, "dataset")
    if path is not None:
        config = replace(config, path=path)
    # Images that are in memory and encoded ones have different digests, and which they are depends
    # on the machine.
    for in_memory in dict.fromkeys([config.in_memory, True, False]):
        data = load_data(
            replace(config, in_memory=in_memory), said["max_resolution"], NullProgress()
        )
        if data.digest == said["digest"]:
            break
    if data.digest != said["digest"]:
        raise DataError(
            f"Data set '{config.path or config.hub_id or config.name}' is not the one that the "
            "export was made on: its images, targets or splits differ."
        )
    resolution = recorded["model"]["input"][1]
    read = data.batches(data.test, resolution, rounded=True)
    return ((images.numpy(), targets.numpy()) for images, targets in read)
