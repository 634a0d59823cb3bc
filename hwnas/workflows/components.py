"""Composition root: creates the objects of a command from its configuration."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hwnas import tasks
from hwnas.core import machine
from hwnas.core.errors import ConfigError
from hwnas.core.options import digest, fingerprint_options
from hwnas.core.progress import Progress
from hwnas.core.run_folder import WEIGHTS
from hwnas.hardware import backends
from hwnas.hardware.backends.artefact_wrappers import ExitArtefacts
from hwnas.hardware.backends.base import Artefacts, CostContext
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.hardware.derived_metrics import DerivedCostModel
from hwnas.hardware.target import facts
from hwnas.models import families
from hwnas.models.families import annotations, early_exits
from hwnas.models.spaces import Genotype, Space
from hwnas.nas.candidates import Candidate
from hwnas.nas.cascades import LEAST
from hwnas.tasks.metrics import metric_of
from hwnas.training import loop
from hwnas.training.data import ImageData
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.training.supernet import SupernetTraining, TrainingSetup
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.networks import Networks, profile_command, read_networks

if TYPE_CHECKING:
    from hwnas.nas.run import Run
    from hwnas.training.evaluation.shared_weights import SupernetEvaluator, TrainedOnDemand
    from hwnas.workflows.device import MeasuredTarget

#: Packages whose versions determine the results of every run, besides those of the target's backend
#: and torch, which determines the supernet.
DECISIVE = ("hwnas", "optuna")

_MORE = ("minutes", "max_candidates")  #: of ``finish``: may change when a run is resumed


@dataclass(frozen=True)
class SearchComponents:
    """The components of a search before training."""

    config: SearchConfig  #: options, with ``accuracy`` set
    networks: Networks  #: networks of the search spaces on the target
    data: ImageData  #: data set, with the metric of the search
    is_measured: bool = False  #: whether any target is measured, so that one process searches

    @property
    def space(self) -> Space:
        """The search space; of several spaces their union."""
        return self.networks.space

    @cached_property
    def first(self) -> tuple[Genotype, ...]:
        """The distinct genotypes of the search ``start_from``, in order of its trials.

        They are the first trials of this search. Empty without ``start_from``. A resumed search
        has them in its folder, as the other search may have changed.

        Raises:
            RunError: ``start_from`` is not the folder of a search, or its trials cannot be read.
            SpaceError: one of its candidates is not in the search space.
        """
        if self.config.start_from is None:
            return ()
        from hwnas.nas import earlier

        folder = self.config.run.dir
        if earlier.are_kept(folder):
            return earlier.kept(folder, self.space)
        return earlier.genotypes(self._run_before, self.space)

    def keep_first(self) -> None:
        """Write the genotypes of ``first`` into the folder of the search, unless they are there.

        Weights that their search keeps are used if they are of the same training.
        """
        if self.first and self.config.run.dir is not None:
            from hwnas.nas import earlier

            if not earlier.are_kept(self.config.run.dir):
                earlier.link_weights(self._run_before, Path(self.config.run.supernets))
            earlier.keep(self.config.run.dir, self.first)

    def notes_on_first(self) -> list[str]:
        """Return messages if ``start_from`` had other data, or has more networks than trials."""
        if self.config.start_from is None:
            return []
        from hwnas.nas import earlier

        if earlier.are_kept(self.config.run.dir):
            return []
        notes = earlier.note_on_data(self._run_before, self.data.digest)
        if (n := len(self.first)) > self.config.n_trials:
            notes.append(
                f"start_from={self.config.start_from} has {n} networks, of which the first "
                f"{self.config.n_trials} are tried. To try all of them, set n_trials={n}."
            )
        return notes

    @property
    def _run_before(self) -> "Run":
        from hwnas.nas.run import Run

        assert self.config.start_from is not None
        return Run.load(Path(self.config.start_from), "start_from", self.config.study.storage)

    def digests(self) -> dict[str, str]:
        """Return a hexadecimal digest of each setting that determines the results, by name.

        A run can only be resumed with the same digests. The errors are those of ``first``.
        """
        c, members = self.config, self.space.members
        by_space = {
            m.name: c.train.decisive(self.networks.families[m.name].recipe) for m in members
        }
        file = self.networks.backend.user_file()
        places = {n: setup.checkpoint().path.parent.name for n, setup in self.setups.items()}
        return {
            "search_space": self.space.digest,
            "data": self.data.digest,
            "augmentation": digest(c.dataset.augmentation),
            "target": digest([facts(c.target), file.read_text("utf-8") if file else ""]),
            "cost": digest(c.cost),
            "budget": digest(c.allowed.digested()),
            "objectives": digest(c.objectives),
            "sampler": digest(c.sampler.fingerprint_options()),
            "train": digest(self._one_or_by_space(by_space)),
            "accuracy": digest(
                fingerprint_options(c.trained) if c.accuracy == "trained" else c.accuracy
            ),
            "finish": digest(
                {n: v for n, v in fingerprint_options(c.finish).items() if n not in _MORE}
            ),
            "start_from": digest([genotype.id for genotype in self.first]),
            "scoring": digest(fingerprint_options(c.scoring)),
            "seed": digest(c.seed),
            "versions": digest(self.versions()),
            **(
                {f"supernet of {name}": place for name, place in places.items()}
                if self.space.root
                else {"supernet": self._one_or_by_space(places)}
            ),
        }

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that determine the results, by package."""
        names = [
            *DECISIVE,
            *backends.fingerprint_packages(self.config.target.runtime, self.config.target.dtype),
        ]
        result = {name: backends.version(name) for name in names}
        for member in self.space.members:
            if origin := families.plugin_identity(member.family):
                result[origin[0]] = origin[1]
        if plugin := tasks.plugin_identity(self.data.task.name)[1:]:
            result[plugin[0]] = plugin[1]
        return result

    @property
    def setups(self) -> dict[str, TrainingSetup]:
        """The setup that trains the supernet or the networks of a space, by name of the space."""
        c, n = self.config, self.networks
        places = (Path(c.run.supernets), c.run.weights)
        training = SupernetTraining(c.dataset, c.train, c.seed, *places)
        return training.setups(n.space, n.families, self.data)

    def setup_of(self, genotype: Genotype) -> TrainingSetup:
        """Return the training setup of a genotype's search space."""
        return self.setups[genotype.space]

    def checkpoint(self) -> str | dict[str, str] | None:
        """Return the path of the supernet's checkpoint, relative to the folder of the search.

        With several spaces these are paths by name of the space; with ``accuracy=trained``
        ``None``.
        """
        if self.config.accuracy == "trained":
            return None
        paths = {name: setup.checkpoint().path for name, setup in self.setups.items()}
        relative = {n: Path(WEIGHTS, *path.parts[-2:]).as_posix() for n, path in paths.items()}
        result: str | dict[str, str] = self._one_or_by_space(relative)
        return result

    def _one_or_by_space(self, values: Mapping[str, Any]) -> Any:
        return values if self.space.root else values[self.space.name]


