"""Networks with exits: what runs up to each of them, and the network without any.

Source: Teerapittayanon et al., "BranchyNet: Fast Inference via Early Exiting from Deep Neural
Networks", ICPR 2016, https://arxiv.org/abs/1709.01686.
"""

from collections.abc import Sequence
from dataclasses import replace

from hwnas.graph import INPUT, Graph, Node


def without_exits(network: Graph) -> Graph:
    """Return the operators that the last output needs."""
    last = network.output.name
    needed = {last}
    for node in reversed(network):
        needed.update(node.inputs if node.name in needed else ())
    nodes = tuple(node for node in network if node.name in needed)
    return replace(network, nodes=nodes, outputs=(last,))


def cut(network: Graph) -> tuple[Graph, ...]:
    """Return the segments of a network: one for each exit, and the rest of it.

    Each but the last answers first with the one tensor that the next segment reads.

    Raises:
        ValueError: more than one tensor is read behind an exit, or exits are not in order.
    """
    segments, left = list[Graph](), network.nodes
    for name in network.exits:
        end = [node.name for node in left].index(name) + 1
        own, left = left[:end], left[end:]
        (crossing,) = crossings(own, left)
        segments.append(replace(network, nodes=own, outputs=(crossing, name)))
        left = tuple(_reading(node, crossing) for node in left)
    return (*segments, replace(network, nodes=left, outputs=network.outputs[-1:]))


def crossings(before: Sequence[Node], behind: Sequence[Node]) -> list[str]:
    """Return the tensors that operators compute for others behind them, the images among them."""
    known = {INPUT, *(node.name for node in before)}
    read = (source for node in behind for source in node.inputs)
    return list(dict.fromkeys(source for source in read if source in known))


def _reading(node: Node, crossing: str) -> Node:
    return replace(node, inputs=tuple(INPUT if s == crossing else s for s in node.inputs))
