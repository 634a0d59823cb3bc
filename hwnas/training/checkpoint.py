"""Checkpoints of training: weights and optimiser state in safetensors, replaced atomically."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hwnas import files
from hwnas.errors import RunError


@final
class Checkpoint:
    """One file with the weights, the optimiser's state and the number of finished steps."""

    def __init__(self, path: Path):
        self.path = path

    def save(self, module: nn.Module, optimiser: torch.optim.Optimizer, n_steps: int) -> None:
        """Write the state; the file is either the old or the new one at any moment."""
        tensors = {f"model.{k}": v.contiguous() for k, v in module.state_dict().items()}
        for name, parameter in module.named_parameters():
            for key, value in optimiser.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimiser.{key}.{name}"] = value.contiguous()
        about = {"hwnas": json.dumps({"n_steps": n_steps})}
        files.write_by(self.path, lambda temporary: save_file(tensors, temporary, about))

    def n_steps(self) -> int:
        """Return the number of finished steps; 0 if there is no file."""
        if not self.path.is_file():
            return 0
        with self._open() as file:
            return _n_steps(file)

    def load(self, module: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> int:
        """Restore the state and return the number of finished steps; 0 if there is no file.

        Raises:
            RunError: the file is damaged or of another network.
        """
        if not self.path.is_file():
            return 0
        with self._open() as file:
            n_steps = _n_steps(file)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            model = {k.removeprefix("model."): v for k, v in tensors.items() if k[:6] == "model."}
            module.load_state_dict(model)
        if optimiser is not None:
            parameters = dict(module.named_parameters())
            for key, value in tensors.items():
                if key.startswith("optimiser."):
                    _, state, name = key.split(".", 2)
                    memory = value.contiguous(memory_format=_order(parameters[name]))
                    optimiser.state[parameters[name]][state] = memory
        return n_steps

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with safe_open(self.path, framework="pt") as file:
                yield file
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RunError(
                f"Checkpoint {self.path} cannot be read ({reason}). "
                f"Delete it to train again: rm {self.path}"
            ) from None


def _n_steps(file: Any) -> int:
    return int(json.loads(file.metadata()["hwnas"])["n_steps"])


def _order(parameter: Tensor) -> torch.memory_format:
    """Return the order that the optimiser gave its state: the parameter's own."""
    channels_last = parameter.dim() == 4 and not parameter.is_contiguous()
    return torch.channels_last if channels_last else torch.contiguous_format
