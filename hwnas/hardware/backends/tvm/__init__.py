"""The backend ``tvm``: CPUs, here or on a remote device, compiled by TVM and measured."""

import platform
import re
import shutil
import socket
from dataclasses import dataclass, field
from typing import Any

from hwnas.core.errors import ConfigError, DeviceError, unknown_name
from hwnas.hardware.backends.description import ArtefactType, BackendDescription, RunnerScript

ANSWER_S = 5.0  #: time limit for an answer of the tracker, in seconds


#: Architectures of CPUs that LLVM knows. LLVM may crash for others, after data are loaded.
_ARCHITECTURES = re.compile(
    "aarch64|arm|thumb|x86|i[3-9]86|amd64|riscv|powerpc|ppc|mips|sparc|s390|systemz|loongarch|"
    "hexagon|wasm|m68k|avr|msp430|lanai|ve|xtensa|csky|arc|kalimba|tce|bpf"
)


#: Other names of architectures, with those of LLVM's targets.
_ALIASES = {
    **dict.fromkeys(("i486", "i586", "i686", "i786", "i886", "i986", "x86"), "i386"),
    "amd64": "x86_64", "arm64": "aarch64", "ppc": "powerpc", "ppc64": "powerpc64",
    "ppc64le": "powerpc64le", "systemz": "s390x", "bpf": "bpfel",
}  # fmt: skip


@dataclass
class TvmSettings:
    """The section ``tvm`` of a target: what TVM compiles for."""

    kind: str = "llvm"  #: TVM's kind of target; only llvm is allowed
    mcpu: str = "host"  #: LLVM's name of the CPU; ``host``: this machine's
    #: LLVM's name of another platform, such as aarch64-linux-gnu; empty: this machine's
    mtriple: str = ""
    mattr: list[str] = field(default_factory=list)  #: CPU features in addition to those of ``mcpu``
    cc: str = ""  #: compiler that links libraries for the target; empty: this machine's

    def __post_init__(self) -> None:
        architecture = self.mtriple.partition("-")[0]
        if architecture and not _ARCHITECTURES.match(architecture):
            raise ConfigError(
                f"target.tvm.mtriple={self.mtriple}: LLVM has no architecture '{architecture}'. "
                "Write ARCHITECTURE-VENDOR-SYSTEM, such as aarch64-linux-gnu."
            )
        if self.kind != "llvm":
            raise ConfigError(f"target.tvm.kind: {unknown_name('kind', self.kind, ['llvm'])}")


def find_compiler(name: str) -> str:
    """Return the name of an installed C or C++ compiler: ``name``.

    If ``name`` is empty, the first of g++, clang++, gcc and clang that is installed.

    Raises:
        ConfigError: it is not installed, or none of the four is.
    """
    names = [name] if name else ["g++", "clang++", "gcc", "clang"]
    found = next(filter(shutil.which, names), None)
    if found is None:
        # Debian's package names: g++-aarch64-linux-gnu contains aarch64-linux-gnu-g++.
        triple, _, kind = names[0].rpartition("-")
        package = f"{kind}-{triple}" if triple else kind
        where = "target.tvm.cc" if name else "the compiler that links libraries"
        raise ConfigError(
            f"'{names[0]}' is not installed ({where}). On Debian: apt-get install {package}"
        )
    return found


def check_tools(target: Any, remote: Any) -> None:
    """Check that networks can be compiled for a target, and that the tracker of devices answers.

    The tracker is asked only if ``remote`` has one.

    Raises:
        ConfigError: the compiler that links libraries is not installed, the installed TVM cannot
            compile for the target's architecture, or that is not this machine's and ``remote`` has
            no tracker.
        DeviceError: the tracker does not answer within 5 s.
    """
    settings = target.section(TvmSettings)
    find_compiler(settings.cc)
    _check_architecture(settings.mtriple)
    if settings.mtriple and not remote.tracker:
        raise ConfigError(
            f"Target '{target.name}' ({settings.mtriple}) is another machine than this one "
            f"({platform.machine()}). Give the tracker of the device: rpc.tracker=HOST:PORT "
            f"rpc.key={target.name}. To measure this machine: +target=cpu"
        )
    if remote.tracker:
        host, _, port = remote.tracker.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER_S).close()
        except OSError as error:
            raise DeviceError(no_tracker_message(remote, error)) from None


def _check_architecture(mtriple: str) -> None:
    """Refuse an architecture that LLVM knows, but not the LLVM of the installed TVM."""
    architecture = mtriple.partition("-")[0]
    if architecture in ("", platform.machine()):
        return
    from tvm.target import codegen  # slow to import

    names = sorted(map(str, codegen.llvm_get_targets()))
    # Names of LLVM have variants, such as armv7l and thumbv7em of arm and thumb.
    if not _ALIASES.get(architecture, architecture).startswith(tuple(names)):
        raise ConfigError(
            f"target.tvm.mtriple={mtriple}: the installed TVM cannot compile for '{architecture}'. "
            f"Allowed: {', '.join(names)}."
        )


