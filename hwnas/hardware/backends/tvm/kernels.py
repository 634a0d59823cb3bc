"""Kernels by dtype: definition, memory layout and schedule of operators."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

from numpy.typing import NDArray
from tvm import s_tir
from tvm.target import codegen

from hwnas.core.errors import ConfigError
from hwnas.hardware.backends.tvm import (
    dots,
    int8_layout,
    int8_operators,
    int8_templates,
    layout,
    operators,
    templates,
)
from hwnas.hardware.backends.tvm.dots import Dot
from hwnas.hardware.backends.tvm.templates import Cpu, Plan
from hwnas.hardware.runtimes.interfaces import Buffer
from hwnas.models.graph import INPUT, Graph, OpSpec, Shape
from hwnas.models.int8.quantised_network import Parameters, QuantisedNetwork, QuantisedOp

Array = NDArray[Any]


@dataclass(frozen=True)
class Edge:
    """The conversion at the start or end of an int8 network, between float32 and int8."""

    kind: str  #: ``images`` (float32 images to int8) or ``answers`` (int8 outputs to float32)
    shape: Shape  #: of one image or output, ``(C, H, W)``
    batch: int  #: images per inference


Kernel = OpSpec | Edge  #: what one function computes


@dataclass(frozen=True)
class KernelCall:
    """One call of a compiled function in a network."""

    name: str  #: name of the output tensor
    inputs: tuple[str, ...]  #: names of the input tensors
    kernel: Kernel  #: what the function computes


class Kernels(Protocol):
    """Kernels of one dtype on one CPU."""

    @property
    def unit(self) -> str:
        """Dtype of the array of all constants of a network, and of that of all activations."""
        ...

    def plans(self, op: OpSpec, limit: int) -> list[Plan]:
        """Return at most ``limit`` plans of an operator, the most promising first."""
        ...

    def scheduled(self, kernel: Kernel, plan: Plan) -> s_tir.Schedule:
        """Return TVM's schedule of a kernel by a plan; its function ``main`` computes the kernel.

        Raises:
            CompileError: the operator is not supported.
        """
        ...

    def buffers(self, kernel: Kernel) -> tuple[list[Buffer], list[Buffer], Buffer]:
        """Return the buffers of a function: inputs, constants, output."""
        ...

    def steps(self, graph: Graph) -> list[KernelCall]:
        """Return the function calls of a network, in order; the first reads ``INPUT``."""
        ...

    def constants(self, graph: Graph, weights: Parameters) -> list[Array]:
        """Return the packed weights, biases and scales of all function calls, in their order.

        ``weights`` is by operator name for float32, a ``QuantisedNetwork`` for int8.
        """
        ...


def kernels_of(dtype: str, target: Any, cpu: Cpu) -> Kernels:
    """Return the kernels of a dtype.

    Args:
        dtype: ``float32`` or ``int8``.
        target: TVM's target.
        cpu: CPU facts for schedules.

    Raises:
        ConfigError: the dtype is int8, and the CPU has no int8 dot product.
    """
    if dtype == "float32":
        return Floats(cpu)
    available = [str(name) for name in codegen.llvm_get_cpu_features(target)]
    if (dot := dots.best(available, cpu.lanes)) is None:
        features = ", ".join(dot.feature for dot in dots.DOTS)
        raise ConfigError(
            f"target.dtype={dtype}: CPU '{target.attrs['mcpu']}' has no int8 dot product: none "
            f"of {features} (target.tvm.mattr adds features that LLVM does not detect). "
            "Set target.dtype=float32."
        )
    return Bytes(cpu, dot)


@final
@dataclass(frozen=True)
class Floats:
    """Kernels in float32, see ``Kernels``."""

    cpu: Cpu
    unit: str = "float32"

    def plans(self, op: OpSpec, limit: int) -> list[Plan]:
        """Return at most ``limit`` plans of an operator, the most promising first."""
        channels = layout.padded(op.out_shape[0], self.cpu.lanes)
        return templates.plans(op, channels, self.cpu, limit)[:limit]  # they come in pairs

    def scheduled(self, kernel: Kernel, plan: Plan) -> s_tir.Schedule:
        """Return a schedule whose function ``main`` computes an operator, see ``Kernels``."""
        assert isinstance(kernel, OpSpec)
        schedule = s_tir.Schedule(operators.define(kernel, self.cpu.lanes))
        templates.apply(schedule, kernel, self.cpu, plan)
        return schedule

    def buffers(self, kernel: Kernel) -> tuple[list[Buffer], list[Buffer], Buffer]:
        """Return the buffers of a function: inputs, constants, output."""
        assert isinstance(kernel, OpSpec)
        lanes = self.cpu.lanes
        return (
            [Buffer(shape, "float32") for shape in layout.input_shapes(kernel, lanes)],
            [Buffer(shape, "float32") for shape in layout.weight_shapes(kernel, lanes)],
            Buffer(layout.buffer_shape(kernel.out_shape, kernel.batch, lanes), "float32"),
        )

    def steps(self, graph: Graph) -> list[KernelCall]:
        """Return one function call per operator, in order."""
        return [KernelCall(node.name, node.inputs, node.op) for node in graph]

    def constants(self, graph: Graph, weights: Parameters) -> list[Array]:
        """Return weight and bias of each operator that has them, packed, in order."""
        assert isinstance(weights, Mapping)
        lanes, packed = self.cpu.lanes, list[Array]()
        for node in graph:
            if layout.weight_shapes(node.op, lanes):
                packed += layout.pack(node.op, *weights[node.name], lanes)
        return packed


@final
@dataclass(frozen=True)
class Bytes:
    """Kernels in int8, and conversions of float32 images and outputs; see ``Kernels``."""

    cpu: Cpu
    dot: Dot
    unit: str = "uint8"

    def plans(self, op: OpSpec, limit: int) -> list[Plan]:
        """Return at most ``limit`` plans of an operator, the most promising first."""
        channels = int8_layout.padded(op.out_shape[0], self.cpu.lanes)
        return int8_templates.plans(op, channels, self.cpu, limit)

    def scheduled(self, kernel: Kernel, plan: Plan) -> s_tir.Schedule:
        """Return a schedule whose function ``main`` computes the kernel, see ``Kernels``."""
        lanes = self.cpu.lanes
        if isinstance(kernel, Edge):
            define = int8_operators.DEFINE[kernel.kind]
            schedule = s_tir.Schedule(define(kernel.shape, kernel.batch, lanes, self.dot))
            int8_templates.apply_edge(schedule, self.cpu)
            return schedule
        dots.register(self.dot)
        schedule = s_tir.Schedule(int8_operators.define(kernel, lanes, self.dot))
        int8_templates.apply(schedule, kernel, self.cpu, plan, self.dot)
        return schedule

    def buffers(self, kernel: Kernel) -> tuple[list[Buffer], list[Buffer], Buffer]:
        """Return the buffers of a function: inputs, constants, output."""
        lanes, dot = self.cpu.lanes, self.dot
        if isinstance(kernel, Edge):
            return int8_layout.edge(kernel.kind, kernel.shape, kernel.batch, lanes, dot)
        return (
            int8_layout.inputs(kernel, lanes, dot),
            int8_layout.constants(kernel, lanes, dot),
            int8_layout.output(kernel, lanes, dot),
        )

    def steps(self, graph: Graph) -> list[KernelCall]:
        """Return the calls, in order: images to int8, each operator, outputs to float32."""
        first, last = graph[0].op, graph.output
        rounded, answers = f"{INPUT} rounded", f"{last.name} answered"
        return [
            KernelCall(rounded, (INPUT,), Edge("images", first.in_shape, first.batch)),
            *(
                KernelCall(n.name, tuple(rounded if i == INPUT else i for i in n.inputs), n.op)
                for n in graph
            ),
            KernelCall(answers, (last.name,), Edge("answers", last.op.out_shape, last.op.batch)),
        ]

    def constants(self, graph: Graph, weights: Parameters) -> list[Array]:
        """Return the packed weights, biases and scales of all function calls, in their order."""
        assert isinstance(weights, QuantisedNetwork)
        scales, found = {INPUT: weights.input}, list[Array]()
        found.append(int8_layout.pack_images(weights.input, self.dot))
        for op in _operators_with_scales(weights, graph):
            sources = [scales[name] for name in op.node.inputs]
            found += int8_layout.pack(op, sources, self.cpu.lanes, self.dot)
            scales[op.node.name] = op.out
        return [*found, int8_layout.pack_answers(scales[graph.output.name], self.dot)]


def _operators_with_scales(network: QuantisedNetwork, graph: Graph) -> list[QuantisedOp]:
    """Return the operators of a network, with the scales of fused adds."""
    known = {op.node.name: op for op in network.ops}
    sums: dict[str, QuantisedOp] = {}
    for op in network.ops:
        if op.node.op.base == "add":
            sums |= dict.fromkeys(op.node.inputs, op)
    found = []
    for node in graph:
        op = known[node.name]
        fused = "add" in node.op.fused and "add" not in op.node.op.fused
        out = sums[node.name].out if fused else op.out
        found.append(replace(op, node=node, out=out))
    return found
