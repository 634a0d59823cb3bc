"""Operators timed by what they add to a network, for runtimes that do not tell single ones."""

from dataclasses import replace

from hwnas.graph import INPUT, Graph, Node
from hwnas.op import OpSpec
from hwnas.timing import Timing

_FLOOR_MS = 1e-5  # of an operator that takes less than starting an inference varies


def alone(op: OpSpec) -> Graph:
    """Return an operator that reads the image, last, and what computes its second input, if any."""
    before: list[Node] = []
    inputs = [INPUT]
    if op.base == "mul":
        gate = OpSpec("mean", op.in_shape, (op.in_shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
        before, inputs = [Node("gate", gate, (INPUT,))], [INPUT, "gate"]
    elif op.base == "add" or "add" in op.fused:
        kind = "linear" if op.out_shape[2] == 1 < op.out_shape[1] else "conv2d+bn"
        stride = -(-op.in_shape[1] // op.out_shape[1])
        feed = replace(op, kind=kind, kernel=1, stride=stride, groups=1)
        before, inputs = [Node("other", feed, (INPUT,))], [INPUT, "other"]
    return Graph.of((*before, Node("operator", op, tuple(inputs))))


def nothing(batch: int = 1) -> Graph:
    """Return a network whose latency is what starting an inference takes."""
    op = OpSpec("add", (1, 1, 1), (1, 1, 1), dtype="float32", batch=batch)
    return Graph.of((Node("add", op, (INPUT, INPUT)),))


def with_and_without(op: OpSpec) -> tuple[Graph, Graph]:
    """Return a network with an operator, and the same without it.

    Both read the same image and give few numbers: copies to a device that has memory of its own
    count for neither, but for those of operators that average the image, or multiply all of it.
    """
    whole = tuple(alone(op))
    before = whole[:-1]
    if not before and op.out_shape[1:] == (1, 1):
        return Graph.of(whole), nothing(op.batch)
    return _averaged(whole, op), _averaged(before, op)


def _averaged(nodes: tuple[Node, ...], op: OpSpec) -> Graph:
    """Return nodes with a mean over what the last of them gives, or over the image."""
    last, shape = (nodes[-1].name, nodes[-1].op.out_shape) if nodes else (INPUT, op.in_shape)
    if nodes and shape[1:] == (1, 1):
        return Graph.of(nodes)
    mean = OpSpec("mean", shape, (shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
    return Graph.of((*nodes, Node("reader", mean, (last,))))


def less(whole: Timing, without: Timing) -> Timing:
    """Return what one timing is longer than another, with an interval that holds both of theirs."""
    return replace(
        whole,
        median_ms=max(_FLOOR_MS, whole.median_ms - without.median_ms),
        low_ms=max(_FLOOR_MS, whole.low_ms - without.high_ms),
        high_ms=max(_FLOOR_MS, whole.high_ms - without.low_ms),
    )
