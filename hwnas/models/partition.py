"""Parts of networks: segments up to each exit, the network without any, and halves of a cut.

Sources: Teerapittayanon et al., "BranchyNet: Fast Inference via Early Exiting from Deep Neural
Networks", ICPR 2016, https://arxiv.org/abs/1709.01686; Kang et al., "Neurosurgeon: Collaborative
Intelligence Between the Cloud and Mobile Edge", ASPLOS 2017,
https://doi.org/10.1145/3037697.3037698.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hwnas.models.graph import INPUT, Graph, Node, Shape


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


@dataclass(frozen=True)
class GraphSplit:
    """A network in two parts: what the tail reads is what the head answers, and nothing else."""

    head: Graph
    tail: Graph

    @property
    def after(self) -> str:
        """The operator whose result goes from the head to the tail."""
        return self.head.outputs[0]

    @property
    def shape(self) -> Shape:
        """Of that result, for one image."""
        return self.head.output.op.out_shape


def cuts(network: Graph) -> Iterator[GraphSplit]:
    """Yield the ways to cut a network without exits in two, the shortest head first."""
    for end in range(1, len(network)):
        head, tail = network[:end], network[end:]
        if crossings(head, tail) == [head[-1].name]:
            reading = tuple(_reading(node, head[-1].name) for node in tail)
            yield GraphSplit(replace(network, nodes=head, outputs=(head[-1].name,)),
                      replace(network, nodes=reading))  # fmt: skip


def crossings(before: Sequence[Node], behind: Sequence[Node]) -> list[str]:
    """Return the tensors that operators compute for others behind them, the images among them."""
    known = {INPUT, *(node.name for node in before)}
    read = (source for node in behind for source in node.inputs)
    return list(dict.fromkeys(source for source in read if source in known))


def _reading(node: Node, crossing: str) -> Node:
    return replace(node, inputs=tuple(INPUT if s == crossing else s for s in node.inputs))
