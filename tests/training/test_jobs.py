from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hwnas.core.progress import Progress
from hwnas.training import jobs


def test_rounds_of_tasks_share_context_of_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts: list[str] = []

    def make_context(_: Progress) -> str:
        contexts.append("common")
        return contexts[-1]

    def begin(_: int, make_context: Any) -> None:
        monkeypatch.setattr(jobs, "_context", make_context(None), raising=False)

    def pool(n: int, _: Any, begin: Any, given: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(n, initializer=begin, initargs=given)

    monkeypatch.setattr(jobs, "_start_worker", begin)
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", pool)
    results, n_requested = list[int](), 0
    with jobs.TaskProcesses(make_context, 1) as crew:

        def run(tasks: list[Callable[[Any], int]]) -> None:
            waiting = iter(tasks)

            def next_task() -> Callable[[Any], int] | None:
                nonlocal n_requested
                n_requested += 1
                return next(waiting, None)

            crew.run(next_task, results.append, lambda: len(results), lambda _: None)

        for n in (2, 3):
            run([len] * n)
        with pytest.raises(ZeroDivisionError):
            run([len, divide, len])
    assert results == [6] * 6
    assert n_requested == 3 + 4 + 2, "no task starts after an error"
    assert contexts == ["common"]


def divide(_: object) -> int:
    return 1 // 0
