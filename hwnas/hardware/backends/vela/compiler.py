"""Costs on Arm Ethos-U NPUs, from Arm's compiler Vela. The only module that imports Vela.

Vela schedules the whole network and estimates its cycles; nothing is measured. Results are for the
NPU alone, without CPU or driver time.

Source: https://pypi.org/project/ethos-u-vela/.
"""

import contextlib
import csv
import functools
import io
import math
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from ethosu.vela import vela
from ethosu.vela.tflite.BuiltinOperator import BuiltinOperator
from ethosu.vela.tflite.Model import Model
from ethosu.vela.tflite.TensorType import TensorType

from hwnas.core.errors import CompileError, ConfigError
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends.vela import VelaSettings, check_system
from hwnas.hardware.costs.cost_model import CompiledFile, Cost, LayerCost, cost_by_segment
from hwnas.hardware.target import Target
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, n_macs, n_params
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.spaces import Genotype

_REFUSES = "Vela cannot compile the network: "
_ADVICE = (
    " Choose another search space or target; if the file is from an export, export the network "
    "again."
)
_VELA = "import sys; from ethosu.vela.vela import main; sys.exit(main(sys.argv[1:]))"
_one_at_a_time = threading.Lock()
_ALIGNMENT = 16  # bytes, of tensors in TensorFlow Lite Micro
_ITEM_BYTES = {
    TensorType.INT8: 1, TensorType.UINT8: 1, TensorType.INT16: 2, TensorType.INT32: 4,
    TensorType.FLOAT32: 4,
}  # fmt: skip
_MEMORIES = ("sram", "dram", "off_chip_flash")
#: Systems of Arm/vela.ini with off-chip flash at 500 MHz, by series of accelerators.
_WITH_FLASH = {
    "ethos-u55": "Ethos_U55_High_End_Embedded",
    "ethos-u65": "Ethos_U65_Embedded",
    "ethos-u85": "Ethos_U85_SYS_Flash_High",
}
#: Not "On-chip Flash": Vela's name for SRAM that holds weights.
_WEIGHTS_IN = "Off-chip Flash"


@final
class VelaCostModel:
    """Costs of int8 networks with random weights, compiled by Vela."""

    max_cost_queries: int | None = 12  # it compiles every network

    def __init__(self, target: Target, lower: Callable[[Genotype], Graph]):
        self._target, self._lower = target, lower

    def cost(self, genotype: Genotype) -> Cost:
        """Return Vela's estimate of one genotype's cost, see ``estimate``.

        Raises:
            CompileError: Vela cannot compile the network.
        """
        return estimate(self._lower(genotype), self._target)


def estimate(graph: Graph, target: Target) -> Cost:
    """Return Vela's cost of a network with random weights; with exits, that of running to the end.

    Layers have cycles; ``layers_in_ms`` adds their latency.

    Raises:
        CompileError: the network cannot be written as int8 TFLite, or Vela cannot compile it.
        ConfigError: see ``compile_tflite``.
    """
    return cost_by_segment(
        graph,
        lambda part: compile_tflite(write_tflite(random_int8_network(part)), part, target).cost,
    )


def compile_tflite(
    tflite: bytes, graph: Graph, target: Target, limit_s: float | None = None
) -> CompiledFile:
    """Return a TFLite file compiled for an Ethos-U target, and its cost.

    Args:
        tflite: Content of the file.
        graph: Graph of the same network, not fused: its MACs and parameters are counted.
        target: The target.
        limit_s: Time limit in seconds for a file from an unknown source: it is compiled in another
            process, as some files crash Vela. ``None``: in this process, without a limit.

    Raises:
        CompileError: Vela cannot compile the file, crashes, or exceeds the limit.
        ConfigError: the target's clock differs from Vela's configuration, or weights are not in
            off-chip flash.
    """
    options = target.section(VelaSettings)
    with tempfile.TemporaryDirectory(prefix="hwnas-vela-") as folder:
        source = Path(folder, "network.tflite")
        source.write_bytes(tflite)
        if limit_s is None:
            _run_vela(source, options)
        else:
            arguments = [str(source), "--output-dir", folder, *_arguments(options)]
            _run_in_process(arguments, limit_s)
        summary = _read_csv(Path(folder, f"network_summary_{options.system_config}.csv"))[0]
        layers = _read_csv(Path(folder, "network_per-layer.csv"))
        optimised = Path(folder, "network_vela.tflite").read_bytes()
    _check(summary, target)
    return CompiledFile(optimised, _cost(summary, layers, graph, target))


