"""Operators as a compiler sees them: what a genotype is lowered to, and the key of a table."""

import math
from dataclasses import dataclass

Shape = tuple[int, int, int]  #: (C, H, W)


@dataclass(frozen=True)
class Task:
    """What a network reads and answers; a fact of the data set, not of the search space."""

    in_channels: int
    n_classes: int


@dataclass(frozen=True)
class OpSpec:
    """One operator as it runs after fusion, with its shapes.

    ``kind`` is ``conv2d``, ``linear``, ``add`` or ``mean`` (over H and W), followed by what is
    fused into it: ``conv2d+bn+relu6``. Convolutions pad ``kernel // 2`` on every side.
    """

    kind: str
    in_shape: Shape
    out_shape: Shape
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    dtype: str = "int8"
    batch: int = 1

    def __str__(self) -> str:
        shapes = "->".join("x".join(map(str, shape)) for shape in (self.in_shape, self.out_shape))
        return (
            f"{self.kind} {shapes} k{self.kernel} s{self.stride} g{self.groups} "
            f"{self.dtype} b{self.batch}"
        )

    @property
    def base(self) -> str:
        """The operator without what is fused into it."""
        return self.kind.partition("+")[0]

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved alone."""
        return self.groups > 1

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight as torch has it, or ``()``."""
        c_in, c_out = self.in_shape[0], self.out_shape[0]
        if self.base == "conv2d":
            return (c_out, c_in // self.groups, self.kernel, self.kernel)
        return (c_out, c_in) if self.base == "linear" else ()

    @property
    def n_macs(self) -> int:
        """Multiply-accumulates of convolutions and linear layers, for one image."""
        _, h, w = self.out_shape
        return h * w * math.prod(self.weight_shape) if self.weight_shape else 0

    @property
    def n_params(self) -> int:
        """Weights and biases, batch norm folded."""
        return math.prod(self.weight_shape) + self.out_shape[0] if self.weight_shape else 0


@dataclass(frozen=True)
class Node:
    """An operator in its place: ``name`` is the path of the torch module that computes it."""

    name: str
    op: OpSpec
    inputs: tuple[str, ...]


Lowered = tuple[Node, ...]  #: operators in order of execution; the first reads ``INPUT``
INPUT = "input"


def n_macs(lowered: Lowered) -> int:
    """Return the multiply-accumulates of a network for one image."""
    return sum(node.op.n_macs for node in lowered)


def n_params(lowered: Lowered) -> int:
    """Return the weights and biases of a network, batch norm folded."""
    return sum(node.op.n_params for node in lowered)
