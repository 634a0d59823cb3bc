from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """Give torch its number of threads back after a test that sets it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
