"""Compilation of operators with TVM, and linking of networks.

A plan is a configuration of the schedule of an operator, such as the size of its tiles.
Compiling a whole network takes seconds. Operators repeat across the networks of a space, so each is
compiled once, and a network is linked in a tenth of a second.
"""

import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any, final

import tvm
from tvm.target import codegen

from hwnas.core.errors import CompileError, ConfigError, last_line
from hwnas.hardware.backends.tvm import TvmSettings, kernels, linker
from hwnas.hardware.backends.tvm.kernels import Array, Kernel
from hwnas.hardware.backends.tvm.linker import CompiledOperator, LinkedNetwork
from hwnas.hardware.backends.tvm.templates import Cpu, Plan
from hwnas.hardware.runtimes.interfaces import Buffer
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import Parameters


@final
class Compiler:
    """A compiler for one target, which keeps each compiled operator in a cache.

    Raises:
        ConfigError: TVM or LLVM does not accept the target's settings, or its CPU has no
            instruction for the target's dtype.
    """

    def __init__(self, target: Target):
        self.tvm_target = tvm_target(target.section(TvmSettings), target.threads)
        self.cpu = cpu_facts(self.tvm_target, target.threads)
        self._kernels = kernels.kernels_of(target.dtype, self.tvm_target, self.cpu)
        self._compiled: dict[tuple[Kernel, str], CompiledOperator] = {}
        self._numbers = itertools.count()  # names are unique because libraries are linked

    def plans(self, op: OpSpec, limit: int) -> list[Plan]:
        """Return at most ``limit`` plans of an operator, the most promising first."""
        return self._kernels.plans(op, limit)

    def compile(self, op: Kernel, plan: Plan) -> CompiledOperator:
        """Return an operator compiled with a plan, from the cache if possible.

        Raises:
            CompileError: the operator is not supported, or TVM cannot compile it with the plan.
        """
        key = (op, str(plan))
        if key not in self._compiled:
            name = f"op{next(self._numbers)}"
            try:
                schedule = self._kernels.scheduled(op, plan)
                function = schedule.mod["main"].with_attr("global_symbol", name)
                module = tvm.IRModule({name: function})
                library = tvm.tirx.build(module, target=self.tvm_target)
            except CompileError as error:
                raise CompileError(
                    f"{error} Choose another search space or target.runtime."
                ) from None
            except Exception as error:
                raise CompileError(
                    f"TVM cannot compile {op} with plan '{plan}': "
                    f"{last_line(error).rstrip('.')}. Choose another search space or "
                    "target.runtime."
                ) from None
            self._compiled[key] = CompiledOperator(name, function, library)
        return self._compiled[key]

    def forget(self, op: OpSpec, plan: Plan) -> None:
        """Remove an operator that was compiled with ``plan`` from the cache, if it is there."""
        self._compiled.pop((op, str(plan)), None)

    def buffers(self, op: OpSpec) -> list[Buffer]:
        """Return the buffers of an operator's function, in order: inputs, constants, output."""
        inputs, constants, output = self._kernels.buffers(op)
        return [*inputs, *constants, output]

    def link(self, graph: Graph, plans: Mapping[OpSpec, Plan]) -> LinkedNetwork:
        """Return a network for this process, linked from its operators in a tenth of a second.

        Operators that are not in the cache are compiled first. ``plans`` has all operators.
        """
        return self._link_with(linker.link, graph, plans)

    def build(self, graph: Graph, plans: Mapping[OpSpec, Plan]) -> LinkedNetwork:
        """Return a network that can be exported; all its operators are compiled, in seconds."""
        return self._link_with(linker.build, graph, plans)

    def _link_with(
        self, link: Callable[..., LinkedNetwork], graph: Graph, plans: Mapping[OpSpec, Plan]
    ) -> LinkedNetwork:
        steps = self._kernels.steps(graph)
        compiled = {
            step.kernel: self.compile(step.kernel, self._plan(step.kernel, plans)) for step in steps
        }
        return link(steps, compiled, self._kernels, self.tvm_target)

    def _plan(self, kernel: Kernel, plans: Mapping[OpSpec, Plan]) -> Plan:
        return plans[kernel] if isinstance(kernel, OpSpec) else Plan(None)

    def pack_weights(self, graph: Graph, weights: Parameters) -> Array:
        """Return all weights in one array ``(n,)``: float32, or their bytes of int8 networks."""
        return linker.pack(self._kernels.constants(graph, weights), self._kernels.unit)


def tvm_target(tvm_facts: TvmSettings, threads: int) -> Any:
    """Return TVM's object ``tvm.target.Target`` for a number of threads.

    Raises:
        ConfigError: TVM does not accept the settings, or LLVM does not know the CPU ``mcpu``.
    """
    mcpu = codegen.llvm_get_system_cpu() if tvm_facts.mcpu == "host" else tvm_facts.mcpu
    options: dict[str, Any] = {"kind": tvm_facts.kind, "mcpu": mcpu, "num-cores": threads}
    if tvm_facts.mtriple:
        options["mtriple"] = tvm_facts.mtriple
    if tvm_facts.mattr:
        options["mattr"] = list(tvm_facts.mattr)
    try:
        target = tvm.target.Target(options)
        cpus = codegen.llvm_get_cpu_archlist(target)
    except Exception as error:
        raise ConfigError(
            f"target.tvm: TVM does not accept {options}: {last_line(error)}. Correct "
            "target.tvm.mtriple, mcpu or mattr."
        ) from None
    if mcpu not in [str(name) for name in cpus]:
        raise ConfigError(
            f"target.tvm.mcpu: LLVM does not know CPU '{mcpu}' for {options}. Give a name that "
            "llc -mcpu=help lists, or target.tvm.mcpu=generic."
        )
    return target


def cpu_facts(target: Any, threads: int) -> Cpu:
    """Return facts for schedules, from the CPU features of ``target``, TVM's target object."""
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    if "avx512f" in features:
        return Cpu(16, 32, threads)
    if "neon" in features or "fp-armv8" in features:
        return Cpu(4, 32, threads)
    return Cpu(8 if "avx2" in features else 4, 16, threads)


def set_threads(threads: int) -> None:
    """Set the number of TVM's threads in this process; call it before the first run.

    It also sets the environment variable ``TVM_BIND_THREADS`` to 0.

    Raises:
        ConfigError: fewer cores are available to this process.
    """
    available = len(os.sched_getaffinity(0))
    if threads > available:
        raise ConfigError(
            f"target.threads={threads}, but only {available} cores are available here. Set "
            f"target.threads={available} or less."
        )
    # Otherwise TVM binds this process to the first cores, against its CPU affinity.
    os.environ["TVM_BIND_THREADS"] = "0"
    tvm.get_global_func("runtime.config_threadpool")(1, threads)
