"""Composition root: from a configuration to the objects that a verb needs."""

import contextlib
import hashlib
import importlib.metadata
import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from hwnas import content, families
from hwnas.accuracy.base import Rival, Score
from hwnas.accuracy.supernet import SupernetEvaluator
from hwnas.config import ProfileConfig, SearchConfig
from hwnas.cost.base import CostModel
from hwnas.cost.host import as_run
from hwnas.cost.measured import MeasuredCostModel
from hwnas.cost.roofline import RooflineCostModel
from hwnas.cost.table import TableCostModel
from hwnas.cost.vela import VelaCostModel
from hwnas.families.base import Family
from hwnas.latency_table import Entry, LatencyTable, TableConfig, incomplete
from hwnas.op import Lowered, OpSpec, Task, distinct
from hwnas.profiling.subject import Subject
from hwnas.progress import Progress
from hwnas.provenance import open_table, own_table
from hwnas.runtimes import writable
from hwnas.runtimes.pool import Pool, Retrying
from hwnas.search.artefacts import Artefacts, MeasuredArtefacts, ModelledArtefacts, VelaArtefacts
from hwnas.search.verify import Workbench
from hwnas.space import Genotype, SearchSpace
from hwnas.supernets import Course, read
from hwnas.target import Target
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.data import ImageData

#: Packages whose version decides the outcome of a run, beside torch's, which decides the supernet.
DECISIVE = ("hwnas", "optuna", "ethos-u-vela", "ai-edge-litert", "apache-tvm", "onnxruntime")

_CHECKED = 300  #: networks whose operators are looked for in a table before anything is trained

#: The latency tables that ship with hwnas.
SHIPPED = content.ROOT / "latency_tables"


@dataclass(frozen=True)
class Networks:
    """The networks of a space on a target, for one task.

    Raises:
        CompileError: none of them can be written for the target.
    """

    target: Target
    space: SearchSpace
    family: Family
    task: Task

    def __post_init__(self) -> None:
        writable.check_space(self.space, self.lower, self.target)

    def lower(self, genotype: Genotype) -> Lowered:
        """Return the operators of a genotype."""
        return self.family.lower(self.space, genotype, self.task)

    def resolution(self, genotype: Genotype) -> int:
        """Return the height and width of the images that a genotype reads."""
        return self.family.resolution(self.space, genotype)

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
    def space(self) -> SearchSpace:
        """The search space."""
        return self.networks.space

    def digests(self) -> dict[str, str]:
        """Return a digest of everything that decides the outcome, by name."""
        c = self.config
        return {
            "search_space": self.space.digest,
            "data": self.data.digest,
            "augmentation": _digest(c.dataset.augmentation),
            "target": _digest(
                [asdict(c.target), _text(c.target.vela.config if c.target.vela else "")]
            ),
            "cost": _digest(c.cost),
            "budget": _digest(asdict(c.budget)),
            "objectives": _digest(c.objectives),
            "sampler": _digest(asdict(c.sampler)),
            "train": _digest(c.train.decisive(self.networks.family.recipe)),
            "scoring": _digest(asdict(c.scoring)),
            "seed": _digest(c.seed),
            "versions": _digest(
                [*map(importlib.metadata.version, DECISIVE), *families.origin(self.space.family)]
            ),
            "supernet": self.checkpoint().path.parent.name,
        }

    @property
    def course(self) -> Course:
        """How the supernet is trained."""
        c, n = self.config, self.networks
        whole = Course(n.space, n.family, self.data, c.dataset, c.train, c.seed)
        return replace(whole, supernets=Path(c.run.supernets))

    def checkpoint(self) -> Checkpoint:
        """Return where the supernet of this space, data, training and seed is kept."""
        return self.course.checkpoint()


def parts(config: SearchConfig, progress: Progress) -> Parts:
    """Read the search space and the data."""
    found, data = networks(config, progress)
    return Parts(config, found, data)


def retargeted(parts: Parts, config: SearchConfig) -> Parts:
    """Return the same space and data for another target."""
    return Parts(config, replace(parts.networks, target=config.target), parts.data)


def networks(
    config: SearchConfig | ProfileConfig, progress: Progress
) -> tuple[Networks, ImageData]:
    """Read the search space, and the data, which decide the first and the last operator."""
    found, family, data = read(config.search_space, config.dataset, progress)
    return Networks(config.target, found, family, data.task), data


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
        TableCostModel(table, config.target, networks.as_run, networks.space.name, command)
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
    words += [f"search_space={config.search_space}", f"dataset={config.dataset.name}"]
    if config.dataset.path:
        words.append(f"dataset.path={config.dataset.path}")
    if config.table.dir != TableConfig().dir:
        words.append(f"table.dir={config.table.dir}")
    if config.rpc.tracker:
        words += [f"rpc.tracker={config.rpc.tracker}", f"rpc.key={config.rpc.key}"]
    return shlex.join(words)


def cost_model(parts: Parts, device: Device | None) -> CostModel:
    """Return what says the costs of candidates."""
    config, target = parts.config, parts.config.target
    if config.cost == "vela":
        return VelaCostModel(target, parts.networks.lower)
    if config.cost == "roofline":
        return RooflineCostModel(target, parts.networks.as_written)
    assert device is not None
    if config.cost == "measured":
        return MeasuredCostModel(device.worker, target, parts.networks.as_written, device.plan)
    command = profile_command(config)
    return TableCostModel(device.table, target, parts.networks.as_run, parts.space.name, command)


def artefacts(parts: Parts, device: Device | None) -> Artefacts:
    """Return what makes and judges the files of a front member."""
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
    """An evaluator that trains its supernet, or loads it, when the first accuracy is asked for.

    A budget that nothing meets is then found out without any training.
    """

    def __init__(self, train: Callable[[], SupernetEvaluator]):
        self._train = train
        self._evaluator: SupernetEvaluator | None = None

    @property
    def evaluator(self) -> SupernetEvaluator:
        """The evaluator behind."""
        if self._evaluator is None:
            self._evaluator = self._train()
        return self._evaluator

    def train(self) -> None:
        """Train the supernet, or load it, now."""
        _ = self.evaluator

    def score(self, genotype: Genotype, rival: Rival | None = None) -> Score:
        """Return the accuracy on the validation split, with its interval."""
        return self.evaluator.score(genotype, rival)


def trained_evaluator(parts: Parts, progress: Progress) -> SupernetEvaluator:
    """Return an evaluator on the trained supernet; trains what is not trained yet."""
    course = parts.course
    supernet, _ = course.trained(progress)
    return course.evaluator(supernet, parts.config.scoring)


def workbench(parts: Parts, evaluator: SupernetEvaluator, device: Device | None) -> Workbench:
    """Return what verification needs; the only place that hands out the test split."""
    data = parts.data
    return Workbench(
        network=evaluator.network,
        lower=parts.networks.lower,
        calibration_images=evaluator.calibration_images,
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
