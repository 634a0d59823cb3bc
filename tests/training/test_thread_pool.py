import threading
import time
from functools import partial

import pytest
import torch

from hwnas.training.parallel import ThreadPool


@pytest.fixture(autouse=True)
def four_threads(threads_restored: None) -> None:
    torch.set_num_threads(4)


def test_results_are_in_order_of_tasks() -> None:
    def wait(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    seconds = [0.05, 0.0, 0.02, 0.01, 0.0]
    assert [*ThreadPool(3).run([partial(wait, s) for s in seconds])] == seconds


@pytest.mark.parametrize(
    ("n_tasks", "n_threads", "share"), [(1, 1, 4), (2, 2, 2), (3, 3, 1), (9, 4, 1)]
)
def test_cores_are_divided_among_threads(n_tasks: int, n_threads: int, share: int) -> None:
    thread_pool = ThreadPool(n_tasks)
    assert thread_pool.n_threads == n_threads
    assert {*thread_pool.run([torch.get_num_threads] * 9)} == {share}
    assert torch.get_num_threads() == 4  # the calling thread is unchanged


def test_error_of_task_is_raised_after_all_tasks() -> None:
    ended = threading.Event()

    def fail() -> None:
        raise MemoryError("too large")

    def last() -> None:
        time.sleep(0.05)
        ended.set()

    with pytest.raises(MemoryError, match="too large"):
        [*ThreadPool(2).run([fail, last])]
    assert ended.is_set()


def test_single_task_has_all_cores() -> None:
    assert [*ThreadPool(3).run([torch.get_num_threads])] == [4]


def test_threads_end_with_their_pool() -> None:
    before = {*threading.enumerate()}
    thread_pool = ThreadPool(2)
    assert [*thread_pool.run([int, int])] == [0, 0]
    threads = {*threading.enumerate()} - before
    del thread_pool
    for thread in threads:
        thread.join(5)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
