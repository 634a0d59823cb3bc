import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from hwnas.core.errors import SpaceError
from hwnas.models import families, spaces
from hwnas.models.families.base import Family
from hwnas.models.families.resnet.lowering import dimensions
from hwnas.models.graph import OpSpec, Signature, fuse, n_macs, n_params
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.testing import FamilyContract
from tests.conftest import space_yaml
from tests.models.families.contract import SizedFamilyContract

RESNET = families.get("resnet")


@pytest.fixture(scope="module")
def resnet_small() -> SearchSpace:
    return spaces.load_space(spaces.find("resnet_small"))


@pytest.fixture(scope="module")
def resnet_224() -> SearchSpace:
    return spaces.load_space(spaces.find("resnet_224"))


class TestBasic(SizedFamilyContract):
    @pytest.fixture
    def family(self) -> Family:
        return RESNET

    @pytest.fixture
    def family_space(self, resnet_small: SearchSpace) -> SearchSpace:
        return resnet_small


class TestBottleneck(FamilyContract):
    """The shipped space with a tenth of its channels and three genotypes, for speed."""

    @pytest.fixture
    def family(self) -> Family:
        return RESNET

    @pytest.fixture
    def family_space(self, resnet_224: SearchSpace) -> SearchSpace:
        narrow = {
            name: tuple(int(width) // 10 for width in options) if ".width" in name else options
            for name, options in resnet_224.choices.items()
        }
        return SearchSpace("resnet_narrow", "resnet", narrow, resnet_224.fixed)

    @pytest.fixture
    def genotypes(self, family_space: SearchSpace) -> list[Genotype]:
        ends = [family_space.smallest(), family_space.largest()]
        return [*ends, family_space.sample(random.Random(1))]


def _plain(block: str, depths: list[int], widths: list[int], expansion: float) -> SearchSpace:
    """Return a space of He et al.'s network for ImageNet, also with smaller images."""
    fixed: dict[str, Any] = {"block": block, "activation": "relu", "stem.pool": 1}
    fixed |= {"stem.width": 64, "stem.kernel": 7, "stem.stride": 2}
    fixed |= {"kernel": 3, "expansion": expansion}
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        fixed |= {f"stages.{stage}.depth": depth, f"stages.{stage}.width": width}
        fixed[f"stages.{stage}.stride"] = min(stage, 1) + 1
    return SearchSpace("plain", "resnet", {"resolution": (128, 224)}, fixed)


# Source: https://docs.pytorch.org/vision/stable/models.html, whose GFLOPS are multiply-accumulates.
@pytest.mark.parametrize(
    ("space", "gmacs", "params"),
    [
        (_plain("basic", [2, 2, 2, 2], [64, 128, 256, 512], 1.0), 1.81, 11689512),
        (_plain("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], 0.25), 4.09, 25557032),
    ],
)
def test_resnet_18_and_resnet_50_have_published_sizes(
    space: SearchSpace, gmacs: float, params: int
) -> None:
    RESNET.check(space)
    lowered = RESNET.lower(space, space.largest(), Signature(3, 1000))
    # Published numbers are before folding: scale and shift per channel instead of a bias.
    scales = sum(node.op.out_shape[0] for node in lowered if "bn" in node.op.fused)
    assert n_params(lowered) + scales == params
    assert round(n_macs(lowered) / 1e9, 2) == gmacs


def test_values_of_blocks_override_stages_and_space() -> None:
    plain = _plain("basic", [2, 2], [64, 64], 1.0)
    fixed = {**plain.fixed, "stages.0.blocks.0.kernel": 5, "stages.1.kernel": 7}
    space = SearchSpace("named", "resnet", plain.choices, fixed)
    RESNET.check(space)
    blocks = dimensions(space, space.largest(), Signature(3, 10)).blocks
    assert [block.convs[0].kernel for block in blocks] == [5, 3, 7, 7]
    assert [block.convs[1].kernel for block in blocks] == [5, 3, 7, 7]


def test_input_is_projected_if_shapes_may_differ(resnet_small: SearchSpace) -> None:
    def projected(space: SearchSpace) -> list[str]:
        blocks = dimensions(space, space.largest(), Signature(3, 10)).blocks
        return [block.name for block in blocks if block.shortcut]

    first = [f"stages.{stage}.blocks.0" for stage in range(4)]
    assert projected(_plain("basic", [2, 2], [64, 64], 1.0)) == first[1:2]
    assert projected(_plain("basic", [1, 2], [72, 72], 1.0)) == first[:2]
    assert projected(resnet_small) == first[:3]
    # The widths are equal, but not in all genotypes: one rule for the whole space.
    equal = {**resnet_small.largest().to_dict(), "stem.width": 16, "stages.0.width": 16}
    genotype = resnet_small.genotype(equal)
    assert dimensions(resnet_small, genotype, Signature(3, 10)).blocks[0].shortcut is not None


def test_residual_sum_is_fused_into_last_convolution(
    resnet_small: SearchSpace, resnet_224: SearchSpace
) -> None:
    for space in (resnet_small, resnet_224):
        lowered = RESNET.lower(space, space.largest(), Signature(3, 10))
        blocks = dimensions(space, space.largest(), Signature(3, 10)).blocks
        fused = {node.name: node for node in fuse(lowered, "float32")}
        assert len(fused) == len(lowered) - len(blocks)
        for block, before in zip(blocks[1:], blocks, strict=False):
            last = fused[block.convs[-1].name]
            other = block.shortcut.name if block.shortcut else before.convs[-1].name
            assert last.op.kind == "conv2d+bn+add+relu"
            assert last.inputs == (block.convs[-2].name, other)


def test_stem_pool_halves_the_image(resnet_224: SearchSpace) -> None:
    nodes = {n.name: n for n in RESNET.lower(resnet_224, resnet_224.smallest(), Signature(3, 10))}
    pool = OpSpec("max_pool2d", (40, 64, 64), (40, 32, 32), kernel=3, stride=2)
    assert nodes["stem_pool"].op == pool
    assert pool.padding == 1
    assert nodes["stages.0.blocks.0.shortcut"].inputs == ("stem_pool",)


@pytest.mark.parametrize("name", ["resnet_small", "resnet_224"])
def test_expansions_of_shipped_spaces_differ_in_size(name: str) -> None:
    space = spaces.load_space(spaces.find(name))
    smallest = space.smallest().to_dict()
    for stage in range(3):
        choice = f"stages.{stage}.blocks.0.expansion"
        sizes = {
            n_params(
                RESNET.lower(space, space.genotype({**smallest, choice: option}), Signature(1, 10))
            )
            for option in space.options(choice)
        }
        assert len(sizes) == len(space.options(choice))


def test_expansion_has_at_least_eight_channels() -> None:
    space = _plain("bottleneck", [1], [16], 0.1)
    convs = dimensions(space, space.largest(), Signature(3, 10)).blocks[0].convs
    assert [(conv.c_in, conv.c_out) for conv in convs] == [(64, 8), (8, 8), (8, 16)]
    assert [conv.act for conv in convs] == ["relu", "relu", ""]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stages.0.blocks.1.kernel", [3, 4], "'stages.0.blocks.1.kernel' must be odd"),
        ("stages.0.blocks.1.expansion", [0.0, 0.5], "needs numbers above 0"),
        ("stages.0.blocks.1.expansion", ["half"], "needs numbers above 0"),
        ("stages.0.width", [8.5, 16.0], "'stages.0.width' needs whole numbers above 0"),
        ("stages.0.stride", 3, "'stages.0.stride' must be 1 or 2, got 3"),
        ("stages.0.stride", [2, 1], "'stages.0.stride' must be fixed"),
        ("stem.kernel", 4, "'stem.kernel' must be odd"),
        ("stem.kernel", [3, 5], "'stem.kernel' must be fixed"),
        ("stem.pool", 2, "'stem.pool' must be 0 or 1, got 2"),
        ("stem.pool", [0, 1], "'stem.pool' must be fixed"),
        ("stem.pool", None, "'stem.pool' is missing"),
        ("stages.1.width", None, "'stages.1.width' is missing"),
        ("activation", "swish", "Unknown activation 'swish'. Allowed: relu, relu6"),
        ("activation", ["relu", "relu6"], "'activation' must be fixed"),
        ("activation", 6, "'activation' must be relu or relu6, got 6"),
        ("block", "bottlenek", "Unknown block 'bottlenek'. Did you mean 'bottleneck'"),
        ("block", None, "'block' is missing"),
        ("resolution", [0, 8], "'resolution' needs whole numbers above 0"),
        ("kernel", 3, "'kernel' has no effect"),
        ("stages.0.expansion", [0.5], "'stages.0.expansion' has no effect"),
        ("head.width", 128, "Unknown name 'head.width'"),
        ("stages.0.strid", 2, "Unknown name 'stages.0.strid'. Did you mean 'stages.0.stride'"),
    ],
)
def test_invalid_space_is_refused(
    resnet_small: SearchSpace, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    raw = copy.deepcopy(space_yaml(resnet_small))
    for part in ("choices", "fixed"):
        raw[part].pop(name, None)
    if value is not None:
        raw["choices" if isinstance(value, list) else "fixed"][name] = value
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SpaceError, match=message) as error:
        RESNET.check(spaces.load_space(path))
    assert "\n" not in str(error.value)
    assert "'broken'" in str(error.value)


def test_space_without_stages_is_refused() -> None:
    with pytest.raises(SpaceError, match="has no stage"):
        RESNET.check(SearchSpace("none", "resnet", {"resolution": (8,)}, {}))
