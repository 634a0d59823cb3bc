"""Compresses a network to a smaller budget without a new search: bits, channels, training."""

import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from hwnas.core.errors import BudgetError, ConfigError
from hwnas.core.manifest import read_manifest
from hwnas.core.quantity import Quantities
from hwnas.core.run_folder import default_path
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.backends.base import TrainedNetwork
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.families.layers import weights_of
from hwnas.models.graph import NATIVE_BITS, Graph
from hwnas.nas.early_exits import EarlyExits, ExitNetworkResults, swept, within
from hwnas.tasks.metrics import expected_costs
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.evaluation.trained import predict_exits
from hwnas.training.finetuning import compression
from hwnas.training.finetuning.compression import (
    CalibrationImages,
    Compression,
    CompressionMethods,
    NetworkCompressor,
)
from hwnas.workflows import components
from hwnas.workflows.config import CompressConfig
from hwnas.workflows.export import ExportResult, failures, picked, write_export
from hwnas.workflows.proof_record import ExportRequest, PickedNetwork
from hwnas.workflows.reporter import Reporter

_N_SAMPLE = 1024  # training images that measure the loss by quantisation
#: Safety margins as fractions of a limit: trained weights may need more than the random weights of
#: estimates. The minimum is the excess seen before training. If one margin does not suffice, the
#: network is trained again with the next.
_SPARES = (0.02, 0.05, 0.12)


@dataclass(frozen=True)
class CompressionResult(ExportResult):
    """The export of a compressed network, and its costs before compression."""

    #: costs by name before compression; compiled with the network's weights if the target
    #: compresses weights, else estimated
    before: Quantities
    compression: Compression  #: the chosen bits and pruned channels
    limits: Mapping[str, float]  #: limits of the budget, by metric


def compress(
    config: CompressConfig, arguments: Sequence[str], reporter: Reporter
) -> CompressionResult:
    """Fit a network of a search into a budget, train it, and export it.

    Args:
        config: The options.
        arguments: Arguments of the command line.
        reporter: Receives phases and messages.

    Raises:
        BudgetError: by its estimated costs, no compression meets the budget. If only the compiled
            files exceed it, the last one is exported with a failed check.
        ConfigError: not exactly one network is selected, it meets the budget already, a limit is
            not supported, the target measures costs, or ``epochs`` has no default.
        RunError: the search has no front, its weights are missing, or the export exists.
    """
    if unreachable := compression.unsupported_limits(config.allowed):
        raise ConfigError(
            f"budget.{unreachable[0]} is a lower limit. compress supports upper limits only: "
            "remove it."
        )
    _check_trains(config)
    root = Path(config.dir or default_path("compress"))
    order = ExportRequest(config.export, arguments, root, "compress")
    with picked(order, reporter, config.budget) as picks:
        if len(picks) > 1:
            raise ConfigError(
                f"compress takes one network for one target, but {len(picks)} are selected: "
                f"{', '.join(picks)}. Choose one with id=ID, and for a search with several targets "
                "target_name=TARGET."
            )
        ((name, pick),) = picks.items()
        assert pick is not None  # an existing export was refused before
        work = _CompressionJob(config, pick, reporter)
        result = work.find_compression()
        done = write_export(work.compressed_network(result), name, order)
    limits = config.allowed.limits
    return CompressionResult([done], failures(done, order.root), work.before, result, limits)


