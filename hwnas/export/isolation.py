"""Runs ``model.py`` of an export in a process of its own, which has to answer.

Answers come over a pipe: a token that came with the question, and outputs as plain bytes. A process
that ends, exits or hangs has not answered.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError

_TOKEN = 16  # bytes
_BATCH = 256  # images of one question
_LONGEST = 300  # characters of a reason
_CODE = "import sys; from hwnas.export.isolation import serve; serve(*sys.argv[1:])"


@final
class IsolatedNetwork:
    """The network of ``model.py``, loaded as a user would, in another process."""

    def __init__(self, folder: Path, n_outputs: int, limit_s: float):
        """Start the process; whether it loads the network, its first answer says.

        Args:
            folder: Of the export.
            n_outputs: Of the network.
            limit_s: How long any answer may take.

        """
        self._n_outputs, self._limit_s = n_outputs, limit_s
        ours, theirs = os.pipe(), os.pipe()
        # This interpreter with the paths it has: the folder of the export is not among them.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-c", _CODE, str(folder), f"{ours[0]}", f"{theirs[1]}"],
            start_new_session=True,
            pass_fds=(ours[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (ours[0], theirs[1]):
            os.close(end)
        self._questions = Connection(ours[1], readable=False)
        self._answers = Connection(theirs[0], writable=False)

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``.

        Raises:
            CompileError: there was no answer, or not one to this question.
        """
        parts = np.array_split(images, range(_BATCH, len(images), _BATCH))
        return np.concatenate([self._answer(part) for part in parts])

    def _answer(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        images = np.ascontiguousarray(images, np.float32)
        # Strides, too: torch takes grey images for channels-last by them, and rounds otherwise.
        layout = json.dumps([images.shape, images.strides]).encode()
        token, size = secrets.token_bytes(_TOKEN), len(images) * self._n_outputs * 4
        late = threading.Timer(self._limit_s, self._kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and may have said why
                self._questions.send_bytes(token + layout)
                self._questions.send_bytes(images.tobytes())
            found = self._answers.recv_bytes(_TOKEN + max(size, _LONGEST * 4))
        except (EOFError, OSError):  # a longer answer is an OSError, too
            raise CompileError(
                f"its process ended without an answer, or gave none within {self._limit_s:g} s"
            ) from None
        finally:
            late.cancel()
        if not found.startswith(token):
            raise CompileError(found.decode(errors="replace")[:_LONGEST])
        if len(found) != _TOKEN + size:
            raise CompileError(f"it does not answer as {len(images)} x {self._n_outputs} numbers")
        return np.frombuffer(found, np.float32, offset=_TOKEN).reshape(len(images), -1)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and what it started."""
        self._kill()
        self._process.wait()
        self._questions.close()
        self._answers.close()


def serve(folder: str, asked: str, answered: str) -> None:
    """Answer questions until there are none: in the other process.

    Args:
        folder: Of the export.
        asked: The descriptor by which questions come.
        answered: That of answers.
    """
    questions = Connection(int(asked), writable=False)
    answers = Connection(int(answered), readable=False)
    try:
        from hwnas.export.runtimes import TorchSession

        session = TorchSession(Path(folder))
        while True:
            question = questions.recv_bytes()
            token, (shape, strides) = question[:_TOKEN], json.loads(question[_TOKEN:])
            read = bytearray(questions.recv_bytes())
            images = np.ndarray(shape, np.float32, read, strides=strides)
            answers.send_bytes(token + np.ascontiguousarray(session.run(images)).tobytes())
    except EOFError:
        return
    except Exception as error:  # Python and torch raise their own
        whose = "" if isinstance(error, CompileError) else f"{type(error).__name__}: "
        reason = " ".join(f"{whose}{error}".split())
        answers.send_bytes(reason[:_LONGEST].encode())
