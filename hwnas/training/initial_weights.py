"""Initial weights of a supernet from a file (``train.init_from``)."""

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

#: Keys under which files may nest their weights.
_NESTED = ("state_dict", "model_state_dict", "model")
#: Prefixes of classifiers, with and without a head before them.
_CLASSIFIERS = ("classifier.", "headless.")


def initialise(module: nn.Module, space: SearchSpace, path: Path) -> tuple[str, ...]:
    """Load weights into a supernet; return the names of weights that keep their initial values.

    Only classifiers for another number of classes may differ.

    Args:
        module: Module of the supernet.
        space: Its search space.
        path: A checkpoint of hwnas (``.safetensors``), or a state dict saved by torch with the
            names of hwnas or, for ``mbconv``, of Once-for-all.

    Raises:
        RunError: the file cannot be read, or is of another network.
    """
    state = _read(path)
    if space.family == "mbconv" and network.is_once_for_all(state):
        state = network.from_once_for_all(state, space)
    current = module.state_dict()
    skipped = {
        name
        for name in current
        if name.startswith(_CLASSIFIERS)
        and name in state
        and state[name].shape[1:] == current[name].shape[1:]
        and len(state[name]) != len(current[name])
    }
    _check_shapes(current, state, space, path)
    with torch.no_grad():
        for name in current.keys() - skipped:
            current[name].copy_(state[name])
    return tuple(sorted(skipped))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise RunError(
            f"train.init_from={path}: file not found. Give a .safetensors file, or a state dict "
            "written by torch.save."
        )
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:160]
        raise RunError(
            f"train.init_from={path} cannot be read ({reason}). Allowed: .safetensors files, and "
            "state dicts written by torch.save."
        ) from None
    for key in _NESTED:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not any(isinstance(v, Tensor) for v in content.values()):
        raise RunError(
            f"train.init_from={path} contains no weights. Allowed: .safetensors files, and state "
            "dicts written by torch.save."
        )
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    ours = {name.removeprefix("model."): t for name, t in state.items() if name[:6] == "model."}
    return ours or {name.removeprefix("module."): tensor for name, tensor in state.items()}


def _check_shapes(
    current: Mapping[str, Tensor], state: Mapping[str, Tensor], space: SearchSpace, path: Path
) -> None:
    message = f"train.init_from={path} does not fit the network of search_space={space.name}"
    remedy = "Choose the search space of the file, or another file."
    if missing := [name for name in current if name not in state]:
        n = f"{len(missing)} of {len(current)}"
        raise RunError(f"{message}: {n} weights are missing, for example {missing[0]}. {remedy}")
    if extra := [name for name in state if name not in current]:
        example = f"for example {extra[0]}"
        raise RunError(f"{message}: it has {len(extra)} additional weights, {example}. {remedy}")
    for name, tensor in current.items():
        if state[name].shape[1:] != tensor.shape[1:] or (
            not name.startswith(_CLASSIFIERS) and len(state[name]) != len(tensor)
        ):
            shapes = f"{tuple(state[name].shape)}, not {tuple(tensor.shape)}"
            raise RunError(f"{message}: {name} has the shape {shapes}. {remedy}")
