"""Operators as a compiler sees them: the nodes of a graph, and the key of a table."""

import math
from dataclasses import dataclass, field

Shape = tuple[int, int, int]  #: (C, H, W)


@dataclass(frozen=True)
class Signature:
    """What a network reads and answers; a fact of the data set, not of the search space."""

    in_channels: int
    n_outputs: int


#: What an operator can be. ``mean`` is over H and W, ``layernorm`` over C; ``mul`` scales each
#: channel of its first input by its second, ``(C, 1, 1)``; ``attention`` reads queries, keys and
#: values as ``(3 C, H, W)``, has ``groups`` heads and mixes all pixels.
BASES = ("conv2d", "linear", "add", "mul", "mean", "max_pool2d", "layernorm", "attention")
ACTIVATIONS = ("relu", "relu6", "hardswish", "hardsigmoid", "sigmoid", "silu", "gelu")


@dataclass(frozen=True)
class OpSpec:
    """One operator as it runs after fusion, with its shapes.

    ``kind`` is one of ``BASES``, followed by what is fused into it: ``conv2d+bn+relu6``; with
    ``+add`` the operator reads a second tensor of its output's shape and adds it before what
    follows. The pixels of an image are the tokens of a transformer.
    """

    kind: str
    in_shape: Shape
    out_shape: Shape
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    dtype: str = "int8"
    batch: int = 1
    #: That it runs on, where networks of a target choose; 0: as many as the target says.
    threads: int = field(default=0, repr=False)

    def __str__(self) -> str:
        shapes = "->".join("x".join(map(str, shape)) for shape in (self.in_shape, self.out_shape))
        return (
            f"{self.kind} {shapes} k{self.kernel} s{self.stride} g{self.groups} "
            f"{self.dtype} b{self.batch}" + f" {self.threads}t" * bool(self.threads)
        )

    @property
    def base(self) -> str:
        """The operator without what is fused into it."""
        return self.kind.partition("+")[0]

    @property
    def fused(self) -> tuple[str, ...]:
        """What is fused into the operator, in order."""
        return tuple(self.kind.split("+")[1:])

    @property
    def activation(self) -> str:
        """The activation fused into the operator, or ``""``."""
        return next((name for name in self.fused if name in ACTIVATIONS), "")

    @property
    def padding(self) -> int:
        """Zeros around the image."""
        return padding(self.kernel, self.stride)

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
        """Multiply-accumulates of convolutions, linear layers and attention, for one image."""
        c, h, w = self.out_shape
        if self.base == "attention":
            return 2 * c * (h * w) ** 2
        return h * w * math.prod(self.weight_shape) if self.weight_shape else 0

    @property
    def n_params(self) -> int:
        """Weights and biases, batch norm folded."""
        if self.base == "layernorm":
            return 2 * self.out_shape[0]
        return math.prod(self.weight_shape) + self.out_shape[0] if self.weight_shape else 0


def padding(kernel: int, stride: int) -> int:
    """Return the zeros around an image: none where windows do not overlap, else half the kernel."""
    return 0 if kernel == stride else kernel // 2