def no_tracker_message(remote: Any, error: Exception) -> str:
    """Return the message for a tracker that does not answer, with the command that starts one."""
    port = remote.tracker.rpartition(":")[2]
    return (
        f"No tracker answers at {remote.tracker} for device '{remote.key}': {error}. "
        f"Start it with: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port {port} "
        f"--port-end {int(port) + 1}   TVM's RPC is not authenticated: anyone who can reach it can "
        "run code. Keep it on 127.0.0.1 and tunnel to the device: "
        f"ssh -L 9090:localhost:9090 -R {port}:localhost:{port} USER@DEVICE"
    )


_SCHEDULES = ("layout", "operators", "scalars", "templates")
_INT8_SCHEDULES = (*_SCHEDULES, "dots", "int8_layout", "int8_operators", "int8_templates")
_NEEDS = {"tvm": "apache-tvm", "safetensors": "safetensors"}
_SO, _TAR, _WEIGHTS = "model.so", "model.tar", "model.tvm.safetensors"
_INT8_SO, _INT8_TAR = "model.int8.so", "model.int8.tar"
_INT8_WEIGHTS = "model.int8.tvm.safetensors"

_CODE = """\
file = sys.argv[2] if len(sys.argv) > 2 else "DEFAULT"
content = (here / file.replace(".so", ".tvm.safetensors")).read_bytes()
start = 8 + int.from_bytes(content[:8], "little")
made = json.loads(json.loads(content[8:start])["__metadata__"]["network"])
arrays = [np.zeros(shape, dtype) for shape, dtype in zip(made["parameters"], made["dtypes"])]
weights = np.frombuffer(content[start:], made["dtypes"][1])
memory, output = arrays[0], tvm.runtime.tensor(arrays[2])
others = [tvm.runtime.tensor(weights.copy()), output, tvm.runtime.tensor(arrays[3])]
network, outputs = tvm.runtime.load_module(str(here / file))[made["entry"]], []
for i in range(0, len(x), len(memory)):
    memory[: len(x[i : i + len(memory)]), ..., : x.shape[-1]] = x[i : i + len(memory)]
    network(tvm.runtime.tensor(memory), *others)
    outputs += [*output.numpy().reshape(len(memory), -1)[:, : made["n_outputs"]].copy()]
outputs = np.array(outputs[: len(x)])
"""


def _artefacts(dtype: str, so: str, tar: str, weights: str) -> tuple[ArtefactType, ArtefactType]:
    about = {weights: "its weights, packed"}
    library = ArtefactType(
        so,
        "tvm",
        dtype,
        {".so": so, ".safetensors": weights},
        {so: f"library of TVM, {dtype}", **about},
        needs=_NEEDS,
        command=f"python run_tvm.py images.npy {so}",
        one_batch=True,
    )
    objects = ArtefactType(
        tar,
        "tvm",
        dtype,
        {".tar": tar, ".safetensors": weights},
        {tar: f"its object files, to link on another machine: `g++ -shared -fPIC -o {so} *.o`"},
        needs=_NEEDS,
        one_batch=True,
    )
    return library, objects


DESCRIPTION = BackendDescription(
    name="tvm",
    about="CPUs, here or on a remote device, compiled by TVM and measured",
    factory="hwnas.hardware.backends.tvm.backend:backend",
    engine="hwnas.hardware.backends.tvm.engine:open_engine",
    remote=True,
    dtypes={"float32": _SO, "int8": _INT8_SO},
    runs=("batch",),
    fuses_add=True,
    costs=("table", "measured", "roofline"),
    settings=TvmSettings,
    required=("tvm", "power"),
    needs=_NEEDS,
    fingerprint_packages=("apache-tvm", "apache-tvm-ffi"),
    schedules={
        "float32": [f"{__name__}.{name}" for name in _SCHEDULES],
        "int8": [f"{__name__}.{name}" for name in _INT8_SCHEDULES],
    },
    artefacts=(
        *_artefacts("float32", _SO, _TAR, _WEIGHTS),
        *_artefacts("int8", _INT8_SO, _INT8_TAR, _INT8_WEIGHTS),
    ),
    runners=(RunnerScript("run_tvm.py", (_INT8_SO, _SO), "apache-tvm", "import tvm", _CODE),),
    columns={".so": "so", ".safetensors": "weights"},
    check_tools=f"{__name__}:check_tools",
    start_hint="Check target.tvm.mtriple, mcpu and mattr: LLVM may not know them.",
)
