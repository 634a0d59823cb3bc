"""Databases that studies are kept in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import create_engine, event

from hwnas import database
from hwnas.searching.damage import check_whole, readable

SHARED = "digests"  #: attribute of studies that processes share: what decides the outcome
SQLITE: dict[str, Any] = {"connect_args": {"timeout": 60}}  #: of engines


def open_file(path: Path) -> RDBStorage:
    """Return the storage in a file of SQLite.

    Raises:
        sqlite3.Error: it is damaged.
    """
    check_whole(path)
    storage = RDBStorage(database.of_file(path), engine_kwargs=SQLITE)
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


def check(url: str, options: Mapping[str, Any]) -> None:
    """Open as many connections as a worker needs; Optuna would leave them open if one fails."""
    engine = create_engine(url, **options)
    try:
        with engine.connect(), engine.connect():
            pass
    finally:
        engine.dispose()
