"""Which bits and channels make a network fit a budget."""

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
    known = spaces.load_space(spaces.find(name))
    family, genotype = families.get(known.family), known.sample(random.Random(seed))
    signature = Signature(1, 10)
    return family.build(known, genotype, signature).eval(), family.lower(known, genotype, signature)


def _sample(lowered: Graph) -> CalibrationImages:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(24, *lowered[0].op.in_shape, generator=generator)
    return CalibrationImages(images, torch.arange(24) % 10, TASK)


def _bytes(lowered: Graph) -> Cost:
    """Return the flash of weights as stored, which gains of layers add up to."""
    return Cost({"flash_kib": Quantity(_kib(lowered), "modelled")})


def _kib(lowered: Graph) -> float:
    each = (parameter_bytes(replace(n.op, dtype="int8"), n.weight_bits) for n in lowered)
    return sum(each) / 1024


@pytest.mark.parametrize("share", [0.95, 0.85, 0.8])
def test_bits_lose_least_of_all_that_fit(share: float) -> None:
    """Against all combinations, by what single layers gain and lose."""
    network, lowered = _network()
    sample = _sample(lowered)
    options, whole = (4, 6), _kib(lowered)
    budget = Budget({"flash_kib": share * whole})
    fitter = NetworkCompressor(
        network, lowered, sample, _bytes, CompressionMethods(options, [0.0]), NullProgress()
    )
    found = fitter.fit(budget)
    assert found is not None
    assert found.prune == 0
    assert found.figures["flash_kib"].value <= share * whole
    plain = fold_batch_norm(network)
    before = sample.loss(plain)

    def lost(bits: dict[str, int]) -> float:
        each = (lowered.with_bits({name: n}) for name, n in bits.items())
        found = (
            sample.loss(quantise_layer(plain, name, one))
            for name, one in zip(bits, each, strict=True)
        )
        return sum(max(0.0, loss - before) for loss in found)

    layers = [n.name for n in lowered if n.op.weight_shape and not n.op.depthwise]
    assert 2 <= len(layers) <= 8
    losses = {(layer, n): lost({layer: n}) for layer in layers for n in options}
    best = min(
        sum(losses.get((layer, n), 0.0) for layer, n in zip(layers, bits, strict=True))
        for bits in itertools.product((4, 6, 8), repeat=len(layers))
        if _bytes(lowered.with_bits(dict(zip(layers, bits, strict=True))))
        .figures["flash_kib"]
        .value
        <= 0.997 * share * whole  # a thousandth of a limit is kept off the program
    )
    own = sum(losses[layer, n] for layer, n in found.bits.items())
    worst = max(losses.values())
    assert own <= best + 1e-4 * worst * 4 * len(layers)  # what breaks ties


def test_loss_is_of_all_images_and_few_are_read_at_once() -> None:
    sizes = []

    class Network(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            sizes.append(len(images))
            return images.flatten(1)

    images, loss_targets = torch.randn(1024, 10, 1, 1), torch.arange(1024) % 10
    whole = float(TASK.loss(images.flatten(1), loss_targets))
    assert CalibrationImages(images, loss_targets, TASK).loss(Network()) == pytest.approx(
        whole, rel=1e-6
    )
    assert sum(sizes) == 1024
    assert max(sizes) <= 250


def test_nothing_is_done_to_what_fits() -> None:
    network, lowered = _network()
    fitter = NetworkCompressor(
        network, lowered, _sample(lowered), _bytes, CompressionMethods((4,), [0.0]), NullProgress()
    )
    found = fitter.fit(Budget({"flash_kib": 1e6}))
    assert found is not None
    assert (found.prune, dict(found.bits)) == (0.0, {})


def test_channels_are_taken_out_where_bits_do_not_suffice() -> None:
    network, lowered = _network("dense_small")
    lowest = {n.name: 3 for n in lowered if n.op.weight_shape and not n.op.depthwise}
    limit = 0.7 * _bytes(lowered.with_bits(lowest)).figures["flash_kib"].value
    means = CompressionMethods((3, 5), [0.0, 0.1, 0.3, 0.5])
    fitter = NetworkCompressor(network, lowered, _sample(lowered), _bytes, means, NullProgress())
    found = fitter.fit(Budget({"flash_kib": limit}))
    assert found is not None
    assert found.prune == 0.3  # 10 % are too few: 0.9**2 of the weights would be left
    assert found.figures["flash_kib"].value <= limit
    assert fitter.fit(Budget({"flash_kib": limit / 100})) is None


def test_gains_that_do_not_add_up_are_met_all_the_same() -> None:
    """The compiler of this test gives back a tenth of what two layers gain together."""
    network, lowered = _network()
    whole = _kib(lowered)

    def estimate(graph: Graph) -> Cost:
        n = sum(node.weight_bits < 8 for node in graph)
        gained = whole - _kib(graph)
        value = whole - gained * (1 if n <= 1 else 0.9)
        return Cost({"flash_kib": Quantity(value, "modelled")})

    budget = Budget({"flash_kib": 0.85 * whole})
    means = CompressionMethods((3, 4, 6), [0.0])
    fitter = NetworkCompressor(network, lowered, _sample(lowered), estimate, means, NullProgress())
    found = fitter.fit(budget)
    assert found is not None
    assert not budget.exceeded(found.figures)
    assert estimate(lowered.with_bits(found.bits)).figures == found.figures


def test_layers_of_few_bits_get_no_more(npu: Target) -> None:
    network, lowered = _network("dense_small")
    backend = base.backend_of(npu)
    already = [n.name for n in lowered if n.op.weight_shape and not n.op.depthwise][:2]
    lowered = lowered.with_bits(dict.fromkeys(already, 3))

    def estimate(graph: Graph) -> Cost:
        found = backend.estimate(graph)
        assert found is not None
        return found

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
    found = fitter.fit(budget)
    assert found is not None
    assert not {*already} & found.bits.keys()
    assert found.figures["flash_kib"].value <= 0.8 * flash


def test_transformers_are_refused_where_bits_do_not_suffice() -> None:
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


def test_layers_are_asked_once_whatever_the_budget() -> None:
    network, lowered = _network()
    n_asked = 0

    def estimate(graph: Graph) -> Cost:
        nonlocal n_asked
        n_asked += 1
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
    first, n_asked = n_asked, 0
    tighter = fitter.fit(Budget({"flash_kib": 0.85 * _kib(lowered)}))
    assert n_asked <= first - 2 * 5  # two numbers of bits in five layers
    anew = NetworkCompressor(
        network,
        lowered,
        _sample(lowered),
        _bytes,
        CompressionMethods((4, 6), [0.0]),
        NullProgress(),
    )
    assert tighter == anew.fit(Budget({"flash_kib": 0.85 * _kib(lowered)}))


@pytest.mark.parametrize(("limits", "expected"), [(["latency_ms"], []), (["throughput_ips"], None)])
def test_only_upper_limits_are_worked_towards(
    limits: Sequence[str], expected: list[str] | None
) -> None:
    budget = Budget(dict.fromkeys(limits, 1.0))
    assert unsupported_limits(budget) == (limits if expected is None else expected)
