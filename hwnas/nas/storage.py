"""A database that several processes use, and that may be away for a while."""

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
from hwnas.core.errors import ConfigError, RunError, cause_chain
from hwnas.nas.options import StudyConfig
from hwnas.nas.trial_attributes import trial_id
from hwnas.nas.trials import ALIVE

# Studies that are damaged, or are none of ours.

_FULL = ("disk is full", "No space left", "readonly database")  # nothing is damaged

#: What Optuna keeps studies in, as far as it is read again.
_TABLES = (
    "studies", "study_directions", "study_user_attributes", "trials", "trial_params",
    "trial_values", "trial_user_attributes", "trial_system_attributes",
)  # fmt: skip


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Refuse a study that cannot be read, or does not hold what a search keeps in one.

    Args:
        where: It is, in messages.

    Raises:
        RunError: it is so.
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
        TypeError,
        ValueError,
    ) as error:  # of Optuna and of what reads attributes; KeyError: there is no such study in it
        chain = list(cause_chain(error))
        if any(words in str(cause) for cause in chain for words in _FULL):
            raise
        (reason, *_) = str(chain[-1]).splitlines() or [type(error).__name__]
        raise RunError(
            f"{where} cannot be read or written, or holds nothing yet: {reason}"
        ) from None


def check_intact(path: Path) -> None:
    """Refuse a file of SQLite that is damaged, without leaving a log beside it.

    Optuna would make a table anew that is missing, and go on without what was in it.

    Raises:
        sqlite3.Error: it is.
    """
    if not path.exists() or path.with_name(f"{path.name}-wal").exists():
        return
    address = f"file:{quote(str(path.absolute()))}?immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        ((found,), *_) = connection.execute("PRAGMA quick_check(1)")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    if tables and (missing := [name for name in _TABLES if name not in tables]):
        raise sqlite3.DatabaseError(f"no such table: {', '.join(missing)}")


# Ends connections to a database that takes a question and never answers: drivers wait for ever.

_LEAST_S = 2.0  #: an answer may take so long, however impatient one is


@final
class QueryWatchdog:
    """Knows the connections of an engine, and ends them where an answer takes too long.

    What waits for the answer is then told by its driver that the connection is lost. Connections
    without a socket of their own, as those of SQLite, are let be.
    """

    def __init__(self, reconnect_timeout_s: float):
        self._reconnect_timeout_s = reconnect_timeout_s
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def options(self) -> dict[str, Any]:
        """Options of the engine whose connections are watched."""
        return {"pool_events": [(self._opened, "connect")]}

    @contextmanager
    def answering(self, least_s: float = _LEAST_S) -> Iterator[None]:
        """Give the database time to answer what is asked meanwhile, at least so many seconds."""
        late = threading.Timer(max(least_s, self._reconnect_timeout_s), self._end)
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


# Databases that studies are kept in.

SHARED = "digests"  #: attribute of studies that processes share: what decides the outcome
SQLITE: dict[str, Any] = {"connect_args": {"timeout": 60}}  #: of engines


def open_file(path: Path) -> RDBStorage:
    """Return the storage in a file of SQLite.

    Raises:
        sqlite3.Error: it is damaged.
    """
    check_intact(path)
    storage = RDBStorage(database.sqlite_url(path), engine_kwargs=SQLITE)
    settle_sqlite(storage)
    return storage


def is_shared(path: Path) -> bool:
    """Return whether several processes worked on the study in a file."""
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
    """Have SQLite log ahead: a commit survives a kill without waiting for the disk each time."""

    @event.listens_for(storage.engine, "connect")
    def configure(connection: Any, record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()  # connections opened before the listener was there


def lock_at_begin(storage: RDBStorage) -> None:
    """Have SQLite lock for writing when a transaction begins: later, others may have written."""

    @event.listens_for(storage.engine, "connect")
    def leave_transactions(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(storage.engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()


def check_connections(url: str, options: Mapping[str, Any]) -> None:
    """Open as many connections as a worker needs; Optuna would leave them open if one fails."""
    engine = create_engine(url, **options)
    try:
        with engine.connect(), engine.connect():
            pass
    finally:
        engine.dispose()


T = TypeVar("T")
Retry = Callable[[optuna.Study, FrozenTrial], None]  #: queues a trial of a dead worker again

_OPENING_S = 30.0  #: many questions, and one waits for others that make the same tables
AWAY = (StorageInternalError, SQLAlchemyError)  #: what a database that is away raises


@final
class DatabaseRetry:
    """Asks again, for a while, what a database does not answer.

    Args:
        url: Of the database.
        config: How long it is waited for, and after which silence a worker counts as dead.
        retry: Queues a trial of a dead worker again.

    Raises:
        ConfigError: there is no driver for such a database.
        RunError: it does not answer.
    """

    def __init__(self, url: str, config: StudyConfig, retry: Retry):
        self._config, self._watch = config, QueryWatchdog(config.reconnect_timeout_s)
        self.where = f"study.storage={database.redact(url)}"  #: it is, in messages
        self.storage = self._opened(url, retry)

    @property
    def beat_s(self) -> int:
        """Seconds between two signs of life of a worker."""
        return max(1, self._config.heartbeat_timeout_s // 4)

    def close(self) -> None:
        """Let go of the database."""
        self.storage.engine.dispose()

    def beat(self, trial: Trial) -> None:
        """Give a sign of life of a trial."""
        with self._watch.answering():
            self.storage.record_heartbeat(trial_id(trial))
            # Optuna's own is by the clock of the database.
            self.storage.set_trial_system_attr(trial_id(trial), ALIVE, str(datetime.now()))

    def patiently(self, do: Callable[[], T]) -> T:
        """Return what something returns, trying again for a while if the database is away."""
        until = time.monotonic() + self._config.reconnect_timeout_s
        pause = 0.2
        while True:
            try:
                with self._watch.answering():
                    return do()
            except AWAY as error:
                if time.monotonic() > until:
                    raise self._gone(error) from None
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _gone(self, error: Exception) -> RunError:
        cause = error.__cause__ or error
        words = str(getattr(cause, "orig", cause)).strip().partition("\n")[0]
        if "too many" in words or "remaining connection slots" in words:
            cure = "Start fewer workers, or let it take more (PostgreSQL: max_connections)"
        else:
            cure = "When it answers again, the same command goes on"
        return RunError(f"{self.where} does not answer: {words}. {cure}; nothing is lost.")

    def _opened(self, url: str, retry: Retry) -> RDBStorage:
        sqlite = make_url(url).get_backend_name() == "sqlite"
        # Two connections: one for signs of life. They are asked before use: they may have ended.
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
                    f"{self.where}: there is no driver for it here. For PostgreSQL: "
                    "pip install 'hwnas[postgresql]'."
                ) from None
            except AWAY as error:
                # Workers that start together make the same tables; one of them succeeds.
                words = str(error.__cause__ or error).lower()
                if attempt == 4 or not ("already exists" in words or "unique" in words):
                    raise self._gone(error) from None
                time.sleep(0.2 * (attempt + 1))
        if sqlite:
            settle_sqlite(storage)
            lock_at_begin(storage)
        return storage
