"""The test images that an export holds, with what torch answers to them: ``images.npz``."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ProofError
from hwnas.core.safe_arrays import read_npz
from hwnas.core.safe_read import CorruptFileError
from hwnas.export.checks import TRAINED, Agreement, Floats, agreement
from hwnas.export.proof_file import Proof
from hwnas.tasks.base import Targets, Task

IMAGES = "images.npz"  #: pixels, targets and torch's outputs
_MOST = 2 << 30  # bytes of its arrays


def prepared(pixels: NDArray[np.uint8], mean: list[float], std: list[float]) -> Floats:
    """Return normalised images ``(N, C, R, R)`` of uint8 ones ``(N, R, R, C)``.

    The same arithmetic as ``ImageData.prepare``, so that both round alike.
    """
    shift, scale = (np.array(values, np.float32) * 255 for values in (mean, std))
    normalised = (pixels.astype(np.float32) - shift) / scale
    return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class ReferenceImages:
    """The images that an export holds."""

    pixels: NDArray[np.uint8]  #: ``(N, R, R, C)``
    targets: Targets
    expected: Floats  #: torch's outputs, ``(N, n_outputs)``
    expected_int8: Floats | None = None  #: of the network that was trained for int8, if one was

    def agreement(self, task: Task, found: Floats, dtype: str) -> Agreement:
        """Return how near an artefact that computes in ``dtype`` is to the network it is of."""
        if dtype == "int8" and self.expected_int8 is not None:
            return agreement(task, found, self.expected_int8, TRAINED)
        return agreement(task, found, self.expected)

    def packed(self) -> bytes:
        """Return them as the bytes of a ``.npz`` file; equal content gives equal bytes."""
        file, parts = io.BytesIO(), {k: v for k, v in vars(self).items() if v is not None}
        np.savez_compressed(file, **parts)
        return file.getvalue()


def read_kept(folder: Path, recorded: Proof) -> ReferenceImages:
    """Return the images of an export.

    Raises:
        ProofError: they cannot be read, or are not of the network of the proof.
    """
    try:
        names = ["pixels", "targets", "expected", _INT8]
        arrays = read_npz(folder / IMAGES, names, _MOST)
        kept = ReferenceImages(
            arrays["pixels"], arrays["targets"], arrays["expected"], arrays.get(_INT8)
        )
        _check(kept, recorded)
    except KeyError as error:
        raise ProofError(f"{folder / IMAGES} cannot be read: {error} is missing.") from None
    except (OSError, CorruptFileError) as error:
        raise ProofError(f"{folder / IMAGES} cannot be read: {error}.") from None
    return kept


_INT8 = "expected_int8"


def _check(kept: ReferenceImages, recorded: Proof) -> None:
    """Refuse arrays of other types or sizes than the network's.

    Raises:
        CorruptFileError: it says which.
    """
    c, h, w = recorded["model"]["input"]
    n, n_outputs = recorded["n_images"], recorded["model"]["operators"][-1]["op"]["out_shape"][0]
    wanted: dict[str, tuple[NDArray[Any], str, tuple[int, ...]]] = {
        "pixels": (kept.pixels, "uint8", (n, h, w, c))
    }
    answers = {"expected": kept.expected, _INT8: kept.expected_int8}
    wanted |= {k: (v, "float32", (n, n_outputs)) for k, v in answers.items() if v is not None}
    for name, (array, dtype, shape) in wanted.items():
        if array.dtype != dtype or array.shape != shape:
            raise CorruptFileError(
                f"'{name}' is {array.dtype} of shape {array.shape}; allowed: {dtype} of {shape}"
            )
        if not np.isfinite(array).all():
            raise CorruptFileError(f"'{name}' holds what is no number")
    if len(kept.targets) != n or kept.targets.dtype.kind not in "iuf":
        raise CorruptFileError(f"'targets' are not those of {n} images")
