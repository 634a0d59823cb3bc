import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hwnas.core.errors import SpaceError
from hwnas.models import families, spaces
from hwnas.models.families.base import Family
from hwnas.models.families.elastic_layers import ElasticPixelLinear
from hwnas.models.families.layers import Attention, attention, fold_batch_norm
from hwnas.models.graph import Signature, n_params
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.testing import FamilyContract
from tests.conftest import space_yaml
from tests.models.families.contract import SizedFamilyContract


@pytest.fixture(scope="module")
def vit() -> SearchSpace:
    return spaces.load_space(spaces.find("vit_small"))


class TestViT(SizedFamilyContract):
    @pytest.fixture
    def family(self) -> Family:
        return families.get("vit")

    @pytest.fixture
    def family_space(self, vit: SearchSpace) -> SearchSpace:
        return vit


class TestViT224(FamilyContract):
    @pytest.fixture
    def family(self) -> Family:
        return families.get("vit")

    @pytest.fixture
    def family_space(self) -> SearchSpace:
        return spaces.load_space(spaces.find("vit_224"))

    @pytest.fixture
    def genotypes(self, family_space: SearchSpace) -> list[Genotype]:
        return [family_space.sample(random.Random(0))]  # each takes a second


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("resolution", [24, 30], r"must be a multiple of 'patch' 4, got \[30\]"),
        ("resolution", [24.5, 32.5], "'resolution' needs whole numbers above 0"),
        ("patch", 0, "'patch' needs whole numbers above 0"),
        ("patch", [2, 4], "'patch' must be fixed: move it from"),
        ("head_width", None, "'head_width' is missing"),
        ("head_width", "wide", "'head_width' needs whole numbers above 0"),
        ("activation", "gelo", "Unknown activation 'gelo'. Did you mean 'gelu'"),
        ("activation", "relu6", "Unknown activation 'relu6'.*Allowed: gelu, hardswish, relu"),
        ("embeding", 48, "Unknown name 'embeding'. Did you mean 'embedding'"),
        ("stages.1.depth", 1, "has 2 stages; family 'vit' has one"),
        ("stages.0.blocks.3.heads", None, "'stages.0.blocks.3.heads' is missing"),
        ("stages.0.blocks.0.heads", [0, 2], "'stages.0.blocks.0.heads' needs whole numbers"),
        ("stages.0.blocks.0.mlp_ratio", [2.2, 2.5], "mlp_ratio' 2.2 times 'embedding' 48 is 105.6"),
        ("stages.0.blocks.0.mlp_ratio", ["a", "b"], "mlp_ratio' needs numbers above 0"),
    ],
)
def test_invalid_space_is_refused(
    vit: SearchSpace, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    raw = space_yaml(vit)
    for part in ("choices", "fixed"):
        raw[part].pop(name, None)
    if value is not None:
        raw["choices" if isinstance(value, list) else "fixed"][name] = value
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SpaceError, match=message) as error:
        families.get("vit").check(spaces.load_space(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("activation", ["gelu", "relu", "hardswish"])
def test_activation_of_space_is_used(vit: SearchSpace, activation: str) -> None:
    changed = replace(vit, fixed={**vit.fixed, "activation": activation})
    family = families.get("vit")
    family.check(changed)
    lowered = family.lower(changed, changed.smallest(), Signature(1, 10))
    kinds = {node.op.kind for node in lowered if node.name.endswith(".expand")}
    assert kinds == {f"linear+{activation}"}


def test_ratio_with_rounding_error_is_accepted(vit: SearchSpace) -> None:
    choices = {**vit.choices, "embedding": (50,), "stages.0.blocks.0.mlp_ratio": (2.2,)}
    changed = replace(vit, choices=choices)
    assert 50 * 2.2 != 110
    families.get("vit").check(changed)
    lowered = families.get("vit").lower(changed, changed.smallest(), Signature(1, 10))
    (expand,) = (n.op for n in lowered if n.name == "stages.0.blocks.0.expand")
    assert expand.out_shape[0] == 110


def test_number_of_parameters_matches_network(vit: SearchSpace) -> None:
    family, task = families.get("vit"), Signature(3, 10)
    for genotype in (vit.smallest(), vit.largest()):
        network = fold_batch_norm(family.build(vit, genotype, task))
        counted = sum(parameter.numel() for parameter in network.parameters())
        assert n_params(family.lower(vit, genotype, task)) == counted


def test_fewer_heads_use_the_first_heads() -> None:
    torch.manual_seed(0)
    layer = ElasticPixelLinear((8, 12), parts=3)  # three heads of four channels
    x = torch.randn(2, 8, 3, 3)
    all_heads, two_heads = attention(layer(x, 12), 3), attention(layer(x, 8), 2)
    assert torch.allclose(two_heads, all_heads[:, :8], atol=1e-6)


def test_attention_matches_definition() -> None:
    x = torch.randn(2, 3 * 8, 3, 5, generator=torch.Generator().manual_seed(0))
    queries, keys, values = x.reshape(2, 3, 2, 4, 15).unbind(1)  # two heads of four channels
    shares = (torch.einsum("nhct,nhcs->nhts", queries, keys) / 2).softmax(-1)
    expected = torch.einsum("nhts,nhcs->nhct", shares, values).reshape(2, 8, 3, 5)
    assert torch.allclose(Attention(2)(x), expected, atol=1e-6)
