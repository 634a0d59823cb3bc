"""A database that several processes use, and that may be away for a while."""

import time
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar, final

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from hwnas import database
from hwnas.errors import ConfigError, RunError
from hwnas.searching.options import StudyConfig
from hwnas.searching.storage import SQLITE, check, lock_at_begin, settle_sqlite
from hwnas.searching.trials import ALIVE
from hwnas.searching.unofficial import identity
from hwnas.searching.watch import Watch

T = TypeVar("T")
Retry = Callable[[optuna.Study, FrozenTrial], None]  #: queues a trial of a dead worker again

_OPENING_S = 30.0  #: many questions, and one waits for others that make the same tables
AWAY = (StorageInternalError, SQLAlchemyError)  #: what a database that is away raises


@final
class Connection:
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
        self._config, self._watch = config, Watch(config.patience_s)
        self.where = f"study.storage={database.public(url)}"  #: it is, in messages
        self.storage = self._opened(url, retry)

    @property
    def beat_s(self) -> int:
        """Seconds between two signs of life of a worker."""
        return max(1, self._config.grace_s // 4)

    def close(self) -> None:
        """Let go of the database."""
        self.storage.engine.dispose()

    def beat(self, trial: Trial) -> None:
        """Give a sign of life of a trial."""
        with self._watch.answering():
            self.storage.record_heartbeat(identity(trial))
            # Optuna's own is by the clock of the database.
            self.storage.set_trial_system_attr(identity(trial), ALIVE, str(datetime.now()))

    def patiently(self, do: Callable[[], T]) -> T:
        """Return what something returns, trying again for a while if the database is away."""
        until = time.monotonic() + self._config.patience_s
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
        pool |= database.waiting(url, self._config.patience_s) | self._watch.options
        options = SQLITE if sqlite else pool
        for attempt in range(5):
            try:
                with warnings.catch_warnings(), self._watch.answering(_OPENING_S):
                    check(url, options)
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    storage = RDBStorage(
                        url,
                        engine_kwargs=options,
                        heartbeat_interval=self.beat_s,
                        grace_period=self._config.grace_s,
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
