"""Metrics are looked for once in a process; tests that bring some look again."""

import sys
from collections.abc import Callable, Iterator

import pytest

from hwnas.tasks.metrics import registry


@pytest.fixture
def fresh_metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Give what has metrics looked for again; the packages of a test are gone after it."""

    def look_again() -> None:
        sys.modules.pop("own_metric", None)
        registry.all_metrics.cache_clear()

    yield look_again
    monkeypatch.undo()
    look_again()
