"""The weights of one network get ready for the device: fine-tuned, pruned, quantised."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from hwnas.core.errors import CompileError
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.models.families import annotations
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph
from hwnas.models.int8.quantisation import calibrate, in_int8
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.int8.simulation import DeployableNetwork, SimulatedInt8, as_run
from hwnas.models.int8.weight_grids import grids, quantise_weights_
from hwnas.models.onnx.writer import check_int8
from hwnas.models.partition import without_exits
from hwnas.tasks.base import PerImageResults
from hwnas.tasks.metrics import better
from hwnas.training.finetuning import compression
from hwnas.training.finetuning.finetuning_options import FinishingConfig
from hwnas.training.finetuning.stages import (
    FINE_TUNED,
    FOR_INT8,
    OF_FEW_BITS,
    PRUNED,
    FinetuneTraining,  # fmt: skip
    NetworkSource,
    TrainingStage,
)
from hwnas.training.inference import per_sample, recalibrate

Load = Callable[[QuantisedNetwork], Session]  #: an int8 network into the runtime that it is for


@dataclass(frozen=True)
class FinetuneStep:
    """What one step of finishing came to."""

    #: inherited, fine-tuned, narrowed (pruned, not yet trained), pruned, rounded (to few bits, not
    #: yet trained), bits-trained, int8 or int8-trained
    name: str
    metric: str
    figure: Quantity  #: of the metric after it, on the validation split
    epochs: int = 0  #: that it trained
    seconds: float = 0.0  #: that training took in this call; 0 where it was finished before

    def row(self) -> dict[str, Any]:
        """Return the step as JSON."""
        return {
            "step": self.name,
            self.metric: self.figure.to_json(),
            "epochs": self.epochs,
            "seconds": self.seconds,
        }


def finish(
    origin: NetworkSource,
    config: FinishingConfig,
    load: Load | None,
    progress: Progress,
    left_s: Callable[[], float] = lambda: math.inf,
) -> DeployableNetwork:
    """Finish the weights that search scored a network by.

    Trainings are kept beside supernets; one that was cut off goes on, to the same weights.

    Args:
        origin: Whose weights, and what they learned from.
        config: What is done to them.
        load: Loads an int8 network, whose answers are its own then; ``None`` where none is wanted.
        progress: Of the trainings.
        left_s: Seconds that are left to train it for int8.

    Raises:
        ConfigError: the network cannot be pruned so.
    """
    if config.prune:
        compression.check_pruning(config.prune, origin.graph())
    finishing = _Finishing(origin, config, progress)
    network = finishing.tuned()
    if config.prune:
        network = finishing.prune(network)
    if config.bits:
        finishing.lower_bits(network)
    network, graph = fold_batch_norm(network), finishing.graph
    if load is None:
        return DeployableNetwork(network, graph, None, None, finishing.record(None))
    try:
        check_int8(graph)
    except CompileError as error:
        return DeployableNetwork(
            network, graph, None, None, finishing.record(None, no_int8=str(error))
        )
    int8, simulated, how = finishing.in_int8(network, graph, load, left_s)
    record, without_int8_training = finishing.record(how), finishing.without_int8_training
    return DeployableNetwork(network, graph, int8, simulated, record, without_int8_training)


@dataclass(frozen=True)
class FinetunedNetwork:
    """A network after its fine-tuning, not yet in int8."""

    network: nn.Module
    figure: Quantity  #: of the metric, on the validation split; simulated where a space says int8
    past: str  #: all that decides its weights, beside the setup


def tuned(origin: NetworkSource, config: FinishingConfig, progress: Progress) -> FinetunedNetwork:
    """Fine-tune a network; a training that was cut off goes on."""
    finishing = _Finishing(origin, config, progress)
    network = finishing.tuned()
    return FinetunedNetwork(network, finishing.as_run(network), finishing.past)


@final
class _Finishing:
    """The steps on the way, and what each came to."""

    def __init__(self, origin: NetworkSource, config: FinishingConfig, progress: Progress):
        self._origin, self._config, self._progress = origin, config, progress
        self.steps: list[FinetuneStep] = []
        self.without_int8_training = False  #: whether there was no time to train for int8
        self.graph = origin.graph()  #: what the network computes by now
        # All that decides the weights, beside the setup.
        self._past: list[str] = [origin.weights.origin(origin.genotype)]

    @property
    def past(self) -> str:
        """What decides the weights so far."""
        return "; ".join(self._past)

    def tuned(self) -> nn.Module:
        """Return the network, fine-tuned if so it is wanted; append the steps."""
        network = self._origin.weights.extracted(self._origin.genotype)
        self.note("inherited", network)
        if self._config.epochs:
            self.train(network, FINE_TUNED)
        return network

    def as_run(self, network: nn.Module) -> Quantity:
        """Return the metric of the network of the last step, in the dtype its space says."""
        if self.graph.dtype != annotations.INT8:
            return self.steps[-1].figure  # read already
        spent = copy.deepcopy(network)
        return self._read(as_run(spent, self.graph, lambda: self._origin.images))

    def _read(self, network: nn.Module) -> Quantity:
        task = self._origin.task
        return self._origin.score(lambda x, targets: per_sample(task, network, x, targets))

    def note(self, name: str, network: nn.Module, epochs: int = 0, seconds: float = 0.0) -> None:
        """Append a step that led to a network."""
        metric = self._origin.task.metric
        self.steps.append(FinetuneStep(name, metric, self._read(network), epochs, seconds))

    def train(self, network: nn.Module, training: FinetuneTraining) -> None:
        """Train a network in place, and append the step."""
        seconds = self._lesson(network, training).learn(self._progress)
        self.note(training.name, network, training.epochs(self._config), seconds)

    def prune(self, network: nn.Module) -> nn.Module:
        """Return a narrower network, trained again; append the steps."""
        network, self.graph = compression.prune(network, self.graph, self._config.prune)
        recalibrate(network, self._origin.images)
        self._past.append(f"pruned by {self._config.prune}")
        self.note("narrowed", network)
        self.train(network, PRUNED)
        return network

    def lower_bits(self, network: nn.Module) -> None:
        """Put weights on their grids, and train them for it; append the steps."""
        self.graph = self.graph.with_bits(self._config.bits)
        self._past.append(f"bits {dict(sorted(self._config.bits.items()))}")
        rounded = copy.deepcopy(network)
        quantise_weights_(rounded, grids(rounded, self.graph))
        self.note("rounded", rounded)
        if self._config.later:
            self.train(network, OF_FEW_BITS)
        else:
            quantise_weights_(network, grids(network, self.graph))

    def in_int8(
        self, network: nn.Module, graph: Graph, load: Load, left_s: Callable[[], float]
    ) -> tuple[QuantisedNetwork, SimulatedInt8 | None, str]:
        """Return a network in int8, what it was trained as if it lost too much, and how."""
        images = self._origin.images
        scales, how = calibrate(network, graph, images), f"{len(images)} calibration images"
        if n := sum(node.in_float for node in graph):
            how += f", {n} operators in float32"
        real, int8 = self.steps[-1].figure.value, in_int8(network, graph, scales)
        task, plain = self._origin.task, self._in_int8(int8, load)
        self.steps.append(FinetuneStep("int8", task.metric, plain))
        drop = task.points(real, plain.value)
        if drop <= self._config.max_int8_drop or not self._config.later:
            return int8, None, f"post-training, {how}"
        self._past.append(how)
        simulated = SimulatedInt8(network, graph, scales)
        lesson = self._lesson(simulated, FOR_INT8)
        if not lesson.fits(left_s()):
            self.without_int8_training = True
            return int8, None, f"post-training, {how}; there was no time to train for int8"
        seconds = lesson.learn(self._progress)
        trained = simulated.quantised()
        figure = self._in_int8(trained, load)
        epochs = self._config.later
        self.steps.append(FinetuneStep("int8-trained", task.metric, figure, epochs, seconds))
        if not better(task.metric, figure.value, plain.value):
            return int8, None, f"post-training, {how}; training for int8 did not pay"
        return trained, simulated.eval(), f"trained for int8, {epochs} epochs, {how}"

    def record(self, int8: str | None, no_int8: str | None = None) -> Row:
        """Return what was done, as JSON.

        Args:
            int8: How the int8 network was made.
            no_int8: Why there is none.
        """
        config, done = self._config, {step.name for step in self.steps}
        tuned = f"fine-tuned for {config.epochs} epochs"
        again = f"fine-tuned for {config.later} epochs"
        words = [self._past[0] + ", batch norm recalibrated" * (self._past[0] == "supernet")]
        words += [tuned] * ("fine-tuned" in done)
        words += [f"{config.prune:.0%} of the channels pruned, {again}"] * ("pruned" in done)
        if "rounded" in done:
            words.append(_told(config.bits, config.later))
        steps = [step.row() for step in self.steps]
        found: Row = {"weights": ", ".join(words), "int8": int8, "steps": steps}
        return found if no_int8 is None else {**found, "no_int8": no_int8}

    def _in_int8(self, network: QuantisedNetwork, load: Load) -> Quantity:
        session, task = load(network.part(without_exits(self.graph))), self._origin.task

        def found(images: Tensor, targets: Tensor) -> PerImageResults:
            return task.per_sample(session.run(images.numpy()), targets.numpy())

        return self._origin.score(found)

    def _lesson(self, network: nn.Module, training: FinetuneTraining) -> TrainingStage:
        """Return a training of a network in place, which decides its weights from now on."""
        self._past.append(training.words(self._origin, self._config))
        return training.lesson(self._origin, self._config, network, self.graph, self.past)


def _told(bits: Mapping[str, int], epochs: int) -> str:
    """Return in words which weights were put on grids of few bits."""
    fewest, most = min(bits.values()), max(bits.values())
    span = f"{fewest} bits" if fewest == most else f"{fewest} to {most} bits"
    n = len(bits)
    words = f"weights of {n} operator{'s' * (n != 1)} in {span}"
    return f"{words}, trained for {epochs} epochs" if epochs else words
