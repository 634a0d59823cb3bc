from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hwnas.core.progress import Progress
from hwnas.training import jobs


def test_rounds_of_tasks_share_what_a_process_has_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def again(_: Progress) -> str:
        made.append("common")
        return made[-1]

    def begin(again: Any) -> None:
        monkeypatch.setattr(jobs, "_context", again(None), raising=False)

    def pool(n: int, _: Any, begin: Any, given: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(n, initializer=begin, initargs=given)

    monkeypatch.setattr(jobs, "_start_worker", begin)
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", pool)
    with jobs.TaskProcesses(again, 1) as crew:
        for n in (2, 3):
            assert crew.run([len] * n, lambda: 0, lambda _: None) == [6] * n
        assert crew.run([len] * 3, lambda: 0, lambda _: None, late=lambda i: i > 0) == [6]
    assert made == ["common"]
