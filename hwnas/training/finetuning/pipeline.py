"""Fine-tuning pipeline of one network: fine-tune, prune, reduce bits, quantise."""

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from hwnas.core.errors import CollapseError, CompileError, counted
from hwnas.core.progress import Progress, TimeLimitReached, stop_trainings
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.models.families import annotations
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph, without_exits
from hwnas.models.int8.quantisation import calibrate, quantise_with_scales
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.int8.simulation import DeployableNetwork, SimulatedInt8, with_graph_precision
from hwnas.models.int8.weight_grids import quantise_weights_, weight_grids_of
from hwnas.models.onnx.writer import check_int8
from hwnas.tasks.base import PerImageResults
from hwnas.tasks.metrics import is_better
from hwnas.training.finetuning.stages import (
    FINE_TUNED,
    FOR_INT8,
    OF_FEW_BITS,
    PRUNED,
    FinetuneTraining,
    NetworkSource,
    TrainingStage,
)
from hwnas.training.inference import per_sample, recalibrate
from hwnas.training.options import FinetuningConfig

Load = Callable[[QuantisedNetwork], Session]  #: loads an int8 network into its runtime


@dataclass(frozen=True)
class FinetuneStep:
    """Result of one step."""

    #: inherited, fine-tuned, narrowed (pruned, not yet trained), pruned, rounded (to few bits, not
    #: yet trained), bits-trained, int8 or int8-trained
    name: str
    metric: str  #: name of the metric
    figure: Quantity  #: metric after the step, on the validation split
    epochs: int = 0  #: number of training epochs of the step
    seconds: float = 0.0  #: training time in this call; 0 if it was complete before

    def row(self) -> dict[str, Any]:
        """Return name, metric, epochs and seconds of the step as a JSON object."""
        return {
            "step": self.name,
            self.metric: self.figure.to_json(),
            "epochs": self.epochs,
            "seconds": self.seconds,
        }


def finetune(
    origin: NetworkSource,
    config: FinetuningConfig,
    load: Load | None,
    progress: Progress,
    remaining_s: Callable[[], float] = lambda: math.inf,
) -> DeployableNetwork:
    """Fine-tune, compress and quantise a network; return it with its int8 version, if any.

    Trainings have checkpoints; an interrupted one resumes to the same weights.

    Args:
        origin: Source of the network.
        config: Fine-tuning options.
        load: Loads an int8 network for validation; ``None``: no int8 network is made.
        progress: Progress of the trainings.
        remaining_s: Returns the seconds that remain for int8 training, which is skipped or stopped
            if it takes longer. Other trainings have no limit.

    Raises:
        ConfigError: the network does not support pruning.
        RunError: a checkpoint is damaged or of another training.
        TrainingError: a training collapsed, or a batch does not fit into memory.
    """
    if config.prune:
        from hwnas.training.finetuning.compression import check_pruning

        check_pruning(config.prune, origin.graph())
    pipeline = _Pipeline(origin, config, progress)
    network = pipeline.finetune()
    if config.prune:
        network = pipeline.prune(network)
    if config.bits:
        pipeline.reduce_bits(network)
    network, graph = fold_batch_norm(network), pipeline.graph
    if load is None:
        return DeployableNetwork(network, graph, None, None, pipeline.record(None))
    try:
        check_int8(graph)
    except CompileError as error:
        return DeployableNetwork(
            network, graph, None, None, pipeline.record(None, no_int8=str(error))
        )
    int8, simulated, method = pipeline.quantise(network, graph, load, remaining_s)
    record, is_incomplete = pipeline.record(method), pipeline.without_int8_training
    return DeployableNetwork(network, graph, int8, simulated, record, is_incomplete)


@dataclass(frozen=True)
class FinetunedNetwork:
    """A network after fine-tuning, before quantisation."""

    network: nn.Module
    #: metric on the validation split, in simulated int8 if the space is for int8 networks
    figure: Quantity
    past: str  #: text that identifies the trainings of its weights


def finetune_float(
    origin: NetworkSource, config: FinetuningConfig, progress: Progress
) -> FinetunedNetwork:
    """Fine-tune a network, or load it if this is done; return it without compression.

    Raises:
        RunError: a checkpoint is damaged or of another training.
        TrainingError: the training collapsed, or a batch does not fit into memory.
        TimeLimitReached: ``stop_trainings`` stopped it.
    """
    pipeline = _Pipeline(origin, config, progress)
    network = pipeline.finetune()
    return FinetunedNetwork(network, pipeline.deployed_metric(network), pipeline.past)


