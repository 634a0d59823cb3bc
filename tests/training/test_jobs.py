from collections.abc import Callable
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

    def begin(_: int, again: Any) -> None:
        monkeypatch.setattr(jobs, "_context", again(None), raising=False)

    def pool(n: int, _: Any, begin: Any, given: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(n, initializer=begin, initargs=given)

    monkeypatch.setattr(jobs, "_start_worker", begin)
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", pool)
    results, asked = list[int](), 0
    with jobs.TaskProcesses(again, 1) as crew:

        def run(tasks: list[Callable[[Any], int]]) -> None:
            waiting = iter(tasks)

            def next_task() -> Callable[[Any], int] | None:
                nonlocal asked
                asked += 1
                return next(waiting, None)

            crew.run(next_task, results.append, lambda: len(results), lambda _: None)

        for n in (2, 3):
            run([len] * n)
        with pytest.raises(ZeroDivisionError):
            run([len, divide, len])
    assert results == [6] * 6
    assert asked == 3 + 4 + 2, "no task is started after an error"
    assert made == ["common"]


def divide(_: object) -> int:
    return 1 // 0
