"""Times operators one by one with onnxruntime, each between others as in a network."""

from collections.abc import Iterable

from hwnas.backends.onnxruntime.session import node_times
from hwnas.backends.portable import random_model
from hwnas.graph import INPUT, Graph, Node
from hwnas.op import OpSpec, Shape

_FEW = 4  # so few channels come from the image itself, which no layout change precedes
_REPEATS = 3  # of a profile, as far apart in time as there are operators
_NAME = "operator"
#: Of one that became part of another, or that noise hides: a table's latencies are positive.
_LEAST_MS = 1e-6


def operator_times(ops: Iterable[OpSpec], n_threads: int, n_runs: int) -> dict[OpSpec, list[float]]:
    """Return the milliseconds of operators in three profiles, without what starting takes.

    Each is profiled in a network of its own that has a convolution or linear layer before it and a
    mean after it: alone it would pay for changes of layout that networks do not have. Latencies of
    networks are sums of these times but for a scale and an overhead of each operator, to be fitted.

    Args:
        ops: Operators, fused (``op.fuse``) in float32 and not fused in int8, as onnxruntime does.
        n_threads: Threads that they run on.
        n_runs: Runs of each profile.

    Raises:
        CompileError: an operator cannot be written or run.
    """
    models = {op: random_model(in_context(op)) for op in ops}
    times: dict[OpSpec, list[float]] = {op: [] for op in models}
    for _ in range(_REPEATS):
        for op, model in models.items():
            times[op].append(max(_LEAST_MS, node_times(model, n_threads, n_runs)[_NAME]))
    return times


def in_context(op: OpSpec) -> Graph:
    """Return a network of the operator, called ``operator``, what feeds it and what reads it."""
    nodes: list[Node] = []
    _, *size = op.in_shape
    image = (min(_FEW, op.in_shape[0]), size[0], size[1])

    def fed(name: str, shape: Shape) -> str:
        """Return the name of a tensor of a shape, computed from the image."""
        tokens = shape[2] == 1 and shape[1] > 1
        kind = "linear" if tokens else "conv2d+bn+relu6"
        stride = -(-image[1] // shape[1])
        feed = OpSpec(kind, image, shape, stride=stride, dtype=op.dtype, batch=op.batch)
        nodes.append(Node(name, feed, (INPUT,)))
        return name

    inputs = [INPUT if op.in_shape == image else fed("feed", op.in_shape)]
    if op.base == "add" or "add" in op.fused:
        inputs.append(fed("other", op.out_shape))
    if op.base == "mul":
        gate = OpSpec("mean", op.in_shape, (op.in_shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
        nodes.append(Node("gate", gate, (inputs[0],)))
        inputs.append("gate")
    nodes.append(Node(_NAME, op, tuple(inputs)))
    if op.out_shape[1:] != (1, 1):
        read = OpSpec("mean", op.out_shape, (op.out_shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
        nodes.append(Node("reader", read, (_NAME,)))
    return Graph.of(nodes)
