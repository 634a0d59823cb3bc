"""Durations of the phases of a search on this machine, by timing a few steps."""

from functools import cached_property
from statistics import fmean
from typing import final

from hwnas.hardware import backends
from hwnas.models.graph import n_macs
from hwnas.models.spaces import Genotype
from hwnas.nas import loop
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.workflows.components import SearchComponents

_SHORTER = 1.0, 0.6, 0.4, 0.2, 0.0  # factors of the epochs of candidates; the first that fits
_TYPICAL = 1.5  # epoch of a mean candidate relative to a medium network: 1.3 to 2.2 on an NPU
_TRIAL_S = 0.5  # of a trial besides training: proposal, costs, storage
INFERENCES = 0.6  # cost of verifying one image relative to a training step
COMPILE_S = {False: 0.3, True: 5.0}  # of a member's files, estimated or measured on a device


@final
class PhaseTimes:
    """Durations of trainings on this machine, by timing a few steps."""

    def __init__(self, parts: SearchComponents, *, trains: bool = True):
        self._parts, self._trains = parts, trains
        self.n_processes = parts.config.study.workers or 1
        assignments = loop.initial_assignments(parts.space)
        genotypes = {g.id: g for g in map(parts.space.genotype, assignments)}
        self._by_size = sorted(genotypes.values(), key=lambda g: n_macs(parts.networks.lower(g)))

    @cached_property
    def smallest_s(self) -> float:
        """Seconds of an epoch of the smallest network."""
        return self._epoch_s(self._by_size[0])

    @cached_property
    def medium_s(self) -> float:
        """Seconds of an epoch of a medium network."""
        return self._epoch_s(self._by_size[len(self._by_size) // 2])

    def trial_s(self, fidelities: tuple[int, ...], epoch_s: float | None = None) -> float:
        """Return the seconds of a trial; half of the candidates stop after the first fidelity.

        ``epoch_s`` is that of an epoch; default: of a network between smallest and medium.
        """
        if not self._trains:
            return _TRIAL_S
        if self._parts.config.accuracy == "supernet":
            return _TRIAL_S + self.verification_s(self._parts.config.target.runtime) / 2
        epoch_s = fmean([self.smallest_s, self.medium_s]) if epoch_s is None else epoch_s
        return _TRIAL_S + (fidelities[0] + sum(fidelities[1:]) / 2) * epoch_s

    def fidelities(self, seconds: float, n_trials: int) -> tuple[int, ...]:
        """Return the longest fidelities with which ``n_trials`` trials fit into some seconds.

        If none are short enough, the shortest are returned.
        """
        full = self._parts.config.trained.fidelities
        for factor in _SHORTER:
            shorter = tuple(max(1, round(factor * epochs)) for epochs in full)
            if factor < 1:  # a single epoch needs no second decision
                shorter = tuple(dict.fromkeys(shorter))
            trial_s = self.trial_s(shorter, _TYPICAL * self.medium_s)
            if n_trials * trial_s <= seconds * self.n_processes:
                break
        return shorter

    def verification_s(self, runtime: str) -> float:
        """Return the seconds of the verification of one member by a runtime."""
        data = self._parts.data
        image_s = self.medium_s / len(data.train)
        n_images = len(data.test) + 2 * len(data.validation)
        return COMPILE_S[backends.get(runtime).measured] + INFERENCES * n_images * image_s

    def supernet_s(self, epochs: int) -> float:
        """Return the seconds of the training of all supernets."""
        return epochs * self._supernet_epoch_s

    @cached_property
    def _supernet_epoch_s(self) -> float:
        return sum(setup.epoch_s() for setup in self._parts.setups.values())

    def _epoch_s(self, genotype: Genotype) -> float:
        parts = self._parts
        return TrainedEvaluator(parts.setups, parts.config.trained).epoch_s(genotype)