@dataclass(frozen=True)
class _CompressionJob:
    """Compression of one network."""

    config: CompressConfig
    pick: PickedNetwork
    reporter: Reporter

    @cached_property
    def before(self) -> Quantities:
        """The costs of the network before compression, with early exits."""
        if not self._packs_weights:
            return self._estimated_before
        return self._compiled_costs(self.pick, lambda early: early.predicted.costs)

    @cached_property
    def _estimated_before(self) -> Quantities:
        """The same with random weights."""
        return self.estimate(self.lowered).figures

    @cached_property
    def _exits_before(self) -> EarlyExits | None:
        """The early exits before compression; fewer bits hardly change them."""
        if not self.lowered.exits:  # weights do not influence its costs
            return None
        network = self.pick.finisher.network(self.pick.genotype)
        return self._best_exits(network, self._estimated_cost(self.lowered))

    def _best_exits(self, network: nn.Module, cost: Cost) -> EarlyExits | None:
        """Return the fastest thresholds that lose at most ``max_exit_drop`` points, if any."""
        if not self.lowered.exits:
            return None
        genotype = self.pick.genotype
        setup = self.pick.context.parts.setup_of(genotype)
        splits = {"validation": predict_exits(network, setup, genotype)}
        results = ExitNetworkResults(genotype.id, cost.figures, cost.segments, splits)
        return within(swept(results), self.config.max_exit_drop)

    @cached_property
    def lowered(self) -> Graph:
        """The operators of the network."""
        return self.pick.context.parts.networks.lower(self.pick.genotype)

    def find_compression(self) -> Compression:
        """Return the compression whose compiled files fit the budget, or the closest one.

        Raises:
            BudgetError: no compression fits.
            ConfigError: the network fits already.
        """
        allowed, name = self.config.allowed, self.pick.genotype.id
        if missing := [limit for limit in allowed.limits if limit not in self._estimated_before]:
            exits = f", and {name} has no exits" * bool(expected_costs(missing))
            raise ConfigError(
                f"budget.{missing[0]}: the target's compiler does not estimate it{exits}. Remove "
                "this limit."
            )
        if not allowed.exceeded(self.before):
            raise ConfigError(
                f"{name} meets the budget without compression: {_usage(self.before, allowed)}. "
                f"Export it: hwnas export {shlex.quote(str(self.config.run))} pick={name}"
            )
        best = None
        for spare in _SPARES:
            if (candidate := self._fitter.fit(self._aim(spare))) is None:
                break
            best = candidate
            if not self._packs_weights:  # costs do not depend on the weights
                break
            if not allowed.exceeded(
                self._compiled_costs(self.compressed_network(candidate), self._at_proof)
            ):
                break
        if best is None:
            fewest = min(self._means.bits, default=NATIVE_BITS)
            also = f"{max(self._means.prune):.0%} of the channels pruned"
            if self._exits_before is not None:
                also = f"{self.config.max_exit_drop:g} points lost at exits (max_exit_drop)"
            raise BudgetError(
                f"{name} cannot be compressed to the budget: it needs "
                f"{_usage(self.before, allowed)}, and weights of {fewest} bits with {also} do not "
                "suffice. Choose a smaller network of the front with id=ID, or relax the budget."
            )
        return best

    def _aim(self, spare: float) -> Budget:
        """Return the budget of estimates; it is tight enough to require a compression."""
        limits = {}
        for name, limit in self.config.allowed.limits.items():
            share = self._estimated_before[name].upper / self.before[name].upper
            limits[name] = min(1 - spare, share) * limit
        return Budget(limits)

    def compressed_network(self, result: Compression) -> PickedNetwork:
        """Return the compressed network for export."""
        finisher = self.pick.finisher
        other = replace(
            finisher.config,
            bits={**result.bits},
            prune=result.prune,
            later_epochs=self.config.epochs,
        )
        return replace(self.pick, finisher=replace(finisher, other=other))

    def estimate(self, lowered: Graph) -> Cost:
        """Return the costs by the target's compiler, including derived metrics and early exits.

        Raises:
            ConfigError: the target is measured.
        """
        cost = self._estimated_cost(lowered)
        early = self._exits_before and self._exits_before.with_segments(cost.segments)
        average = {} if early is None else early.predicted.costs
        return replace(cost, figures={**cost.figures, **average})

    def _estimated_cost(self, lowered: Graph) -> Cost:
        config = self.pick.context.config
        cost = base.backend_of(config.target).estimate(lowered, config.cost)
        if cost is None:
            raise ConfigError(
                f"Target '{config.target.name}' is measured, but compress needs a target whose "
                f"compiler estimates costs. To prune for this target: hwnas export "
                f"{self.config.run} pick={self.pick.genotype.id} prune=FRACTION"
            )
        return replace(cost, figures=config.derives(cost.figures))

    @property
    def _packs_weights(self) -> bool:
        return backends.get(self.pick.context.config.target.runtime).packs_weights

    @cached_property
    def _means(self) -> CompressionMethods:
        bits = self.config.weight_bits if self._packs_weights else []
        fixed = self.lowered.exits or any(
            n.op.base in compression.UNSUPPORTED for n in self.lowered
        )
        prune = [0.0] if fixed else sorted({0.0, *self.config.prune})
        return CompressionMethods(bits, prune)  # networks with exits and transformers stay whole

    @cached_property
    def _fitter(self) -> NetworkCompressor:
        network = self.pick.finisher.network(self.pick.genotype)
        return NetworkCompressor(
            network, self.lowered, self._sample, self.estimate, self._means, self.reporter
        )

    @cached_property
    def _sample(self) -> CalibrationImages:
        setup = self.pick.context.parts.setup_of(self.pick.genotype)
        data, resolution = setup.data, setup.resolution(self.pick.genotype)
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
        part = data.train.take(order[:_N_SAMPLE])
        images = data.prepare(part.images, resolution)
        return CalibrationImages(images, data.task.loss_targets(part.targets), data.task)

    def _at_proof(self, early: EarlyExits) -> Quantities:
        """Return the expected costs per image on the test split."""
        setup = self.pick.context.parts.setup_of(self.pick.genotype)
        return early.at_proof(len(setup.data.test))

    def _compiled_costs(
        self, pick: PickedNetwork, average: Callable[[EarlyExits], Quantities]
    ) -> Quantities:
        """Return the compiler's costs of the network with trained weights.

        Args:
            pick: The network.
            average: Returns the expected costs per image with early exits.
        """
        context = pick.context
        ready = pick.finisher.in_int8(pick.genotype)
        artefacts = components.artefacts(context.parts, context.device)
        trained = TrainedNetwork(ready.graph, weights_of(ready.network, ready.graph), ready.int8)
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for suffix, content in artefacts.build(trained).items():
                files[suffix] = Path(folder, f"model{suffix}")
                files[suffix].write_bytes(content)
            images = self._sample.images[:1].numpy()
            cost = artefacts.remeasure(files, ready.graph, images).cost
        early = self._best_exits(ready.simulated or ready.network, cost)
        return context.config.derives({**cost.figures, **({} if early is None else average(early))})


def _check_trains(config: CompressConfig) -> None:
    """Reject training for 0 epochs if the search fine-tuned its networks for 0 epochs.

    Raises:
        ConfigError: it did, and ``epochs`` is not given.
    """
    done = read_manifest(Path(config.run), "run").get("finishing")
    if config.epochs is None and done is not None and done["epochs"] == 0:
        raise ConfigError(
            "compress trains the compressed network, but the search fine-tuned for 0 epochs "
            "(finish.epochs=0), so there is no default. Set epochs=NUMBER, 1 or more."
        )


def _usage(figures: Quantities, allowed: Budget) -> str:
    return ", ".join(
        f"{name} {figures[name].upper:.4g} of {limit:g}" for name, limit in allowed.limits.items()
    )
