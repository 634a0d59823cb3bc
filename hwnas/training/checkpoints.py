"""Checkpoints of training: weights and optimiser state in safetensors, replaced atomically.

``model.*`` are the weights to be used: where weights are averaged, the averages. Those that are
trained are ``trained.*`` then. ``optimiser.*`` is the optimiser's state.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hwnas.core import files
from hwnas.core.errors import RunError, TrainingError
from hwnas.tasks.base import Task

# A moving average of the weights, which answers better than the weights of the last step.
#
# Source: Polyak & Juditsky, "Acceleration of stochastic approximation by averaging", 1992,
# https://doi.org/10.1137/0330046. The decay grows with the steps, as TensorFlow's
# ``ExponentialMovingAverage`` has it, so that short trainings forget their first weights, too.


@final
class ParameterAverages:
    """Exponential moving averages of a module's parameters; its buffers are not averaged."""

    def __init__(self, module: nn.Module, decay: float):
        self._decay = decay
        self._names = [name for name, _ in module.named_parameters()]
        self._parameters: list[Tensor] = list(module.parameters())
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    def update(self, step: int) -> None:
        """Take in the weights after a step."""
        decay = min(self._decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, self._parameters, 1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by the parameters' names; writing into them sets them."""
        return dict(zip(self._names, self._averages, strict=True))

    def use(self) -> None:
        """Exchange the module's weights for the averages, and these for the weights."""
        for parameter, average in zip(self._parameters, self._averages, strict=True):
            parameter.data, average.data = average.data, parameter.data


@contextmanager
def averaged(averages: ParameterAverages | None) -> Iterator[None]:
    """Have the module hold its averages for a while, if there are any."""
    if averages is not None:
        averages.use()
    try:
        yield
    finally:
        if averages is not None:
            averages.use()


# Finds trainings that learn nothing: answers stay, or become, no better than guesses.

WINDOW = 200  #: steps over which answers are averaged
_PATIENCE = 0.25  # fraction of the steps before which nothing is judged


@final
class CollapseDetector:
    """Averages the metric in windows of 200 steps, each of which must beat guessing."""

    def __init__(self, task: Task, n_steps: int):
        self._task = task
        self._from = _PATIENCE * n_steps
        self.total, self.seen = 0.0, 0  #: of the window that is open
        self.good = 0  #: steps after which the last window closed that beat guessing

    def count(self, done: int, total: float, n_seen: int) -> float | None:
        """Take in a step; return the mean of a window that is no better than guessing.

        Args:
            done: Finished steps, this one included.
            total: Sum of what was found of the images before the network learned from them.
            n_seen: All images of the step.
        """
        self.total += total
        self.seen += n_seen
        if done % WINDOW:
            return None
        mean, learned = self.total / self.seen, self._task.has_learned(self.total, self.seen)
        self.total, self.seen = 0.0, 0
        if learned:
            self.good = done
            return None
        return mean if done >= self._from else None

    def to_json(self) -> list[float]:
        """Return what ``restore`` needs."""
        return [self.total, self.seen, self.good]

    def restore(self, raw: list[float]) -> None:
        """Go on from what ``to_json`` returned."""
        self.total, self.seen, self.good = raw[0], int(raw[1]), int(raw[2])


@dataclass(frozen=True)
class TrainingState:
    """What a training changes."""

    module: nn.Module
    optimiser: torch.optim.Optimizer
    averages: ParameterAverages | None
    watch: CollapseDetector


@final
class Checkpoint:
    """One file with the state of a training and the number of finished steps.

    Beside it, the one before is kept until the training ends.

    Args:
        path: Of the file.
        of: What it is a checkpoint of, by name; a file of something else is refused.
    """

    def __init__(self, path: Path, of: Mapping[str, Any] | None = None):
        self.path = path
        self.previous = path.with_stem(f"{path.stem}.previous")
        self._of = dict(of or {})

    def save(self, state: TrainingState, n_steps: int) -> None:
        """Write the state; the file is either the old or the new one at any moment.

        Raises:
            TrainingError: the state holds what is no number; nothing is written.
        """
        tensors = _tensors(state)
        if not _finite(tensors):
            raise TrainingError(
                f"Training collapsed before step {n_steps}: weights are no longer finite numbers. "
                f"{self.kept(n_steps)}"
            )
        before = self.n_steps()
        if before // WINDOW < n_steps // WINDOW and before:
            files.write_file_with(
                self.previous, lambda temporary: shutil.copyfile(self.path, temporary)
            )
        about = {"n_steps": n_steps, "of": self._of, "watch": state.watch.to_json()}
        metadata = {"hwnas": json.dumps(about)}
        files.write_file_with(self.path, lambda temporary: save_file(tensors, temporary, metadata))

    def finish(self) -> None:
        """Remove the checkpoint before the last: the training has ended well."""
        self.previous.unlink(missing_ok=True)

    def n_steps(self) -> int:
        """Return the number of finished steps; 0 if there is no file.

        Raises:
            RunError: the file is damaged or of something else.
        """
        if not self.path.is_file():
            return 0
        with self._open() as file:
            return int(self._about(file)["n_steps"])

    def kept(self, last: float = math.inf) -> str:
        """Return a sentence that names the newest checkpoint of at most ``last`` steps."""
        for path in (self.path, self.previous):
            n = Checkpoint(path).n_steps()
            if 0 < n <= last:
                return f"The last good weights, after {n} steps, are kept in {path}."
        return "There are no good weights to be kept."

    def load(self, state: TrainingState) -> int:
        """Restore the state and return the number of finished steps; 0 if there is no file.

        Raises:
            RunError: the file is damaged or of something else.
        """
        if not self.path.is_file():
            return 0
        with self._open() as file:
            about = self._about(file)
            n_steps = int(about["n_steps"])
            state.watch.restore(about["watch"])
            state.module.load_state_dict(_part(file, "model"))
            if state.averages is not None:
                for name, average in state.averages.tensors().items():
                    average.copy_(state.module.get_parameter(name).detach())
                state.module.load_state_dict(_part(file, "trained"), strict=False)
            optimiser = _part(file, "optimiser")
        parameters = dict(state.module.named_parameters())
        for key, value in optimiser.items():
            kind, name = key.split(".", 1)
            parameter = parameters[name]
            state.optimiser.state[parameter][kind] = _like(value, parameter)
        return n_steps

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to be used, by name.

        Raises:
            RunError: there is no file, or it is damaged or of something else.
        """
        with self._open() as file:
            self._about(file)
            return _part(file, "model")

    def _about(self, file: Any) -> dict[str, Any]:
        """Return what the file says of itself, which must be what this checkpoint is of."""
        about: dict[str, Any] = json.loads(file.metadata()["hwnas"])
        for name, own in self._of.items():
            if about["of"].get(name) != own:
                raise RunError(
                    f"Checkpoint {self.path} is of another {name}: {about['of'].get(name)}, not "
                    f"{own}. Choose another folder with run.supernets=DIR, or delete it: "
                    f"rm {self.path}"
                )
        return about

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with safe_open(self.path, framework="pt") as file:
                yield file
        except (
            SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError,
        ) as error:  # fmt: skip
            reason = " ".join(str(error).split())[:200]
            cure = f"Delete it to train again: rm {self.path}"
            if not self.path.exists():
                cure = "Where networks are kept is run.supernets=DIR."
            if self.previous.is_file():
                cure = f"Go on from the one before it: mv {self.previous} {self.path}"
            raise RunError(f"Checkpoint {self.path} cannot be read ({reason}). {cure}") from None


def _tensors(state: TrainingState) -> dict[str, Tensor]:
    """Return all tensors of a state by their names in the file."""
    model = dict(state.module.state_dict())
    tensors = {}
    if state.averages is not None:
        averages = state.averages.tensors()
        tensors = {f"trained.{name}": model[name] for name in averages}
        model |= averages
    tensors |= {f"model.{name}": value for name, value in model.items()}
    for name, parameter in state.module.named_parameters():
        for key, value in state.optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{key}.{name}"] = value
    return {name: value.contiguous() for name, value in tensors.items()}


def _finite(tensors: Mapping[str, Tensor]) -> bool:
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    largest = torch._foreach_norm(floats, math.inf)
    return bool(torch.stack([norm.cpu() for norm in largest]).isfinite().all())


def _part(file: Any, kind: str) -> dict[str, Tensor]:
    """Return the tensors of one kind by their names within it."""
    start = f"{kind}."
    return {
        key.removeprefix(start): file.get_tensor(key)
        for key in file.keys()  # noqa: SIM118
        if key.startswith(start)
    }


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return state of the optimiser in its parameter's place and order, as it had been."""
    if value.shape != parameter.shape:  # a count of steps
        return value
    return torch.empty_like(parameter, requires_grad=False).copy_(value)
