"""Links a network from compiled operators: one function that calls them in order.

The function takes the image, all packed weights in one array, the output, and an arena in which all
other tensors lie. Nothing is allocated while it runs: a call costs about a tenth of a microsecond,
where TVM's virtual machine takes three quarters.
"""

import io
import math
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import te, tirx
from tvm.ir import Call, Op, PointerType, PrimType
from tvm.support import cc

from hwnas.backends.tvm import operators
from hwnas.errors import CompileError, ConfigError
from hwnas.graph import INPUT, Graph
from hwnas.op import OpSpec
from hwnas.runtimes.base import Weights

ENTRY = "network"
_SYMBOL = "__tvm_ffi_"  #: what TVM puts before the names of functions
_ALIGNMENT = 16  # floats: a cache line, and as wide as any vector


@dataclass(frozen=True)
class Compiled:
    """An operator that is compiled."""

    name: str  #: of its function
    function: Any  #: scheduled
    library: Any


@dataclass(frozen=True)
class Linked:
    """A network as one module, and the shapes of what its function ``network`` reads and writes."""

    module: Any
    image: tuple[int, ...]
    weights: tuple[int]
    output: tuple[int, ...]
    arena: tuple[int]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all parameters, in order."""
        return [self.image, self.weights, self.output, self.arena]


def link(lowered: Graph, compiled: Mapping[OpSpec, Compiled], lanes: int, target: Any) -> Linked:
    """Return a network linked from compiled operators, in this process.

    Args:
        lowered: The network, fused.
        compiled: Its operators.
        lanes: Lanes of a vector, to which channels are padded.
        target: TVM's target.
    """
    names = [compiled[node.op].name for node in lowered]
    function, shapes = _network(lowered, names, lanes, direct=False)
    # Little is gained by optimising calls, and much time lost.
    quick = tvm.target.Target({**target.export(), "opt-level": 1})
    module = tvm.tirx.build(tvm.IRModule({ENTRY: function}), target=quick)
    for built in {built.name: built for built in compiled.values()}.values():
        module.import_module(built.library)
    return Linked(module, *shapes)


def build(lowered: Graph, compiled: Mapping[OpSpec, Compiled], lanes: int, target: Any) -> Linked:
    """Return a network that can be exported, its operators compiled anew.

    A library that is loaded finds its own functions by their symbols only, and TVM declares a
    symbol again at every call: so each call has a function of its own.
    """
    names = [f"{ENTRY}_{step}" for step in range(len(lowered))]
    functions = {
        name: compiled[node.op].function.with_attr("global_symbol", name)
        for name, node in zip(names, lowered, strict=True)
    }
    function, shapes = _network(lowered, [f"{_SYMBOL}{name}" for name in names], lanes, direct=True)
    module = tvm.tirx.build(tvm.IRModule({ENTRY: function}), target=target)
    module.import_module(tvm.tirx.build(tvm.IRModule(functions), target=target))
    return Linked(module, *shapes)


def _network(
    lowered: Graph, names: Sequence[str], lanes: int, *, direct: bool
) -> tuple[Any, tuple[Any, ...]]:
    """Return the function that calls the operators, and the shapes of its parameters."""
    first, last = lowered[0].op, lowered.output.op
    image = operators.buffer_shape(first.in_shape, first.batch, lanes)
    output = operators.buffer_shape(last.out_shape, last.batch, lanes)
    activations, arena = plan_arena(
        lowered, {node.name: _aligned(_activation(node.op, lanes)) for node in lowered[:-1]}
    )
    weights = sum(_aligned(math.prod(shape)) for shape in _weight_shapes(lowered, lanes))
    shapes = (image, (max(weights, _ALIGNMENT),), output, (max(arena, _ALIGNMENT),))
    return _function(_Calls(lowered, names, lanes, activations, direct), shapes), shapes


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


def pack_weights(lowered: Graph, weights: Weights, lanes: int) -> NDArray[np.float32]:
    """Return all weights of a network as its function reads them."""
    parts = [np.zeros(0, np.float32)]
    for node in lowered:
        if operators.weight_shapes(node.op, lanes):
            for array in operators.pack(node.op, *weights[node.name], lanes):
                parts.append(np.zeros(_aligned(array.size), np.float32))
                parts[-1][: array.size] = array.ravel()
    packed = np.concatenate(parts)
    return packed if packed.size else np.zeros(_ALIGNMENT, np.float32)


def plan_arena(lowered: Graph, sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return where in an arena each tensor lies, and the arena's size; sizes are in elements.

    Tensors that are needed at the same time don't overlap. Large ones are placed first, each at the
    lowest offset that is free while it lives.

    Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020,
    https://arxiv.org/abs/2001.03288 (greedy by size).
    """
    born = {node.name: step for step, node in enumerate(lowered)}
    dies = {source: step for step, node in enumerate(lowered) for source in node.inputs}
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


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _activation(op: OpSpec, lanes: int) -> int:
    return math.prod(operators.buffer_shape(op.out_shape, op.batch, lanes))


