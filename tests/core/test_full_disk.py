"""A disk that fills up during a search: one line, and nothing is lost."""

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
def _full(n_pages: int) -> Iterator[None]:
    """Have databases in files take no more than so many pages of 4 KiB meanwhile."""

    def limit(connection: Any, record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={n_pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a search that nothing disturbed."""
    found = tmp_path_factory.mktemp("disk")
    with contextlib.chdir(found):
        assert run([*SEARCH, "run.dir=whole"]) == 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize("n_pages", [34, 40])
def test_search_goes_on_after_a_full_disk(
    n_pages: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    cut = Path(f"cut-{n_pages}")
    with _full(n_pages):
        assert run([*SEARCH, f"run.dir={cut}"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "disk" in error
    assert "Traceback" not in error
    assert run(["search", f"run.resume={cut}"]) == 0
    for name in ("front.csv", "candidates.parquet"):
        assert Path(cut, name).read_bytes() == Path("whole", name).read_bytes()
