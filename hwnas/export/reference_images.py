"""The test images of an export with the outputs of torch: ``images.npz``."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ProofError, short_reason
from hwnas.core.safe_read import CorruptFileError, read_npz
from hwnas.export.checks import TRAINED, Agreement, Floats, agreement
from hwnas.export.proof_file import Proof
from hwnas.tasks.base import Targets, Task

IMAGES = "images.npz"  #: pixels, targets and torch's outputs
_MAX_BYTES = 2 << 30  # of the arrays


def prepared(pixels: NDArray[np.uint8], mean: list[float], std: list[float]) -> Floats:
    """Return uint8 images ``(N, R, R, C)`` normalised, as float32 ``(N, C, R, R)``.

    ``mean`` and ``std`` have a value per channel, as fractions of 255. The arithmetic is that of
    ``ImageData.prepare``, so that both round in the same way.
    """
    shift, scale = (np.array(values, np.float32) * 255 for values in (mean, std))
    normalised = (pixels.astype(np.float32) - shift) / scale
    return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class ReferenceImages:
    """The test images of an export, with the outputs of torch."""

    pixels: NDArray[np.uint8]  #: ``(N, R, R, C)``
    targets: Targets  #: classes ``(N,)``, or values ``(N, n)``
    expected: Floats  #: outputs of torch in float32 ``(N, n_outputs)``
    #: outputs of torch's simulation of int8 ``(N, n_outputs)``; ``None`` without int8 training
    expected_int8: Floats | None = None

    def agreement(self, task: Task, outputs: Floats, dtype: str) -> Agreement:
        """Return the difference between outputs ``(N, n_outputs)`` of an artefact and torch's.

        ``dtype`` is the type in which the artefact computes. Torch's outputs are ``expected_int8``
        for ``int8``, if there are any; else ``expected``.
        """
        if dtype == "int8" and self.expected_int8 is not None:
            return agreement(task, outputs, self.expected_int8, TRAINED)
        return agreement(task, outputs, self.expected)

    def packed(self) -> bytes:
        """Return the content of ``images.npz``; equal images give equal bytes."""
        file, parts = io.BytesIO(), {k: v for k, v in vars(self).items() if v is not None}
        np.savez_compressed(file, **parts)
        return file.getvalue()


def read_reference_images(folder: Path, recorded: Proof) -> ReferenceImages:
    """Return the images and outputs in ``images.npz`` of an export.

    Raises:
        ProofError: the file cannot be read, an array is missing or does not fit the network of the
            proof, or outputs are not finite.
    """
    try:
        names = ["pixels", "targets", "expected", _INT8]
        arrays = read_npz(folder / IMAGES, names, _MAX_BYTES)
        images = ReferenceImages(
            arrays["pixels"],
            arrays["targets"],
            arrays["expected"],
            arrays.get(_INT8),
        )
        _check(images, recorded)
    except KeyError as error:
        raise ProofError(
            f"{folder / IMAGES} cannot be read: array {error} is missing. {_REPAIR}"
        ) from None
    except (OSError, CorruptFileError) as error:
        reason = short_reason(error)
        raise ProofError(f"{folder / IMAGES} cannot be read: {reason}. {_REPAIR}") from None
    return images


_INT8 = "expected_int8"
_REPAIR = "It was changed or damaged: restore it, or export the network again."


def _check(images: ReferenceImages, recorded: Proof) -> None:
    """Check the types and shapes of the arrays.

    Raises:
        CorruptFileError: an array does not fit the network.
    """
    c, h, w = recorded["model"]["input"]
    n, n_outputs = recorded["n_images"], recorded["model"]["operators"][-1]["op"]["out_shape"][0]
    expected: dict[str, tuple[NDArray[Any], str, tuple[int, ...]]] = {
        "pixels": (images.pixels, "uint8", (n, h, w, c))
    }
    outputs = {"expected": images.expected, _INT8: images.expected_int8}
    expected |= {k: (v, "float32", (n, n_outputs)) for k, v in outputs.items() if v is not None}
    for name, (array, dtype, shape) in expected.items():
        if array.dtype != dtype or array.shape != shape:
            raise CorruptFileError(
                f"'{name}' is {array.dtype} of shape {array.shape}; allowed: {dtype} of {shape}"
            )
        if not np.isfinite(array).all():
            raise CorruptFileError(f"'{name}' holds NaN or infinite values")
    if len(images.targets) != n or images.targets.dtype.kind not in "iuf":
        raise CorruptFileError(
            f"'targets' is {images.targets.dtype} of length {len(images.targets)}; allowed: "
            f"numbers of length {n}"
        )
