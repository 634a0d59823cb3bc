from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """Restore torch's number of threads after a test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
