"""Ends connections to a database that takes a question and never answers: drivers wait for ever."""

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

_LEAST_S = 2.0  #: an answer may take so long, however impatient one is


@final
class Watch:
    """Knows the connections of an engine, and ends them where an answer takes too long.

    What waits for the answer is then told by its driver that the connection is lost. Connections
    without a socket of their own, as those of SQLite, are let be.
    """

    def __init__(self, patience_s: float):
        self._patience_s = patience_s
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def options(self) -> dict[str, Any]:
        """Options of the engine whose connections are watched."""
        return {"pool_events": [(self._opened, "connect")]}

    @contextmanager
    def answering(self, least_s: float = _LEAST_S) -> Iterator[None]:
        """Give the database time to answer what is asked meanwhile, at least so many seconds."""
        late = threading.Timer(max(least_s, self._patience_s), self._end)
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()

    def _opened(self, connection: Any, record: object) -> None:
        if hasattr(connection, "fileno"):
            self._open.add(connection)

    def _end(self) -> None:
        for connection in list(self._open):
            with (
                contextlib.suppress(Exception),  # closed already, in the words of its driver
                socket.socket(fileno=os.dup(connection.fileno())) as same,
            ):
                same.shutdown(socket.SHUT_RDWR)
