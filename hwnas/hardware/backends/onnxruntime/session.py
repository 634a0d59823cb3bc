"""Runs and times ONNX models on this machine. Beside ``provider``, what imports onnxruntime."""

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
from hwnas.hardware.backends.measured_backend import nothing
from hwnas.hardware.backends.onnxruntime import EXACT, OnnxRuntimeSettings, provider
from hwnas.hardware.timing import Timer
from hwnas.models.onnx import BATCH, OPERATORS, THREADS

#: Name under which ``node_times`` has all time that belongs to no operator.
LAYOUT = "layout"

_REFUSALS = (
    errors.EPFail,
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
    errors.RuntimeException,
    RuntimeError,  # of providers
)
_ON_CPU = OnnxRuntimeSettings()
_EVENT = "_kernel_time"  # what onnxruntime appends to the name of a node
_ROUNDS = 10  # in which profiled and plain runs take turns
#: What goes in and comes out: floats, or int8 as bytes, between two parts of a network.
_TYPES: dict[str, type] = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
_CHUNK = 64  # images of an inference, where a model reads any number
_REPEAT = 5  # plain runs between two looks at the clock


@final
class OrtSession:
    """One loaded ONNX model of one input.

    Source: https://onnxruntime.ai.
    """

    def __init__(self, model: bytes, n_threads: int = 1, chosen: OnnxRuntimeSettings = _ON_CPU):
        self._session = _load(model, _options(n_threads, spinning=False), chosen)
        self._input, self._outputs = self._session.get_inputs()[0], self._session.get_outputs()

    def run(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the last output for normalised images ``(N, C, H, W)``, as ``outputs`` has it."""
        return self.outputs(images)[-1]

    def outputs(self, images: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Return all outputs, in the order of the model: rows, or images ``(N, C, H, W)``.

        In float32; what goes from one part of an int8 network to the next is in uint8.

        One inference reads as many images as the model was written for; the last is filled up.

        Raises:
            CompileError: images are not of the shape that the model reads.
        """
        batch = (
            self._input.shape[0]
            if isinstance(self._input.shape[0], int)
            else min(_CHUNK, len(images))
        )
        found = [np.empty((len(images), *out.shape[1:]), _TYPES[out.type]) for out in self._outputs]
        for start in range(0, len(images), batch):
            chunk = images[start : start + batch]
            n = len(chunk)
            full = np.concatenate([chunk, np.zeros((batch - n, *chunk.shape[1:]), chunk.dtype)])
            with _one_line():
                answers = self._session.run(None, {self._input.name: full})
            for output, answer in zip(found, answers, strict=True):
                output[start : start + n] = answer[:n]
        return tuple(found)


def open_onnx(contents: Mapping[str, bytes]) -> OrtSession:
    """Return the ONNX file of an export as something that runs.

    Raises:
        CompileError: onnxruntime refuses the model.
    """
    return OrtSession(contents[".onnx"])


def timer(
    model: bytes, n_threads: int, batch: int = 1, chosen: OnnxRuntimeSettings = _ON_CPU
) -> Timer:
    """Return a function that does ``n`` inferences on fixed images and returns the seconds.

    Threads spin (wait for work without sleeping) while something is timed, and only then. A model
    that reads any number of images reads ``batch``. Images and outputs lie in the machine's memory:
    to a device that has its own they are copied, and that is timed.

    Raises:
        CompileError: onnxruntime refuses the model.
    """
    session = _load(model, _options(n_threads, spinning=True), chosen)
    binding, kept = _bound(session, batch)

    def run(n: int) -> float:
        assert kept  # onnxruntime does not own these buffers
        start = time.perf_counter()
        for _ in range(n):
            session.run_with_iobinding(binding)
        return time.perf_counter() - start

    return run


def node_times(model: bytes, n_threads: int, n_runs: int) -> dict[str, float]:
    """Return the milliseconds of every operator of a model on the CPU; together of the whole model.

    A kernel's time is that from its start to the start of the next one: onnxruntime's profiler cuts
    to whole microseconds, which averages out over the starts of many runs but not over durations.
    What profiling adds to every kernel follows from the latency of the model without a profiler.
    ``LAYOUT`` has what starting an inference takes and what onnxruntime inserted between operators.
    An operator that became part of another one has no time of its own.

    Raises:
        CompileError: onnxruntime refuses the model, or it is too large for so many runs.
    """
    operators = _operators(model)
    timers = [timer(model, n_threads), timer(_nearly_nothing(), n_threads)]
    repeats: list[list[float]] = [[] for _ in timers]
    n = max(1, n_runs // _ROUNDS)

    def between() -> None:
        """Time next to profiled runs, so that the machine is as fast for both."""
        for run, seconds in zip(timers, repeats, strict=True):
            run(1)
            seconds.extend(run(_REPEAT) / _REPEAT for _ in range(max(1, n // _REPEAT)))

    kernels = _profile(model, n_threads, n, between)
    whole_ms, idle_ms = (float(_quiet(np.array(seconds)).mean()) * 1e3 for seconds in repeats)
    added_ms = sum(kernel.step_ms for kernel in kernels) - (whole_ms - idle_ms)
    added_ms /= sum(kernel.weight for kernel in kernels)
    times = dict.fromkeys([*operators, LAYOUT], 0.0)
    times[LAYOUT] = idle_ms
    for kernel in kernels:
        times[_operator(kernel.name, operators)] += kernel.step_ms - kernel.weight * added_ms
    return {name: max(0.0, value) for name, value in times.items()}  # below zero by noise only


@dataclass(frozen=True)
class _Kernel:
    """One kernel that onnxruntime ran."""

    name: str
    n_inputs: int
    step_ms: float  #: from its start to the start of the next

    @property
    def weight(self) -> float:
        """Its share of what profiling adds: 3 % more with each input (onnxruntime 1.31)."""
        return 1 + 0.03 * self.n_inputs


def _options(n_threads: int, *, spinning: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = n_threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # errors come as exceptions
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.add_session_config_entry(*EXACT)
    return options


def _load(model: bytes, options: Any, chosen: OnnxRuntimeSettings = _ON_CPU) -> Any:
    with _one_line():
        session = provider.created(model, options, chosen)
    for value in (*session.get_inputs(), *session.get_outputs()):
        fixed = value.shape[1:] if value.shape[:1] == [BATCH] else value.shape
        if value.type not in _TYPES or not all(isinstance(n, int) for n in fixed):
            raise CompileError(
                f"The model's '{value.name}' is {value.type} {value.shape}; expected floats of a "
                "fixed shape, as hwnas writes them."
            )
    return session


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn what onnxruntime raises into our own error."""
    try:
        yield
    except _REFUSALS as error:
        reason = provider.first_line(error)
        raise CompileError(f"onnxruntime refuses the model: {reason}") from error


def _bound(session: Any, batch: int = 1) -> tuple[Any, list[Any]]:
    """Return input and output in memory that stays where it is, and what keeps it alive."""
    image, answers = session.get_inputs()[0], list(session.get_outputs())
    arrays: list[NDArray[Any]] = [
        np.empty([batch if n == BATCH else n for n in value.shape], _TYPES[value.type])
        for value in (image, *answers)
    ]
    normal = np.random.default_rng(0).standard_normal(arrays[0].shape)
    is_real = arrays[0].dtype == np.float32
    arrays[0][:] = normal if is_real else np.clip(128 + 32 * normal, 0, 255)
    kept = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    binding = session.io_binding()
    binding.bind_ortvalue_input(image.name, kept[0])
    for output, value in zip(answers, kept[1:], strict=True):
        binding.bind_ortvalue_output(output.name, value)
    return binding, kept


def _nearly_nothing() -> bytes:
    """Return a model whose latency is what starting an inference takes."""
    from hwnas.models.onnx.writer import write_fp32  # by onnx, which running a file does without

    return write_fp32(nothing(), {})


def threads_of(model: bytes) -> int:
    """Return on how many threads a model says that it runs; 0: it does not say."""
    said = _said(model).get(THREADS, "0")
    return int(said) if said.isdecimal() else 0


def _said(model: bytes) -> dict[str, str]:
    options = _options(1, spinning=False)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: dict[str, str] = _load(model, options).get_modelmeta().custom_metadata_map
    return found


def _operators(model: bytes) -> list[str]:
    found = _said(model)
    if OPERATORS not in found:
        raise CompileError("The model does not list its operators; write it with hwnas.")
    return found[OPERATORS].split("\n")


def _operator(kernel: str, operators: list[str]) -> str:
    """Return the operator that a kernel is part of, by the name that onnxruntime gave it.

    Fused: ``fused a``; in a blocked layout: ``a:0_nchwc``, after the value that it computes; moved
    by a change of layout: ``a_token_12``; parts: ``a/relu6:0``.
    """
    name = kernel.removeprefix("fused ").partition("/")[0].partition(":")[0]
    for candidate in (name, name.rpartition("_token_")[0]):
        if candidate in operators:
            return candidate
    return LAYOUT


def _profile(model: bytes, n_threads: int, n: int, between: Callable[[], None]) -> list[_Kernel]:
    """Return the kernels in order of execution.

    Args:
        model: What is run.
        n_threads: Threads that it runs on.
        n: Runs of a round; there are ``_ROUNDS``.
        between: What is called after each round.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = _options(n_threads, spinning=True)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = _load(model, options)
        binding, kept = _bound(session)
        for _ in range(_ROUNDS):
            for _ in range(n + 1):
                session.run_with_iobinding(binding)
            between()
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        assert kept
    kernels = [event for event in events if event["name"].endswith(_EVENT)]
    runs = _ROUNDS * (n + 1)
    first = kernels[: len(kernels) // runs]
    if not first or len(kernels) != runs * len(first):
        raise CompileError(f"onnxruntime's profile does not hold {runs} runs; ask for fewer.")
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

    The last kernel has no next one: what follows each of the others follows it too.
    """
    rows = np.hstack([np.diff(starts, axis=1), durations])
    mean = _quiet(rows, starts[:, -1] + durations[:, -1] - starts[:, 0]).mean(axis=0)
    n = starts.shape[1]
    steps, lengths = mean[: n - 1], mean[n - 1 :]
    gap = np.median(steps - lengths[:-1]) if n > 1 else 0.0
    return np.append(steps, lengths[-1] + gap)


def _quiet(
    runs: NDArray[np.float64], seconds: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the faster half of runs: what interrupts a run makes it longer, never shorter."""
    order = np.argsort(runs if seconds is None else seconds, kind="stable")
    quiet: NDArray[np.float64] = runs[order[: (len(runs) + 1) // 2]]
    return quiet
