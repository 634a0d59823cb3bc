"""Processes of our own: fresh interpreters that know nothing of the program that starts them.

Threads and locks don't survive a fork, and ``multiprocessing``'s own fresh interpreters import the
main module again: a user's script without ``if __name__ == "__main__":`` would run from its start.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import final

_MAIN = "__main__"
_hidden = threading.RLock()


@final
class _Fresh(SpawnProcess):
    """A process whose target and arguments are of modules that it imports, not of the main one."""

    def start(self) -> None:
        with _without_main():
            super().start()


@final
class Context(SpawnContext):
    """What ``multiprocessing`` calls a context: where processes, queues and pipes come from."""

    Process = _Fresh


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module: what tells the other process which it is looks it up here."""
    with _hidden:
        before, sys.modules[_MAIN] = sys.modules[_MAIN], ModuleType(_MAIN)
        try:
            yield
        finally:
            sys.modules[_MAIN] = before
