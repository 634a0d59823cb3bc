"""Composition root: from a configuration to the objects that a verb needs."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from hwnas import content, families
from hwnas.accuracy.base import Rival, Score
from hwnas.accuracy.supernet import SupernetEvaluator
from hwnas.accuracy.trained import TrainedEvaluator
from hwnas.config import ProfileConfig, SearchConfig
from hwnas.cost.base import CostModel
from hwnas.cost.derived import DerivedCostModel
from hwnas.cost.host import as_run
from hwnas.cost.measured import MeasuredCostModel
from hwnas.cost.roofline import RooflineCostModel
from hwnas.cost.table import TableCostModel
from hwnas.cost.vela import VelaCostModel
from hwnas.errors import RunError, SpaceError, unknown
from hwnas.families.base import Family
from hwnas.figure import Figure
from hwnas.finishing import finish
from hwnas.finishing.finish import Load, Origin
from hwnas.finishing.options import FinishingConfig
from hwnas.finishing.teachers import Member, Tutor
from hwnas.int8 import tflite
from hwnas.int8.finished import Finished
from hwnas.latency_table import Entry, LatencyTable, TableConfig, incomplete
from hwnas.op import Lowered, OpSpec, Task, distinct
from hwnas.profiling.subject import Subject
from hwnas.progress import Progress, Silent
from hwnas.provenance import open_table, own_table
from hwnas.results import Candidate
from hwnas.runtimes import writable
from hwnas.runtimes.litert import LiteRTSession
from hwnas.runtimes.onnx_writer import write_int8
from hwnas.runtimes.ort import OrtSession
from hwnas.runtimes.pool import Pool, Retrying
from hwnas.searching.artefacts import (
    Artefacts,
    DerivedArtefacts,
    MeasuredArtefacts,
    ModelledArtefacts,
    VelaArtefacts,
)
from hwnas.searching.study import read as read_study
from hwnas.searching.verify import Workbench
from hwnas.space import Genotype, Space
from hwnas.supernets import Course, Training, read
from hwnas.target import Target, facts
from hwnas.training.batches import steps_per_epoch
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.data import ImageData

#: Packages whose version decides the outcome of a run, beside torch's, which decides the supernet.
DECISIVE = ("hwnas", "optuna", "ethos-u-vela", "ai-edge-litert", "apache-tvm", "onnxruntime")

_CHECKED = 300  #: networks whose operators are looked for in a table before anything is trained

#: The latency tables that ship with hwnas.
SHIPPED = content.ROOT / "latency_tables"


@dataclass(frozen=True)
class Networks:
    """The networks of a space, or of several, on a target, for one task.

    Raises:
        CompileError: none of a space can be written for the target.
    """

    target: Target
    space: Space
    families: Mapping[str, Family]  #: by the name of the space
    task: Task

    def __post_init__(self) -> None:
        for member in self.space.members:
            writable.check_space(member, self.lower, self.target)

    def lower(self, genotype: Genotype) -> Lowered:
        """Return the operators of a genotype."""
        return self._family(genotype).lower(self.space.member(genotype), genotype, self.task)

    def resolution(self, genotype: Genotype) -> int:
        """Return the height and width of the images that a genotype reads."""
        return self._family(genotype).resolution(self.space.member(genotype), genotype)

    def _family(self, genotype: Genotype) -> Family:
        return self.families[genotype.space]

    def as_run(self, genotype: Genotype) -> Lowered:
        """Return the operators of a genotype as the target runs them."""
        return as_run(self.lower(genotype), self.target)

    def as_written(self, genotype: Genotype) -> Lowered:
        """Return the operators as the target runs them; refuse what cannot be written for it."""
        lowered = self.lower(genotype)
        writable.check(lowered, self.target)
        return as_run(lowered, self.target)


@dataclass(frozen=True)
class Parts:
    """What a search is made of, before any weight is trained."""

    config: SearchConfig
    networks: Networks
    data: ImageData

    @property
    def space(self) -> Space:
        """What is searched."""
        return self.networks.space

    @cached_property
    def first(self) -> tuple[Genotype, ...]:
        """The first trials: the different candidates of an earlier run, in its order.

        Raises:
            RunError: the run has no study that can be read.
            SpaceError: it has candidates that the space does not hold.
        """
        if self.config.start_from is None:
            return ()
        try:
            known = read_study(Path(self.config.start_from) / "study.db").candidates
        except RunError as error:
            raise RunError(f"start_from={self.config.start_from}: {error}") from None
        spaces = {member.name: member for member in self.space.members}
        for candidate in known:
            if candidate.genotype.space not in spaces:
                name = candidate.genotype.space
                raise SpaceError(unknown("search space of start_from", name, spaces))
            spaces[candidate.genotype.space].genotype(candidate.genotype.to_dict())
        return tuple({c.id: c.genotype for c in known}.values())

    def digests(self) -> dict[str, str]:
        """Return a digest of everything that decides the outcome, by name."""
        c, members = self.config, self.space.members
        decisive = {
            m.name: c.train.decisive(self.networks.families[m.name].recipe) for m in members
        }
        origins = [origin for m in members for origin in families.origin(m.family)]
        places = {n: course.checkpoint().path.parent.name for n, course in self.courses.items()}
        return {
            "search_space": self.space.digest,
            "data": self.data.digest,
            "augmentation": _digest(c.dataset.augmentation),
            "target": _digest(
                [facts(c.target), _text(c.target.vela.config if c.target.vela else "")]
            ),
            "cost": _digest(c.cost),
            "budget": _digest(c.allowed.digested()),
            "objectives": _digest(c.objectives),
            "sampler": _digest(asdict(c.sampler)),
            "train": _digest(self._one_or_by_space(decisive)),
            "accuracy": _digest(asdict(c.trained) if c.accuracy == "trained" else c.accuracy),
            "finish": _digest({n: v for n, v in asdict(c.finish).items() if n != "minutes"}),
            "start_from": _digest([genotype.id for genotype in self.first]),
            "scoring": _digest(asdict(c.scoring)),
            "seed": _digest(c.seed),
            "versions": _digest([*map(importlib.metadata.version, DECISIVE), *origins]),
            **(
                {f"supernet of {name}": place for name, place in places.items()}
                if self.space.root
                else {"supernet": self._one_or_by_space(places)}
            ),
        }

    @property
    def courses(self) -> dict[str, Course]:
        """How the supernet of each space is trained, by the name of the space."""
        c, n = self.config, self.networks
        training = Training(c.dataset, c.train, c.seed, Path(c.run.supernets))
        return training.courses(n.space, n.families, self.data)

    def course_of(self, genotype: Genotype) -> Course:
        """Return how the supernet of a genotype is trained."""
        return self.courses[genotype.space]

    def checkpoint(self) -> str | dict[str, str] | None:
        """Return where the supernet is kept; of several spaces by name; ``None``: there is none."""
        if self.config.accuracy == "trained":
            return None
        found = {name: str(course.checkpoint().path) for name, course in self.courses.items()}
        kept: str | dict[str, str] = self._one_or_by_space(found)
        return kept

    def _one_or_by_space(self, values: Mapping[str, Any]) -> Any:
        return values if self.space.root else values[self.space.name]


def parts(config: SearchConfig, progress: Progress) -> Parts:
    """Read the search spaces and the data, and settle what is left open until they are known."""
    found, data = networks(config, progress)
    return Parts(settled(config, data), found, data)


#: Pixels of an epoch up to which candidates are trained alone: about ten seconds of a small network
#: on one core. On Fashion-MNIST a front found so is 0.98 to 2.44 times as fast at equal accuracy as
#: hand-made networks (``experiments/worth_it``), that of a supernet 0.18 to 0.46 times; but the
#: spaces were different, and equal time was not tried.
_TRAINED_PIXELS = 100e6


def settled(config: SearchConfig, data: ImageData) -> SearchConfig:
    """Return a configuration that says what finds accuracies, and how many processes do."""
    accuracy, workers = config.accuracy, config.study.workers
    if accuracy is None:
        pixels = len(data.train) * data.train.side**2 * data.task.in_channels
        accuracy = "trained" if pixels <= _TRAINED_PIXELS else "supernet"
    if workers is None:
        many = accuracy == "trained" and config.cost != "measured"
        workers = (os.cpu_count() or 1) if many else 1
    return replace(config, accuracy=accuracy, study=replace(config.study, workers=workers))


def retargeted(parts: Parts, config: SearchConfig) -> Parts:
    """Return the same space and data for another target."""
    networks = replace(parts.networks, target=config.target)
    return Parts(settled(config, parts.data), networks, parts.data)


def networks(
    config: SearchConfig | ProfileConfig, progress: Progress
) -> tuple[Networks, ImageData]:
    """Read the search spaces, and the data, which decide the first and the last operator."""
    found, by_name, data = read(config.spaces, config.dataset, progress)
    return Networks(config.target, found, by_name, data.task), data


@final
class Device:
    """A target that is measured: its latency table, and the process that compiles and times."""

    def __init__(self, config: SearchConfig | ProfileConfig, table: LatencyTable):
        self.config, self.table = config, table
        self._open = contextlib.ExitStack()
        if not _predicts(config):
            self._open.enter_context(table.locked())
        limit_s = config.tuning.limit_s
        self._pool = Pool(config.target, config.timing, config.rpc, limit_s)
        self._open.callback(self._pool.close)
        self.worker = Retrying(self._pool)
        self._n_plans = config.tuning.n_plans
        self._plans = dict(table.plans())

    def close(self) -> None:
        """End the process."""
        self._open.close()

    def plan(self, op: OpSpec) -> str:
        """Return how an operator is compiled: as in the table, else tuned now and kept there.

        A table from which a search predicts stays as it is: the search may be resumed.
        """
        if op not in self._plans:
            self._plans[op] = plan = self.worker.tune(op, self._n_plans)
            if not _predicts(self.config):
                (timing,) = self.worker.time_operators([(op, plan)])
                self.table.entries[op] = Entry(plan, timing)
                self.table.save()
        return self._plans[op]


def _predicts(config: SearchConfig | ProfileConfig) -> bool:
    """Return whether costs come from a latency table."""
    return isinstance(config, SearchConfig) and config.cost == "table"


def device(config: SearchConfig, networks: Networks) -> Device | None:
    """Return the device of a measured target, with the table that its costs come from.

    Raises:
        TableError: there is no table of this machine, or it is not made for the space.
    """
    if config.target.runtime not in ("tvm", "onnxruntime"):
        return None
    if config.cost == "table":
        roots, command = [Path(config.table.dir), SHIPPED], profile_command(config)
        accept = config.table.accept_foreign
        table = open_table(config.target, config.rpc, roots, accept, command)
        # Better now than after an hour of training.
        drawn = Subject(networks.space, networks.as_run).sample(_CHECKED, config.seed)
        ops = distinct(networks.as_run(genotype) for genotype in drawn)
        if missing := [op for op in ops if op not in table.entries]:
            raise incomplete(missing, config.target, command)
        TableCostModel(table, config.target, networks.as_run, _names(networks.space), command)
        return Device(config, table)
    return Device(config, own_table(config.target, config.rpc, Path(config.table.dir), SHIPPED))


def table_digest(device: Device | None) -> dict[str, str]:
    """Return the digest of what costs are predicted from, by name; none where nothing is."""
    known = device is not None and _predicts(device.config)
    return {"latency_table": device.table.digest} if device and known else {}


def table_facts(device: Device | None) -> dict[str, Any] | None:
    """Return which table a run reads, and what is foreign about it."""
    if device is None:
        return None
    return {"path": str(device.table.path), "foreign": device.table.foreign or None}


def profile_command(config: SearchConfig | ProfileConfig) -> str:
    """Return the command that measures what a table lacks."""
    target = config.target
    words = ["python", "-m", "hwnas", "profile", f"+target={target.name}"]
    for name in ("runtime", "dtype", "threads", "batch"):
        words.append(f"target.{name}={getattr(target, name)}")
    spaces = config.spaces
    searched = spaces[0] if len(spaces) == 1 else f"[{','.join(spaces)}]"
    words += [f"search_space={searched}", f"dataset={config.dataset.name}"]
    if config.dataset.path:
        words.append(f"dataset.path={config.dataset.path}")
    if config.table.dir != TableConfig().dir:
        words.append(f"table.dir={config.table.dir}")
    if config.rpc.tracker:
        words += [f"rpc.tracker={config.rpc.tracker}", f"rpc.key={config.rpc.key}"]
    return shlex.join(words)


def cost_model(parts: Parts, device: Device | None) -> CostModel:
    """Return what says the costs of candidates, with what is derived from them."""
    return DerivedCostModel(_cost_model(parts, device), parts.config.derives)


def _cost_model(parts: Parts, device: Device | None) -> CostModel:
    config, target = parts.config, parts.config.target
    if config.cost == "vela":
        return VelaCostModel(target, parts.networks.lower)
    if config.cost == "roofline":
        return RooflineCostModel(target, parts.networks.as_written)
    assert device is not None
    if config.cost == "measured":
        return MeasuredCostModel(device.worker, target, parts.networks.as_written, device.plan)
    command = profile_command(config)
    spaces = _names(parts.space)
    return TableCostModel(device.table, target, parts.networks.as_run, spaces, command)


def _names(space: Space) -> list[str]:
    return [member.name for member in space.members]


def artefacts(parts: Parts, device: Device | None) -> Artefacts:
    """Return what makes and judges the files of a front member."""
    return DerivedArtefacts(_artefacts(parts, device), parts.config.derives)


def _artefacts(parts: Parts, device: Device | None) -> Artefacts:
    target = parts.config.target
    if target.runtime == "vela":
        return VelaArtefacts(target)
    if device is None:
        return ModelledArtefacts(target, lambda lowered: as_run(lowered, target))
    return MeasuredArtefacts(
        target, device.worker, lambda lowered: as_run(lowered, target), device.plan
    )


@final
class TrainedOnDemand:
    """An evaluator that trains a supernet, or loads it, when its first accuracy is asked for.

    A budget that nothing meets is then found out without any training.

    Args:
        train: Trains and returns the evaluator of each space, by the name of the space.
    """

    def __init__(self, train: Mapping[str, Callable[[], SupernetEvaluator]]):
        self._train = train
        self._trained: dict[str, SupernetEvaluator] = {}

    def of(self, genotype: Genotype) -> SupernetEvaluator:
        """Return the evaluator of the genotype's space."""
        return self._of(genotype.space)

    def _of(self, space: str) -> SupernetEvaluator:
        if space not in self._trained:
            self._trained[space] = self._train[space]()
        return self._trained[space]

    def train(self) -> None:
        """Train all supernets, or load them, now."""
        for space in self._train:
            self._of(space)

    def score(self, genotype: Genotype, rival: Rival | None = None) -> Score:
        """Return the accuracy on the validation split, with its interval."""
        return self.of(genotype).score(genotype, rival)

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated and with batch norm folded."""
        return self.of(genotype).network(genotype)

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated."""
        return self.of(genotype).extracted(genotype)

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        return self.of(genotype).calibration_images(genotype)

    def origin(self, genotype: Genotype) -> str:
        """Return where the weights of a network come from."""
        return self.of(genotype).origin(genotype)


