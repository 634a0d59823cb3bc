"""One trained network is fitted into a budget: weights of fewer bits, then fewer channels.

What bits gain is asked of the target's compiler layer by layer, and what they lose of the network
itself: the loss with that layer alone on its grid. Gains of single layers add up (within a per cent
on Ethos-U), so an integer program chooses bits for all; the compiler checks the whole.

Source of the choice: Yao et al., "HAWQ-V3", ICML 2021, https://arxiv.org/abs/2011.10680, with the
measured loss in place of the Hessian's trace.
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
from hwnas.models.int8.weight_grids import grids, quantise_weights_
from hwnas.tasks.base import Task
from hwnas.tasks.metrics import column
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.inference import recalibrate

# Structured pruning: whole channels are taken out of a trained network.
#
# Source: Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023,
# https://arxiv.org/abs/2301.12900, by the authors' library Torch-Pruning.

_INSIDE = ("layernorm", "attention")  # how channels hang together inside is not told


def check_pruning(fraction: float, graph: Graph) -> None:
    """Refuse what cannot be pruned, before anything is trained for it.

    Raises:
        ConfigError: the package is missing, the network is a transformer or has exits, or it is
            too narrow.
    """
    if graph.exits:
        raise ConfigError(f"prune={fraction}: networks with exits are not pruned; leave prune out.")
    if importlib.util.find_spec("torch_pruning") is None:
        raise ConfigError("prune needs the package 'torch-pruning': pip install 'hwnas[pruning]'")
    for node in graph:
        if node.op.base in _INSIDE:
            raise ConfigError(
                f"prune={fraction}: networks with {node.op.base} ('{node.name}') are not "
                "pruned; leave prune out."
            )
    answer = graph.output.name  # keeps what it has
    narrowest = min(node.op.out_shape[0] for node in graph if node.name != answer)
    if int(narrowest * (1 - fraction)) < 1:
        raise ConfigError(
            f"prune={fraction} takes out all {narrowest} channels of the narrowest "
            f"operator. Allowed: less than {1 - 1 / narrowest:.2f}."
        )


def prune(network: nn.Module, graph: Graph, fraction: float) -> tuple[nn.Module, Graph]:
    """Return a narrower copy of a plain network, and its operators.

    The same fraction is taken out of every group of channels that hang together (those of a
    residual's sum, of a depthwise convolution and what it reads, of a gate and what it gates),
    those whose weights are smallest; images and outputs stay.

    Args:
        network: With its batch norm, which is not yet folded.
        graph: Its operators, named after its modules.
        fraction: Of the channels, in [0, 1).
    """
    import torch_pruning as tp

    pruned = copy.deepcopy(network).eval()
    # Widths are not rounded: on an Ethos-U55-128, multiples of 4 or 8 won no more latency for the
    # multiply-accumulates that they cost (16 small networks of two families, 15 to 50 % pruned).
    pruner = tp.pruner.BasePruner(
        pruned,
        torch.zeros(1, *graph[0].op.in_shape),
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=fraction,
        ignored_layers=[layer_of(pruned, graph.output.name)],
    )
    pruner.step()
    return pruned, resized(graph, pruned)


def resized(graph: Graph, network: nn.Module) -> Graph:
    """Return operators with the channels that a network's layers have."""
    channels = {INPUT: graph[0].op.in_shape[0]}
    found = []
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
        found.append(replace(node, op=op))
    return replace(graph, nodes=tuple(found))


_BATCH = 250  # images that are in memory at once, with all that layers make of them
_ROUNDS = 8  # of tightening limits, where gains did not quite add up
_SPARE = 1e-3  # of a limit: what is kept off it in the program
Array = NDArray[np.float64]
Estimate = Callable[[Graph], Cost]  #: what the target's compiler says of operators


@dataclass(frozen=True)
class CalibrationImages:
    """Images that say what bits lose."""

    images: Tensor  #: ``(N, C, R, R)``, normalised; training images
    loss_targets: Tensor  #: of the task, ``(N, ...)``
    task: Task

    def loss(self, network: nn.Module) -> float:
        """Return the loss of a network in evaluation mode."""
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
    """What makes a network fit."""

    prune: float  #: fraction of the channels that is taken out
    bits: Mapping[str, int]  #: of weights, by operator; others stay
    figures: Quantities  #: as the compiler estimates them with stand-in weights


@dataclass(frozen=True)
class CompressionMethods:
    """What may be done to a network."""

    bits: Sequence[int]  #: that weights may have, fewer than eight
    prune: Sequence[float]  #: fractions of the channels, from 0 on


@dataclass(frozen=True)
class _Asked:
    """What bits of single layers gain and lose."""

    tried: list[tuple[str, int]]  #: operators with bits
    gains: Array  #: ``(tried, limits)``
    losses: Array  #: ``(tried,)``


@dataclass(frozen=True)
class NetworkCompressor:
    """Fits one trained network into budgets of the same limits."""

    network: nn.Module  #: trained, with its batch norm
    graph: Graph  #: its operators
    sample: CalibrationImages  #: says what bits lose
    estimate: Estimate  #: asked for each layer with each number of bits
    means: CompressionMethods  #: what may be done
    progress: Progress  #: is told of the layers
    _asked: dict[float, _Asked] = field(default_factory=dict)  #: by the fraction taken out

    def fitted(self, budget: Budget) -> Compression | None:
        """Return the mildest compression that fits; ``None`` where none does.

        As few channels as possible are taken out, and then bits where they lose least.

        Args:
            budget: Limits of costs, the less the better.

        Raises:
            ConfigError: bits do not suffice, and channels cannot be taken out.
        """
        for fraction in self.means.prune:
            narrower, operators = self.network, self.graph
            if fraction:
                check_pruning(fraction, operators)
                narrower, operators = prune(narrower, operators, fraction)
                recalibrate(narrower, self.sample.images)
            whole = self.estimate(operators).figures
            if not budget.exceeded(whole):
                return Compression(fraction, {}, whole)
            lowest = self._lowest(operators)
            if not lowest:
                continue
            if budget.exceeded(self.estimate(operators.with_bits(lowest)).figures):
                continue
            if fraction not in self._asked:
                plain = fold_batch_norm(copy.deepcopy(narrower).eval())
                self._asked[fraction] = self._ask(plain, operators, [*budget.limits])
            bits = self._chosen(self._asked[fraction], operators, budget)
            return Compression(fraction, bits, self.estimate(operators.with_bits(bits)).figures)
        return None

    def _lowest(self, graph: Graph) -> dict[str, int]:
        return {name: min(self.means.bits) for name in _layers(graph, self.means.bits)}

    def _chosen(self, asked: _Asked, graph: Graph, budget: Budget) -> dict[str, int]:
        """Return bits by operator that fit a budget and are expected to lose least."""
        names, limits = list(budget.limits), np.array([*budget.limits.values()])
        current = _values(self.estimate(graph).figures, names)
        aim = limits * (1 - _SPARE)
        for _ in range(_ROUNDS):
            bits = _program(asked, current - aim)
            if bits is None:
                break
            found = self.estimate(graph.with_bits(bits)).figures
            if not budget.exceeded(found):
                return bits
            aim -= np.maximum(0.0, _values(found, names) - limits) + limits * _SPARE
        return self._lowest(graph)  # which fits, as was seen before

    def _ask(self, network: nn.Module, graph: Graph, names: Sequence[str]) -> _Asked:
        """Return what each layer alone gains of named costs, and loses."""
        before, whole = self.sample.loss(network), self.estimate(graph).figures
        tried = list(_single(graph, self.means.bits))
        gains, losses = np.zeros((len(tried), len(names))), np.zeros(len(tried))
        with self.progress.phase("Ask what bits gain", len(tried)) as advance:
            for i, (name, bits) in enumerate(tried):
                one = graph.with_bits({name: bits})
                gains[i] = _values(whole, names) - _values(self.estimate(one).figures, names)
                losses[i] = max(0.0, self.sample.loss(rounded(network, name, one)) - before)
                advance(1)
        return _Asked(tried, gains, losses)


def _values(figures: Quantities, names: Sequence[str]) -> Array:
    """Return the ends of figures that limits are held against."""
    return np.array([figures[name].upper for name in names])


def _layers(graph: Graph, bits: Sequence[int]) -> list[str]:
    """Return the operators whose weights may have fewer bits: depthwise ones have few weights."""
    fewest = min(bits, default=NATIVE_BITS)
    readers = (n for n in graph if n.op.weight_shape and not n.op.depthwise)
    return [node.name for node in readers if node.weight_bits > fewest]


def _single(graph: Graph, options: Sequence[int]) -> Iterator[tuple[str, int]]:
    known = {node.name: node.weight_bits for node in graph}
    for name in _layers(graph, options):
        yield from ((name, bits) for bits in options if bits < known[name])


def rounded(network: nn.Module, name: str, graph: Graph) -> nn.Module:
    """Return a copy with the weights of one layer on their grid."""
    copied = copy.deepcopy(network)
    module = layer_of(copied, name)
    of_one = {n: grid for n, grid in grids(copied, graph).items() if _is_of(copied, n, module)}
    quantise_weights_(copied, of_one)
    return copied


def _is_of(network: nn.Module, parameter: str, module: nn.Module) -> bool:
    return network.get_submodule(parameter.rpartition(".")[0]) is module


def _program(asked: _Asked, needed: Array) -> dict[str, int] | None:
    """Return at most one number of bits for each layer: the least loss for the gains needed."""
    tried, gains, losses = asked.tried, asked.gains, asked.losses
    layers = list(dict.fromkeys(name for name, _ in tried))
    once = np.array([[float(name == layer) for name, _ in tried] for layer in layers])
    # Of layers that lose nothing as far as the sample shows, as few as possible are changed.
    spread = float(losses.max()) or 1.0
    costs = losses / spread + 1e-4 * np.array([NATIVE_BITS - bits for _, bits in tried])
    scale = np.maximum(np.abs(needed), 1e-12)
    found = milp(
        costs,
        integrality=np.ones(len(tried)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(once, -np.inf, 1),
            LinearConstraint((gains / scale).T, needed / scale, np.inf),
        ],
    )
    if not found.success:
        return None
    return {name: bits for (name, bits), x in zip(tried, found.x, strict=True) if x > 0.5}


def unsupported_limits(budget: Budget) -> list[str]:
    """Return the limits that this cannot work towards: what is to be maximised."""
    return [name for name in budget.limits if column(name).maximise]
