"""Checkpoints, averages of weights, and collapse detection of a training.

A checkpoint is a safetensors file, replaced atomically. ``model.*`` are the final weights:
averages, if weights are averaged; the trained weights are ``trained.*`` then. ``optimiser.*`` is
the state of the optimiser. The metadata have a checksum of each of these three.
"""

import json
import math
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hwnas.core import files
from hwnas.core.errors import CollapseError, RunError
from hwnas.tasks.base import Task

T = TypeVar("T")
_KINDS = ("model", "trained", "optimiser")  # prefixes of tensors


@final
class ParameterAverages:
    """Exponential moving averages of a module's parameters, but not of its buffers.

    The decay grows with the steps, as in TensorFlow's ``ExponentialMovingAverage``, so that short
    trainings forget their initial weights, too. Source: Polyak & Juditsky, "Acceleration of
    stochastic approximation by averaging", 1992, https://doi.org/10.1137/0330046.
    """

    def __init__(self, module: nn.Module, decay: float):
        self._decay = decay
        self._names = [name for name, _ in module.named_parameters()]
        self._parameters: list[Tensor] = list(module.parameters())
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    def update(self, step: int) -> None:
        """Add the weights after a step, given its index from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, self._parameters, 1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by parameter name; they are not copied."""
        return dict(zip(self._names, self._averages, strict=True))

    def use(self) -> None:
        """Swap the module's weights with the averages."""
        for parameter, average in zip(self._parameters, self._averages, strict=True):
            parameter.data, average.data = average.data, parameter.data


@contextmanager
def averaged(averages: ParameterAverages | None) -> Iterator[None]:
    """Use the averages, if any, as the module's weights within the context."""
    if averages is not None:
        averages.use()
    try:
        yield
    finally:
        if averages is not None:
            averages.use()


WINDOW = 200  #: steps per window of collapse detection
_PATIENCE = 0.25  # fraction of the steps without collapse detection


@final
class CollapseDetector:
    """Detects trainings at chance level from the mean result per image in windows of 200 steps.

    Args:
        task: Task with ``has_learned``.
        n_steps: Steps of the whole training.
    """

    def __init__(self, task: Task, n_steps: int):
        self._task = task
        self.total_steps, self._from = n_steps, _PATIENCE * n_steps
        self.total, self.n_images = 0.0, 0  #: sum of results and images of the current window
        self.last_good = 0  #: last step of the last window above chance level; 0: none

    def count(self, done: int, total: float, n_images: int) -> float | None:
        """Add a step; if it ends a window at chance level, return the window's mean per image.

        ``None`` otherwise, and for windows that begin in the first quarter of the training.

        Args:
            done: Number of completed steps, this one included.
            total: Sum of the per-image results before the weights were updated.
            n_images: Number of images of the step.
        """
        self.total += total
        self.n_images += n_images
        if done % WINDOW:
            return None
        mean = self.total / self.n_images
        learned = self._task.has_learned(self.total, self.n_images)
        self.total, self.n_images = 0.0, 0
        if learned:
            self.last_good = done
            return None
        return mean if done - WINDOW >= self._from else None

    def to_json(self) -> list[float]:
        """Return ``[total, n_images, last_good]``, for ``restore``."""
        return [self.total, self.n_images, self.last_good]

    def restore(self, raw: list[float]) -> None:
        """Restore the state that ``to_json`` returned."""
        self.total, self.n_images, self.last_good = raw[0], int(raw[1]), int(raw[2])


@dataclass(frozen=True)
class TrainingState:
    """All state of a training."""

    module: nn.Module
    optimiser: torch.optim.Optimizer
    averages: ParameterAverages | None
    watch: CollapseDetector