def check_target(target: Target) -> None:
    """Check the Vela settings of a target by compiling a tiny network.

    Raises:
        ConfigError: Vela refuses a setting; ``clock_mhz`` or ``peak_macs_per_cycle`` differs from
            that of Vela's system or accelerator; or weights are not in off-chip flash.
    """
    work = Graph.of((Node("conv", OpSpec("conv2d+bn+relu", (8, 4, 4), (8, 4, 4), 3), (INPUT,)),))
    try:
        compile_tflite(write_tflite(random_int8_network(work)), work, target)
    except CompileError as error:
        reason = str(error).removeprefix(_REFUSES).removesuffix(_ADVICE)
        raise ConfigError(
            f"Target '{target.name}': Vela refuses target.vela: {reason.rstrip('.')}. Correct its "
            "accelerator, system_config, memory_mode or config."
        ) from error
    accelerator = target.section(VelaSettings).accelerator
    if not accelerator.endswith(f"-{target.peak_macs_per_cycle}"):
        n_macs_per_cycle = accelerator.rpartition("-")[2]
        raise ConfigError(
            f"Target '{target.name}': target.vela.accelerator={accelerator} computes "
            f"{n_macs_per_cycle} MACs a cycle, but target.peak_macs_per_cycle is "
            f"{target.peak_macs_per_cycle}. Set target.peak_macs_per_cycle={n_macs_per_cycle}, and "
            "check target.roofline, caveat and description."
        )


def layers_in_ms(cost: Cost, target: Target) -> Cost:
    """Return ``cost`` with ``latency_ms`` of each layer set, from its cycles at ``clock_mhz``."""
    assert target.clock_mhz is not None
    per_ms = target.clock_mhz * 1e3
    layers = tuple(replace(layer, latency_ms=layer.cycles / per_ms) for layer in cost.layers)
    return replace(cost, layers=layers)


def _check(summary: dict[str, str], target: Target) -> None:
    """Refuse a target whose clock or bus differs from Vela's system, or without off-chip flash."""
    options = target.section(VelaSettings)
    check_system(target, float(summary["core_clock"]) / 1e6)
    if summary["weights_storage_area"] != _WEIGHTS_IN:
        raise ConfigError(
            f"Target '{target.name}': with system_config '{options.system_config}' and memory_mode "
            f"'{options.memory_mode}', Vela keeps weights in {summary['weights_storage_area']}; "
            "hwnas supports only off-chip flash. Set a target.vela.system_config with flash and a "
            "target.vela.memory_mode that uses it, for example of Arm/vela.ini: "
            f"target.vela.system_config={_WITH_FLASH[options.accelerator[:9]]} "
            "target.vela.memory_mode=Shared_Sram target.clock_mhz=500."
        )


@final
class _CapturedStream:
    """A stream that captures the output of one thread, and passes on that of others."""

    def __init__(self, stream: object, captured: io.StringIO):
        self._stream, self._captured, self._thread = stream, captured, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        is_captured = threading.get_ident() == self._thread
        return getattr(self._captured if is_captured else self._stream, name)


@contextlib.contextmanager
def _captured_output() -> Iterator[io.StringIO]:
    """Capture the output of this thread; one at a time, as streams are global."""
    printed = io.StringIO()
    with _one_at_a_time:
        out: Any = _CapturedStream(sys.stdout, printed)
        err: Any = _CapturedStream(sys.stderr, printed)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield printed


