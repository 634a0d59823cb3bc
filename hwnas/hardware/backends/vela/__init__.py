"""The backend ``vela``: Arm Ethos-U NPUs, estimated by Arm's compiler Vela."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hwnas.core.errors import ConfigError
from hwnas.hardware.backends.description import ArtefactType, BackendDescription, RunnerScript


@dataclass
class VelaSettings:
    """The section ``vela`` of a target: options of the compiler."""

    accelerator: str  #: configuration of the NPU, such as ethos-u55-128
    system_config: str  #: name of a section of ``config`` with clock and bandwidths
    memory_mode: str  #: name of a section of ``config`` with the use of memories
    #: configuration file: one that Vela ships, or the path of your own, which adds to Arm/vela.ini
    config: str = "Arm/vela.ini"


#: A comment that one of Vela's parsers takes as the end of the file; and ``inherit``, which deletes
#: the values before it.
_MISREAD = re.compile(r"^ *(#.*)|^[^\[;\n].*\n(?:;.*\n|\s)*(inherit\b.*)", re.MULTILINE)


def check_tools(target: Any, remote: object) -> None:
    """Check the file ``target.vela.config``; nothing is checked if Vela is not installed.

    Raises:
        ConfigError: it is neither the path of a file nor a file that Vela ships; or it is a file
            that Vela's two parsers read differently.
    """
    config, package = target.section(VelaSettings).config, find_spec("ethosu")
    folders = [] if package is None else package.submodule_search_locations or []
    places = [Path(config), *(Path(folder, "config_files", config) for folder in folders)]
    if folders and not any(place.is_file() for place in places):
        raise ConfigError(
            f"target.vela.config={config}: no such file. Give the path of your own file, relative "
            f"to {Path.cwd()}, or Arm/vela.ini, which Vela ships."
        )
    text = places[0].read_text(encoding="utf-8", errors="replace") if places[0].is_file() else ""
    if misread := _MISREAD.search(text):
        raise ConfigError(
            f"target.vela.config={config}: Vela misreads the line '{misread[1] or misread[2]}'. "
            "Begin comments with ';', and write inherit= as the first line of its section."
        )


def check_system(target: Any, clock_mhz: float) -> None:
    """Check the system of a target against its clock and accelerator.

    Vela's compiler takes the width of the bus from the name of the system. Source:
    ``regor_set_system_config`` in the source of ethos-u-vela 5.2.0.

    Args:
        target: The target.
        clock_mhz: Clock of Vela's system.

    Raises:
        ConfigError: the clock is not that of the target, or the bus not that of its accelerator.
    """
    settings = target.section(VelaSettings)
    system, accelerator = settings.system_config, settings.accelerator
    if system.startswith("Ethos_U55") != accelerator.startswith("ethos-u55"):
        raise ConfigError(
            f"Target '{target.name}': target.vela.system_config={system} does not suit "
            f"target.vela.accelerator={accelerator}: Vela assumes a bus of 8 bytes (Ethos-U55) if "
            "the name of the system begins with Ethos_U55, else of 16 bytes. Choose another "
            "system, or rename the section of your own file."
        )
    if clock_mhz != target.clock_mhz:
        clock = f"{target.clock_mhz:g}"
        section = f"{accelerator[:9].title().replace('-', '_')}_{clock}_MHz"
        raise ConfigError(
            f"Target '{target.name}': clock_mhz is {clock}, but Vela's system '{system}' runs at "
            f"{clock_mhz:g}. Set target.clock_mhz={clock_mhz:g}; or write a file my.ini with three "
            f"lines: '[System_Config.{section}]', 'inherit=System_Config.{system}', "
            f"'core_clock={clock}e6', and set target.vela.config=my.ini "
            f"target.vela.system_config={section}. See docs/how-to/own-board.md."
        )


_LITERT = {"ai_edge_litert": "ai-edge-litert"}
_BEFORE, _AFTER = "model.int8.tflite", "model.vela.tflite"

_LOAD = """\
import os


