"""Runs ``model.py`` of an export in a separate process.

The code of ``model.py`` may end its process, exit or hang. The caller then gets an error instead of
ending, too. This is no sandbox: the process has the rights of the user.

``torch.export`` programs (``.pt2``) would not make this process unnecessary: ``torch.export.load``
unpickles the weights that an archive marks as pickled, so that a changed file runs any code, too.
"""

import contextlib
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.core.processes import CleanSpawnContext

_BATCH = 256  # images of one request
_MAX_REASON = 300  # characters


@final
class IsolatedNetwork:
    """The network of ``model.py`` in another process."""

    def __init__(self, connection: Connection, n_outputs: int, limit_s: float):
        self._connection, self._n_outputs, self._limit_s = connection, n_outputs, limit_s
        self._is_loaded = False

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``.

        Raises:
            CompileError: the process ended, failed, was too slow or returned another shape.
        """
        parts = np.array_split(images, range(_BATCH, len(images), _BATCH))
        return np.concatenate([self._request(part) for part in parts])

    def _request(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        # Strides, too: torch takes grey images for channels-last by them, and rounds otherwise.
        images = np.ascontiguousarray(images, np.float32)
        try:
            if not self._is_loaded:
                self._answer()
                self._is_loaded = True
            self._connection.send((images.tobytes(), images.shape, images.strides))
            outputs = self._answer()
        except (EOFError, OSError):
            raise CompileError(
                f"its process ended without an answer, or gave none within {self._limit_s:g} s"
            ) from None
        shape = (len(images), self._n_outputs)
        if outputs is None or outputs.shape != shape:
            raise CompileError(f"it does not answer as {shape[0]} x {shape[1]} numbers")
        return outputs

    def _answer(self) -> NDArray[np.float32] | None:
        if not self._connection.poll(self._limit_s):
            raise EOFError
        outputs, reason = self._connection.recv()
        if reason:
            raise CompileError(reason)
        return None if outputs is None else np.asarray(outputs, np.float32)


@contextlib.contextmanager
def isolated_network(folder: Path, n_outputs: int, limit_s: float) -> Iterator[IsolatedNetwork]:
    """Start the process that loads ``model.py``, and end it on exit.

    Args:
        folder: The export.
        n_outputs: Outputs of the network.
        limit_s: Time limit of loading, and of each request of up to 256 images.
    """
    connection, remote = CleanSpawnContext().Pipe()
    process = CleanSpawnContext().Process(target=_serve, args=(remote, folder), daemon=True)
    process.start()
    remote.close()
    try:
        yield IsolatedNetwork(connection, n_outputs, limit_s)
    finally:
        process.kill()
        process.join()
        connection.close()


def _serve(connection: Connection, folder: Path) -> None:
    """Load the network and answer requests; runs in the other process."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        from hwnas.export.runtimes import TorchSession

        session = TorchSession(folder)
        connection.send((None, ""))
        while True:
            content, shape, strides = connection.recv()
            images = np.ndarray(shape, np.float32, bytearray(content), strides=strides)
            connection.send((session.run(images), ""))
    except EOFError:
        return
    except Exception as error:  # Python and torch raise their own
        kind = "" if isinstance(error, CompileError) else f"{type(error).__name__}: "
        connection.send((None, " ".join(f"{kind}{error}".split())[:_MAX_REASON]))
