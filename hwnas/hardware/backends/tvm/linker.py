"""Links a network from compiled operators: one function that calls them in order.

The function takes the image, all packed weights in one array, the output, and an arena in which all
other tensors lie. Nothing is allocated while it runs: a call costs about a tenth of a microsecond,
where TVM's virtual machine takes three quarters.
"""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import tvm
from tvm import te, tirx
from tvm.ir import Call, Op, PointerType, PrimType
from tvm.support import cc

from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware.backends.tvm.kernels import Array, Kernel, KernelCall, Kernels
from hwnas.hardware.runtimes.interfaces import Buffer
from hwnas.models.graph import INPUT, Node

ENTRY = "network"
_SYMBOL = "__tvm_ffi_"  #: what TVM puts before the names of functions
_ALIGNMENT = 64  # bytes: a cache line, and as wide as any vector


@dataclass(frozen=True)
class CompiledOperator:
    """An operator that is compiled, or an edge of a network."""

    name: str  #: of its function
    function: Any  #: scheduled
    library: Any


@dataclass(frozen=True)
class LinkedNetwork:
    """A network as one module, and the shapes of what its function ``network`` reads and writes."""

    module: Any
    image: Buffer
    weights: Buffer
    output: Buffer
    arena: Buffer

    @property
    def parameters(self) -> list[Buffer]:
        """All parameters, in order."""
        return [self.image, self.weights, self.output, self.arena]


def link(
    steps: Sequence[KernelCall],
    compiled: Mapping[Kernel, CompiledOperator],
    kernels: Kernels,
    target: Any,
) -> LinkedNetwork:
    """Return a network linked from compiled operators, in this process.

    Args:
        steps: What it calls, in order.
        compiled: What they are compiled to.
        kernels: Of its dtype.
        target: TVM's target.
    """
    names = [compiled[step.kernel].name for step in steps]
    function, parameters = _network(steps, names, kernels, direct=False)
    # Little is gained by optimising calls, and much time lost.
    quick = tvm.target.Target({**target.export(), "opt-level": 1})
    module = tvm.tirx.build(tvm.IRModule({ENTRY: function}), target=quick)
    for built in {built.name: built for built in compiled.values()}.values():
        module.import_module(built.library)
    return LinkedNetwork(module, *parameters)


def build(
    steps: Sequence[KernelCall],
    compiled: Mapping[Kernel, CompiledOperator],
    kernels: Kernels,
    target: Any,
) -> LinkedNetwork:
    """Return a network that can be exported, its operators compiled anew.

    A library that is loaded finds its own functions by their symbols only, and TVM declares a
    symbol again at every call: so each call has a function of its own.
    """
    names = [f"{ENTRY}_{i}" for i in range(len(steps))]
    functions = {
        name: compiled[step.kernel].function.with_attr("global_symbol", name)
        for name, step in zip(names, steps, strict=True)
    }
    symbols = [f"{_SYMBOL}{name}" for name in names]
    function, parameters = _network(steps, symbols, kernels, direct=True)
    module = tvm.tirx.build(tvm.IRModule({ENTRY: function}), target=target)
    module.import_module(tvm.tirx.build(tvm.IRModule(functions), target=target))
    return LinkedNetwork(module, *parameters)


def _network(
    steps: Sequence[KernelCall], names: Sequence[str], kernels: Kernels, *, direct: bool
) -> tuple[Any, tuple[Buffer, ...]]:
    """Return the function that calls the operators, and its parameters."""
    unit = kernels.unit
    known = {step.kernel: kernels.buffers(step.kernel) for step in steps}
    (image, *_), _, _ = known[steps[0].kernel]
    output = known[steps[-1].kernel][2]
    sizes = {step.name: _units(known[step.kernel][2], unit) for step in steps[:-1]}
    activations, arena = plan_arena(steps, sizes)
    weights = sum(_units(found, unit) for step in steps for found in known[step.kernel][1])
    least = _ALIGNMENT // np.dtype(unit).itemsize
    parameters = (
        image,
        Buffer((max(weights, least),), unit),
        output,
        Buffer((max(arena, least),), unit),
    )
    return _function(_Calls(steps, names, known, activations, unit, direct), parameters), parameters


def object_files(module: Any) -> bytes:
    """Return what TVM compiled as a ``.tar`` of object files; equal code gives equal bytes.

    Args:
        module: Of a network, what ``build`` returned.
    """
    file = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="hwnas-tvm-") as folder:

        def pack(_: str, paths: Sequence[str]) -> None:
            with tarfile.open(fileobj=file, mode="w") as archive:
                for path in map(Path, paths):
                    member = tarfile.TarInfo(path.name)  # of no owner and no date
                    member.size = path.stat().st_size
                    archive.addfile(member, io.BytesIO(path.read_bytes()))

        module.export_library(str(Path(folder, "library.tar")), fcompile=pack)
    return file.getvalue()


def shared_library(objects: bytes, compiler: str) -> bytes:
    """Return object files linked as a shared library.

    Args:
        objects: What ``object_files`` returned.
        compiler: Compiler that links for the target; empty: this machine's.

    Raises:
        ConfigError: there is no such compiler.
        CompileError: it refuses.
    """
    command = find_compiler(compiler)
    with tempfile.TemporaryDirectory(prefix="hwnas-tvm-") as folder:
        library, paths = Path(folder, "library.so"), []
        try:
            with tarfile.open(fileobj=io.BytesIO(objects)) as archive:
                for member in archive:
                    if not member.isfile() or not member.name.endswith(".o"):
                        raise CompileError(f"'{member.name}' is no object file")
                    paths.append(Path(folder, Path(member.name).name))
                    paths[-1].write_bytes(cast(IO[bytes], archive.extractfile(member)).read())
            cc.create_shared(str(library), [str(path) for path in paths], cc=command)
        except (tarfile.TarError, RuntimeError) as error:
            raise CompileError(f"{command} cannot link a library: {error}"[:300]) from None
        return library.read_bytes()