Accuracies = TrainedOnDemand | TrainedEvaluator  #: what scores candidates and has their weights


def accuracies(parts: Parts, progress: Progress) -> Accuracies:
    """Return what says accuracies; it trains what is not trained yet when that is needed."""
    scoring = parts.config.scoring
    if parts.config.accuracy == "trained":
        return TrainedEvaluator(parts.courses, parts.config.trained)

    def trained(course: Course) -> SupernetEvaluator:
        supernet, _ = course.trained(progress)
        return course.evaluator(supernet, scoring)

    return TrainedOnDemand({n: partial(trained, course) for n, course in parts.courses.items()})


def left(config: SearchConfig, candidates: Iterable[Candidate]) -> dict[str, int]:
    """Return after how many trainings in a row a search left the networks it trained, by id."""
    found: dict[str, int] = {}
    for candidate in candidates:
        if n := config.trained.n_read(candidate.details):
            found[candidate.id] = max(n, found.get(candidate.id, 0))
    return found


def as_left(weights: Accuracies, networks: Mapping[str, int]) -> Accuracies:
    """Return weights as a search left them, where other searches may have gone on with some."""
    return weights.as_left(networks) if isinstance(weights, TrainedEvaluator) else weights


@dataclass(frozen=True)
class Finisher:
    """Finishes networks of a search; all use the same answers of one teacher."""

    parts: Parts
    weights: Accuracies
    teacher: Genotype | None = None  #: the most accurate network; ``None``: none of the search does
    progress: Progress = field(default_factory=Silent)
    other: FinishingConfig | None = None  #: how all but the teacher are finished, if otherwise
    tutor: Tutor | None = None  #: who teaches where none of the search does

    @property
    def config(self) -> FinishingConfig:
        """How networks are finished."""
        return self.other or self.searched

    @property
    def searched(self) -> FinishingConfig:
        """How the search finishes networks, the teacher among them."""
        config = self.parts.config
        if config.accuracy == "trained":
            return config.finish.of_one(config.train.epochs, 1.0)
        return config.finish.of_one(FinishingConfig().epochs, FinishingConfig().rate)

    @property
    def left(self) -> dict[str, int]:
        """After how many trainings in a row the search left the networks it trained, by id."""
        return self.weights.left if isinstance(self.weights, TrainedEvaluator) else {}

    def tuned(self, genotype: Genotype) -> Figure:
        """Train a network, or go on; return its accuracy on the validation split."""
        return finish.tuned(self._origin(genotype), self.config, self.progress).accuracy

    def finished(self, genotype: Genotype) -> Finished:
        """Return a network that is ready for the target; train what is not trained yet."""
        target = self.parts.config.target
        return self.in_int8(genotype) if target.dtype == "int8" else self._finished(genotype, None)

    def in_int8(self, genotype: Genotype) -> Finished:
        """Return the same in int8, too, where it can be written so, whatever the target runs."""
        return self._finished(genotype, int8_session(self.parts.config.target))

    def _finished(self, genotype: Genotype, load: Load | None) -> Finished:
        return finish.finish(self._origin(genotype), self.config, load, self.progress)

    def is_kept(self, genotype: Genotype) -> bool:
        """Return whether a network that the search finished so is still there."""
        if not self.is_inherited(genotype):
            return False
        n_images = len(self.parts.data.train)
        n = self.config.epochs * steps_per_epoch(self.parts.config.train.batch_size, n_images)
        return n == 0 or self.checkpoint(genotype).n_steps() >= n

    def is_inherited(self, genotype: Genotype) -> bool:
        """Return whether the weights that the search scored a network by are still there."""
        return not isinstance(self.weights, TrainedEvaluator) or self.weights.is_kept(genotype)

    def checkpoint(self, genotype: Genotype) -> Checkpoint:
        """Return where a network that ``tuned`` trains is kept."""
        return finish.checkpoint(self._origin(genotype), self.config)

    def prepare(self, genotype: Genotype) -> None:
        """Have the teacher's answers at hand, for this network and all others."""
        finish.prepare(self._origin(genotype), self.config)

    def _origin(self, genotype: Genotype) -> Origin:
        tutor = self.tutor
        if self.teacher is not None and self.config.epochs and self.config.alpha:
            tutor = self._taught_by if genotype.id != self.teacher.id else None
        return Origin(self.parts.course_of(genotype), self.weights, genotype, tutor)

    @cached_property
    def _taught_by(self) -> Member:
        assert self.teacher is not None
        course = self.parts.course_of(self.teacher)
        origin = Origin(course, self.weights, self.teacher)
        network = finish.tuned(origin, self.searched, self.progress)
        return Member(network.network, self.teacher, course, network.past, self.progress)


def int8_session(target: Target) -> Load:
    """Return what loads an int8 network into the runtime that stands for a target here."""
    if target.runtime == "vela":
        return lambda network: LiteRTSession(tflite.write(network))
    return lambda network: OrtSession(write_int8(network, any_batch=True))


def workbench(parts: Parts, finisher: Finisher, device: Device | None) -> Workbench:
    """Return what verification needs; the only place that hands out the test split."""
    data = parts.data
    return Workbench(
        finished=finisher.finished,
        test=lambda genotype: data.batches(
            data.test, parts.networks.resolution(genotype), rounded=True
        ),
        artefacts=artefacts(parts, device),
        dtype=parts.config.target.dtype,
    )


def _text(path: str) -> str:
    """Return the content of the user's own Vela configuration; Vela's come with its version."""
    return Path(path).read_text(encoding="utf-8") if Path(path).is_file() else ""


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
