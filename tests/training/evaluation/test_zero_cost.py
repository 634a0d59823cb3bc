import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from hwnas.models import families
from hwnas.models.graph import n_macs, n_params
from hwnas.models.spaces import SearchSpace
from hwnas.training.data import ImageData
from hwnas.training.evaluation import zero_cost
from hwnas.training.evaluation.zero_cost import NAMES, ZeroCost, naswot, synflow


def _known(names: Sequence[str], space: SearchSpace, data: ImageData) -> ZeroCost:
    return ZeroCost(names, families.get("mbconv"), space, data)


def test_scores_are_a_function_of_the_genotype_alone(tiny: SearchSpace, digits: ImageData) -> None:
    rng = random.Random(0)
    genotypes = [tiny.sample(rng) for _ in range(6)]
    first = _known(NAMES, tiny, digits)
    found = [first.features(genotype) for genotype in genotypes]
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again = _known(NAMES, tiny, digits)
    assert [again.features(g) for g in reversed(genotypes)] == found[::-1]
    assert torch.equal(torch.get_rng_state(), state)
    assert len({tuple(row) for row in found}) == len({g.id for g in genotypes})


def test_features_come_in_the_order_asked_for_and_scores_are_what_figures_lack(
    tiny: SearchSpace, digits: ImageData
) -> None:
    genotype = tiny.largest()
    every = dict(zip(NAMES, _known(NAMES, tiny, digits).features(genotype), strict=True))
    some = _known(("naswot", "macs"), tiny, digits)
    assert some.features(genotype) == [every["naswot"], every["macs"]]
    assert some.scores(genotype) == {"naswot": every["naswot"]}
    lowered = families.get("mbconv").lower(tiny, genotype, digits.signature)
    assert every["params"] == pytest.approx(np.log(n_params(lowered)))
    assert every["macs"] == pytest.approx(np.log(n_macs(lowered)))


def test_each_network_is_built_once_and_none_for_its_size(
    tiny: SearchSpace, digits: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[nn.Module] = []
    original = zero_cost.synflow

    def counting(network: nn.Module, shape: Sequence[int]) -> float:
        built.append(network)
        return original(network, shape)

    monkeypatch.setattr(zero_cost, "synflow", counting)
    for names, expected in ((("params", "macs"), 0), (("synflow",), 1)):
        known = _known(names, tiny, digits)
        for _ in range(3):
            known.features(tiny.smallest())
            known.scores(tiny.smallest())
        assert len(built) == expected


def test_larger_networks_score_higher(small: SearchSpace, digits: ImageData) -> None:
    known = _known(NAMES, small, digits)
    pairs = zip(known.features(small.smallest()), known.features(small.largest()), strict=True)
    assert all(below < above for below, above in pairs)


def test_synflow_is_what_its_authors_define() -> None:
    """Each layer of a chain carries the same flow: 1' |W2| |W1| 1."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 7, bias=False), nn.LayerNorm(7), nn.ReLU6(),
        nn.Linear(7, 3, bias=False),
    )  # fmt: skip
    first, last = network[1].weight, network[4].weight
    assert isinstance(first, torch.Tensor)
    assert isinstance(last, torch.Tensor)
    flow = float((last.detach().double().abs() @ first.detach().double().abs()).sum())
    assert synflow(network, (3, 2, 2)) == pytest.approx(np.log(2 * flow))


def test_naswot_is_what_its_authors_define() -> None:
    """The kernel of two images is the number of units less the Hamming distance of their codes."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5))
    network.append(nn.GELU())
    images = torch.randn(6, 1, 4, 4)
    with torch.no_grad():
        inner = network[0](images)
        outer = network[3](inner.relu().flatten(1))
    codes = torch.cat([inner.flatten(1), outer], 1).numpy() > 0
    distance = (codes[:, None] != codes[None]).sum(axis=2)
    kernel = codes.shape[1] - distance + np.eye(6)
    assert naswot(network, images) == pytest.approx(np.linalg.slogdet(kernel)[1])
    assert not network[1]._forward_pre_hooks


def test_naswot_of_images_that_activate_alike_is_low_but_finite() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU())
    images = torch.randn(5, 1, 2, 2)
    same = images[:1].expand(5, 1, 2, 2)
    assert np.isfinite(naswot(network, same))
    assert naswot(network, same) < naswot(network, images)
