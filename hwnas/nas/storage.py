"""Databases of studies, with retries while a database is unavailable."""

import contextlib
import os
import socket
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, final
from urllib.parse import quote

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial
from sqlalchemy import create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from hwnas.core import database
from hwnas.core.errors import ConfigError, RunError, SpaceError, cause_chain
from hwnas.nas.options import StudyConfig
from hwnas.nas.trial_attributes import trial_id
from hwnas.nas.trials import ALIVE

# Detection of invalid studies.

_FULL = ("disk is full", "No space left", "readonly database")  # the study itself is intact

#: Tables of Optuna that are read back.
_TABLES = (
    "studies", "study_directions", "study_user_attributes", "trials", "trial_params",
    "trial_values", "trial_user_attributes", "trial_system_attributes",
)  # fmt: skip


@contextmanager
def readable(where: str, *, writes: bool = True) -> Iterator[None]:
    """Convert errors within the context to one about an unreadable or empty study.

    Args:
        where: Location of the study, for messages.
        writes: Whether the study may be written: errors of a full disk or a read-only database are
            not converted then.

    Raises:
        RunError: the study cannot be read or written, or does not exist.
    """
    try:
        yield
    except (
        SQLAlchemyError,
        StorageInternalError,
        sqlite3.Error,
        ImportError,
        AssertionError,
        AttributeError,
        LookupError,
        SpaceError,
        TypeError,
        ValueError,
    ) as error:  # of Optuna and of reading attributes; KeyError: no such study
        chain = list(cause_chain(error))
        if writes and any(text in str(cause) for cause in chain for text in _FULL):
            raise
        (reason, *_) = str(chain[-1]).splitlines() or [type(error).__name__]
        raise RunError(
            f"{where} cannot be read or written, or holds nothing yet: {reason.rstrip('.')}. Check "
            "that it exists, is not damaged, and that its search has started."
        ) from None


def check_intact(path: Path) -> None:
    """Check that an SQLite file is intact, without creating a log file.

    Optuna would create a missing table again, without its content. A missing file passes, and one
    that has a log: a process may be writing it.

    Raises:
        sqlite3.Error: the file is damaged.
    """
    if not path.exists() or path.with_name(f"{path.name}-wal").exists():
        return
    address = f"file:{quote(str(path.absolute()))}?immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        ((result,), *_) = connection.execute("PRAGMA quick_check(1)")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if result != "ok":
        raise sqlite3.DatabaseError(result)
    if tables and (missing := [name for name in _TABLES if name not in tables]):
        raise sqlite3.DatabaseError(f"no such table: {', '.join(missing)}")


# Timeouts of queries: drivers wait forever for a database that does not answer.

_LEAST_S = 10.0  #: minimum timeout of a query: on a busy machine one takes seconds


