"""One command trains, others that want the same wait for it."""

import contextlib
import time
from collections.abc import Iterator

from hwnas.errors import LockedError
from hwnas.progress import Progress
from hwnas.results import RunFolder
from hwnas.training import parallel
from hwnas.training.checkpoint import Checkpoint

_POLL_S = 1.0  # between looks at what another process trains


@contextlib.contextmanager
def sole(checkpoint: Checkpoint, n_steps: int, progress: Progress) -> Iterator[None]:
    """Have no other command train the same meanwhile; wait for one that does."""
    processes = parallel.current()
    with contextlib.ExitStack() as stack:
        if processes.leads and checkpoint.n_steps() < n_steps:
            stack.callback(_locked(checkpoint, n_steps, progress).close)
        processes.meet()
        yield
        processes.meet()


def _locked(checkpoint: Checkpoint, n_steps: int, progress: Progress) -> RunFolder:
    """Return the folder of a checkpoint, locked; while another process trains it, wait."""
    folder = RunFolder(checkpoint.path.parent)
    try:
        folder.create()
    except LockedError:
        shown = checkpoint.n_steps()
        with progress.phase("Wait for supernet", n_steps, shown) as advance:
            while True:
                time.sleep(_POLL_S)
                advance(checkpoint.n_steps() - shown)
                shown = checkpoint.n_steps()
                try:
                    folder.create()
                    break
                except LockedError:
                    continue
    return folder


def waited(folder: RunFolder, progress: Progress) -> RunFolder:
    """Return a folder, locked; while another process works in it, wait."""
    with contextlib.suppress(LockedError):
        folder.create()
        return folder
    with progress.phase("Wait for answers", 1):
        while True:
            time.sleep(_POLL_S)
            with contextlib.suppress(LockedError):
                folder.create()
                return folder
