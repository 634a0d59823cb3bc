"""Networks as a compiler sees them: what a genotype is lowered to."""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

# Operators as a compiler sees them: the nodes of a graph, and the key of a table.

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


INPUT = "input"  #: the name of the images
NATIVE_BITS = 8  #: of weights in int8


@dataclass(frozen=True)
class Node:
    """An operator in its place: ``name`` is the path of the torch module that computes it."""

    name: str
    op: OpSpec
    inputs: tuple[str, ...]
    weight_bits: int = NATIVE_BITS  #: in int8: of which grid its weights are
    in_float: bool = False  #: in int8: whether it computes in float32 all the same
    #: whether of each four weights that read neighbouring channels two are zero; digests of what
    #: is measured, which packs nothing, don't know it
    is_sparse: bool = field(default=False, repr=False)

    @property
    def packed_bits(self) -> float:
        """Bits that a weight takes where it is packed; of two in four, their places take as many.

        Source: NVIDIA, "Accelerating Sparse Deep Neural Networks", 2021,
        https://arxiv.org/abs/2104.08378, section 3: two bits for the place of each that is kept.
        """
        return self.weight_bits / 2 + 1 if self.is_sparse else self.weight_bits


@dataclass(frozen=True)
class Graph(Sequence[Node]):
    """Operators in order of execution, each with its precision; the first reads ``INPUT``."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]  #: the nodes whose results are answered, in order of execution
    dtype: str = ""  #: in which the network computes; empty: in that of its target
    #: images that an inference reads; 0: as many as its target says. Digests know it by operators.
    batch: int = field(default=0, repr=False)
    threads: int = field(default=0, repr=False)  #: that it runs on; 0: as many as its target says

    @staticmethod
    def of(nodes: Iterable[Node]) -> "Graph":
        """Return the graph that answers what its last node computes."""
        found = tuple(nodes)
        return Graph(found, (found[-1].name,))

    def with_bits(self, bits: Mapping[str, int]) -> "Graph":
        """Return the graph with weights of other bits, by the names of operators."""
        nodes = (replace(n, weight_bits=bits.get(n.name, n.weight_bits)) for n in self.nodes)
        return replace(self, nodes=tuple(nodes))

    @property
    def output(self) -> Node:
        """The node that is answered last: behind all exits, where a network has any."""
        return next(node for node in reversed(self.nodes) if node.name == self.outputs[-1])

    @property
    def exits(self) -> tuple[str, ...]:
        """The nodes of a network that are answered before its end."""
        return self.outputs[:-1]

    @overload
    def __getitem__(self, index: int) -> Node: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Node, ...]: ...

    def __getitem__(self, index: int | slice) -> Node | tuple[Node, ...]:
        return self.nodes[index]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def largest(bits: int) -> int:
    """Return the largest integer that a weight of so many bits is; the least is as far below 0."""
    return (1 << bits - 1) - 1


def n_macs(lowered: Graph) -> int:
    """Return the multiply-accumulates of a network for one image."""
    return sum(node.op.n_macs for node in lowered)


def n_macs_of_batch(lowered: Graph) -> int:
    """Return the multiply-accumulates of one inference: for all its images."""
    return sum(node.op.batch * node.op.n_macs for node in lowered)


def n_params(lowered: Graph) -> int:
    """Return the weights and biases of a network, batch norm folded."""
    return sum(node.op.n_params for node in lowered)


def fuse(lowered: Graph, dtype: str, batch: int = 1) -> Graph:
    """Return the operators as compilers for CPUs and GPUs run them.

    A sum is fused into the convolution or linear layer that computes one of its terms last, if
    nothing else reads that term. The fused operator has the name of that layer.
    """
    reads = Counter(source for node in lowered for source in node.inputs)
    reads.update(lowered.outputs)
    found: dict[str, Node] = {}
    steps = {INPUT: -1}  #: when each tensor is there
    renamed: dict[str, str] = {}
    for step, node in enumerate(lowered):
        inputs = tuple(renamed.get(source, source) for source in node.inputs)
        op = _in(node.op, dtype, batch)
        last = found.get(inputs[-1])
        if op.base == "add" and last is not None and _takes_sum(last, inputs[0], reads, steps):
            kind = "+".join([last.op.kind, "add", *op.fused])
            fused = replace(last.op, kind=kind)
            found[last.name] = replace(last, op=fused, inputs=(*last.inputs, inputs[0]))
            renamed[node.name] = last.name
        else:
            found[node.name] = replace(node, op=op, inputs=inputs)
            steps[node.name] = step
    outputs = tuple(renamed.get(name, name) for name in lowered.outputs)
    return replace(lowered, nodes=tuple(found.values()), outputs=outputs)


@functools.lru_cache(maxsize=1 << 14)  # operators repeat from network to network
def _in(op: OpSpec, dtype: str, batch: int) -> OpSpec:
    return replace(op, dtype=dtype, batch=batch)


def _takes_sum(last: Node, other: str, reads: Mapping[str, int], steps: Mapping[str, int]) -> bool:
    """Return whether the sum can be part of the operator that computes its last term."""
    plain = last.op.base in ("conv2d", "linear") and not {*last.op.fused} - {"bn"}
    return plain and steps[other] < steps[last.name] and reads[last.name] == 1


def distinct(networks: Iterable[Graph]) -> tuple[OpSpec, ...]:
    """Return the different operators of networks, in order of appearance."""
    return tuple(dict.fromkeys(node.op for lowered in networks for node in lowered))