@final
class QueryWatchdog:
    """Closes the connections of an engine if a query takes too long.

    The driver then raises an error for the lost connection. Connections without a socket, such as
    those of SQLite, are not watched.
    """

    def __init__(self, reconnect_timeout_s: float):
        self._reconnect_timeout_s = reconnect_timeout_s
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``sqlalchemy.create_engine`` for an engine to watch."""
        return {"pool_events": [(self._add_connection, "connect")]}

    @contextmanager
    def answering(self, least_s: float = _LEAST_S) -> Iterator[None]:
        """Close connections if the context takes longer than both timeouts, in seconds.

        These are ``reconnect_timeout_s`` of the watchdog and ``least_s``.
        """
        late = threading.Timer(max(least_s, self._reconnect_timeout_s), self._end)
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()

    def _add_connection(self, connection: Any, record: object) -> None:
        if hasattr(connection, "fileno"):
            self._open.add(connection)

    def _end(self) -> None:
        for connection in list(self._open):
            with (
                contextlib.suppress(Exception),  # closed already; the error depends on the driver
                socket.socket(fileno=os.dup(connection.fileno())) as same,
            ):
                same.shutdown(socket.SHUT_RDWR)


# Databases of studies.

SHARED = "digests"  #: attribute of shared studies: digests of the settings that determine results
SQLITE: dict[str, Any] = {"connect_args": {"timeout": 60}}  #: engine options


def open_file(path: Path) -> RDBStorage:
    """Return the storage in an SQLite file, with write-ahead logging; create it if missing.

    Raises:
        sqlite3.Error: the file is damaged.
    """
    check_intact(path)
    storage = RDBStorage(database.sqlite_url(path), engine_kwargs=SQLITE)
    settle_sqlite(storage)
    return storage


def is_shared(path: Path) -> bool:
    """Return whether the study in a file was created for several processes; False if missing.

    Raises:
        RunError: the file is damaged.
    """
    if not path.exists():
        return False
    with readable(str(path)):
        storage = open_file(path)
        try:
            summaries = optuna.get_all_study_summaries(storage)
            return any(SHARED in study.user_attrs for study in summaries)
        finally:
            storage.engine.dispose()


def settle_sqlite(storage: RDBStorage) -> None:
    """Turn on write-ahead logging: a commit survives a kill without a disk sync each time."""

    @event.listens_for(storage.engine, "connect")
    def configure(connection: Any, record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()  # connections opened before the listener was added


def lock_at_begin(storage: RDBStorage) -> None:
    """Lock SQLite for writing at the start of transactions, before other processes write."""

    @event.listens_for(storage.engine, "connect")
    def leave_transactions(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(storage.engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()


def check_connections(url: str, options: Mapping[str, Any]) -> None:
    """Check that a worker's two connections can be opened, and close them.

    Optuna would leave them open on errors.

    Raises:
        ImportError: the database's driver is not installed.
        SQLAlchemyError: the database refuses a connection, or the URL is invalid.
    """
    engine = create_engine(url, **options)
    try:
        with engine.connect(), engine.connect():
            pass
    finally:
        engine.dispose()


T = TypeVar("T")
Retry = Callable[[optuna.Study, FrozenTrial], None]  #: queues a trial of a dead worker again

_OPENING_S = (
    30.0  #: timeout for opening: many queries, and other workers may create the same tables
)
AWAY = (StorageInternalError, SQLAlchemyError)  #: errors of an unavailable database


@final
class DatabaseRetry:
    """Retries operations while a database is unavailable.

    Args:
        url: URL of the database.
        config: Timeouts of reconnecting and of heartbeats.
        retry: Queues a trial of a dead worker again.

    Raises:
        ConfigError: no driver is installed for the database.
        RunError: the database does not answer.
    """

    def __init__(self, url: str, config: StudyConfig, retry: Retry):
        self._config, self._watch = config, QueryWatchdog(config.reconnect_timeout_s)
        self.where = f"study.storage={database.redact(url)}"  #: location in messages
        self.storage = self._open_storage(url, retry)

    @property
    def beat_s(self) -> int:
        """Seconds between two heartbeats of a worker."""
        return max(1, self._config.heartbeat_timeout_s // 4)

    def close(self) -> None:
        """Close the connections."""
        self.storage.engine.dispose()

    def beat(self, trial: Trial) -> None:
        """Send a heartbeat of a trial, once; errors of the database are raised."""
        with self._watch.answering():
            self.storage.record_heartbeat(trial_id(trial))
            # Optuna's heartbeat uses the clock of the database.
            self.storage.set_trial_system_attr(trial_id(trial), ALIVE, str(datetime.now()))

    def patiently(self, do: Callable[[], T]) -> T:
        """Return the result of ``do``; retry it for ``reconnect_timeout_s`` if the database fails.

        Raises:
            RunError: the database does not answer for that time.
        """
        until = time.monotonic() + self._config.reconnect_timeout_s
        pause = 0.2
        while True:
            try:
                with self._watch.answering():
                    return do()
            except AWAY as error:
                if time.monotonic() > until:
                    raise self._unavailable_error(error) from None
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _unavailable_error(self, error: Exception) -> RunError:
        cause = error.__cause__ or error
        reason = str(getattr(cause, "orig", cause)).strip().partition("\n")[0].rstrip(".")
        reason = reason or type(cause).__name__
        if "too many" in reason or "remaining connection slots" in reason:
            advice = "Start fewer workers, or raise max_connections of the PostgreSQL server"
        else:
            advice = (
                "Check the URL and the server, then repeat the command: it continues the search"
            )
        return RunError(
            f"{self.where} does not answer: {reason}. {advice}. No finished trial is lost."
        )

    def _open_storage(self, url: str, retry: Retry) -> RDBStorage:
        sqlite = make_url(url).get_backend_name() == "sqlite"
        # Two connections: one for heartbeats. They are tested before use: they may be closed.
        pool = {"pool_pre_ping": True, "pool_size": 2, "max_overflow": 0}
        pool |= (
            database.connect_options(url, self._config.reconnect_timeout_s) | self._watch.options
        )
        options = SQLITE if sqlite else pool
        for attempt in range(5):
            try:
                with warnings.catch_warnings(), self._watch.answering(_OPENING_S):
                    check_connections(url, options)
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    storage = RDBStorage(
                        url,
                        engine_kwargs=options,
                        heartbeat_interval=self.beat_s,
                        grace_period=self._config.heartbeat_timeout_s,
                        heartbeat_stale_trial_callback=retry,
                    )
                break
            except (ImportError, NoSuchModuleError, ArgumentError):
                raise ConfigError(
                    f"{self.where}: no driver for this database is installed. For PostgreSQL: "
                    "pip install 'hwnas[postgresql]'."
                ) from None
            except AWAY as error:
                # Workers that start together create the same tables; one of them succeeds.
                reason = str(error.__cause__ or error).lower()
                if attempt == 4 or not ("already exists" in reason or "unique" in reason):
                    raise self._unavailable_error(error) from None
                time.sleep(0.2 * (attempt + 1))
        if sqlite:
            settle_sqlite(storage)
            lock_at_begin(storage)
        return storage
