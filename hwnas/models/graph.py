"""Graphs of operators, as compilers see networks; genotypes are lowered to them."""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

Shape = tuple[int, int, int]  #: (C, H, W)


@dataclass(frozen=True)
class Signature:
    """Numbers of channels and outputs of a network, given by the data set."""

    in_channels: int  #: channels of the images
    n_outputs: int  #: classes, or predicted values


#: Operators. ``mean`` is over H and W, ``layernorm`` over C; ``mul`` scales each channel of its
#: first input by its second, ``(C, 1, 1)``; ``attention`` reads queries, keys and values as
#: ``(3 C, H, W)`` and has ``groups`` heads.
BASES = ("conv2d", "linear", "add", "mul", "mean", "max_pool2d", "layernorm", "attention")
ACTIVATIONS = ("relu", "relu6", "hardswish", "hardsigmoid", "sigmoid", "silu", "gelu")


@dataclass(frozen=True)
class OpSpec:
    """An operator with its shapes; latency tables have one row per operator.

    ``kind`` is one of ``BASES`` and the operations fused into it: ``conv2d+bn+relu6``. With
    ``+add`` the operator adds a second input of its output's shape. Tokens of transformers are
    pixels of an image.
    """

    kind: str  #: operator and fused operations
    in_shape: Shape  #: of one image
    out_shape: Shape  #: of one image
    kernel: int = 1  #: height and width of the window
    stride: int = 1  #: step of the window, in both directions
    groups: int = 1  #: groups of a convolution, or heads of attention
    dtype: str = "int8"  #: ``int8`` or ``float32``
    batch: int = 1  #: images per inference
    #: Number of threads, if it is a choice of the network; 0: the target's.
    threads: int = field(default=0, repr=False)

    def __str__(self) -> str:
        shapes = "->".join("x".join(map(str, shape)) for shape in (self.in_shape, self.out_shape))
        return (
            f"{self.kind} {shapes} k{self.kernel} s{self.stride} g{self.groups} "
            f"{self.dtype} b{self.batch}" + f" {self.threads}t" * bool(self.threads)
        )

    @functools.cached_property
    def base(self) -> str:
        """The operator without fused operations."""
        return self.kind.partition("+")[0]

    @functools.cached_property
    def fused(self) -> tuple[str, ...]:
        """The fused operations, in order."""
        return tuple(self.kind.split("+")[1:])

    @functools.cached_property
    def activation(self) -> str:
        """The fused activation; ``""`` if there is none."""
        return next((name for name in self.fused if name in ACTIVATIONS), "")

    @property
    def padding(self) -> int:
        """Rows (and columns) of zeros on each side of the input."""
        return padding(self.kernel, self.stride)

    @functools.cached_property
    def depthwise(self) -> bool:
        """True if there are several groups: a depthwise convolution, or several attention heads."""
        return self.groups > 1

    @functools.cached_property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight in torch's layout; ``()`` but for convolutions and linear layers."""
        c_in, c_out = self.in_shape[0], self.out_shape[0]
        if self.base == "conv2d":
            return (c_out, c_in // self.groups, self.kernel, self.kernel)
        return (c_out, c_in) if self.base == "linear" else ()

    @functools.cached_property
    def n_macs(self) -> int:
        """Multiply-accumulates for one image; 0 but for convolutions, linear and attention."""
        c, h, w = self.out_shape
        if self.base == "attention":
            return 2 * c * (h * w) ** 2
        return h * w * math.prod(self.weight_shape) if self.weight_shape else 0

    @functools.cached_property
    def n_params(self) -> int:
        """Number of weights and biases, with batch norm folded."""
        if self.base == "layernorm":
            return 2 * self.out_shape[0]
        return math.prod(self.weight_shape) + self.out_shape[0] if self.weight_shape else 0


def padding(kernel: int, stride: int) -> int:
    """Return the zero padding on each side: half the kernel, or 0 if the stride equals it."""
    return 0 if kernel == stride else kernel // 2


INPUT = "input"  #: name of the input images
NATIVE_BITS = 8  #: of int8 weights


@dataclass(frozen=True)
class Node:
    """A node of a graph: one operator and its inputs."""

    name: str  #: path of the torch module that computes it; also the name of its output
    op: OpSpec
    inputs: tuple[str, ...]  #: names of nodes, or ``INPUT``
    weight_bits: int = NATIVE_BITS  #: bits of the integers of the weights, in int8 networks
    in_float: bool = False  #: True if it computes in float32 in an int8 network
    #: 2:4 sparsity: two of four weights of neighbouring input channels are zero. Not in digests of
    #: measurements, as measured backends do not compress weights.
    is_sparse: bool = field(default=False, repr=False)

    @property
    def packed_bits(self) -> float:
        """Bits per weight after compression; 2:4 sparsity needs two bits of index per value.

        Source: NVIDIA, "Accelerating Sparse Deep Neural Networks", 2021,
        https://arxiv.org/abs/2104.08378, section 3.
        """
        return self.weight_bits / 2 + 1 if self.is_sparse else self.weight_bits


@dataclass(frozen=True)
class Graph(Sequence[Node]):
    """Operators in order of execution; the first reads ``INPUT``."""

    nodes: tuple[Node, ...]
    #: names of the output nodes in order of execution; all but the last are early exits
    outputs: tuple[str, ...]
    dtype: str = ""  #: precision of the network; empty: the target's
    batch: int = field(default=0, repr=False)  #: images per inference; 0: the target's
    threads: int = field(default=0, repr=False)  #: 0: the target's

    @staticmethod
    def of(nodes: Iterable[Node]) -> "Graph":
        """Return a graph whose output is its last node."""
        nodes = tuple(nodes)
        return Graph(nodes, (nodes[-1].name,))

    def with_bits(self, bits: Mapping[str, int]) -> "Graph":
        """Return the graph with other weight bits, by node name; other nodes keep theirs."""
        nodes = (replace(n, weight_bits=bits.get(n.name, n.weight_bits)) for n in self.nodes)
        return replace(self, nodes=tuple(nodes))

    @property
    def output(self) -> Node:
        """The last output node, which is no early exit."""
        return next(node for node in reversed(self.nodes) if node.name == self.outputs[-1])

    @property
    def exits(self) -> tuple[str, ...]:
        """Names of the early exits."""
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


def max_integer(bits: int) -> int:
    """Return the largest integer of symmetric weights with ``bits`` bits: 127 for 8."""
    return (1 << bits - 1) - 1


def n_macs(graph: Graph) -> int:
    """Return the multiply-accumulates of a network for one image."""
    return sum(node.op.n_macs for node in graph)


def n_macs_of_batch(graph: Graph) -> int:
    """Return the multiply-accumulates of one inference, of all images of the batch."""
    return sum(node.op.batch * node.op.n_macs for node in graph)


def n_params(graph: Graph) -> int:
    """Return the number of weights and biases of a network, with batch norm folded."""
    return sum(node.op.n_params for node in graph)


def fuse(graph: Graph, dtype: str, batch: int = 1) -> Graph:
    """Return the graph with fused additions, as compilers for CPUs and GPUs execute it.

    All operators get the given ``dtype`` and batch size. An addition is fused into the convolution
    or linear layer that computes its last input, if that layer has no activation, nothing else
    reads it, and the other input is computed before it. The fused operator has the layer's name.
    """
    reads = Counter(source for node in graph for source in node.inputs)
    reads.update(graph.outputs)
    nodes: dict[str, Node] = {}
    steps = {INPUT: -1}  # of execution, by tensor
    renamed: dict[str, str] = {}
    for step, node in enumerate(graph):
        inputs = tuple(renamed.get(source, source) for source in node.inputs)
        op = _with_dtype(node.op, dtype, batch)
        last = nodes.get(inputs[-1])
        if op.base == "add" and last is not None and _fuses_add(last, inputs[0], reads, steps):
            kind = "+".join([last.op.kind, "add", *op.fused])
            fused = replace(last.op, kind=kind)
            nodes[last.name] = replace(last, op=fused, inputs=(*last.inputs, inputs[0]))
            renamed[node.name] = last.name
        else:
            nodes[node.name] = replace(node, op=op, inputs=inputs)
            steps[node.name] = step
    outputs = tuple(renamed.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes.values()), outputs=outputs)


