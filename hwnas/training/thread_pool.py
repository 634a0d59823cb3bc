"""Several networks at once, each by a thread of its own with a share of the processor's cores.

A small network does not keep several cores busy: its layers are too short to be shared out.
Networks that do not depend on each other keep them busy. Figures: ``benchmarks/README.md``.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar, final

import torch

T = TypeVar("T")


@final
class ThreadPool:
    """Threads that wait for tasks; none where one core is all there is, or all that is wanted."""

    def __init__(self, n_tasks: int):
        """Start threads for so many tasks at once, at most one for each core that torch may use."""
        n_cores = torch.get_num_threads()
        self.n_threads = n_threads = max(1, min(n_tasks, n_cores))
        self._pool: ThreadPoolExecutor | None = None
        if self.n_threads > 1:
            all_there = threading.Barrier(n_threads)

            def start() -> None:  # knows nothing of ``self``: threads end with it
                torch.get_num_threads()  # a thread's first use takes the number of all of them
                torch.set_num_threads(n_cores // n_threads)
                all_there.wait()

            self._pool = ThreadPoolExecutor(n_threads, "crew", start)
            wait([self._pool.submit(int) for _ in range(n_threads)])
            torch.set_num_threads(n_cores)  # of this thread, and of those to come

    def run(self, tasks: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Yield the results of tasks in their order; what one raises is raised once all have ended.

        Each must leave alone what others read, and draw no random numbers: threads are not in step.
        """
        if self._pool is None or len(tasks) == 1:
            yield from (task() for task in tasks)
            return
        futures: list[Future[T]] = [self._pool.submit(task) for task in tasks]
        wait(futures)
        while futures:
            yield futures.pop(0).result()
