"""The weights of one network get ready for the device: fine-tuned, pruned, quantised."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from torch import Tensor, nn

from hwnas.accuracy.base import Weights
from hwnas.errors import CompileError
from hwnas.families import precision
from hwnas.families.blocks import fold_batch_norm
from hwnas.figure import Figure
from hwnas.finishing import pruning
from hwnas.finishing.options import FinishingConfig
from hwnas.finishing.teachers import Tutor
from hwnas.graph import Graph
from hwnas.int8.finished import Finished
from hwnas.int8.grid import grids, put_on
from hwnas.int8.network import QuantisedNetwork
from hwnas.int8.quantise import calibrate, in_int8
from hwnas.int8.simulated import Simulated, as_run
from hwnas.metrics import better
from hwnas.progress import Progress
from hwnas.results import Row
from hwnas.runtimes.base import Session
from hwnas.runtimes.onnx_writer import check_int8
from hwnas.segments import without_exits
from hwnas.space import Genotype
from hwnas.supernets import TrainingSetup
from hwnas.tasks.base import Found, Task
from hwnas.training.alone import Student
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.inference import per_sample, recalibrate
from hwnas.training.precision import FLOAT32

Load = Callable[[QuantisedNetwork], Session]  #: an int8 network into the runtime that it is for


@dataclass(frozen=True)
class Step:
    """What one step of finishing came to."""

    #: inherited, fine-tuned, narrowed (pruned, not yet trained), pruned, rounded (to few bits, not
    #: yet trained), bits-trained, int8 or int8-trained
    name: str
    metric: str
    figure: Figure  #: of the metric after it, on the validation split
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


@dataclass(frozen=True)
class Origin:
    """Where the weights of a network come from."""

    setup: TrainingSetup  #: data, options and seed of the training
    weights: Weights  #: that search scored the network by
    genotype: Genotype
    tutor: Tutor | None = None  #: whose answers are learned, beside the targets

    @property
    def resolution(self) -> int:
        """Height and width of the images that the network reads."""
        return self.setup.resolution(self.genotype)

    @property
    def images(self) -> Tensor:
        """The normalised training images that search calibrates on."""
        return self.weights.calibration_images(self.genotype)

    def lowered(self) -> Graph:
        """Return the operators of the network."""
        return self.setup.lowered(self.genotype)

    @property
    def task(self) -> Task:
        """What the network is for."""
        return self.setup.data.task

    def score(self, found: Callable[[Tensor, Tensor], Found]) -> Figure:
        """Return the metric on the validation split.

        Args:
            found: Tells of images ``(N, C, R, R)`` and targets what the task finds of each.
        """
        data = self.setup.data
        batches = data.batches(data.validation, self.resolution)
        return self.task.score(np.concatenate([found(*batch) for batch in batches]))


def finish(
    origin: Origin, config: FinishingConfig, load: Load | None, progress: Progress
) -> Finished:
    """Finish the weights that search scored a network by.

    Trainings are kept beside supernets; one that was cut off goes on, to the same weights.

    Args:
        origin: Whose weights, and what they learned from.
        config: What is done to them.
        load: Loads an int8 network, whose answers are its own then; ``None`` where none is wanted.
        progress: Of the trainings.

    Raises:
        ConfigError: the network cannot be pruned so.
    """
    if config.prune:
        pruning.check(config.prune, origin.lowered())
    finishing = _Finishing(origin, config, progress)
    network = finishing.tuned()
    if config.prune:
        network = finishing.prune(network)
    if config.bits:
        finishing.lower_bits(network)
    network, lowered = fold_batch_norm(network), finishing.lowered
    if load is None:
        return Finished(network, lowered, None, None, finishing.record(None))
    try:
        check_int8(lowered)
    except CompileError as error:
        return Finished(network, lowered, None, None, finishing.record(None, no_int8=str(error)))
    int8, simulated, how = finishing.in_int8(network, lowered, load)
    return Finished(network, lowered, int8, simulated, finishing.record(how))


@dataclass(frozen=True)
class Tuned:
    """A network after its fine-tuning, not yet in int8."""

    network: nn.Module
    figure: Figure  #: of the metric, on the validation split; simulated where a space says int8
    past: str  #: all that decides its weights, beside the setup


def tuned(origin: Origin, config: FinishingConfig, progress: Progress) -> Tuned:
    """Fine-tune a network; a training that was cut off goes on."""
    finishing = _Finishing(origin, config, progress)
    network = finishing.tuned()
    return Tuned(network, finishing.as_run(network), finishing.past)


@dataclass(frozen=True)
class _Training:
    """One training of a network that has learned before."""

    name: str  #: of the step
    phase: str  #: what progress calls it
    is_first: bool = False
    gentleness: float = 1.0  #: fraction of the finishing's rate

    def epochs(self, config: FinishingConfig) -> int:
        """Return for how long."""
        return config.epochs if self.is_first else config.later


_FINE_TUNED = _Training("fine-tuned", "Fine-tune", is_first=True)
_PRUNED = _Training("pruned", "Fine-tune the pruned")
_OF_FEW_BITS = _Training("bits-trained", "Train for few bits")
_FOR_INT8 = _Training("int8-trained", "Train for int8", gentleness=0.3)


@final
class _Finishing:
    """The steps on the way, and what each came to."""

    def __init__(self, origin: Origin, config: FinishingConfig, progress: Progress):
        self._origin, self._config, self._progress = origin, config, progress
        self.steps: list[Step] = []
        self.lowered = origin.lowered()  #: what the network computes by now
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
            self.train(network, _FINE_TUNED)
        return network

    def as_run(self, network: nn.Module) -> Figure:
        """Return the metric of the network of the last step, in the dtype its space says."""
        if self.lowered.dtype != precision.INT8:
            return self.steps[-1].figure  # read already
        spent = copy.deepcopy(network)
        return self._read(as_run(spent, self.lowered, lambda: self._origin.images))

    def _read(self, network: nn.Module) -> Figure:
        task = self._origin.task
        return self._origin.score(lambda x, targets: per_sample(task, network, x, targets))

    def note(self, name: str, network: nn.Module, epochs: int = 0, seconds: float = 0.0) -> None:
        """Append a step that led to a network."""
        metric = self._origin.task.metric
        self.steps.append(Step(name, metric, self._read(network), epochs, seconds))

    def train(self, network: nn.Module, training: _Training) -> None:
        """Train a network in place, and append the step."""
        seconds = self._learn(network, training)
        self.note(training.name, network, training.epochs(self._config), seconds)

    def prune(self, network: nn.Module) -> nn.Module:
        """Return a narrower network, trained again; append the steps."""
        network, self.lowered = pruning.prune(network, self.lowered, self._config.prune)
        recalibrate(network, self._origin.images)
        self._past.append(f"pruned by {self._config.prune}")
        self.note("narrowed", network)
        self.train(network, _PRUNED)
        return network

    def lower_bits(self, network: nn.Module) -> None:
        """Put weights on their grids, and train them for it; append the steps."""
        self.lowered = self.lowered.with_bits(self._config.bits)
        self._past.append(f"bits {dict(sorted(self._config.bits.items()))}")
        rounded = copy.deepcopy(network)
        put_on(rounded, grids(rounded, self.lowered))
        self.note("rounded", rounded)
        if self._config.later:
            self.train(network, _OF_FEW_BITS)
        else:
            put_on(network, grids(network, self.lowered))

    def in_int8(
        self, network: nn.Module, lowered: Graph, load: Load
    ) -> tuple[QuantisedNetwork, Simulated | None, str]:
        """Return a network in int8, what it was trained as if it lost too much, and how."""
        images = self._origin.images
        scales, how = calibrate(network, lowered, images), f"{len(images)} calibration images"
        if n := sum(node.in_float for node in lowered):
            how += f", {n} operators in float32"
        real, int8 = self.steps[-1].figure.value, in_int8(network, lowered, scales)
        task, plain = self._origin.task, self._in_int8(int8, load)
        self.steps.append(Step("int8", task.metric, plain))
        drop = task.points(real, plain.value)
        if drop <= self._config.max_int8_drop or not self._config.later:
            return int8, None, f"post-training, {how}"
        self._past.append(how)
        simulated = Simulated(network, lowered, scales)
        seconds = self._learn(simulated, _FOR_INT8)
        trained = simulated.quantised()
        figure = self._in_int8(trained, load)
        epochs = self._config.later
        self.steps.append(Step("int8-trained", task.metric, figure, epochs, seconds))
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

    def _in_int8(self, network: QuantisedNetwork, load: Load) -> Figure:
        session, task = load(network.part(without_exits(self.lowered))), self._origin.task

        def found(images: Tensor, targets: Tensor) -> Found:
            return task.per_sample(session.run(images.numpy()), targets.numpy())

        return self._origin.score(found)

    def _learn(self, network: nn.Module, training: _Training) -> float:
        """Train a network in place; return the seconds that it took."""
        origin, config, setup = self._origin, self._config, self._origin.setup
        options = setup.train.of_recipe(training.epochs(config))
        recipe = setup.train.recipe(setup.family.recipe)
        recipe = replace(recipe, lr=recipe.lr * config.rate * training.gentleness)
        self._past.append(_words(training, origin, config))
        checkpoint = setup.network_checkpoint(origin.genotype, self.past)
        teacher = None
        if origin.tutor is not None and config.alpha:
            teacher = origin.tutor.teacher(setup, options, config.alpha)
        # What is simulated in int8 knows of its grids; bfloat16 would round them.
        is_simulated = isinstance(network, Simulated)
        on = {} if is_simulated else grids(network, self.lowered)
        student = Student(
            network,
            origin.resolution,
            recipe,
            teacher,
            phase=training.phase,
            grids=on,
            dtype=FLOAT32 if is_simulated else setup.dtype(origin.genotype),
            has_exits=bool(self.lowered.exits),
        )
        summary = setup.teach(student, options, checkpoint, self._progress)
        return summary.seconds if summary.n_steps else 0.0


def checkpoint(origin: Origin, config: FinishingConfig) -> Checkpoint:
    """Return where a network is kept that ``tuned`` trains."""
    past = f"{origin.weights.origin(origin.genotype)}; {_words(_FINE_TUNED, origin, config)}"
    return origin.setup.network_checkpoint(origin.genotype, past)


def prepare(origin: Origin, config: FinishingConfig) -> None:
    """Have what teaches a network at hand before its training, or that of others, begins."""
    if origin.tutor is not None and config.epochs and config.alpha:
        options = origin.setup.train.of_recipe(config.epochs)
        origin.tutor.teacher(origin.setup, options, config.alpha)


def _told(bits: Mapping[str, int], epochs: int) -> str:
    """Return in words which weights were put on grids of few bits."""
    fewest, most = min(bits.values()), max(bits.values())
    span = f"{fewest} bits" if fewest == most else f"{fewest} to {most} bits"
    n = len(bits)
    words = f"weights of {n} operator{'s' * (n != 1)} in {span}"
    return f"{words}, trained for {epochs} epochs" if epochs else words


def _words(training: _Training, origin: Origin, config: FinishingConfig) -> str:
    """Return what decides the outcome of a training, beside the setup and what was before."""
    rate = config.rate * training.gentleness
    words = f"{training.name}: {training.epochs(config)} epochs, rate x {rate:g}"
    if origin.tutor is not None and config.alpha:
        words += f", alpha {config.alpha}{origin.tutor.words}"
    return words
