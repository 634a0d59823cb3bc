"""A full disk during a search: one line of error, and the search can be resumed."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from hwnas.__main__ import run
from tests.conftest import SHARED_WEIGHTS

SEARCH = (
    "search", "+target=npu", "search_space=tiny", "budget=none", "finish.epochs=0",
    "train.epochs=1", *SHARED_WEIGHTS, "study.workers=1", "run.supernets=nets", "n_trials=24",
)  # fmt: skip


@contextmanager
def _limited_databases(n_pages: int) -> Iterator[None]:
    """Limit database files to `n_pages` pages of 4 KiB."""

    def limit(connection: Any, record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={n_pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an uninterrupted search."""
    path = tmp_path_factory.mktemp("disk")
    with contextlib.chdir(path):
        assert run([*SEARCH, "run.dir=whole"]) == 0
    return path


@pytest.mark.slow
@pytest.mark.parametrize("n_pages", [34, 40])
def test_search_resumes_after_full_disk(
    n_pages: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    interrupted = Path(f"cut-{n_pages}")
    with _limited_databases(n_pages):
        assert run([*SEARCH, f"run.dir={interrupted}"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "disk" in error
    assert "Traceback" not in error
    assert run(["search", f"run.resume={interrupted}"]) == 0
    for name in ("front.csv", "candidates.parquet"):
        assert Path(interrupted, name).read_bytes() == Path("whole", name).read_bytes()
