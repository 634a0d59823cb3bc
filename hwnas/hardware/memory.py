"""Memory of a network: its weights, and the activations that are live at the same time."""

import math

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.quantity import Quantities
from hwnas.models.graph import INPUT, NATIVE_BITS, Graph, OpSpec, Shape

#: Bytes of one element, by dtype.
DTYPE_BYTES = {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4}
_INT8_CHANNEL_BYTES = 8  #: a bias and a scale of 32 bits each


def element_bytes(dtype: str) -> int:
    """Return the size of one element of ``dtype`` in bytes.

    Raises:
        ConfigError: the dtype is not in ``DTYPE_BYTES``.
    """
    if dtype not in DTYPE_BYTES:
        raise ConfigError(unknown_name("dtype", dtype, DTYPE_BYTES))
    return DTYPE_BYTES[dtype]


def read_shapes(op: OpSpec) -> tuple[Shape, ...]:
    """Return the shapes ``(C, H, W)`` of an operator's input activations, for one image."""
    if op.base == "add" or "add" in op.fused:
        return (op.in_shape, op.out_shape)
    return (op.in_shape, (op.in_shape[0], 1, 1)) if op.base == "mul" else (op.in_shape,)


def activation_bytes(op: OpSpec) -> int:
    """Return the bytes of all activations that an operator reads and writes, for its batch."""
    shapes = (*read_shapes(op), op.out_shape)
    return op.batch * element_bytes(op.dtype) * sum(map(math.prod, shapes))


def parameter_bytes(op: OpSpec, bits: float = NATIVE_BITS) -> int:
    """Return the bytes of an operator's weights, biases and, for int8, scales.

    Args:
        op: The operator.
        bits: Mean number of bits of an int8 weight; not used for other dtypes.
    """
    n_weights = math.prod(op.weight_shape) if op.weight_shape else 0
    size = element_bytes(op.dtype)
    channel = _INT8_CHANNEL_BYTES if op.dtype == "int8" else size
    packed = math.ceil(n_weights * bits / NATIVE_BITS) if op.dtype == "int8" else n_weights * size
    return packed + (op.n_params - n_weights) * channel


def weight_bytes(graph: Graph) -> int:
    """Return the bytes of a network's weights, biases and scales in its file."""
    return sum(parameter_bytes(node.op, node.packed_bits) for node in graph)


def peak_activation_bytes(graph: Graph) -> int:
    """Return the largest total size of live activations in bytes, in the order of execution.

    An activation lives from the operator that writes it to the last one that reads it; no operator
    writes in place. Buffers of the runtime (scratch memory, staged weights) are not included.
    """
    first = graph[0].op
    sizes = {INPUT: first.batch * element_bytes(first.dtype) * math.prod(first.in_shape)}
    last_read = {source: step for step, node in enumerate(graph) for source in node.inputs}
    last_read |= dict.fromkeys(graph.outputs, len(graph))
    live, peak = {INPUT}, 0
    for step, node in enumerate(graph):
        op = node.op
        sizes[node.name] = op.batch * element_bytes(op.dtype) * math.prod(op.out_shape)
        live.add(node.name)
        peak = max(peak, sum(sizes[name] for name in live))
        live = {name for name in live if last_read.get(name, step) > step}
    return peak


def replica_mib(figures: Quantities) -> float:
    """Return the memory of one running copy of a network in MiB: weights and peak activations.

    It is the sum of the upper ends of ``sram_kib`` and ``flash_kib``; a missing one counts as 0.
    """
    return sum(figures[n].upper for n in ("sram_kib", "flash_kib") if n in figures) / 1024