def parts(
    config: SearchConfig,
    progress: Progress,
    data: ImageData | None = None,
    is_measured: bool = False,
) -> SearchComponents:
    """Return the search spaces, the data, and the configuration with defaults that depend on them.

    Args:
        config: Configuration of the search.
        progress: Is notified of loading.
        data: The data, if another process has read them; ``None``: they are read here.
        is_measured: Whether another target of the search is measured.

    Raises:
        HwnasError: as :func:`settled` and :func:`hwnas.workflows.networks.read_networks`.
    """
    networks, data = read_networks(config, progress, data)
    data = data.with_metric(config.metric)
    config = settled(config, data, have_exits(networks), is_measured)
    return SearchComponents(config, networks, data, is_measured)


def have_exits(networks: Networks) -> bool:
    """Return whether any network of a space has early exits."""
    return any(early_exits.exit_names(member) for member in networks.space.members)


def _check_exits(config: SearchConfig, data: ImageData) -> None:
    if config.accuracy == "supernet":
        raise ConfigError(
            "accuracy=supernet: this search space has early exits, which supernets do not support. "
            "Set accuracy=trained."
        )
    if data.task.confidence is None:
        raise ConfigError(
            "Early exits need task=classification with the objective accuracy, not "
            f"task={data.task.name} with {config.metric}. Choose a search_space without exits."
        )
    if (n := len(data.validation)) < 2 * LEAST:
        raise ConfigError(
            f"The thresholds of early exits need {2 * LEAST} or more validation images, and there "
            f"are {n}. Give more images, set a larger dataset.validation, or choose a search_space "
            "without exits."
        )


#: Maximum values (pixels times channels) of an epoch for which candidates are trained separately:
#: about ten seconds of a small network on one core. On Fashion-MNIST such a front was 1.60 to 5.16
#: times as fast at equal accuracy as hand-designed networks (``experiments/worth_it``), that of a
#: supernet 0.18 to 0.46 times (other spaces). In 30 minutes it was far better than a supernet of
#: the same space (``experiments/supernet_fashion_mnist``).
_TRAINED_VALUES = 100e6


def settled(
    config: SearchConfig, data: ImageData, have_exits: bool, is_measured: bool
) -> SearchConfig:
    """Return a configuration with ``accuracy`` set and, for networks trained alone, the workers.

    Args:
        config: Configuration of the search.
        data: The data set, whose size determines the default of ``accuracy``.
        have_exits: Whether networks have early exits; they are trained separately.
        is_measured: Whether another target is measured: one process searches.

    Raises:
        ConfigError: networks have exits, but ``accuracy=supernet`` is given or the task has no
            confidence; or they have none, but expected costs of early exits are objectives or
            limits; or ``train.init_from`` is given with ``accuracy=trained``.
    """
    accuracy, workers = config.accuracy, config.study.workers
    if have_exits:
        _check_exits(config, data)
        accuracy = "trained"
    elif costs := config.expected_costs:
        raise ConfigError(
            f"{costs[0]} is for networks with early exits, which this search space does not have. "
            f"Use {metric_of(costs[0]).mean_of}, or choose a search_space with exits."
        )
    if accuracy is None:
        n_values = len(data.train) * data.train.side**2 * data.signature.in_channels
        accuracy = "trained" if n_values <= _TRAINED_VALUES else "supernet"
    if accuracy == "trained" and config.train.init_from is not None:
        raise ConfigError(
            f"train.init_from={config.train.init_from} has weights of a supernet, but with "
            "accuracy=trained each network is trained from scratch. "
            f"{'Remove' if have_exits else 'Set accuracy=supernet, or remove'} train.init_from."
        )
    is_measured = is_measured or config.cost == "measured"
    if workers is None and accuracy == "trained" and not is_measured:
        workers = machine.available_cores()
    return replace(config, accuracy=accuracy, study=replace(config.study, workers=workers))


