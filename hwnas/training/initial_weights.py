"""Weights that a supernet starts from: another training's, or another project's."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hwnas.core.errors import RunError
from hwnas.models.families.mbconv import network
from hwnas.models.spaces import SearchSpace

#: Where files keep their weights, if not at the top.
_NESTED = ("state_dict", "model_state_dict", "model")
#: Of a network with a head and, where a space leaves that out, of one without.
_CLASSIFIERS = ("classifier.", "headless.")


def initialise(module: nn.Module, space: SearchSpace, path: Path) -> tuple[str, ...]:
    """Give a supernet the weights of a file; return the names of those that start afresh.

    Classifiers for another number of classes start afresh; everything else must be there.

    Args:
        module: The supernet's.
        space: Its search space.
        path: A checkpoint of ours (``.safetensors``), or a state dict that torch saved, under our
            names or, for ``mbconv``, under Once-for-all's.

    Raises:
        RunError: the file cannot be read, or is of another network.
    """
    state = _read(path)
    if space.family == "mbconv" and network.is_from(state):
        state = network.translated(state, space)
    own = module.state_dict()
    afresh = {
        name
        for name in own
        if name.startswith(_CLASSIFIERS)
        and name in state
        and state[name].shape[1:] == own[name].shape[1:]
        and len(state[name]) != len(own[name])
    }
    _refuse_other(own, state, space, path)
    with torch.no_grad():
        for name in own.keys() - afresh:
            own[name].copy_(state[name])
    return tuple(sorted(afresh))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise RunError(f"train.init_from={path}: there is no such file.")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:160]
        raise RunError(
            f"train.init_from={path} cannot be read ({reason}). Allowed: .safetensors, and tensors "
            "alone as torch.save writes them."
        ) from None
    for key in _NESTED:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not any(isinstance(v, Tensor) for v in content.values()):
        raise RunError(f"train.init_from={path}: there are no weights in it.")
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    ours = {name.removeprefix("model."): t for name, t in state.items() if name[:6] == "model."}
    return ours or {name.removeprefix("module."): tensor for name, tensor in state.items()}


def _refuse_other(
    own: Mapping[str, Tensor], state: Mapping[str, Tensor], space: SearchSpace, path: Path
) -> None:
    where = f"train.init_from={path} is not of space '{space.name}'"
    if missing := [name for name in own if name not in state]:
        raise RunError(
            f"{where}: it lacks {len(missing)} of {len(own)} weights, {missing[0]} first."
        )
    if extra := [name for name in state if name not in own]:
        raise RunError(f"{where}: it has {len(extra)} weights more, {extra[0]} first.")
    for name, tensor in own.items():
        if state[name].shape[1:] != tensor.shape[1:] or (
            not name.startswith(_CLASSIFIERS) and len(state[name]) != len(tensor)
        ):
            shapes = f"{tuple(state[name].shape)}, not {tuple(tensor.shape)}"
            raise RunError(f"{where}: {name} has the shape {shapes}.")