@final
class _Pipeline:
    """Runs the steps and records their results."""

    def __init__(self, origin: NetworkSource, config: FinetuningConfig, progress: Progress):
        self._origin, self._config, self._progress = origin, config, progress
        self.steps: list[FinetuneStep] = []
        self.without_int8_training = False  #: True if time ran out before int8 training
        self.graph = origin.graph()  #: the current graph
        # Everything that determines the weights.
        self._past: list[str] = [origin.weights.origin(origin.genotype)]

    @property
    def past(self) -> str:
        """Everything that determines the current weights."""
        return "; ".join(self._past)

    def finetune(self) -> nn.Module:
        """Return the network, fine-tuned if requested."""
        network = self._origin.weights.extracted(self._origin.genotype)
        self.note("inherited", network)
        if self._config.epochs:
            self.train(network, FINE_TUNED)
        return network

    def deployed_metric(self, network: nn.Module) -> Quantity:
        """Return the metric of the network in the number format of its space."""
        if self.graph.dtype != annotations.INT8:
            return self.steps[-1].figure
        copied = copy.deepcopy(network)
        return self._validate(with_graph_precision(copied, self.graph, lambda: self._origin.images))

    def _validate(self, network: nn.Module) -> Quantity:
        task = self._origin.task
        return self._origin.score(lambda x, targets: per_sample(task, network, x, targets))

    def note(self, name: str, network: nn.Module, epochs: int = 0, seconds: float = 0.0) -> None:
        """Append the step that led to a network."""
        metric = self._origin.task.metric
        self.steps.append(FinetuneStep(name, metric, self._validate(network), epochs, seconds))

    def train(self, network: nn.Module, training: FinetuneTraining) -> None:
        """Train a network in place."""
        seconds = self._stage(network, training).run(self._progress)
        self.note(training.name, network, training.epochs(self._config), seconds)

    def prune(self, network: nn.Module) -> nn.Module:
        """Return a narrower network after further training."""
        from hwnas.training.finetuning.compression import prune

        network, self.graph = prune(network, self.graph, self._config.prune)
        recalibrate(network, self._origin.images)
        self._past.append(f"pruned by {self._config.prune}")
        self.note("narrowed", network)
        self.train(network, PRUNED)
        return network

    def reduce_bits(self, network: nn.Module) -> None:
        """Quantise weights to fewer bits and train them, in place."""
        self.graph = self.graph.with_bits(self._config.bits)
        self._past.append(f"bits {dict(sorted(self._config.bits.items()))}")
        rounded = copy.deepcopy(network)
        quantise_weights_(rounded, weight_grids_of(rounded, self.graph))
        recalibrate(rounded, self._origin.images)
        self.note("rounded", rounded)
        if self._config.later:
            self.train(network, OF_FEW_BITS)
        else:
            network.load_state_dict(rounded.state_dict())

    def quantise(
        self, network: nn.Module, graph: Graph, load: Load, remaining_s: Callable[[], float]
    ) -> tuple[QuantisedNetwork, SimulatedInt8 | None, str]:
        """Return the int8 network, the simulation it was trained by (if any), and the method."""
        images = self._origin.images
        scales, calibration = calibrate(network, graph, images), f"{len(images)} calibration images"
        if n := sum(node.in_float for node in graph):
            calibration += f", {n} operators in float32"
        real, int8 = self.steps[-1].figure.value, quantise_with_scales(network, graph, scales)
        task, plain = self._origin.task, self._validate_int8(int8, load)
        self.steps.append(FinetuneStep("int8", task.metric, plain))
        drop = task.points(real, plain.value)
        if drop <= self._config.max_int8_drop or not self._config.later:
            return int8, None, f"post-training, {calibration}"
        self._past.append(calibration)
        simulated = SimulatedInt8(network, graph, scales)
        stage = self._stage(simulated, FOR_INT8)
        try:
            with stop_trainings(time.monotonic() + remaining_s()):
                seconds = stage.run(self._progress) if stage.fits(remaining_s()) else None
        except CollapseError:
            return int8, None, f"post-training, {calibration}; int8 training collapsed"
        except TimeLimitReached:
            seconds = None
        if seconds is None:
            self.without_int8_training = True
            return int8, None, f"post-training, {calibration}; no time was left for int8 training"
        trained = simulated.quantised()
        figure = self._validate_int8(trained, load)
        epochs = self._config.later
        self.steps.append(FinetuneStep("int8-trained", task.metric, figure, epochs, seconds))
        if not is_better(task.metric, figure.value, plain.value):
            return int8, None, f"post-training, {calibration}; int8 training did not improve it"
        return trained, simulated.eval(), f"trained for int8, {epochs} epochs, {calibration}"

    def record(self, int8: str | None, no_int8: str | None = None) -> Row:
        """Return the steps as JSON.

        Args:
            int8: Method of quantisation.
            no_int8: Reason why there is no int8 network.
        """
        config, done = self._config, {step.name for step in self.steps}
        tuned = f"fine-tuned for {config.epochs} epochs"
        retuned = f"fine-tuned for {config.later} epochs"
        phrases = [self._past[0] + ", batch norm recalibrated" * (self._past[0] == "supernet")]
        phrases += [tuned] * ("fine-tuned" in done)
        phrases += [f"{config.prune:.0%} of the channels pruned, {retuned}"] * ("pruned" in done)
        if "rounded" in done:
            phrases.append(_describe_bits(config.bits, config.later))
        steps = [step.row() for step in self.steps]
        row: Row = {"weights": ", ".join(phrases), "int8": int8, "steps": steps}
        return row if no_int8 is None else {**row, "no_int8": no_int8}

    def _validate_int8(self, network: QuantisedNetwork, load: Load) -> Quantity:
        session, task = load(network.subnetwork(without_exits(self.graph))), self._origin.task

        def evaluate(images: Tensor, targets: Tensor) -> PerImageResults:
            return task.per_sample(session.run(images.numpy()), targets.numpy())

        return self._origin.score(evaluate)

    def _stage(self, network: nn.Module, training: FinetuneTraining) -> TrainingStage:
        """Return a training of a network in place; it becomes part of ``past``."""
        self._past.append(training.digest_text(self._origin, self._config))
        return training.stage(self._origin, self._config, network, self.graph, self.past)


def _describe_bits(bits: Mapping[str, int], epochs: int) -> str:
    fewest, most = min(bits.values()), max(bits.values())
    span = f"{fewest} bits" if fewest == most else f"{fewest} to {most} bits"
    text = f"weights of {counted(len(bits), 'operator')} in {span}"
    return f"{text}, trained for {epochs} epochs" if epochs else text