@functools.lru_cache(maxsize=1 << 14)  # operators repeat from network to network
def _with_dtype(op: OpSpec, dtype: str, batch: int) -> OpSpec:
    return replace(op, dtype=dtype, batch=batch)


def _fuses_add(last: Node, other: str, reads: Mapping[str, int], steps: Mapping[str, int]) -> bool:
    """Return True if the addition can be fused into the operator of its last input."""
    plain = last.op.base in ("conv2d", "linear") and not {*last.op.fused} - {"bn"}
    return plain and steps[other] < steps[last.name] and reads[last.name] == 1


def distinct_ops(networks: Iterable[Graph]) -> tuple[OpSpec, ...]:
    """Return the distinct operators of networks, in order of appearance."""
    return tuple(dict.fromkeys(node.op for graph in networks for node in graph))


def without_exits(network: Graph) -> Graph:
    """Return the graph without early exits: the operators of the last output."""
    last = network.output.name
    needed = {last}
    for node in reversed(network):
        needed.update(node.inputs if node.name in needed else ())
    nodes = tuple(node for node in network if node.name in needed)
    return replace(network, nodes=nodes, outputs=(last,))


def split_at_exits(network: Graph) -> tuple[Graph, ...]:
    """Return the segments of a network: one up to each exit, and the rest.

    Outputs of each segment but the last are the tensor that the next segment reads, and the exit.

    Raises:
        ValueError: if more than one tensor crosses an exit, or exits are not in order.
    """
    segments, rest = list[Graph](), network.nodes
    for name in network.exits:
        end = [node.name for node in rest].index(name) + 1
        segment, rest = rest[:end], rest[end:]
        (boundary,) = boundary_tensors(segment, rest)
        segments.append(replace(network, nodes=segment, outputs=(boundary, name)))
        rest = tuple(_read_boundary(node, boundary) for node in rest)
    return (*segments, replace(network, nodes=rest, outputs=network.outputs[-1:]))


