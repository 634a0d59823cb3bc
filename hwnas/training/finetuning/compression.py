"""Compression of a trained network to fit a budget: fewer weight bits, then fewer channels.

The compiler gives the gain of fewer bits per layer, and the network the increase of its loss with
only that layer quantised. Gains of layers add up (within one percent on Ethos-U), so an integer
program selects the bits of all layers; the compiler checks the result.

Source: Yao et al., "HAWQ-V3", ICML 2021, https://arxiv.org/abs/2011.10680, with the measured loss
in place of the Hessian's trace.
"""

import copy
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantities
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.families.layers import fold_batch_norm, layer_of
from hwnas.models.graph import INPUT, NATIVE_BITS, Graph
from hwnas.models.int8.weight_grids import quantise_weights_, weight_grids_of
from hwnas.tasks.base import Task
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.inference import recalibrate

# Structured pruning of channels.
#
# Source: Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023,
# https://arxiv.org/abs/2301.12900, by the authors' library Torch-Pruning.

_ROUNDING = 1e-9  # of a number of channels: 5 * (1 - 0.8) is slightly less than 1
UNSUPPORTED = ("layernorm", "attention")  # channel groups inside them are not known


def check_pruning(fraction: float, graph: Graph) -> None:
    """Check that a network supports pruning.

    Args:
        fraction: Fraction of the channels to remove, in [0, 1).
        graph: Graph of the network.

    Raises:
        ConfigError: the package is missing, the network is a transformer or has exits, or it is
            too narrow.
    """
    if graph.exits:
        raise ConfigError(f"prune={fraction}: networks with exits are not pruned. Omit prune.")
    if importlib.util.find_spec("torch_pruning") is None:
        raise ConfigError("prune needs the package 'torch-pruning': pip install 'hwnas[pruning]'")
    for node in graph:
        if node.op.base in UNSUPPORTED:
            raise ConfigError(
                f"prune={fraction}: networks with {node.op.base} ('{node.name}') are not "
                "pruned. Omit prune."
            )
    output = graph.output.name  # not pruned
    narrowest = min(node.op.out_shape[0] for node in graph if node.name != output)
    if narrowest * (1 - fraction) < 1 - _ROUNDING:
        raise ConfigError(
            f"prune={fraction} removes all {narrowest} channels of the narrowest operator. "
            f"Allowed: at most {math.floor(100 - 100 / narrowest) / 100:g}."
        )


def prune(network: nn.Module, graph: Graph, fraction: float) -> tuple[nn.Module, Graph]:
    """Return a narrower copy of a plain network, and its graph.

    The same fraction is removed from every group of dependent channels (residual sums, depthwise
    convolutions and their inputs, gates), by smallest weight magnitude. Network input and output
    keep their channels.

    Args:
        network: The network before batch norm folding.
        graph: Its graph, with the names of its modules.
        fraction: Fraction of the channels to remove, in [0, 1).
    """
    import torch_pruning as tp

    pruned = copy.deepcopy(network).eval()
    # Widths are not rounded: on an Ethos-U55-128, multiples of 4 or 8 gained no latency for their
    # additional multiply-accumulates (16 small networks of two families, 15 to 50 % pruned).
    pruner = tp.pruner.BasePruner(
        pruned,
        torch.zeros(1, *graph[0].op.in_shape),
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=fraction,
        ignored_layers=[layer_of(pruned, graph.output.name)],
    )
    pruner.step()
    return pruned, resize_graph(graph, pruned)


def resize_graph(graph: Graph, network: nn.Module) -> Graph:
    """Return a copy of a graph with the numbers of channels of a network's layers."""
    channels = {INPUT: graph[0].op.in_shape[0]}
    nodes = []
    for node in graph:
        op, c_in = node.op, channels[node.inputs[0]]
        c_out = len(layer_of(network, node.name).weight) if op.weight_shape else c_in
        op = replace(
            op,
            in_shape=(c_in, *op.in_shape[1:]),
            out_shape=(c_out, *op.out_shape[1:]),
            groups=c_in if op.depthwise else op.groups,
        )
        channels[node.name] = c_out
        nodes.append(replace(node, op=op))
    return replace(graph, nodes=tuple(nodes))