def _weight_shapes(lowered: Graph, lanes: int) -> list[tuple[int, ...]]:
    return [shape for node in lowered for shape in operators.weight_shapes(node.op, lanes)]


@dataclass(frozen=True)
class _Calls:
    """What the function is made of."""

    lowered: Graph
    names: Sequence[str]  #: of the functions, in order
    lanes: int
    offsets: Mapping[str, int]  #: of activations in the arena
    direct: bool  #: whether operators are called by their symbols, not by name

    def body(self, ins: Any, outs: Any) -> Any:
        """Return the calls, given the image and the weights, the output and the arena."""
        (image, weights), (output, arena) = ins, outs
        calls, position = [], 0
        for node, name in zip(self.lowered, self.names, strict=True):
            op = node.op
            arguments = []
            for source, shape in zip(
                node.inputs, operators.input_shapes(op, self.lanes), strict=True
            ):
                start = image[0, 0, 0, 0] if source == INPUT else arena[self.offsets[source]]
                arguments.append(_tensor(start, shape))
            for shape in operators.weight_shapes(op, self.lanes):
                arguments.append(_tensor(weights[position], shape))
                position += _aligned(math.prod(shape))
            last = node is self.lowered.output
            start = output[0, 0, 0, 0] if last else arena[self.offsets[node.name]]
            shape = operators.buffer_shape(op.out_shape, op.batch, self.lanes)
            arguments.append(_tensor(start, shape))
            calls.append(tirx.Evaluate(self._call(name, arguments)))
        return tirx.SeqStmt(calls) if len(calls) > 1 else calls[0]

    def _call(self, name: str, arguments: list[Any]) -> Any:
        if self.direct:
            return tirx.call_cpacked(name, *arguments)
        return tirx.call_packed(name, *arguments)


def _function(calls: _Calls, shapes: Sequence[tuple[int, ...]]) -> Any:
    inputs = [te.placeholder(shape, name=f"p{i}") for i, shape in enumerate(shapes[:2])]
    results = te.extern(
        list(shapes[2:]),
        inputs,
        calls.body,
        name=ENTRY,
        dtype=["float32", "float32"],
        # Offset zero is promised to the operators, which check it.
        in_buffers=[tirx.decl_buffer(i.shape, "float32", elem_offset=0) for i in inputs],
        out_buffers=[tirx.decl_buffer(s, "float32", elem_offset=0) for s in shapes[2:]],
    )
    return te.create_prim_func([*inputs, *results]).with_attr("global_symbol", ENTRY)


def _tensor(start: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor on the stack, as operators take it, that begins at an element."""
    pointer = PointerType(PrimType("int64"))
    extents = Call(Op.get("tirx.tvm_stack_make_shape"), list(shape), ret_ty=pointer)
    zero = tirx.const(0, "float32")
    fields = [tirx.address_of(start), extents, 0, len(shape), zero, 0]
    return Call(Op.get("tirx.tvm_stack_make_array"), fields, ret_ty="handle")
