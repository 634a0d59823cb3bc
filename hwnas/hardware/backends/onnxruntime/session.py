"""Sessions and timers of ONNX models on this machine."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.measured_backend import empty_network
from hwnas.hardware.backends.onnxruntime import EXACT, OnnxRuntimeSettings, provider
from hwnas.hardware.timing import Timer
from hwnas.models.onnx import BATCH, OPERATORS, THREADS

#: Key of ``node_times`` for time that belongs to no operator, such as conversions of layouts.
LAYOUT = "layout"

_REFUSALS = (
    errors.EPFail,
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
    errors.RuntimeException,
    RuntimeError,  # raised by providers
)
_ADVICE = (
    "Choose another search space or target.runtime; if the file is from an export, export the "
    "network again."
)
_ON_CPU = OnnxRuntimeSettings()
_EVENT = "_kernel_time"  # suffix of node names in onnxruntime's profile
_ROUNDS = 10  # rounds of alternating profiled and plain runs
#: Types of inputs and outputs; uint8 between two parts of an int8 network.
_TYPES: dict[str, type] = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
_CHUNK = 64  # images per inference, if a model reads any number
_REPEAT = 5  # plain runs per timing
_SPIN_US = 1000  # how long threads wait without sleeping, longer than the gaps within a network


@final
class OrtSession:
    """An ONNX model with one input, loaded on this machine.

    Raises:
        CompileError: onnxruntime cannot load it, or its provider does not support all operators.

    Source: https://onnxruntime.ai.
    """

    def __init__(self, model: bytes, n_threads: int = 1, chosen: OnnxRuntimeSettings = _ON_CPU):
        self._session = _load(model, _options(n_threads, spinning=False), chosen)
        self._input, self._outputs = self._session.get_inputs()[0], self._session.get_outputs()

    def run(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the last output ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``.

        Raises:
            CompileError: see ``outputs``.
        """
        return self.outputs(images)[-1]

    def outputs(self, images: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Return all outputs for normalised images ``(N, C, H, W)``, in the order of the model.

        Each is ``(N, n_outputs)``, or ``(N, C, H, W)`` for features that the next segment reads. It
        is float32, or uint8 between two parts of an int8 network. An inference has the model's
        batch size; the last batch is padded.

        Raises:
            CompileError: onnxruntime refuses the images, such as those of another shape.
        """
        fixed = self._input.shape[0]
        batch = fixed if isinstance(fixed, int) else min(_CHUNK, len(images))
        rows = [np.empty((len(images), *out.shape[1:]), _TYPES[out.type]) for out in self._outputs]
        for start in range(0, len(images), batch):
            chunk = images[start : start + batch]
            n = len(chunk)
            full = np.concatenate([chunk, np.zeros((batch - n, *chunk.shape[1:]), chunk.dtype)])
            with _one_line(f"Give images of the shape {self._input.shape}."):
                answers = self._session.run(None, {self._input.name: full})
            for output, answer in zip(rows, answers, strict=True):
                output[start : start + n] = answer[:n]
        return tuple(rows)


def open_onnx(contents: Mapping[str, bytes]) -> OrtSession:
    """Return the network of an exported ONNX file, ``contents[".onnx"]``, on this machine's CPU.

    Raises:
        CompileError: onnxruntime cannot load it.
    """
    return OrtSession(contents[".onnx"])


def timer(
    model: bytes, n_threads: int, batch: int = 1, chosen: OnnxRuntimeSettings = _ON_CPU
) -> Timer:
    """Return a function that runs ``n`` inferences on fixed random images and returns the seconds.

    Threads spin (wait for work without sleeping) only up to a millisecond after a run. Images and
    outputs are in the machine's memory; copies to a device with its own memory are timed. A model
    that accepts any number of images reads ``batch``.

    Raises:
        CompileError: onnxruntime cannot load the model, or the provider leaves operators to the
            CPU.
    """
    session = _load(model, _options(n_threads, spinning=True), chosen)
    binding, buffers = _bind_buffers(session, batch)

    def run(n: int) -> float:
        assert buffers  # onnxruntime does not own them
        start = time.perf_counter()
        for _ in range(n):
            session.run_with_iobinding(binding)
        return time.perf_counter() - start

    return run


def node_times(model: bytes, n_threads: int, n_runs: int) -> dict[str, float]:
    """Return the latency of every operator of a model on the CPU in ms, by operator name.

    It is a mean over the faster half of about ``n_runs`` inferences. Together with ``LAYOUT``, the
    operators add up to the model's latency. A kernel's time lasts from its start to the
    start of the next one: onnxruntime's profiler truncates to microseconds, which averages out over
    starts but not over durations. The overhead of profiling per kernel follows from the latency
    without a profiler. ``LAYOUT`` is the start of an inference and kernels that onnxruntime
    inserted. Operators that were fused into others have 0.

    Raises:
        CompileError: onnxruntime cannot load the model, the model is too large for its profiler, or
            the model's metadata has no names of operators (hwnas did not write it).
    """
    operators = _operators(model)
    timers = [timer(model, n_threads), timer(_empty_model(), n_threads)]
    repeats: list[list[float]] = [[] for _ in timers]
    n = max(1, n_runs // _ROUNDS)

    def between() -> None:
        """Time plain runs next to profiled ones, so that both see the same machine speed."""
        for run, seconds in zip(timers, repeats, strict=True):
            run(1)
            seconds.extend(run(_REPEAT) / _REPEAT for _ in range(max(1, n // _REPEAT)))

    kernels = _profile(model, n_threads, n, between)
    whole_ms, idle_ms = (float(_faster_half(np.array(seconds)).mean()) * 1e3 for seconds in repeats)
    added_ms = sum(kernel.step_ms for kernel in kernels) - (whole_ms - idle_ms)
    added_ms /= sum(kernel.weight for kernel in kernels)
    times = dict.fromkeys([*operators, LAYOUT], 0.0)
    times[LAYOUT] = idle_ms
    for kernel in kernels:
        times[_operator(kernel.name, operators)] += kernel.step_ms - kernel.weight * added_ms
    return {name: max(0.0, value) for name, value in times.items()}  # negative values are noise


@dataclass(frozen=True)
class _Kernel:
    """A kernel that onnxruntime ran."""

    name: str
    n_inputs: int
    step_ms: float  #: start to start of the next kernel

    @property
    def weight(self) -> float:
        """Relative overhead of profiling: 3 % more per input (onnxruntime 1.31)."""
        return 1 + 0.03 * self.n_inputs


def _options(n_threads: int, *, spinning: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = n_threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # errors are raised as exceptions
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    if spinning:  # of other sessions, too: 2.5 instead of 1.4 ms with two threads (1.31.1)
        options.add_session_config_entry("session.intra_op.spin_duration_us", f"{_SPIN_US}")
    options.add_session_config_entry(*EXACT)
    return options


def _load(model: bytes, options: Any, chosen: OnnxRuntimeSettings = _ON_CPU) -> Any:
    with _one_line(_ADVICE):
        session = provider.create_session(model, options, chosen)
    for value in (*session.get_inputs(), *session.get_outputs()):
        fixed = value.shape[1:] if value.shape[:1] == [BATCH] else value.shape
        if value.type not in _TYPES or not all(isinstance(n, int) for n in fixed):
            raise CompileError(
                f"The ONNX model's '{value.name}' is {value.type} {value.shape}; expected float32 "
                "of a fixed shape, as hwnas writes it. Export the network again with hwnas export."
            )
    return session


@contextlib.contextmanager
def _one_line(advice: str) -> Iterator[None]:
    """Turn onnxruntime's exceptions into a one-line ``CompileError`` that ends with ``advice``."""
    try:
        yield
    except _REFUSALS as error:
        reason = provider.first_line(error)
        raise CompileError(
            f"onnxruntime cannot run the model: {reason.rstrip('.')}. {advice}"
        ) from error


def _bind_buffers(session: Any, batch: int = 1) -> tuple[Any, list[Any]]:
    """Return a binding of inputs and outputs to fixed buffers, and the buffers."""
    image, answers = session.get_inputs()[0], list(session.get_outputs())
    arrays: list[NDArray[Any]] = [
        np.empty([batch if n == BATCH else n for n in value.shape], _TYPES[value.type])
        for value in (image, *answers)
    ]
    normal = np.random.default_rng(0).standard_normal(arrays[0].shape)
    is_real = arrays[0].dtype == np.float32
    arrays[0][:] = normal if is_real else np.clip(128 + 32 * normal, 0, 255)
    buffers = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    binding = session.io_binding()
    binding.bind_ortvalue_input(image.name, buffers[0])
    for output, value in zip(answers, buffers[1:], strict=True):
        binding.bind_ortvalue_output(output.name, value)
    return binding, buffers


def _empty_model() -> bytes:
    """Return a model whose latency is the start of an inference."""
    from hwnas.models.onnx.writer import write_fp32  # imports onnx, which sessions do not need

    return write_fp32(empty_network(), {})


def threads_of(model: bytes) -> int:
    """Return the number of threads in the metadata of an ONNX file's content; 0 if it has none.

    Raises:
        CompileError: onnxruntime cannot load the model.
    """
    threads = _metadata(model).get(THREADS, "0")
    return int(threads) if threads.isdecimal() else 0


def _metadata(model: bytes) -> dict[str, str]:
    options = _options(1, spinning=False)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    metadata: dict[str, str] = _load(model, options).get_modelmeta().custom_metadata_map
    return metadata


def _operators(model: bytes) -> list[str]:
    metadata = _metadata(model)
    if OPERATORS not in metadata:
        raise CompileError(
            f"The ONNX model has no '{OPERATORS}' in its metadata, so that its profile cannot be "
            "read. Export the network again with hwnas export."
        )
    return metadata[OPERATORS].split("\n")


def _operator(kernel: str, operators: list[str]) -> str:
    """Return the operator of a kernel, from the name that onnxruntime gave it.

    Fused: ``fused a``; in a blocked layout: ``a:0_nchwc``, after its output; moved by a change of
    layout: ``a_token_12``; parts: ``a/relu6:0``.
    """
    name = kernel.removeprefix("fused ").partition("/")[0].partition(":")[0]
    for candidate in (name, name.rpartition("_token_")[0]):
        if candidate in operators:
            return candidate
    return LAYOUT


def _profile(model: bytes, n_threads: int, n: int, between: Callable[[], None]) -> list[_Kernel]:
    """Return the kernels in order of execution.

    Args:
        model: The model.
        n_threads: Number of threads.
        n: Runs per round; there are ``_ROUNDS``.
        between: Called after each round.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = _options(n_threads, spinning=True)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = _load(model, options)
        binding, buffers = _bind_buffers(session)
        for _ in range(_ROUNDS):
            for _ in range(n + 1):
                session.run_with_iobinding(binding)
            between()
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        assert buffers
    kernels = [event for event in events if event["name"].endswith(_EVENT)]
    runs = _ROUNDS * (n + 1)
    first = kernels[: len(kernels) // runs]
    if not first or len(kernels) != runs * len(first):
        raise CompileError(
            f"The model is too large for onnxruntime's profile, which lacks some of its {runs} "
            "runs. Choose a search space with smaller networks."
        )
    starts, durations = (
        np.array([event[key] for event in kernels], np.float64).reshape(runs, -1)
        for key in ("ts", "dur")
    )
    names = [event["name"].removesuffix(_EVENT) for event in first]
    n_inputs = [len(event["args"]["input_type_shape"]) for event in first]
    steps_ms = (_steps_us(starts, durations) / 1e3).tolist()
    return [_Kernel(*row) for row in zip(names, n_inputs, steps_ms, strict=True)]


def _steps_us(starts: NDArray[np.float64], durations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time from each kernel's start to the next one's, averaged over quiet runs.

    The last kernel gets the median gap of the others.
    """
    rows = np.hstack([np.diff(starts, axis=1), durations])
    mean = _faster_half(rows, starts[:, -1] + durations[:, -1] - starts[:, 0]).mean(axis=0)
    n = starts.shape[1]
    steps, lengths = mean[: n - 1], mean[n - 1 :]
    gap = np.median(steps - lengths[:-1]) if n > 1 else 0.0
    return np.append(steps, lengths[-1] + gap)


def _faster_half(
    runs: NDArray[np.float64], seconds: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the faster half of the runs: disturbances make a run longer, never shorter."""
    order = np.argsort(runs if seconds is None else seconds, kind="stable")
    quiet: NDArray[np.float64] = runs[order[: (len(runs) + 1) // 2]]
    return quiet