@dataclass(frozen=True)
class GraphSplit:
    """A network in two parts; the only input of the tail is the output of the head."""

    head: Graph  #: the first part, which reads the image
    tail: Graph  #: the second part; its input is ``INPUT``

    @property
    def after(self) -> str:
        """Name of the last operator of the head."""
        return self.head.outputs[0]

    @property
    def shape(self) -> Shape:
        """Shape of the transferred tensor, for one image."""
        return self.head.output.op.out_shape


def iter_splits(network: Graph) -> Iterator[GraphSplit]:
    """Yield all splits of a network without exits into head and tail, the shortest head first."""
    for end in range(1, len(network)):
        head, tail = network[:end], network[end:]
        if boundary_tensors(head, tail) == [head[-1].name]:
            nodes = tuple(_read_boundary(node, head[-1].name) for node in tail)
            first = replace(network, nodes=head, outputs=(head[-1].name,))
            yield GraphSplit(first, replace(network, nodes=nodes))


def boundary_tensors(before: Sequence[Node], behind: Sequence[Node]) -> list[str]:
    """Return the names of those tensors of ``before`` (or ``INPUT``) that ``behind`` reads."""
    known = {INPUT, *(node.name for node in before)}
    inputs = (source for node in behind for source in node.inputs)
    return list(dict.fromkeys(source for source in inputs if source in known))


def _read_boundary(node: Node, boundary: str) -> Node:
    return replace(node, inputs=tuple(INPUT if s == boundary else s for s in node.inputs))
