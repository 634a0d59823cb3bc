"""Descriptions of backends: data that is available without importing the backend.

A distribution is an installable package; the module that it provides may have another name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class BackendSettings:
    """Base class for the section of a backend in target files, if all its fields have defaults.

    Every target has such a section; fields that neither its file nor the command line sets have
    their defaults.
    """

    @property
    def variant(self) -> str:
        """Part of the names of latency tables that identifies the settings, such as ``cuda``.

        Empty if the settings need no table of their own.
        """
        return ""

    @property
    def is_default(self) -> bool:
        """True if all settings have their defaults, so that digests leave the section out."""
        return False

    @property
    def substitutions(self) -> Mapping[str, str]:
        """Code that replaces words in capitals in ``RunnerScript.code``, by word."""
        return {}

    @property
    def distribution(self) -> str:
        """Package that runner scripts need instead of ``RunnerScript.distribution``, if any."""
        return ""


@dataclass(frozen=True)
class ArtefactType:
    """An artefact type of exports: its files, and the runtime that runs it."""

    name: str  #: name of the artefact, which is that of its first file: ``model.int8.onnx``
    runtime: str  #: name of the runtime that runs it
    dtype: str  #: dtype of its arithmetic, such as ``int8``
    #: file names in exports, by suffix in ``RUN/models``: ``{".onnx": "model.int8.onnx"}``
    files: Mapping[str, str]
    about: Mapping[str, str]  #: description of each file, by file name
    #: ``module:function`` that returns a ``Session`` from the contents by suffix, in this process;
    #: empty: only a worker process of the target runs it
    opens: str = ""
    #: packages that running it requires: name for pip, by module
    needs: Mapping[str, str] = field(default_factory=dict)
    command: str = ""  #: command line that runs it on a file of images; empty if there is none
    unavailable_reason: str = ""  #: why it cannot run on any host; empty if it can
    one_batch: bool = False  #: True if it is compiled for one batch size


@dataclass(frozen=True)
class RunnerScript:
    """A script in exports that needs only one runtime and numpy."""

    name: str  #: file name
    #: names of the artefacts it can run, the default first; it is left out if none is exported
    artefacts: Sequence[str]
    distribution: str  #: name for pip of the required package
    imports: str  #: import statement of the runtime
    #: Code that computes ``outputs``, ``(N, n_outputs)``, from the normalised images ``x``, float32
    #: ``(N, H, W, C)``. ``DEFAULT`` in it is replaced by the name of the default artefact, other
    #: words by ``BackendSettings.substitutions``.
    code: str

    @property
    def about(self) -> str:
        """One line that describes the script in the list of an export's files."""
        return f"runner, needs {self.distribution} and numpy; for photos also Pillow"


@dataclass(frozen=True)
class BackendDescription:
    """Description of a backend; entry points of the group ``hwnas.backends`` refer to one.

    ``module:name`` strings are imported only when the backend is used.
    """

    name: str  #: value of ``target.runtime``, and name of the backend's section in target files
    about: str  #: one line for the help
    factory: str  #: ``module:name`` of a function from ``Target`` to ``Backend``
    #: Name of the artefact on which results are measured, by supported dtype; the default first.
    dtypes: Mapping[str, str]
    costs: Sequence[str]  #: names of cost models, the default first
    #: ``module:name`` of a function from ``Target`` and ``Remote`` to ``Engine``, if latencies are
    #: measured; empty if they are estimated
    engine: str = ""
    default: bool = False  #: True if it is the default of ``target.runtime``
    remote: bool = False  #: True if its engine supports remote devices
    is_offline: bool = False  #: True if devices are not connected, and are measured with kits
    settings: type | None = None  #: dataclass of its section in target files; ``None``: no section
    #: True if its section was added after the first release; digests leave the section out while it
    #: has its defaults, so that old runs can be resumed.
    added_after_release: bool = False
    exits: bool = False  #: True if it runs networks with early exits, segment by segment
    #: True if an int8 addition is fused into the operator that computes its last input
    fuses_add: bool = False
    packs_weights: bool = False  #: True if weights of fewer than 8 bits need less memory traffic
    #: Dtypes that a search may choose for each network; empty: all run in the target's dtype.
    precisions: Sequence[str] = ()
    #: Further properties that a search may choose for each network: ``batch``, ``threads``.
    runs: Sequence[str] = ()
    batched: bool = True  #: True if an inference may have several images
    required: Sequence[str] = ()  #: options ``target.NAME`` that its targets must set
    needs: Mapping[str, str] = field(default_factory=dict)  #: required packages by module
    extra: str = ""  #: extra of hwnas that installs ``needs``; empty: by their names
    #: ``module:function`` from ``Target`` to facts about its accelerator, by name; empty: none
    devices: str = ""
    #: ``module:function`` of ``Target`` and ``Remote``; raises an error if a compiler is not
    #: installed or remote devices cannot be reached
    check_tools: str = ""
    #: Packages whose versions affect results.
    fingerprint_packages: Sequence[str] = ()
    #: Modules whose code defines the meaning of compilation plans in latency tables, by dtype.
    schedules: Mapping[str, Sequence[str]] = field(default_factory=dict)
    artefacts: Sequence[ArtefactType] = ()  #: artefacts that exports may contain
    runners: Sequence[RunnerScript] = ()  #: scripts in exports that run the artefacts
    #: Columns of candidate tables that hold file names, by suffix of the file.
    columns: Mapping[str, str] = field(default_factory=dict)
    start_hint: str = ""  #: advice if its worker process dies at the start
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: for the help, by verb

    @property
    def measured(self) -> bool:
        """True if latencies are measured, not estimated."""
        return bool(self.engine)

    @property
    def install(self) -> str:
        """Command line that installs the packages in ``needs``."""
        packages = f"'hwnas[{self.extra}]'" if self.extra else " ".join(self.needs.values())
        return f"pip install {packages}"
