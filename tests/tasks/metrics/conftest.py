"""Metrics are loaded once per process; tests that install one reload them."""

import sys
from collections.abc import Callable, Iterator

import pytest

from hwnas.tasks.metrics import registry


@pytest.fixture
def fresh_metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function that reloads metrics; the packages of a test are removed after it."""

    def reload_metrics() -> None:
        sys.modules.pop("own_metric", None)
        registry.all_metrics.cache_clear()

    yield reload_metrics
    monkeypatch.undo()
    reload_metrics()
