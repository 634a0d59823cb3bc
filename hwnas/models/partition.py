"""Partitioning of graphs: at early exits, without exits, and into head and tail.

Sources: Teerapittayanon et al., "BranchyNet: Fast Inference via Early Exiting from Deep Neural
Networks", ICPR 2016, https://arxiv.org/abs/1709.01686; Kang et al., "Neurosurgeon: Collaborative
Intelligence Between the Cloud and Mobile Edge", ASPLOS 2017,
https://doi.org/10.1145/3037697.3037698.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hwnas.models.graph import INPUT, Graph, Node, Shape


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

    The first output of each segment but the last is the input of the next segment.

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

    head: Graph
    tail: Graph

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
    """Return the tensors, including the input, that operators behind a boundary read."""
    known = {INPUT, *(node.name for node in before)}
    read = (source for node in behind for source in node.inputs)
    return list(dict.fromkeys(source for source in read if source in known))


def _read_boundary(node: Node, boundary: str) -> Node:
    return replace(node, inputs=tuple(INPUT if s == boundary else s for s in node.inputs))