def finetuning_processes(parts: SearchComponents) -> int:
    """Return the number of processes that fine-tune networks.

    By default it is one per core: what made the search use one, shared weights or measurements, is
    not needed any more. It is one on a GPU, and for data that each process would read again.
    """
    if parts.config.study.workers is not None:
        return parts.config.study.workers
    on_cpu = loop.device(parts.config.train).type == "cpu"
    return machine.available_cores() if on_cpu and parts.data.sendable is not None else 1


def retargeted(parts: SearchComponents, config: SearchConfig) -> SearchComponents:
    """Return the components with another configuration and its target; space and data are kept.

    Raises:
        ConfigError: as :func:`settled` and :class:`hwnas.workflows.networks.Networks`.
        CompileError: no network of a space can be exported for the target.
    """
    networks = replace(parts.networks, target=config.target)
    config = settled(config, parts.data, have_exits(networks), parts.is_measured)
    return SearchComponents(config, networks, parts.data, parts.is_measured)


def cost_model(parts: SearchComponents, device: "MeasuredTarget | None") -> CostModel:
    """Return the cost model of candidates, including derived metrics.

    Args:
        parts: Components of the search.
        device: The device, if the target is measured.
    """
    config, networks = parts.config, parts.networks
    assert config.cost is not None
    costed = CostContext(
        target=config.target,
        lower=networks.lower,
        fused_graph=networks.fused_graph,
        exported_graph=networks.exported_graph,
        spaces=tuple(member.name for member in parts.space.members),
        bench=device,
        command=profile_command(config),
    )
    model = networks.backend.cost_models[config.cost](costed)
    if any(annotations.precision_options(member) for member in parts.space.members):
        from hwnas.hardware.costs.measured_cost import MeasuredCostModel
        from hwnas.hardware.derived_metrics import FasterThanFloat

        turns = model.interleaved if isinstance(model, MeasuredCostModel) else None
        model = FasterThanFloat(model, networks.in_float, turns)
    return DerivedCostModel(model, config.derives)


def artefacts(parts: SearchComponents, device: "MeasuredTarget | None") -> Artefacts:
    """Return the object that builds the files of a network and measures or estimates their costs.

    Args:
        parts: Components of the search.
        device: The device, if the target is measured.
    """
    config, target = parts.config, parts.config.target
    artefacts = parts.networks.backend.artefacts(device, config.cost)
    return ExitArtefacts(artefacts, target.artefact, config.derives)


# Accuracies of candidates, and their weights.

#: Scores candidates and provides their weights.
Accuracies: TypeAlias = "TrainedOnDemand | TrainedEvaluator"


def accuracies(parts: SearchComponents, progress: Progress) -> Accuracies:
    """Return the evaluator of candidates, which trains a network or a supernet at first use."""
    scoring = parts.config.scoring
    if parts.config.accuracy == "trained":
        return TrainedEvaluator(parts.setups, parts.config.trained)

    from hwnas.training.evaluation.shared_weights import TrainedOnDemand

    def trained(setup: TrainingSetup) -> "SupernetEvaluator":
        supernet, _ = setup.trained(progress)
        return setup.evaluator(supernet, scoring)

    return TrainedOnDemand({n: partial(trained, setup) for n, setup in parts.setups.items()})


def completed_trainings(config: SearchConfig, candidates: Iterable[Candidate]) -> dict[str, int]:
    """Return the number of completed trainings (fidelities) of each network, by its id.

    Networks without one are left out.
    """
    counts: dict[str, int] = {}
    for candidate in candidates:
        if n := config.trained.n_read(config.metric, candidate.details):
            counts[candidate.id] = max(n, counts.get(candidate.id, 0))
    return counts


def at_recorded_fidelity(weights: Accuracies, networks: Mapping[str, int]) -> Accuracies:
    """Return an evaluator with the weights of networks after a given number of trainings.

    Other searches may have trained them further. The evaluator of a supernet is returned unchanged.

    Args:
        weights: The evaluator.
        networks: Number of completed trainings, by id, as ``completed_trainings`` returns.
    """
    return (
        weights.at_recorded_fidelity(networks) if isinstance(weights, TrainedEvaluator) else weights
    )