@final
class Checkpoint:
    """The checkpoint of a training and the one before it, which is deleted at the end.

    Args:
        path: Path of the file.
        identity: Everything that determines the weights, by name. Files of another identity are
            refused.
        in_run: Path of a copy in a run folder, which is read if there is no file at ``path``.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any] | None = None, in_run: Path | None = None
    ):
        self.path, self.in_run = path, in_run
        self.previous = path.with_stem(f"{path.stem}.previous")
        self._identity = dict(identity or {})

    def save(self, state: TrainingState, n_steps: int) -> None:
        """Write the state after ``n_steps`` steps atomically.

        A copy of the file before is kept about every 200 steps.

        Raises:
            CollapseError: a weight or optimiser state is infinite or NaN; nothing is written.
            RunError: the existing file is damaged or of another training.
        """
        tensors = _tensors(state)
        if not _are_finite(tensors):
            raise CollapseError(
                f"Training collapsed before step {n_steps}: weights are not finite. Try a lower "
                "learning rate: train.lr=NUMBER, or finish.rate=NUMBER if a search fine-tunes. "
                f"{self.describe(n_steps)}"
            )
        before = self.n_steps()
        if before // WINDOW < n_steps // WINDOW and before:
            files.write_file_with(
                self.previous, lambda temporary: shutil.copyfile(self._file, temporary)
            )
        metadata = {
            "n_steps": n_steps,
            "complete": n_steps >= state.watch.total_steps,
            "of": self._identity,
            "watch": state.watch.to_json(),
            "crc32": {kind: _checksum(_of_kind(tensors, kind)) for kind in _KINDS},
        }
        header = {"hwnas": json.dumps(metadata)}
        files.write_file_with(self.path, lambda temporary: save_file(tensors, temporary, header))
        self._keep_in_run()

    def finish(self) -> None:
        """Delete the previous checkpoint after the last ``save``."""
        self.previous.unlink(missing_ok=True)
        self._keep_in_run()

    @property
    def _file(self) -> Path:
        """The file to read."""
        if self.in_run is not None and not self.path.is_file() and self.in_run.is_file():
            return self.in_run
        return self.path

    def _keep_in_run(self) -> None:
        if self.in_run is not None and self.path.is_file():
            files.link_or_copy(self.path, self.in_run)

    def n_steps(self) -> int:
        """Return the number of completed steps; 0 if there is no file.

        Raises:
            RunError: the file is damaged or of another training.
        """
        if not self._file.is_file():
            return 0
        with self._open() as file:
            return int(self._metadata(file)["n_steps"])

    def check(self) -> None:
        """Check the weights, if there is a file.

        Raises:
            RunError: the file is damaged or of another training.
        """
        if self._file.is_file():
            self.weights()

    def describe(self, max_steps: float = math.inf) -> str:
        """Return a sentence that names the newest checkpoint after at most ``max_steps`` steps.

        Raises:
            RunError: a checkpoint is damaged.
        """
        for path in (self.path, self.previous):
            n = Checkpoint(path).n_steps()
            if 0 < n <= max_steps:
                return f"The last good weights, after {n} steps, are in {path}."
        return "There is no earlier checkpoint."

    def load(self, state: TrainingState) -> int:
        """Restore the state; return the number of completed steps, 0 if there is no file.

        Raises:
            RunError: the file is damaged or of another training.
        """
        if not self._file.is_file():
            return 0
        with self._open() as file:
            metadata = self._metadata(file)
            n_steps = int(metadata["n_steps"])
            state.watch.restore(metadata["watch"])
            state.module.load_state_dict(_part(file, "model", metadata))
            if state.averages is not None:
                for name, average in state.averages.tensors().items():
                    average.copy_(state.module.get_parameter(name).detach())
                state.module.load_state_dict(_part(file, "trained", metadata), strict=False)
            optimiser = _part(file, "optimiser", metadata)
        parameters = dict(state.module.named_parameters())
        for key, value in optimiser.items():
            kind, name = key.split(".", 1)
            parameter = parameters[name]
            state.optimiser.state[parameter][kind] = _like_parameter(value, parameter)
        return n_steps

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the last save as a state dict; averages if weights are averaged.

        The training may be incomplete, see ``n_steps``.

        Raises:
            RunError: the file is missing, damaged or of another training.
        """
        with self._open() as file:
            return _part(file, "model", self._metadata(file))

    def _metadata(self, file: Any) -> dict[str, Any]:
        """Return the metadata of the file, which must match this checkpoint."""
        metadata: dict[str, Any] = json.loads(file.metadata()["hwnas"])
        for name, expected in self._identity.items():
            if (value := metadata["of"].get(name)) != expected:
                raise RunError(
                    f"Checkpoint {self._file} has another {name}: {value} instead of {expected}. "
                    "Choose another folder with run.supernets=DIR, or delete it: "
                    f"rm {self._file}"
                )
        return metadata

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with safe_open(self._file, framework="pt") as file:
                yield file
        except (
            SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError,
        ) as error:  # fmt: skip
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            path = self._file
            remedy = f"Delete it to train again: rm {path}"
            if not path.exists():
                remedy = "Name the folder of the checkpoints: run.supernets=DIR."
            if self.previous.is_file():
                remedy = f"Resume from the previous one: mv {self.previous} {path}"
            raise RunError(f"Checkpoint {path} cannot be read ({reason}). {remedy}") from None


def _tensors(state: TrainingState) -> dict[str, Tensor]:
    """Return all tensors of a state by name in the file."""
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


def _are_finite(tensors: Mapping[str, Tensor]) -> bool:
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    largest = torch._foreach_norm(floats, math.inf)
    return bool(torch.stack([norm.cpu() for norm in largest]).isfinite().all())


def _of_kind(tensors: Mapping[str, T], kind: str) -> dict[str, T]:
    """Return the tensors with the prefix ``kind``, which is removed."""
    start = f"{kind}."
    return {k.removeprefix(start): value for k, value in tensors.items() if k.startswith(start)}


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """Return the CRC-32 of tensors in the order of their names."""
    value = 0
    for name in sorted(tensors):
        content = tensors[name].detach().cpu().reshape(-1).view(torch.uint8)
        value = zlib.crc32(content.numpy().data, value)
    return value


def _part(file: Any, kind: str, metadata: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a kind by name.

    Raises:
        ValueError: they are damaged. Files of earlier versions have no checksums.
    """
    keys = {key: key for key in file.keys()}  # noqa: SIM118
    tensors = {name: file.get_tensor(key) for name, key in _of_kind(keys, kind).items()}
    expected = metadata.get("crc32", {}).get(kind)
    if expected is not None and _checksum(tensors) != expected:
        raise ValueError("its weights are damaged: their checksum differs")
    return tensors


def _like_parameter(value: Tensor, parameter: Tensor) -> Tensor:
    """Return optimiser state on the device and in the memory order of its parameter."""
    if value.shape != parameter.shape:  # a count of steps
        return value
    return torch.empty_like(parameter, requires_grad=False).copy_(value)
