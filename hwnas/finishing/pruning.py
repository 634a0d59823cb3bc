"""Structured pruning: whole channels are taken out of a trained network.

Source: Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023,
https://arxiv.org/abs/2301.12900, by the authors' library Torch-Pruning.
"""

import copy
import importlib.util
from dataclasses import replace

import torch
from torch import nn

from hwnas.errors import ConfigError
from hwnas.families.blocks import layer_of
from hwnas.graph import INPUT, Graph

_INSIDE = ("layernorm", "attention")  # how channels hang together inside is not told


def check(fraction: float, lowered: Graph) -> None:
    """Refuse what cannot be pruned, before anything is trained for it.

    Raises:
        ConfigError: the package is missing, the network is a transformer or has exits, or it is
            too narrow.
    """
    if lowered.exits:
        raise ConfigError(f"prune={fraction}: networks with exits are not pruned; leave prune out.")
    if importlib.util.find_spec("torch_pruning") is None:
        raise ConfigError("prune needs the package 'torch-pruning': pip install 'hwnas[pruning]'")
    for node in lowered:
        if node.op.base in _INSIDE:
            raise ConfigError(
                f"prune={fraction}: networks with {node.op.base} ('{node.name}') are not "
                "pruned; leave prune out."
            )
    answer = lowered.output.name  # keeps what it has
    narrowest = min(node.op.out_shape[0] for node in lowered if node.name != answer)
    if int(narrowest * (1 - fraction)) < 1:
        raise ConfigError(
            f"prune={fraction} takes out all {narrowest} channels of the narrowest "
            f"operator. Allowed: less than {1 - 1 / narrowest:.2f}."
        )


def prune(network: nn.Module, lowered: Graph, fraction: float) -> tuple[nn.Module, Graph]:
    """Return a narrower copy of a plain network, and its operators.

    The same fraction is taken out of every group of channels that hang together (those of a
    residual's sum, of a depthwise convolution and what it reads, of a gate and what it gates),
    those whose weights are smallest; images and outputs stay.

    Args:
        network: With its batch norm, which is not yet folded.
        lowered: Its operators, named after its modules.
        fraction: Of the channels, in [0, 1).
    """
    import torch_pruning as tp

    pruned = copy.deepcopy(network).eval()
    # Widths are not rounded: on an Ethos-U55-128, multiples of 4 or 8 won no more latency for the
    # multiply-accumulates that they cost (16 small networks of two families, 15 to 50 % pruned).
    pruner = tp.pruner.BasePruner(
        pruned,
        torch.zeros(1, *lowered[0].op.in_shape),
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=fraction,
        ignored_layers=[layer_of(pruned, lowered.output.name)],
    )
    pruner.step()
    return pruned, resized(lowered, pruned)


def resized(lowered: Graph, network: nn.Module) -> Graph:
    """Return operators with the channels that a network's layers have."""
    channels = {INPUT: lowered[0].op.in_shape[0]}
    found = []
    for node in lowered:
        op, c_in = node.op, channels[node.inputs[0]]
        c_out = len(layer_of(network, node.name).weight) if op.weight_shape else c_in
        op = replace(
            op,
            in_shape=(c_in, *op.in_shape[1:]),
            out_shape=(c_out, *op.out_shape[1:]),
            groups=c_in if op.depthwise else op.groups,
        )
        channels[node.name] = c_out
        found.append(replace(node, op=op))
    return replace(lowered, nodes=tuple(found))
