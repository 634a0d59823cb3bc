"""Descriptions of backends: data that is available without importing the backend.

A distribution is an installable package; the module that it provides may have another name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class BackendSettings:
    """Base of a backend's target section whose fields all have defaults.

    Every target has this section; if neither its file nor the command line sets it, the defaults
    apply.
    """

    @property
    def variant(self) -> str:
        """Part of latency table names that depends on the settings; empty if none does."""
        return ""

    @property
    def is_default(self) -> bool:
        """True if all settings have their defaults."""
        return False

    @property
    def substitutions(self) -> Mapping[str, str]:
        """Replacements in ``RunnerScript.code``, by the word in capitals that they replace."""
        return {}


@dataclass(frozen=True)
class ArtefactType:
    """An artefact type of exports: its files, and the runtime that runs it."""

    name: str  #: name of the first file
    runtime: str  #: name of the runtime
    dtype: str  #: dtype of its arithmetic
    files: Mapping[str, str]  #: file names, by the suffix that follows a genotype's id
    about: Mapping[str, str]  #: description of each file, by file name
    #: ``module:function`` that returns a ``Session`` from the contents by suffix, in this process;
    #: empty: only a worker process of the target runs it
    opens: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)  #: distributions by module
    command: str = ""  #: command line that runs it on a file of images
    unavailable_reason: str = ""  #: why it never runs on this machine; empty if it does
    one_batch: bool = False  #: True if it is compiled for one batch size


@dataclass(frozen=True)
class RunnerScript:
    """A script in exports that needs only one runtime and numpy."""

    name: str  #: file name
    #: names of the artefacts it can run, the default first; it is left out if none is exported
    artefacts: Sequence[str]
    distribution: str  #: required distribution
    imports: str  #: import statement of the runtime
    #: Code from ``x``, float32 ``(N, H, W, C)``, to ``outputs``, ``(N, n_outputs)``. ``DEFAULT`` is
    #: replaced by the default artefact, other words by ``BackendSettings.substitutions``.
    code: str

    @property
    def about(self) -> str:
        """Description for the list of files."""
        return f"runner, needs {self.distribution} and numpy; for photos also Pillow"


@dataclass(frozen=True)
class BackendDescription:
    """Description of a backend; entry points of the group ``hwnas.backends`` refer to one.

    ``module:name`` strings are imported only when the backend is used.
    """

    name: str
    about: str  #: one line for the help
    factory: str  #: ``module:name`` of a function from ``Target`` to ``Backend``
    #: Dtypes, the default first, each with the artefact that results are measured on.
    dtypes: Mapping[str, str]
    costs: Sequence[str]  #: names of cost models, the default first
    #: ``module:name`` of a function from ``Target`` and ``Remote`` to ``Engine``, if latencies are
    #: measured; empty if they are estimated
    engine: str = ""
    default: bool = False  #: True if it is the default of ``target.runtime``
    remote: bool = False  #: True if its engine supports remote devices
    is_offline: bool = False  #: True if devices are not connected, and are measured with kits
    settings: type | None = None  #: dataclass of its section in targets
    #: True if its section was added after the first release; digests leave the section out while it
    #: has its defaults, so that old runs can be resumed.
    added_after_release: bool = False
    exits: bool = False  #: True if it runs networks with early exits, segment by segment
    #: True if an int8 add is fused into the operator that produces an input
    fuses_add: bool = False
    packs_weights: bool = False  #: True if int8 weights of fewer bits cost less
    #: Dtypes that each network may choose; empty: all run in the target's dtype.
    precisions: Sequence[str] = ()
    #: Choices that each network may make: ``batch``, ``threads``.
    runs: Sequence[str] = ()
    batched: bool = True  #: True if an inference may have several images
    required: Sequence[str] = ()  #: options ``target.NAME`` that its targets must set
    needs: Mapping[str, str] = field(default_factory=dict)  #: distributions by module
    extra: str = ""  #: extra of hwnas that installs them; empty: they are always installed
    #: ``module:function`` from ``Target`` to a description of its accelerators
    devices: str = ""
    #: ``module:function`` of ``Target`` and ``Remote``; raises an error if a compiler is not
    #: installed or remote devices cannot be reached
    check_tools: str = ""
    #: Distributions whose versions affect results.
    fingerprint_packages: Sequence[str] = ()
    #: Modules whose code defines the meaning of compilation plans in latency tables, by dtype.
    schedules: Mapping[str, Sequence[str]] = field(default_factory=dict)
    artefacts: Sequence[ArtefactType] = ()  #: artefacts that exports may contain
    runners: Sequence[RunnerScript] = ()
    #: Columns of candidate tables that name files, by file suffix.
    columns: Mapping[str, str] = field(default_factory=dict)
    start_hint: str = ""  #: advice if its worker process dies at the start
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: for the help, by verb

    @property
    def measured(self) -> bool:
        """True if latencies are measured, not estimated."""
        return bool(self.engine)

    @property
    def install(self) -> str:
        """The command that installs its packages."""
        packages = f"'hwnas[{self.extra}]'" if self.extra else " ".join(self.needs.values())
        return f"pip install {packages}"