_BATCH = 250  # images in memory with all activations
_ROUNDS = 8  # attempts with tighter limits, if gains did not quite add up
_MARGIN = 1e-3  # relative distance to the limits in the program
Array = NDArray[np.float64]
Estimate = Callable[[Graph], Cost]  #: the compiler's estimate of a graph


@dataclass(frozen=True)
class CalibrationImages:
    """Training images on which the increase of the loss by fewer weight bits is measured."""

    images: Tensor  #: ``(N, C, R, R)``, normalised
    loss_targets: Tensor  #: ``(N, ...)``
    task: Task

    def loss(self, network: nn.Module) -> float:
        """Return the mean loss per image of a network in evaluation mode."""
        n_all = len(self.images)
        n = math.ceil(n_all / _BATCH)
        parts = zip(
            torch.tensor_split(self.images, n),
            torch.tensor_split(self.loss_targets, n),
            strict=True,
        )
        with torch.no_grad():
            sums = (
                len(x) * float(self.task.loss(network(x), loss_targets))
                for x, loss_targets in parts
            )
            return math.fsum(sums) / n_all


@dataclass(frozen=True)
class Compression:
    """A compression that meets a budget: pruned fraction, weight bits, estimated costs."""

    prune: float  #: fraction of the channels to remove, in [0, 1)
    bits: Mapping[str, int]  #: weight bits by name of the operator, where fewer than before
    figures: Quantities  #: estimated costs by column, of a network with random weights


@dataclass(frozen=True)
class CompressionMethods:
    """Allowed compressions: weight bits, and fractions of channels to prune."""

    bits: Sequence[int]  #: weight bits, fewer than eight
    prune: Sequence[float]  #: fractions of the channels to remove, in ascending order, from 0


@dataclass(frozen=True)
class _LayerEffects:
    """Effect of fewer bits in single layers."""

    tried: list[tuple[str, int]]  #: operators and bits
    gains: Array  #: ``(tried, limits)``
    losses: Array  #: ``(tried,)``


@dataclass(frozen=True)
class NetworkCompressor:
    """Compresses one trained network for budgets on the same costs."""

    network: nn.Module  #: before batch norm folding
    graph: Graph
    sample: CalibrationImages
    estimate: Estimate  #: returns the costs of a graph, by the compiler
    methods: CompressionMethods
    progress: Progress
    _effects: dict[float, _LayerEffects] = field(default_factory=dict)  #: by pruned fraction

    def fit(self, budget: Budget) -> Compression | None:
        """Return the mildest compression that meets a budget; ``None`` if none does.

        As few channels as possible are removed, then bits where the loss increases least.

        Args:
            budget: Upper limits, of costs that ``estimate`` returns (see ``unsupported_limits``).

        Raises:
            ConfigError: fewer bits do not suffice, and the network does not support pruning.
        """
        for fraction in self.methods.prune:
            network, graph = self.network, self.graph
            if fraction:
                check_pruning(fraction, graph)
                network, graph = prune(network, graph, fraction)
                recalibrate(network, self.sample.images)
            figures = self.estimate(graph).figures
            if not budget.exceeded(figures):
                return Compression(fraction, {}, figures)
            lowest = self._lowest_bits(graph)
            if not lowest:
                continue
            if budget.exceeded(self.estimate(graph.with_bits(lowest)).figures):
                continue
            if fraction not in self._effects:
                folded = fold_batch_norm(copy.deepcopy(network).eval())
                self._effects[fraction] = self._measure(folded, graph, [*budget.limits])
            bits = self._select_bits(self._effects[fraction], graph, budget)
            return Compression(fraction, bits, self.estimate(graph.with_bits(bits)).figures)
        return None

    def _lowest_bits(self, graph: Graph) -> dict[str, int]:
        return {
            name: min(self.methods.bits)
            for name in _compressible_operators(graph, self.methods.bits)
        }

    def _select_bits(self, effects: _LayerEffects, graph: Graph, budget: Budget) -> dict[str, int]:
        """Return bits by operator that meet a budget with the least expected loss."""
        names, limits = list(budget.limits), np.array([*budget.limits.values()])
        current = _upper_ends(self.estimate(graph).figures, names)
        aim = limits * (1 - _MARGIN)
        for _ in range(_ROUNDS):
            bits = _solve(effects, current - aim)
            if bits is None:
                break
            figures = self.estimate(graph.with_bits(bits)).figures
            if not budget.exceeded(figures):
                return bits
            aim -= np.maximum(0.0, _upper_ends(figures, names) - limits) + limits * _MARGIN
        return self._lowest_bits(graph)  # known to meet the budget

    def _measure(self, network: nn.Module, graph: Graph, names: Sequence[str]) -> _LayerEffects:
        """Return the gains in named costs and the increase of the loss of each layer alone."""
        loss_before = self.sample.loss(network)
        before = _upper_ends(self.estimate(graph).figures, names)
        tried = list(_single_changes(graph, self.methods.bits))
        gains, losses = np.zeros((len(tried), len(names))), np.zeros(len(tried))
        with self.progress.phase("Measure fewer bits", len(tried)) as advance:
            for i, (name, bits) in enumerate(tried):
                candidate = graph.with_bits({name: bits})
                gains[i] = before - _upper_ends(self.estimate(candidate).figures, names)
                loss = self.sample.loss(quantise_layer(network, name, candidate))
                losses[i] = max(0.0, loss - loss_before)
                advance(1)
        return _LayerEffects(tried, gains, losses)