def load(name):
    \"\"\"Return the interpreter of a file, without the lines that LiteRT prints on stderr.\"\"\"
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        network = Interpreter(str(here / name))
        network.allocate_tensors()
    finally:
        os.dup2(stderr, 2)
    return network


"""

_CODE = """\
network = load("model.int8.tflite")
(inlet,), (outlet,) = network.get_input_details(), network.get_output_details()
scale, zero = inlet["quantization"]
outputs = np.empty((len(x), outlet["shape"][-1]), np.int8)
for i, image in enumerate(np.clip(np.round(x / scale) + zero, -128, 127).astype(np.int8)):
    network.set_tensor(inlet["index"], image[None])
    network.invoke()
    outputs[i] = network.get_tensor(outlet["index"])[0]
step, offset = outlet["quantization"]
outputs = (outputs.astype(np.float32) - offset) * step
"""

_EXITS = """\
exits = json.loads((here / "exits.json").read_text())
segments = [load(name) for name in exits["segments"]]
scale, zero = segments[0].get_input_details()[0]["quantization"]
left, outputs = [0] * len(segments), []
for image in np.clip(np.round(x / scale) + zero, -128, 127).astype(np.int8)[:, None]:
    for i, (segment, threshold) in enumerate(zip(segments, [*exits["thresholds"], 0])):
        segment.set_tensor(segment.get_input_details()[0]["index"], image)
        segment.invoke()
        *further, outlet = segment.get_output_details()
        step, offset = outlet["quantization"]
        logits = segment.get_tensor(outlet["index"])[0].astype(np.float32) - offset
        logits *= np.float32(step)
        if 1 / np.exp(logits - logits.max().astype(np.float64)).sum() >= threshold:
            break
        image = segment.get_tensor(further[0]["index"])  # of the scale that the next one reads
    left[i] += 1
    outputs.append(logits)
outputs = np.stack(outputs)
print("left at exits, and at the end:", *left, file=sys.stderr)
"""

DESCRIPTION = BackendDescription(
    name="vela",
    about="Arm Ethos-U, estimated by the compiler Vela",
    factory="hwnas.hardware.backends.vela.backend:VelaBackend",
    default=True,  # as the first target files did
    dtypes={"int8": _BEFORE},
    costs=("vela", "roofline"),
    settings=VelaSettings,
    exits=True,
    packs_weights=True,
    batched=False,
    required=("vela", "energy", "clock_mhz", "peak_macs_per_cycle"),
    needs={"ethosu": "ethos-u-vela", **_LITERT},
    fingerprint_packages=("ethos-u-vela", "ai-edge-litert"),
    artefacts=(
        ArtefactType(
            _BEFORE,
            "litert",
            "int8",
            {".tflite": _BEFORE},
            {_BEFORE: "int8 TFLite, one image an inference"},
            "hwnas.hardware.backends.vela.litert:open_tflite",
            _LITERT,
            "python run_tflite.py images.npy",
        ),
        ArtefactType(
            _AFTER,
            "ethos-u",
            "int8",
            {"_vela.tflite": _AFTER},
            {_AFTER: "compiled by Vela for the NPU"},
            unavailable_reason="it runs only on an Arm Ethos-U",
        ),
    ),
    runners=(
        RunnerScript(
            "run_tflite.py",
            (_BEFORE,),
            "ai-edge-litert",
            "from ai_edge_litert.interpreter import Interpreter",
            _LOAD + _CODE,
        ),
        RunnerScript(
            "run_exits.py",
            ("segment0.int8.tflite",),
            "ai-edge-litert",
            "from ai_edge_litert.interpreter import Interpreter",
            _LOAD + _EXITS,
        ),
    ),
    columns={".tflite": "tflite", "_vela.tflite": "tflite_vela"},
    check_tools=f"{__name__}:check_tools",
)
