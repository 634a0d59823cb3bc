"""The context of each target: data, cost model, evaluator and verification."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hwnas.core.errors import ConfigError
from hwnas.core.progress import NullProgress, Progress
from hwnas.core.run_folder import RunFolder
from hwnas.hardware import backends
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.models.spaces import Genotype
from hwnas.nas import engine, loop
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front, pareto_front
from hwnas.nas.search_progress import SearchView
from hwnas.nas.targets import Targets, check_limits
from hwnas.nas.verification import verify
from hwnas.tasks.metrics import costs_in, metric_of
from hwnas.training.data import ImageData
from hwnas.training.evaluation.interfaces import Evaluator
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.workflows import components
from hwnas.workflows.components import Accuracies, SearchComponents, accuracies
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.custom import CheckedCostModel, CheckedEvaluator, CustomComponents
from hwnas.workflows.search.finisher import Finetuner, verifier

if TYPE_CHECKING:
    from hwnas.workflows.device import MeasuredTarget


@dataclass(frozen=True)
class TargetContext:
    """One target of a search. Several targets share search spaces, data and supernets."""

    parts: components.SearchComponents  #: options, networks and data
    device: "MeasuredTarget | None"  #: ``None`` if costs are estimated
    evaluator: Accuracies  #: scores candidates and provides their weights
    #: evaluator and cost model of the user, from Python
    own: CustomComponents = field(default_factory=CustomComponents)
    is_one_of_several: bool = False  #: whether the search has other targets

    @property
    def label(self) -> str:
        """Prefix of messages about one of several targets, as ``npu: ``; else empty."""
        return f"{self.target}: " * self.is_one_of_several

    @property
    def config(self) -> SearchConfig:
        """The options of the search for this target."""
        return self.parts.config

    @property
    def target(self) -> str:
        """The name of the target."""
        return self.config.target.name

    def of(self, genotype: Genotype) -> "TargetContext":
        """Return the context with the number format, batch size and threads of one network."""
        target = self.parts.networks.target_of(genotype)
        if target == self.config.target:
            return self
        return replace(
            self, parts=components.retargeted(self.parts, replace(self.config, target=target))
        )

    @contextlib.contextmanager
    def running(self) -> "Iterator[MeasuredTarget | None]":
        """Yield the device with the settings of this target; ``None`` if costs are estimated."""
        if self.device is None:
            yield None
            return
        with self.device.running(self.config.target) as device:
            yield device

    def front(self, candidates: Sequence[Candidate], where: RunFolder) -> list[Candidate]:
        """Return the Pareto front by the values of the search, fastest first.

        Args:
            candidates: Candidates of the search.
            where: Folder of the search, for messages.

        Raises:
            BudgetError: no candidate is feasible.
        """
        front = pareto_front(candidates, self.config.objectives)
        if not front:
            raise loop.no_feasible_candidate(candidates, self.config.allowed, str(where.path))
        return front

    def verified(
        self,
        members: Sequence[Candidate],
        finisher: Finetuner,
        folder: RunFolder,
        progress: Progress,
        phase: str = "Verify front",
    ) -> Front:
        """Compile candidates with their final weights and evaluate the files; return the front.

        Args:
            members: The candidates.
            finisher: Provides the weights; networks without them are trained.
            folder: Folder of the target, into which files and results are written.
            progress: Is notified of progress.
            phase: Title of the progress bar.
        """
        config = self.config
        finisher = replace(finisher, parts=self.parts, progress=NullProgress())
        phase_verifier = replace(verifier(self.parts, finisher, self.device), phase=phase)
        return verify(members, phase_verifier, config.allowed, config.objectives, folder, progress)


@contextlib.contextmanager
def open_contexts(
    configs: Sequence[SearchConfig],
    progress: Progress,
    own: CustomComponents | None = None,
    data: ImageData | None = None,
    settle: Callable[[SearchComponents], Sequence[SearchConfig]] | None = None,
) -> Iterator[list[TargetContext]]:
    """Yield a context for each configuration; data are loaded, nothing is trained yet.

    If the latency table of a measured target lacks a search space, a few networks are measured.

    Args:
        configs: One for each target.
        progress: Is notified of loading.
        own: Custom evaluator and cost model.
        data: The data, if another process has read them.
        settle: Returns the configurations with options that depend on the data; default: as given.

    Raises:
        HwnasError: an option, the data, a search space or a target is invalid.
    """
    own = own or CustomComponents()
    own.check_alone(len(configs), configs[0].study.workers)
    _check_means(configs, own)
    if data is None:
        _check_devices(configs)
    is_measured = any(config.cost == "measured" for config in configs)
    first = components.parts(configs[0], progress, data, is_measured)
    if settle is not None:
        configs = settle(first)
        first = components.retargeted(first, configs[0])
    evaluator = accuracies(first, progress)
    with contextlib.ExitStack() as stack:
        contexts = []
        for config in configs:
            parts = components.retargeted(first, config)
            device = _open_device(parts, progress)
            if device is not None:
                stack.callback(device.close)
            contexts.append(TargetContext(parts, device, evaluator, own, len(configs) > 1))
        yield contexts


def _check_devices(configs: Sequence[SearchConfig]) -> None:
    """Check compilers and latency tables before data are loaded.

    Raises:
        ConfigError: a compiler is not installed, or its configuration file is missing.
        TableError: a table is incomplete or damaged.
    """
    for config in configs:
        backend = backends.get(config.target.runtime)
        if backend.measured:
            from hwnas.workflows.device import check_device

            check_device(config)
        elif backend.check_tools:
            backends.resolve_reference(backend.check_tools, backend)(config.target, config.rpc)


def _open_device(parts: components.SearchComponents, progress: Progress) -> "MeasuredTarget | None":
    """Return the device of a measured target; ``None`` if costs are estimated."""
    if not backends.get(parts.config.target.runtime).measured:
        return None
    from hwnas.workflows.device import open_device

    return open_device(parts.config, parts.networks, progress)


def targets(contexts: Sequence[TargetContext]) -> Targets:
    """Return the budgets of all targets, by name of the target."""
    return Targets({s.target: s.config.allowed for s in contexts})


def problem(contexts: Sequence[TargetContext]) -> loop.SearchProblem:
    """Return the search problem of all targets."""
    context, all_of_them = contexts[0], targets(contexts)
    parts = context.parts
    evaluator = _evaluator(context)
    cost = all_of_them.cost_model({s.target: _cost_model(s) for s in contexts})
    first, lower = parts.first, parts.networks.lower
    exit_predictions = None
    if context.config.expected_costs:
        assert isinstance(evaluator, TrainedEvaluator)  # checked in ``open_contexts``
        exit_predictions = evaluator.exit_predictions
    return loop.SearchProblem(
        parts.space, all_of_them, cost, evaluator, first, lower, exit_predictions
    )


def _check_means(configs: Sequence[SearchConfig], custom_components: CustomComponents) -> None:
    """Reject expected costs of several targets, and with a custom evaluator.

    Raises:
        ConfigError: one is requested.
    """
    for name in (config.expected_costs[0] for config in configs if config.expected_costs):
        if len(configs) > 1:
            raise ConfigError(
                f"{name} is only supported for one target. Search for each target separately."
            )
        if custom_components.evaluator is not None:
            raise ConfigError(
                f"{name} needs networks that the search trains. Remove evaluator=, or use "
                f"{metric_of(name).mean_of}."
            )


def _evaluator(context: TargetContext) -> Evaluator:
    if context.own.evaluator is not None:
        return CheckedEvaluator(context.own.evaluator, context.config.metric)
    return context.evaluator


def _cost_model(context: TargetContext) -> CostModel:
    if context.own.cost_model is not None:
        config = context.config
        needed = [*costs_in(config.objectives), *config.allowed.limits, "latency_ms"]
        # An expected cost follows from the cost of an image.
        names = tuple(dict.fromkeys(metric_of(n).mean_of or n for n in needed))
        return CheckedCostModel(context.own.cost_model, config.derives, names)
    return components.cost_model(context.parts, context.device)


def objectives(contexts: Sequence[TargetContext]) -> tuple[str, ...]:
    """Return the columns of the study's objectives: the metric, then costs.

    Costs of several targets have a prefix, such as ``npu.latency_ms``.
    """
    first, all_of_them = contexts[0].config, targets(contexts)
    if not all_of_them.are_several:
        return tuple(first.objectives)
    prefixed = (
        all_of_them.prefixed(s.target, dict.fromkeys(costs_in(s.config.objectives)))
        for s in contexts
    )
    return (first.metric, *(name for names in prefixed for name in names))


def views(contexts: Sequence[TargetContext]) -> dict[str, SearchView]:
    """Return objectives, limits and candidates of each target, by its name."""
    return {s.target: targets(contexts).view(s.target, s.config.objectives) for s in contexts}


def followed(contexts: Sequence[TargetContext]) -> list[SearchView]:
    """Return objectives, limits and candidates of each target and, if several, of all together."""
    all_of_them, of_targets = targets(contexts), [*views(contexts).values()]
    several = all_of_them.are_several
    return [*of_targets, all_of_them.view_of_all(objectives(contexts))] if several else of_targets


def digests(contexts: Sequence[TargetContext]) -> dict[str, str]:
    """Return digests of the settings that determine the results, by name.

    Names of several targets have a prefix, such as ``npu.budget``.
    """
    all_of_them = targets(contexts)
    result: dict[str, str] = {}
    for s in contexts:
        of_target = s.parts.digests() | (s.device.digests if s.device else {}) | s.own.digests
        result |= all_of_them.prefixed(s.target, of_target)
    return result


def versions(contexts: Sequence[TargetContext]) -> dict[str, str]:
    """Return the versions of the packages that determine the results, by package."""
    return {name: version for s in contexts for name, version in s.parts.versions().items()}


def search_task(
    contexts: Sequence[TargetContext], decisive: Mapping[str, str]
) -> engine.SearchTask:
    """Return the search problem, with a factory that opens it in other processes.

    Args:
        contexts: One for each target.
        decisive: Digests of the settings that determine the results, by name.
    """
    data = contexts[0].parts.data.sendable
    factory = functools.partial(_reopened_problem, tuple(s.config for s in contexts), data)
    return engine.SearchTask(problem(contexts), factory, objectives(contexts), decisive)


def check_budget(task: loop.SearchProblem) -> None:
    """Refuse a budget that even the smallest network exceeds by more than a factor of 2.

    Raises:
        BudgetError: it names the binding limit and the cost of the smallest network.
    """
    check_limits(task.space, task.budget.limits, task.cost_model)


@contextlib.contextmanager
def _reopened_problem(
    configs: Sequence[SearchConfig], data: ImageData | None
) -> Iterator[loop.SearchProblem]:
    with open_contexts(configs, NullProgress(), data=data) as contexts:
        yield problem(contexts)
