import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from hwnas.core.errors import SpaceError
from hwnas.models import families, spaces
from hwnas.models.families.base import Family
from hwnas.models.graph import Signature
from hwnas.models.spaces import Genotype, Option, SearchSpace
from hwnas.testing import FamilyContract
from tests.conftest import few_of, space_yaml
from tests.models.families.contract import SizedFamilyContract

HERE = Path(__file__).parent


class TestMBConv(SizedFamilyContract):
    @pytest.fixture
    def family(self) -> Family:
        return families.get("mbconv")

    @pytest.fixture(params=["tiny", "mbconv_small", "mbconv_mixed"])
    def family_space(self, request: pytest.FixtureRequest) -> SearchSpace:
        return spaces.load_space(spaces.find(request.param))


class TestKindsOfBlocks(SizedFamilyContract):
    @pytest.fixture
    def family(self) -> Family:
        return families.get("mbconv")

    @pytest.fixture(params=["kinds", "scaled"])
    def family_space(self, request: pytest.FixtureRequest) -> SearchSpace:
        return spaces.load_space(HERE / f"{request.param}.yaml")


class TestLargeMBConv(FamilyContract):
    """Few genotypes at the lowest resolution, for speed."""

    @pytest.fixture
    def family(self) -> Family:
        return families.get("mbconv")

    @pytest.fixture(params=few_of(["ofa_mobilenet_v3", "mbconv_224"], 1))
    def family_space(self, request: pytest.FixtureRequest) -> SearchSpace:
        return spaces.load_space(spaces.find(request.param))

    @pytest.fixture
    def genotypes(self, family_space: SearchSpace) -> list[Genotype]:
        rng = random.Random(1)
        drawn = [family_space.smallest(), family_space.largest(), family_space.sample(rng)]
        first: dict[str, Option] = {
            name: options[0] for name, options in family_space.choices.items()
        }
        fused: dict[str, Option] = {
            name: "fused" for name in family_space.choices if name.endswith(".kind")
        }
        options = [first | genotype.to_dict() for genotype in drawn]
        options += [o | fused for o in options if fused]
        return [family_space.genotype(o | {"resolution": 128}) for o in options]


def _change(name: str, value: Any, where: str = "fixed") -> dict[str, Any]:
    return {"name": name, "value": value, "where": where}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change("stages.0.blocks.1.kernel", [3, 4], "choices"), "must be odd"),
        (_change("stages.0.stride", 3), "must be 1 or 2"),
        (_change("stages.0.strid", 2), "Did you mean 'stages.0.stride'"),
        (_change("activation", "swish"), "Unknown activation 'swish'"),
        (_change("stem.width", [0, 8], "choices"), "whole numbers above 0"),
        (_change("head.width", -1), "whole numbers from 0 on"),
        (_change("width_multiplier", 0), "numbers above 0"),
        (_change("depth_multiplier", 2), "must not be of one block"),
        (_change("head.width", None), "'head.width' is missing"),
        (_change("stem.width", [8.5, 12.0], "choices"), "whole numbers above 0"),
        (_change("stages.0.blocks.0.kind", "fussed"), "Did you mean 'fused'"),
        (_change("stages.0.se", 1.5), "fractions from 0 to 1"),
        (_change("stages.0.blocks.0.se", ["none", "some"], "choices"), "fractions from 0 to 1"),
        (
            _change("stages.0.depth", [1, 3], "choices"),
            r"'stages.0.blocks.2.expansion', 'stages.0.blocks.2.kernel' are missing; add them to "
            r"choices or fixed \('expansion' and 'kernel' for all blocks\)",
        ),
        (_change("stages.0.depth", [1, 900], "choices"), "and 1788 more are missing"),
        (_change("stages.0.depth", [0, 2], "choices"), r"\[one.yaml,two.yaml\]"),
        (_change("n_stages", [1, 2], "choices"), r"\[one.yaml,two.yaml\]"),
        (_change("stages.2.depth", 1), "allowed: 0, 1"),
        (_change("kernel", 3), "'kernel' has no effect"),
        (_change("kernel_sharing", ["crop", "transform"], "choices"), "must be fixed"),
        (_change("stages.0.blocks.1.expansion", None, "choices"), "'expansion' for all blocks"),
    ],
)
def test_invalid_space_is_refused(
    tiny: SearchSpace, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    raw = copy.deepcopy(space_yaml(tiny))
    if change["value"] is None:
        del raw[change["where"]][change["name"]]
    else:
        raw[change["where"]][change["name"]] = change["value"]
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SpaceError, match=message):
        families.get("mbconv").check(spaces.load_space(path))


def test_values_of_blocks_override_stages_and_space(tmp_path: Path, task: Signature) -> None:
    path = tmp_path / "levels.yaml"
    path.write_text(
        """
        family: mbconv
        choices: {resolution: [16], stages.1.expansion: [2, 3]}
        fixed:
          {stem.width: 8, stem.kernel: 3, stem.stride: 2, stem.activation: relu, head.width: 16,
           activation: hardswish, kernel: 3, expansion: 1, stages.0.depth: 1, stages.0.width: 8,
           stages.0.stride: 1, stages.1.depth: 2, stages.1.width: 16, stages.1.stride: 2,
           stages.1.kernel: 5, stages.1.blocks.1.kernel: 7, stages.1.blocks.1.se: 0.25}
        """
    )
    levels = spaces.load_space(path)
    family = families.get("mbconv")
    family.check(levels)
    lowered = family.lower(levels, levels.largest(), task)
    ops = {node.name: node.op for node in lowered}
    kernels = [op.kernel for name, op in ops.items() if name.endswith("depthwise")]
    assert kernels == [3, 5, 7]
    assert ops["stem"].activation == "relu"
    assert ops["head"].activation == "hardswish"
    assert ops["stages.1.blocks.0.expand"].out_shape[0] == 8 * 3
    gates = [name for name, op in ops.items() if op.base == "mul"]
    assert gates == ["stages.1.blocks.1.se.scale"]


def test_unknown_family_is_refused() -> None:
    with pytest.raises(SpaceError, match="Did you mean 'mbconv'"):
        families.get("mbconf")


def test_widths_include_multiples_and_others_of_npu_blocks(
    small: SearchSpace,
) -> None:
    widths = {w for n, o in small.choices.items() if n.endswith(".width") for w in o}
    kinds = {16: 0, 8: 0, 1: 0}
    for width in widths:
        kinds[next(block for block in kinds if int(width) % block == 0)] += 1
    assert all(kinds.values())


def test_stride_two_occurs_on_even_and_odd_sizes(small: SearchSpace, task: Signature) -> None:
    family = families.get("mbconv")
    sizes = {
        node.op.in_shape[1] % 2
        for resolution in small.choices["resolution"]
        for node in family.lower(
            small,
            small.genotype(
                {**{n: o[0] for n, o in small.choices.items()}, "resolution": resolution}
            ),
            task,
        )
        if node.op.stride == 2
    }
    assert sizes == {0, 1}  # the contract compares their shapes with those of torch