def _arguments(options: VelaSettings) -> list[str]:
    """Return the arguments of Vela's command line, except the files."""
    # Vela looks for FOLDER/FILE among its own configuration files only: give it an absolute path.
    # Sections of the user's file replace those of Vela's file, and may inherit from them.
    own_file = Path(options.config)
    is_own = own_file.is_file()
    return [
        "--verbose-performance",
        f"--config={VelaSettings.config if is_own else options.config}",
        *[f"--config={own_file.resolve()}"] * is_own,
        f"--accelerator-config={options.accelerator}",
        f"--system-config={options.system_config}",
        f"--memory-mode={options.memory_mode}",
    ]


def _run_vela(source: Path, options: VelaSettings) -> None:
    """Compile a file; the results are in its folder."""
    path = Path(options.config)
    content = path.read_bytes() if path.is_file() else b""  # a user's file may change
    with _captured_output() as printed:
        try:
            arch, _, *details = _compiler_arguments(tuple(_arguments(options)), content)
            accelerator, system, compiler, has_debug, _, *others = details
            folder = str(source.parent)
            vela.process_regor(
                arch, str(source), accelerator, system, compiler, has_debug, folder, *others
            )
        except OSError:
            raise  # a full disk is not an error of the network
        except (Exception, SystemExit) as error:
            raise CompileError(f"{_REFUSES}{_last_error(printed, error)}.{_ADVICE}") from error


@functools.lru_cache(maxsize=16)
def _compiler_arguments(arguments: tuple[str, ...], content: bytes) -> tuple[Any, ...]:
    """Return the arguments of Vela's compiler function for those of its command line.

    Vela's own ``main`` parses the options and the configuration file, which takes a quarter of the
    time of a small network. The caller holds ``_one_at_a_time``.
    """
    calls: list[tuple[Any, ...]] = []
    compiler, vela.process_regor = vela.process_regor, lambda *values: calls.append(values)
    try:
        vela.main([*arguments, "network.tflite"])
    finally:
        vela.process_regor = compiler
    return calls[0]


