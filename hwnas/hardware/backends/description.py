"""What is known of a backend before anything of it is imported: data, in its ``__init__.py``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class BackendSettings:
    """What the section of a backend in target files may say beside its fields, which have defaults.

    Every target has such a section: without a file's or a command's word, that of the defaults.
    """

    @property
    def variant(self) -> str:
        """What of it names latency tables, beside the runtime; empty: nothing."""
        return ""

    @property
    def silent(self) -> bool:
        """Whether it says no more than its defaults."""
        return False

    @property
    def words(self) -> Mapping[str, str]:
        """What stands in runners of exports for words in capitals."""
        return {}


@dataclass(frozen=True)
class ArtefactType:
    """A file of an export, with those that belong to it, and what runs it."""

    name: str  #: of its first file
    runtime: str  #: what runs it, in a word
    dtype: str  #: in which it computes
    files: Mapping[str, str]  #: names by the suffix that they have beside a genotype's id
    about: Mapping[str, str]  #: what each file is, in words for people
    #: ``module:function`` that makes a ``Session`` of its contents by suffix, in this process;
    #: empty: it runs in a worker of its target alone
    opens: str = ""
    needs: Mapping[str, str] = field(
        default_factory=dict
    )  #: distributions by the module that they bring
    command: str = ""  #: that runs it on a file of images
    unavailable_reason: str = ""  #: why it never runs on this machine; empty if it does
    one_batch: bool = False  #: whether it was compiled for one number of images an inference


@dataclass(frozen=True)
class RunnerScript:
    """A script of an export, which needs one runtime and numpy."""

    name: str
    artefacts: Sequence[str]  #: that it runs, the default first; without one it is left out
    distribution: str  #: that it needs
    imports: str
    #: From ``x``, float32 ``(N, H, W, C)``, to ``outputs``, ``(N, n_outputs)``. ``DEFAULT`` stands
    #: for the default artefact, where an argument chooses; ``Settings.words`` for others.
    code: str

    @property
    def about(self) -> str:
        """What it is, in words for people."""
        return f"runner, needs {self.distribution} and numpy"


@dataclass(frozen=True)
class BackendDescription:
    """What a backend is; entry points of the group ``hwnas.backends`` lead to one.

    ``module:name`` strings are imported only when the backend is used.
    """

    name: str
    about: str  #: a line for the help
    factory: str  #: ``module:name`` of what makes a ``Backend`` of a target
    #: In which dtypes it runs networks, the default first; with the artefact of an export that the
    #: figures of a target are of.
    dtypes: Mapping[str, str]
    costs: Sequence[str]  #: names of its cost models, the default first
    #: ``module:name`` of what makes an ``Engine`` of a target and a ``Remote``, where latencies are
    #: measured; empty where they are estimated
    engine: str = ""
    default: bool = False  #: whether targets mean it that name none
    remote: bool = False  #: whether its engine reaches devices that are not this machine
    is_offline: bool = False  #: whether its devices are out of reach, and measured by kits
    settings: type | None = None  #: dataclass of the section that targets have for it
    #: Whether there were runs before its section: their digests know nothing of it.
    added_after_release: bool = False
    exits: bool = False  #: whether networks with exits run as segments, one after the other
    fuses_add: bool = False  #: whether a sum in int8 is part of what computes one of its terms
    packs_weights: bool = False  #: whether weights of fewer bits cost less, as stored in int8
    #: Dtypes that each network of a target may choose; empty: all run in the target's.
    precisions: Sequence[str] = ()
    #: How each network may run as it chooses: its ``batch``, its ``threads``.
    runs: Sequence[str] = ()
    batched: bool = True  #: whether an inference may read several images
    required: Sequence[str] = ()  #: facts that its targets must have
    needs: Mapping[str, str] = field(
        default_factory=dict
    )  #: distributions by the module that they bring
    extra: str = ""  #: of hwnas that brings those; empty: they come with it
    #: ``module:function`` that says of a target which devices it runs on beside the machine's CPU
    devices: str = ""
    #: Distributions whose versions decide figures.
    fingerprint_packages: Sequence[str] = ()
    #: Modules whose code decides what the plans of latency tables mean, by dtype.
    schedules: Mapping[str, Sequence[str]] = field(default_factory=dict)
    artefacts: Sequence[ArtefactType] = ()  #: that exports may hold
    runners: Sequence[RunnerScript] = ()
    columns: Mapping[str, str] = field(
        default_factory=dict
    )  #: of tables of candidates, by the suffix of what they name
    start_hint: str = ""  #: what to look at where its process dies when it starts
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: of the help, by verb

    @property
    def measured(self) -> bool:
        """Whether latencies are measured on a device, not estimated."""
        return bool(self.engine)

    @property
    def install(self) -> str:
        """The command that installs what it needs."""
        found = f"'hwnas[{self.extra}]'" if self.extra else " ".join(self.needs.values())
        return f"pip install {found}"
