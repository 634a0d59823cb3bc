"""The engine of TVM: operators and networks compiled for a target and timed on a device."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import safetensors.numpy
import tvm
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.tvm import TvmSettings
from hwnas.hardware.backends.tvm.compiler import Compiler, set_threads
from hwnas.hardware.backends.tvm.kernels import Array
from hwnas.hardware.backends.tvm.linker import ENTRY, LinkedNetwork, object_files, shared_library
from hwnas.hardware.backends.tvm.templates import Plan
from hwnas.hardware.runtimes.interfaces import Buffer, LoadedNetwork, OperatorPlans
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import Timer, Timing, TimingConfig, measure
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import Parameters

_UNCOUNTED = 1  #: untimed inferences of each ``time_evaluator`` call


class TvmDevice(Protocol):
    """A device that runs compiled libraries: this machine, or a remote one."""

    by_library: bool  #: True if it loads only shared libraries; False: modules in memory, too

    def load(self, module: Any) -> Any:
        """Return a module that TVM compiled, loaded on the device."""
        ...

    def load_file(self, path: Path) -> Any:
        """Return the module of a library file, loaded on the device."""
        ...

    def link(self, objects: bytes) -> bytes:
        """Return the content of a shared library, linked from a ``.tar`` of object files."""
        ...

    def tensor(self, array: Array) -> Any:
        """Return a tensor on the device, with the content of ``array``."""
        ...

    def array(self, tensor: Any) -> NDArray[np.float32]:
        """Return the content of a tensor of the device as an array of the same shape."""
        ...

    def call(self, module: Any, name: str, arguments: Sequence[Any]) -> None:
        """Run the function ``name`` of a module with tensors of the device."""
        ...

    def timer(self, module: Any, name: str, arguments: Sequence[Any]) -> Timer:
        """Return a timer of the function ``name`` of a module: seconds for ``n`` calls."""
        ...


@final
class TvmEngine:
    """TVM on this machine or a remote device; for errors of methods see ``Engine``.

    Raises:
        ConfigError: TVM or LLVM does not accept the target's settings.
    """

    def __init__(self, target: Target, device: TvmDevice):
        self._compiler = Compiler(target)
        self._device = device

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return at most ``limit`` compilation plans of an operator, the most promising first."""
        return [str(plan) for plan in self._compiler.plans(op, limit)]

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one operator, isolated, on random data."""
        compiled = self._compiler.compile(op, Plan.parse(plan))
        module = self._device.load(compiled.library)
        tensors = [
            self._device.tensor(_random_array(buffer)) for buffer in self._compiler.buffers(op)
        ]
        return self._device.timer(module, compiled.name, tensors)

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator in ms, isolated, on random data."""
        return measure(self.operator(op, plan), config)

    def network(self, graph: Graph, plans: OperatorPlans) -> Timer:
        """Return a timer of a network of random weights and images; ``plans`` has all operators."""
        linked = self._link(graph, plans, self._device.by_library)
        module = self._device.load(linked.module)
        tensors = [self._device.tensor(_random_array(buffer)) for buffer in linked.parameters]
        return self._device.timer(module, ENTRY, tensors)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Remove an operator that was compiled with ``plan`` from the compiler's cache."""
        self._compiler.forget(op, Plan.parse(plan))

    def export(
        self, graph: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        """Return the contents of a network's files, by suffix.

        ``.so`` is its library, ``.tar`` has the library's object files, ``.safetensors`` the packed
        weights with the shapes of all parameters.
        """
        linked = self._link(graph, plans, library=True)
        packed = self._compiler.pack_weights(graph, weights)
        shapes = {
            "images": graph[0].op.in_shape,
            "n_outputs": graph.output.op.out_shape[0],
            "parameters": [parameter.shape for parameter in linked.parameters],
            "dtypes": [parameter.dtype for parameter in linked.parameters],
            "entry": ENTRY,
        }
        metadata = {"network": json.dumps(shapes)}
        objects = object_files(linked.module)
        return {
            ".so": self._device.link(objects),
            ".tar": objects,
            ".safetensors": safetensors.numpy.save({"weights": packed}, metadata),
        }

    def open(self, files: Mapping[str, Path]) -> LoadedNetwork:
        """Return a network loaded on the device, and its timer.

        It is loaded from ``.safetensors`` and ``.so``; without ``.so``, the object files in
        ``.tar`` are linked.
        """
        with safetensors.safe_open(str(files[".safetensors"]), "numpy") as file:
            shapes = json.loads(file.metadata()["network"])
            weights = file.get_tensor("weights")
        with tempfile.TemporaryDirectory(prefix="hwnas-tvm-") as folder:
            library = files.get(".so", Path(folder, "library.so"))
            if ".so" not in files:
                library.write_bytes(self._device.link(files[".tar"].read_bytes()))
            module = self._device.load_file(library)
        session = TvmSession(module, self._device, weights, shapes)
        timer = self._device.timer(module, ENTRY, session.parameters())
        return LoadedNetwork(timer, session, _UNCOUNTED)

    def _link(self, graph: Graph, plans: OperatorPlans, library: bool) -> LinkedNetwork:
        """Return a linked network: for this process, or compiled again for export."""
        parsed = _parse_plans(graph, plans)
        if library:
            return self._compiler.build(graph, parsed)
        return self._compiler.link(graph, parsed)


def _parse_plans(graph: Graph, plans: OperatorPlans) -> dict[OpSpec, Plan]:
    """Return the plans of a network's operators.

    Raises:
        CompileError: an operator was not tuned; TVM's default schedule would be far too slow.
    """
    missing = [node.op for node in graph if node.op not in plans]
    if missing:
        raise CompileError(
            f"{len(missing)} operators have no compilation plan, for example {missing[0]}. This is "
            "an error in hwnas; please report it."
        )
    return {node.op: Plan.parse(plans[node.op]) for node in graph}


@final
class TvmSession:
    """A compiled network, loaded on a device; ``shapes`` is from its ``.safetensors`` file."""

    def __init__(self, module: Any, device: TvmDevice, weights: Array, shapes: Any):
        self._module, self._device, self._shapes = module, device, shapes
        dtypes = shapes.get("dtypes", ["float32"] * 4)  # earlier files have no dtypes
        buffers = [Buffer(tuple(s), d) for s, d in zip(shapes["parameters"], dtypes, strict=True)]
        image, _, output, arena = buffers
        self._image = image
        self._fixed = [
            device.tensor(weights),
            *(device.tensor(_random_array(b)) for b in (output, arena)),
        ]

    def parameters(self) -> list[Any]:
        """Return the tensors that the network's function takes, with random images."""
        return [self._device.tensor(_random_array(self._image)), *self._fixed]

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``.

        Raises:
            CompileError: the shape of the images differs from the network's.
        """
        if [*images.shape[1:]] != self._shapes["images"]:
            raise CompileError(
                f"The network reads images (C, H, W) of {self._shapes['images']}, not "
                f"{[*images.shape[1:]]}. Give images of this size."
            )
        batch, n = self._image.shape[0], len(images)
        n_outputs = self._shapes["n_outputs"]
        memory = np.zeros(self._image.shape, np.float32)
        outputs = np.empty((n, n_outputs), np.float32)
        for start in range(0, n, batch):
            chunk = images[start : start + batch]
            memory[: len(chunk), ..., : images.shape[1]] = chunk.transpose(0, 2, 3, 1)
            self._device.call(self._module, ENTRY, [self._device.tensor(memory), *self._fixed])
            rows = self._device.array(self._fixed[1]).reshape(batch, -1)
            outputs[start : start + batch] = rows[: len(chunk), :n_outputs]
        return outputs


def open_engine(target: Target, remote: Remote) -> TvmEngine:
    """Return the engine of a target on its device.

    Raises:
        ConfigError: TVM or LLVM does not accept the target's settings, or see ``open_device``.
        DeviceError: no device answers.
    """
    return TvmEngine(target, open_device(target, remote))


def open_device(target: Target, remote: Remote) -> TvmDevice:
    """Return the device of a target: a remote one if ``rpc.tracker`` is set, else this machine.

    Raises:
        ConfigError: this machine has fewer cores than ``target.threads``, or the compiler that
            links for a remote device is not installed.
        DeviceError: the tracker does not answer, or no device is free within ``rpc.timeout_s``.
    """
    if remote.tracker:
        from hwnas.hardware.backends.tvm.remote import RemoteDevice

        return RemoteDevice(target.section(TvmSettings), remote, target.threads)
    return LocalDevice(target.threads)


@final
class LocalDevice:
    """This machine as a ``TvmDevice``.

    Raises:
        ConfigError: fewer than ``threads`` cores are available.
    """

    by_library = False  #: modules in memory are loaded directly

    def __init__(self, threads: int):
        set_threads(threads)
        self._device = tvm.cpu()

    def load(self, module: Any) -> Any:
        """Return the module itself."""
        return module

    def load_file(self, path: Path) -> Any:
        """Return the module of a library file."""
        return tvm.runtime.load_module(str(path))

    def link(self, objects: bytes) -> bytes:
        """Return the content of a shared library, linked from a ``.tar`` of object files.

        Raises:
            ConfigError: no C or C++ compiler is installed.
            CompileError: the files cannot be linked.
        """
        return shared_library(objects, "")

    def tensor(self, array: Array) -> Any:
        """Return a copy of ``array`` as a tensor of TVM."""
        return tvm.runtime.tensor(array, self._device)

    def array(self, tensor: Any) -> NDArray[np.float32]:
        """Return the content of a tensor as an array of the same shape."""
        array: NDArray[np.float32] = tensor.numpy()
        return array

    def call(self, module: Any, name: str, arguments: Sequence[Any]) -> None:
        """Run the function ``name`` of a module."""
        module[name](*arguments)

    def timer(self, module: Any, name: str, arguments: Sequence[Any]) -> Timer:
        """Return a timer of the function ``name`` of a module: seconds for ``n`` calls."""

        def run(n: int) -> float:
            result = module.time_evaluator(name, self._device, number=n, repeat=1)(*arguments)
            return float(result.median) * n

        return run


def _random_array(buffer: Buffer) -> Array:
    rng = np.random.default_rng(0)
    if buffer.dtype == "float32":
        # Small values of both signs: no overflow, and no denormal numbers, which are slow.
        return rng.uniform(-0.5, 0.5, size=buffer.shape).astype(np.float32)
    if len(buffer.shape) == 1:  # raw bytes may hold floats: zeros are normal numbers
        return np.zeros(buffer.shape, buffer.dtype)
    return rng.integers(0, 100, size=buffer.shape).astype(buffer.dtype)