def _upper_ends(figures: Quantities, names: Sequence[str]) -> Array:
    """Return the upper interval ends of costs, which limits are compared with."""
    return np.array([figures[name].upper for name in names])


def _compressible_operators(graph: Graph, bits: Sequence[int]) -> list[str]:
    """Return the operators whose weights may have fewer bits; depthwise ones are too small."""
    fewest = min(bits, default=NATIVE_BITS)
    readers = (n for n in graph if n.op.weight_shape and not n.op.depthwise)
    return [node.name for node in readers if node.weight_bits > fewest]


def _single_changes(graph: Graph, options: Sequence[int]) -> Iterator[tuple[str, int]]:
    current = {node.name: node.weight_bits for node in graph}
    for name in _compressible_operators(graph, options):
        yield from ((name, bits) for bits in options if bits < current[name])


def quantise_layer(network: nn.Module, name: str, graph: Graph) -> nn.Module:
    """Return a copy of a network with the weights of layer ``name`` quantised as in ``graph``."""
    copied = copy.deepcopy(network)
    module = layer_of(copied, name)
    of_one = {
        n: grid for n, grid in weight_grids_of(copied, graph).items() if _is_of(copied, n, module)
    }
    quantise_weights_(copied, of_one)
    return copied


def _is_of(network: nn.Module, parameter: str, module: nn.Module) -> bool:
    return network.get_submodule(parameter.rpartition(".")[0]) is module


def _solve(effects: _LayerEffects, needed: Array) -> dict[str, int] | None:
    """Return bits by layer with the least loss for the needed gains; ``None`` if infeasible."""
    tried, gains, losses = effects.tried, effects.gains, effects.losses
    layers = list(dict.fromkeys(name for name, _ in tried))
    once = np.array([[float(name == layer) for name, _ in tried] for layer in layers])
    # Among layers without any loss on the sample, as few as possible are changed.
    spread = float(losses.max()) or 1.0
    costs = losses / spread + 1e-4 * np.array([NATIVE_BITS - bits for _, bits in tried])
    scale = np.maximum(np.abs(needed), 1e-12)
    solution = milp(
        costs,
        integrality=np.ones(len(tried)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(once, -np.inf, 1),
            LinearConstraint((gains / scale).T, needed / scale, np.inf),
        ],
    )
    if not solution.success:
        return None
    return {name: bits for (name, bits), x in zip(tried, solution.x, strict=True) if x > 0.5}


def unsupported_limits(budget: Budget) -> list[str]:
    """Return the names of a budget's lower limits, which compression does not support."""
    return [name for name in budget.limits if metric_of(name).maximise]