def find_compiler(name: str) -> str:
    """Return the compiler of that name, or this machine's.

    Raises:
        ConfigError: it is not installed.
    """
    names = [name] if name else ["g++", "clang++", "gcc", "clang"]
    found = next(filter(shutil.which, names), None)
    if found is None:
        # Debian names packages so: g++-aarch64-linux-gnu brings aarch64-linux-gnu-g++.
        triple, _, kind = names[0].rpartition("-")
        package = f"{kind}-{triple}" if triple else kind
        where = "target.tvm.cc" if name else "the compiler that links libraries"
        raise ConfigError(
            f"There is no '{names[0]}' here ({where}). On Debian: apt-get install {package}"
        )
    return found


def pack(constants: Sequence[Array], unit: str) -> Array:
    """Return the constants of a network as its function reads them, in one array."""
    packed = b"".join(array.tobytes().ljust(_aligned(array.nbytes), b"\0") for array in constants)
    return np.frombuffer(packed or bytes(_ALIGNMENT), unit)


def plan_arena(
    steps: Sequence[Node | KernelCall], sizes: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """Return where in an arena each tensor lies, and the arena's size; sizes are in elements.

    Tensors that are needed at the same time don't overlap. Large ones are placed first, each at the
    lowest offset that is free while it lives.

    Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020,
    https://arxiv.org/abs/2001.03288 (greedy by size).
    """
    born = {step.name: i for i, step in enumerate(steps)}
    dies = {source: i for i, step in enumerate(steps) for source in step.inputs}
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first step, last step
    offsets: dict[str, int] = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], born[n])):
        first, last = born[name], dies.get(name, born[name])
        offset = 0
        for start, end, begins, ends in sorted(placed):
            if begins <= last and first <= ends and start < offset + sizes[name] and offset < end:
                offset = end
        offsets[name] = offset
        placed.append((offset, offset + sizes[name], first, last))
    return offsets, max((end for _, end, _, _ in placed), default=0)


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def _units(found: Buffer, unit: str) -> int:
    """Return what a tensor takes of an array, in elements of the array."""
    return _aligned(found.n_bytes) // np.dtype(unit).itemsize


@dataclass(frozen=True)
class _Calls:
    """What the function is made of."""

    steps: Sequence[KernelCall]
    names: Sequence[str]  #: of the functions, in order
    known: Mapping[Kernel, tuple[list[Buffer], list[Buffer], Buffer]]
    offsets: Mapping[str, int]  #: of activations in the arena
    unit: str  #: dtype of weights and arena
    direct: bool  #: whether operators are called by their symbols, not by name

    def body(self, ins: Any, outs: Any) -> Any:
        """Return the calls, given the image and the weights, the output and the arena."""
        (image, weights), (output, arena) = ins, outs
        calls, position = [], 0
        for step, name in zip(self.steps, self.names, strict=True):
            reads, constants, writes = self.known[step.kernel]
            arguments = []
            for source, found in zip(step.inputs, reads, strict=True):
                start = image[0, 0, 0, 0] if source == INPUT else arena[self.offsets[source]]
                arguments.append(_tensor(start, found))
            for found in constants:
                arguments.append(_tensor(weights[position], found))
                position += _units(found, self.unit)
            last = step is self.steps[-1]
            start = output[0, 0, 0, 0] if last else arena[self.offsets[step.name]]
            calls.append(tirx.Evaluate(self._call(name, [*arguments, _tensor(start, writes)])))
        return tirx.SeqStmt(calls) if len(calls) > 1 else calls[0]

    def _call(self, name: str, arguments: list[Any]) -> Any:
        if self.direct:
            return tirx.call_cpacked(name, *arguments)
        return tirx.call_packed(name, *arguments)


def _function(calls: _Calls, parameters: Sequence[Buffer]) -> Any:
    inputs = [te.placeholder(p.shape, p.dtype, f"p{i}") for i, p in enumerate(parameters[:2])]
    outputs = parameters[2:]
    results = te.extern(
        [p.shape for p in outputs],
        inputs,
        calls.body,
        name=ENTRY,
        dtype=[p.dtype for p in outputs],
        # Offset zero is promised to the operators, which check it.
        in_buffers=[tirx.decl_buffer(i.shape, i.dtype, elem_offset=0) for i in inputs],
        out_buffers=[tirx.decl_buffer(p.shape, p.dtype, elem_offset=0) for p in outputs],
    )
    return te.create_prim_func([*inputs, *results]).with_attr("global_symbol", ENTRY)


def _tensor(start: Any, found: Buffer) -> Any:
    """Return a tensor on the stack, as operators take it, that begins at an element."""
    pointer = PointerType(PrimType("int64"))
    extents = Call(Op.get("tirx.tvm_stack_make_shape"), list(found.shape), ret_ty=pointer)
    zero = tirx.const(0, found.dtype)
    fields = [tirx.address_of(start), extents, 0, len(found.shape), zero, 0]
    return Call(Op.get("tirx.tvm_stack_make_array"), fields, ret_ty="handle")