def _run_in_process(arguments: list[str], limit_s: float) -> None:
    # This interpreter, without the current folder in its path.
    command = [sys.executable, "-P", "-c", _VELA, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise CompileError(f"{_REFUSES}not finished after {limit_s:g} s.{_ADVICE}") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise CompileError(f"{_REFUSES}Vela was ended by the signal {name}.{_ADVICE}")
    if done.returncode:
        printed = io.StringIO(done.stdout + done.stderr)
        reason = _last_error(printed, SystemExit(done.returncode))
        raise CompileError(f"{_REFUSES}{reason}.{_ADVICE}")


def _last_error(printed: io.StringIO, error: object) -> str:
    lines = [line.strip() for line in printed.getvalue().splitlines() if "rror" in line]
    return (lines[-1] if lines else f"{type(error).__name__} {error}").strip(" .")


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _cost(
    summary: dict[str, str], rows: list[dict[str, str]], graph: Graph, target: Target
) -> Cost:
    layers = tuple(
        LayerCost(
            name=row["Name"],
            operator=row["Original Operator"],
            placement=row["Target"],
            cycles=float(row["Op Cycles"]),
            macs=int(float(row["MAC Count"])),
        )
        for row in rows
        if row["Target"] != "NPU" or float(row["Op Cycles"])  # fused activations have a row of 0
    )
    moved = {memory: int(float(summary[f"{memory}_total_bytes"])) for memory in _MEMORIES}
    macs = int(float(summary["nn_macs"]))
    off_chip = moved["dram"] + moved["off_chip_flash"]
    assert target.energy is not None
    assert target.peak_macs_per_cycle is not None
    energy, components = target.energy.energy(macs, moved["sram"], off_chip)
    flash_kib = float(summary["off_chip_flash_memory_used"])
    cycles = float(summary["cycles_total"])
    figures = {
        "latency_ms": Quantity(float(summary["inference_time"]) * 1e3, "compiler-estimate"),
        "energy_mj": energy,
        "sram_kib": Quantity(float(summary["sram_memory_used"]), "compiler-estimate"),
        "flash_kib": Quantity(flash_kib, "compiler-estimate"),
        "macs_m": Quantity(n_macs(graph) / 1e6, "modelled"),
        "params_m": Quantity(n_params(graph) / 1e6, "modelled"),
    }
    details = {
        **components,
        "mac_utilisation": macs / (cycles * target.peak_macs_per_cycle),
        "dram_kib": float(summary["dram_memory_used"]),
        "cycles": cycles,
    }
    return Cost(figures, details, layers, _fallback(layers))


def _fallback(layers: tuple[LayerCost, ...]) -> str:
    on_cpu = [f"{layer.operator} ({layer.name})" for layer in layers if layer.placement != "NPU"]
    return f"{len(on_cpu)} operators fall back to the CPU: {', '.join(on_cpu)}" if on_cpu else ""


@dataclass(frozen=True)
class TFLiteInterface:
    """Operators, shapes and scales of a TFLite file with one int8 input and one int8 output.

    A real value is ``scale * (int8 - zero)``.
    """

    shape: tuple[int, int, int]  #: height, width and channels of the input
    n_outputs: int  #: number of values of the output
    input_scale: float  #: scale of the input
    input_zero: int  #: zero point of the input
    output_scale: float  #: scale of the output
    output_zero: int  #: zero point of the output
    operators: Sequence[str]  #: types of its operators, as TFLite names them
    activation_bytes: int  #: largest total size of tensors that are live at the same time


def read_interface(content: bytes) -> TFLiteInterface:
    """Return the interface of a TFLite file from its content.

    Raises:
        CompileError: it has several inputs or outputs, or they are not int8.
    """
    model = Model.GetRootAsModel(content, 0)
    names = {value: name for name, value in vars(BuiltinOperator).items()}
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    graph = model.Subgraphs(0)
    if (graph.InputsLength(), graph.OutputsLength()) != (1, 1):
        raise CompileError(
            f"The TFLite file has {graph.InputsLength()} inputs and {graph.OutputsLength()} "
            "outputs; allowed: one input and one output."
        )
    image, output = graph.Tensors(graph.Inputs(0)), graph.Tensors(graph.Outputs(0))
    if {image.Type(), output.Type()} != {TensorType.INT8}:
        raise CompileError(
            "Input and output of the TFLite file must be int8. Export the network again for a "
            "target with int8 TFLite files."
        )
    _, height, width, channels = (int(n) for n in image.ShapeAsNumpy())
    scales = [
        (float(t.Quantization().Scale(0)), int(t.Quantization().ZeroPoint(0)))
        for t in (image, output)
    ]
    return TFLiteInterface(
        (height, width, channels),
        int(output.ShapeAsNumpy()[-1]),
        *scales[0],
        *scales[1],
        [(c.CustomCode() or names[c.BuiltinCode()].encode()).decode() for c in codes],
        _activation_bytes(model),
    )


def _activation_bytes(model: Any) -> int:
    """Return the largest size of the tensors that are live at the same time, in bytes.

    Each is aligned as in TensorFlow Lite Micro. Its memory planner may leave gaps between them, and
    kernels may need scratch memory.
    """
    graph = model.Subgraphs(0)
    steps = [graph.Operators(i) for i in range(graph.OperatorsLength())]
    first, last = dict.fromkeys(graph.InputsAsNumpy().tolist(), 0), dict[int, int]()
    for i, step in enumerate(steps):
        first.update(dict.fromkeys(step.OutputsAsNumpy().tolist(), i))
        last.update(dict.fromkeys(step.InputsAsNumpy().tolist(), i))
    last.update(dict.fromkeys(graph.OutputsAsNumpy().tolist(), len(steps)))
    live = [0] * len(steps)
    for index, begin in first.items():
        tensor = graph.Tensors(index)
        n_bytes = math.prod(tensor.ShapeAsNumpy().tolist()) * _ITEM_BYTES[tensor.Type()]
        for i in range(begin, min(last.get(index, begin), len(steps) - 1) + 1):
            live[i] += math.ceil(n_bytes / _ALIGNMENT) * _ALIGNMENT
    return max(live)
