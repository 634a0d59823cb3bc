"""What shared weights are rounded to, where a subnet computes with fewer of their values.

Which layer with shared weights computes which operator is seen when a subnet is extracted: each
such layer gives a plain one its weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

Rounding = Mapping[nn.Module, Callable[[Tensor], Tensor]]  #: by layer with shared weights

_rounding: ContextVar[Rounding | None] = ContextVar("rounding", default=None)
_copies: ContextVar[list[tuple[nn.Module, nn.Module]] | None] = ContextVar("copies", default=None)


@contextmanager
def rounded_by(rounding: Rounding) -> Iterator[None]:
    """Have layers compute with rounded weights meanwhile, in this thread."""
    token = _rounding.set(rounding)
    try:
        yield
    finally:
        _rounding.reset(token)


def rounded(layer: nn.Module, weight: Tensor) -> Tensor:
    """Return the weight that a layer computes with."""
    how = (_rounding.get() or {}).get(layer)
    return weight if how is None else how(weight)


@contextmanager
def copies() -> Iterator[list[tuple[nn.Module, nn.Module]]]:
    """Yield a list of layers with shared weights, and the plain ones that they give copies to."""
    found: list[tuple[nn.Module, nn.Module]] = []
    token = _copies.set(found)
    try:
        yield found
    finally:
        _copies.reset(token)


def copied(layer: nn.Module, plain: nn.Module) -> None:
    """Say that a layer gave its weights to a plain one."""
    if (seen := _copies.get()) is not None:
        seen.append((layer, plain))
