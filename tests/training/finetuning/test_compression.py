"""Bits and channels with which a network meets a budget."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from hwnas.core.errors import ConfigError
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends import base
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.memory import parameter_bytes
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph, Signature
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.finetuning.compression import (
    CalibrationImages,
    CompressionMethods,
    NetworkCompressor,
    quantise_layer,
    unsupported_limits,
)

TASK = ClassificationTask(tuple("0123456789"))


def _network(name: str = "tiny", seed: int = 0) -> tuple[nn.Module, Graph]:
    torch.manual_seed(seed)
    space = spaces.load_space(spaces.find(name))
    family, genotype = families.get(space.family), space.sample(random.Random(seed))
    signature = Signature(1, 10)
    return family.build(space, genotype, signature).eval(), family.lower(space, genotype, signature)


def _sample(lowered: Graph) -> CalibrationImages:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(24, *lowered[0].op.in_shape, generator=generator)
    return CalibrationImages(images, torch.arange(24) % 10, TASK)


def _bytes(lowered: Graph) -> Cost:
    """Return the flash of stored weights, which is additive over layers."""
    return Cost({"flash_kib": Quantity(_kib(lowered), "modelled")})


def _kib(lowered: Graph) -> float:
    sizes = (parameter_bytes(replace(n.op, dtype="int8"), n.weight_bits) for n in lowered)
    return sum(sizes) / 1024


@pytest.mark.parametrize("share", [0.95, 0.85, 0.8])
def test_bits_have_lowest_loss_within_budget(share: float) -> None:
    """Compared with all combinations, by the loss of single layers."""
    network, lowered = _network()
    sample = _sample(lowered)
    options, full_kib = (4, 6), _kib(lowered)
    budget = Budget({"flash_kib": share * full_kib})
    fitter = NetworkCompressor(
        network, lowered, sample, _bytes, CompressionMethods(options, [0.0]), NullProgress()
    )
    results = fitter.fit(budget)
    assert results is not None
    assert results.prune == 0
    assert results.figures["flash_kib"].value <= share * full_kib
    plain = fold_batch_norm(network)
    before = sample.loss(plain)

    def loss_of(bits: dict[str, int]) -> float:
        graphs = (lowered.with_bits({name: n}) for name, n in bits.items())
        results = (
            sample.loss(quantise_layer(plain, name, graph))
            for name, graph in zip(bits, graphs, strict=True)
        )
        return sum(max(0.0, loss - before) for loss in results)

    layers = [n.name for n in lowered if n.op.weight_shape and not n.op.depthwise]
    assert 2 <= len(layers) <= 8
    losses = {(layer, n): loss_of({layer: n}) for layer in layers for n in options}
    best = min(
        sum(losses.get((layer, n), 0.0) for layer, n in zip(layers, bits, strict=True))
        for bits in itertools.product((4, 6, 8), repeat=len(layers))
        if _bytes(lowered.with_bits(dict(zip(layers, bits, strict=True))))
        .figures["flash_kib"]
        .value
        <= 0.997 * share * full_kib  # the program has a margin of a thousandth
    )
    chosen_loss = sum(losses[layer, n] for layer, n in results.bits.items())
    worst = max(losses.values())
    assert chosen_loss <= best + 1e-4 * worst * 4 * len(layers)  # tolerance of ties


def test_loss_is_computed_in_small_batches() -> None:
    sizes = []

    class Network(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            sizes.append(len(images))
            return images.flatten(1)

    images, loss_targets = torch.randn(1024, 10, 1, 1), torch.arange(1024) % 10
    expected = float(TASK.loss(images.flatten(1), loss_targets))
    assert CalibrationImages(images, loss_targets, TASK).loss(Network()) == pytest.approx(
        expected, rel=1e-6
    )
    assert sum(sizes) == 1024
    assert max(sizes) <= 250


def test_network_within_budget_is_unchanged() -> None:
    network, lowered = _network()
    fitter = NetworkCompressor(
        network, lowered, _sample(lowered), _bytes, CompressionMethods((4,), [0.0]), NullProgress()
    )
    result = fitter.fit(Budget({"flash_kib": 1e6}))
    assert result is not None
    assert (result.prune, dict(result.bits)) == (0.0, {})


def test_channels_are_pruned_if_bits_do_not_suffice() -> None:
    network, lowered = _network("dense_small")
    lowest = {n.name: 3 for n in lowered if n.op.weight_shape and not n.op.depthwise}
    limit = 0.7 * _bytes(lowered.with_bits(lowest)).figures["flash_kib"].value
    means = CompressionMethods((3, 5), [0.0, 0.1, 0.3, 0.5])
    fitter = NetworkCompressor(network, lowered, _sample(lowered), _bytes, means, NullProgress())
    result = fitter.fit(Budget({"flash_kib": limit}))
    assert result is not None
    assert result.prune == 0.3  # 10 % are not enough: 0.9**2 of the weights would remain
    assert result.figures["flash_kib"].value <= limit
    assert fitter.fit(Budget({"flash_kib": limit / 100})) is None


def test_budget_is_met_if_gains_are_not_additive() -> None:
    """The compiler of this test loses a tenth of the gain of several layers."""
    network, lowered = _network()
    full_kib = _kib(lowered)

    def estimate(graph: Graph) -> Cost:
        n = sum(node.weight_bits < 8 for node in graph)
        gained = full_kib - _kib(graph)
        value = full_kib - gained * (1 if n <= 1 else 0.9)
        return Cost({"flash_kib": Quantity(value, "modelled")})

    budget = Budget({"flash_kib": 0.85 * full_kib})
    means = CompressionMethods((3, 4, 6), [0.0])
    fitter = NetworkCompressor(network, lowered, _sample(lowered), estimate, means, NullProgress())
    result = fitter.fit(budget)
    assert result is not None
    assert not budget.exceeded(result.figures)
    assert estimate(lowered.with_bits(result.bits)).figures == result.figures


def test_layers_with_few_bits_are_unchanged(npu: Target) -> None:
    network, lowered = _network("dense_small")
    backend = base.backend_of(npu)
    already = [n.name for n in lowered if n.op.weight_shape and not n.op.depthwise][:2]
    lowered = lowered.with_bits(dict.fromkeys(already, 3))

    def estimate(graph: Graph) -> Cost:
        result = backend.estimate(graph)
        assert result is not None
        return result

    flash = estimate(lowered).figures["flash_kib"].value
    budget = Budget({"flash_kib": 0.8 * flash})
    fitter = NetworkCompressor(
        network,
        lowered,
        _sample(lowered),
        estimate,
        CompressionMethods((4, 5), [0.0]),
        NullProgress(),
    )
    result = fitter.fit(budget)
    assert result is not None
    assert not {*already} & result.bits.keys()
    assert result.figures["flash_kib"].value <= 0.8 * flash


def test_transformers_are_refused_if_bits_do_not_suffice() -> None:
    network, lowered = _network("vit_small")
    fitter = NetworkCompressor(
        network,
        lowered,
        _sample(lowered),
        _bytes,
        CompressionMethods((), [0.0, 0.3]),
        NullProgress(),
    )
    with pytest.raises(ConfigError, match="are not pruned"):
        fitter.fit(Budget({"flash_kib": 0.001}))


def test_costs_of_layers_are_estimated_once() -> None:
    network, lowered = _network()
    n_estimates = 0

    def estimate(graph: Graph) -> Cost:
        nonlocal n_estimates
        n_estimates += 1
        return _bytes(graph)

    fitter = NetworkCompressor(
        network,
        lowered,
        _sample(lowered),
        estimate,
        CompressionMethods((4, 6), [0.0]),
        NullProgress(),
    )
    assert fitter.fit(Budget({"flash_kib": 0.9 * _kib(lowered)}))
    first, n_estimates = n_estimates, 0
    tighter = fitter.fit(Budget({"flash_kib": 0.85 * _kib(lowered)}))
    assert n_estimates <= first - 2 * 5  # two numbers of bits in five layers
    fresh = NetworkCompressor(
        network,
        lowered,
        _sample(lowered),
        _bytes,
        CompressionMethods((4, 6), [0.0]),
        NullProgress(),
    )
    assert tighter == fresh.fit(Budget({"flash_kib": 0.85 * _kib(lowered)}))


@pytest.mark.parametrize(("limits", "expected"), [(["latency_ms"], []), (["throughput_ips"], None)])
def test_lower_limits_are_unsupported(limits: Sequence[str], expected: list[str] | None) -> None:
    budget = Budget(dict.fromkeys(limits, 1.0))
    assert unsupported_limits(budget) == (limits if expected is None else expected)
