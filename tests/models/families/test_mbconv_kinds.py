"""Kinds of blocks beside inverted residuals, multipliers, and the spaces that have them."""

import random
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hwnas.core import package
from hwnas.core.errors import SpaceError
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.models import families, spaces
from hwnas.models.families.mbconv.lowering import dimensions, scale_width
from hwnas.models.graph import Signature, fuse, n_macs, n_params
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import trim_kernel, write_tflite
from hwnas.models.spaces import Genotype, Option, SearchSpace, closest
from hwnas.models.spaces.space import When
from tests.conftest import target
from tests.models.int8.networks import quantised
from tests.models.int8.qdq import oracle

HERE = Path(__file__).parent
MBCONV = families.get("mbconv")
TARGETS = ("npu", "ethos_u55_256", "ethos_u65_256", "ethos_u85_256")
BASELINES = sorted(package.entries(package.ROOT / "search_spaces" / "baselines"))
KINDS = ("inverted", "fused", "plain", "residual", "separable")


@pytest.fixture
def kinds() -> SearchSpace:
    return spaces.load_space(HERE / "kinds.yaml")


def _alone(**changes: Option) -> SearchSpace:
    """Return a space of one network of two stages of one block."""
    fixed: dict[str, Option] = {"resolution": 12, "kind": "plain", "kernel": 3, "expansion": 1}
    fixed |= {"activation": "relu", "stem.width": 16, "stem.kernel": 3, "stem.stride": 1}
    for stage in range(2):
        fixed |= {f"stages.{stage}.depth": 1, f"stages.{stage}.width": 16 << stage}
        fixed[f"stages.{stage}.stride"] = stage + 1
    fixed |= {"head.width": 0} | changes
    found = SearchSpace("alone", "mbconv", {}, fixed)
    MBCONV.check(found)
    return found


def _lowered(found: SearchSpace) -> dict[str, str]:
    nodes = MBCONV.lower(found, found.largest(), Signature(1, 10))
    return {node.name: str(node.op).removesuffix(" int8 b1") for node in nodes}


def test_residual_blocks_of_expansion_1_are_those_of_the_family_of_residual_networks() -> None:
    found = _alone(kind="residual")
    fixed = {name: v for name, v in found.fixed.items() if name not in ("kind", "head.width")}
    other = SearchSpace("alone", "resnet", {}, {**fixed, "block": "basic", "stem.pool": 0})
    theirs = families.get("resnet").lower(other, other.largest(), Signature(1, 10))
    assert [*_lowered(found).values()] == [str(n.op).removesuffix(" int8 b1") for n in theirs]


def test_sum_of_a_residual_block_becomes_part_of_its_last_convolution() -> None:
    found = _alone(kind="residual")
    nodes = {
        n.name: n for n in fuse(MBCONV.lower(found, found.largest(), Signature(1, 10)), "float32")
    }
    first, second = nodes["stages.0.blocks.0.second"], nodes["stages.1.blocks.0.second"]
    assert first.op.kind == second.op.kind == "conv2d+bn+add+relu"
    assert first.inputs[-1] == "stem"  # the shape is the same: no projection
    assert second.inputs[-1] == "stages.1.blocks.0.shortcut"


def test_operators_of_each_kind() -> None:
    separable = _lowered(_alone(kind="separable"))
    assert separable["stages.1.blocks.0.depthwise"] == "conv2d+bn+relu 16x12x12->16x6x6 k3 s2 g16"
    assert separable["stages.1.blocks.0.pointwise"] == "conv2d+bn+relu 16x6x6->32x6x6 k1 s1 g1"
    plain = _lowered(_alone(kind="plain"))
    assert plain["stages.1.blocks.0.conv"] == "conv2d+bn+relu 16x12x12->32x6x6 k3 s2 g1"
    wide = _lowered(_alone(kind="residual", expansion=2))
    assert wide["stages.1.blocks.0.first"] == "conv2d+bn+relu 16x12x12->64x6x6 k3 s2 g1"
    assert wide["stages.1.blocks.0.shortcut"] == "conv2d+bn 16x12x12->32x6x6 k1 s2 g1"
    assert wide["pool"] == "mean 32x6x6->32x1x1 k1 s1 g1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TARGETS)
def test_kinds_run_on_npus_and_on_nothing_else(kind: str, name: str) -> None:
    for expansion in (1, 2):
        found = _alone(kind=kind, expansion=expansion, se=0.25)
        lowered = MBCONV.lower(found, found.largest(), Signature(3, 10))
        cost = compile_tflite(
            write_tflite(random_int8_network(lowered)), lowered, target(name)
        ).cost
        assert {layer.placement for layer in cost.layers} == {"NPU"}
        assert cost.reason == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shipped", ["dense_small", "cpu_small"])
def test_random_networks_of_the_shipped_spaces_run_on_npus(shipped: str, name: str) -> None:
    found, rng = spaces.load_space(spaces.find(shipped)), random.Random(1)
    MBCONV.check(found)
    for genotype in [found.smallest(), *(found.sample(rng) for _ in range(8))]:
        lowered = MBCONV.lower(found, genotype, Signature(3, 10))
        cost = compile_tflite(
            write_tflite(random_int8_network(lowered)), lowered, target(name)
        ).cost
        assert cost.reason == ""
        pooling = [layer.macs for layer in cost.layers if layer.operator == "Mean"]
        computed = sum(trim_kernel(op).node.op.n_macs for op in random_int8_network(lowered).ops)
        assert sum(layer.macs for layer in cost.layers) - sum(pooling) == computed


@pytest.mark.parametrize("kind", KINDS)
def test_int8_of_each_kind_is_computed_as_onnxruntime_does(kind: str) -> None:
    found = _alone(kind=kind)
    _, lowered, network = quantised(found, found.largest(), Signature(1, 10))
    images = np.random.default_rng(0).normal(size=(20, 1, 12, 12)).astype(np.float32)
    difference = LiteRTSession(write_tflite(network)).run(images) - oracle(network)(images)
    assert np.abs(difference).max() / network.ops[-1].out.scale <= 1.001
    assert len(network.ops) == len(lowered)


def test_int8_of_hardswish_behind_a_sum_is_close_to_the_network() -> None:
    found = _alone(kind="residual", activation="hardswish")
    network, lowered, int8 = quantised(found, found.largest(), Signature(1, 10))
    assert {op.node.name for op in int8.ops if op.inner and op.node.op.base == "add"}
    images = torch.randn(20, *lowered[0].op.in_shape)
    with torch.no_grad():
        expected = network(images).numpy()
    assert np.corrcoef(oracle(int8)(images.numpy()).ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_a_few_networks_that_an_npu_runs(name: str) -> None:
    found = spaces.load_space(spaces.find(f"baselines/{name}"))
    MBCONV.check(found)
    assert 6 <= found.n_genotypes() <= 16
    sizes = []
    for genotype in (found.smallest(), found.largest()):
        lowered = MBCONV.lower(found, genotype, Signature(1, 10))
        cost = compile_tflite(
            write_tflite(random_int8_network(lowered)), lowered, target("npu")
        ).cost
        assert cost.reason == ""
        sizes.append((n_macs(lowered), cost.figures["latency_ms"].value))
    assert sizes[1][0] > 10 * sizes[0][0]
    assert sizes[1][1] > 10 * sizes[0][1]


def test_resnet_8_has_the_size_that_is_published() -> None:
    """MLPerf Tiny's has 78666 parameters before batch norm is folded, of images of three colours.

    Source: https://github.com/mlcommons/tiny, benchmark/training/image_classification.
    """
    found = spaces.load_space(spaces.find("baselines/resnet8"))
    options = {"resolution": 28, "width_multiplier": 1.0, "stem.stride": 1}
    lowered = MBCONV.lower(found, found.genotype(options), Signature(3, 10))
    scales = sum(node.op.out_shape[0] for node in lowered if "bn" in node.op.fused)
    assert n_params(lowered) + scales == pytest.approx(78666, rel=0.01)


def test_dense_small_holds_resnet_8_of_three_sizes() -> None:
    found = spaces.load_space(spaces.find("dense_small"))
    for width in (8, 16, 24, 32, 48):
        options: dict[str, Option] = {name: o[0] for name, o in found.choices.items()}
        options |= {name: "residual" for name in found.choices if name.endswith(".kind")}
        options |= {"stem.width": width, "stem.stride": 1, "stages.0.stride": 1}
        options |= {f"stages.{stage}.width": width << stage for stage in range(3)}
        blocks = dimensions(found, found.genotype(options)).blocks
        assert [block.c_mid for block in blocks] == [width, 2 * width, 4 * width]
        assert [block.residual for block in blocks] == [True, False, False]


@pytest.mark.parametrize(
    ("width", "multiplier", "expected"),
    [(16, 1, 16), (12, 1.0, 12), (0, 0.5, 0), (16, 0.25, 8), (24, 0.75, 24), (32, 0.75, 24)],
)
def test_widths_are_scaled_as_mobile_nets_are(width: int, multiplier: float, expected: int) -> None:
    """24 * 0.75 = 18 is nearest to 16, which is below nine tenths of it."""
    assert scale_width(width, multiplier) == expected


def test_multipliers_scale_all_widths_and_depths_of_a_network() -> None:
    found = spaces.load_space(HERE / "scaled.yaml")
    chosen = {"resolution": 12, "width_multiplier": 1.5, "depth_multiplier": 1.4}
    dims = dimensions(found, found.genotype(chosen))
    assert (dims.stem_width, dims.head.width, dims.head.features) == (24, 64, 72)
    assert [block.name for block in dims.blocks] == [
        f"stages.{stage}.blocks.{index}"
        for stage, depth in enumerate((2, 3))
        for index in range(depth)
    ]
    assert [block.c_out for block in dims.blocks] == [24, 24, 40, 40, 40]
    assert dims.blocks[-1].c_se == 24


def test_supernets_and_networks_cope_with_absent_choices(kinds: SearchSpace) -> None:
    torch.manual_seed(0)
    supernet = MBCONV.supernet(kinds, Signature(1, 10))
    plain: dict[str, Option] = {name: options[-1] for name, options in kinds.choices.items()}
    genotype = kinds.genotype({**plain, "stages.0.blocks.0.kind": "plain"})
    assert "stages.0.blocks.0.expansion" not in genotype.to_dict()
    images = torch.randn(2, 1, 11, 11)
    supernet.module.eval()
    with torch.no_grad():
        found = supernet.extract(genotype)(images)
        assert torch.equal(found, supernet.forward(images, genotype))


@pytest.mark.parametrize(
    ("key", "value"), [("kernel", 5), ("expansion", 4), ("kind", "fused"), ("activation", "relu6")]
)
def test_blocks_that_a_multiplier_adds_are_like_those_of_their_stage(
    key: str, value: Option
) -> None:
    fixed = {**_alone().fixed, "stem.activation": "relu", "head.activation": "relu"}
    fixed |= {"kind": "inverted", "stages.0.depth": 2, "stages.0.blocks.0." + key: value}
    found = SearchSpace("alone", "mbconv", {}, {**fixed, "depth_multiplier": 1.5})
    MBCONV.check(found)
    blocks = dimensions(found, found.largest()).blocks
    assert [getattr(block, key) == value for block in blocks] == [True, False, False, False, False]
    del fixed[key]
    fixed |= {f"stages.{stage}.blocks.{index}.{key}": value for stage, index in ((0, 1), (1, 0))}
    MBCONV.check(SearchSpace("alone", "mbconv", {}, {**fixed, "depth_multiplier": 1.0}))
    with pytest.raises(SpaceError, match=rf"'stages.0.blocks.0.{key}' must not be of one block"):
        MBCONV.check(SearchSpace("alone", "mbconv", {}, {**fixed, "depth_multiplier": 1.5}))


def _some_kinds(fixed: dict[str, Option], **choices: tuple[Option, ...]) -> SearchSpace:
    """Return a space where the kernel of the first stage counts for separable blocks alone."""
    kinds = {f"stages.{stage}.blocks.0.kind": KINDS for stage in range(2)}
    chosen = {**kinds, "stages.0.blocks.0.kernel": (3, 7), **choices}
    base = {n: v for n, v in _alone().fixed.items() if n not in ("kind", "kernel", *chosen)}
    when = {"kernel": {"kind": ("separable",)}}
    return SearchSpace("some", "mbconv", chosen, {**base, **fixed}, when)


def _check_subnet(found: SearchSpace, genotype: Genotype) -> None:
    """Check that shared weights are those of a network as it is built."""
    torch.manual_seed(0)
    supernet = MBCONV.supernet(found, Signature(1, 10))
    extracted, images = supernet.extract(genotype), torch.randn(2, 1, 12, 12)
    built = MBCONV.build(found, genotype, Signature(1, 10))
    shapes = [{n: t.shape for n, t in m.state_dict().items()} for m in (extracted, built)]
    assert shapes[0] == shapes[1]
    torch.testing.assert_close(extracted(images), supernet.forward(images, genotype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("found", "kernels"),
    [
        (_some_kinds({"stages.1.kernel": 5}), (3, 5)),
        (_some_kinds({"kernel": 5}), (5, 5)),
        (_some_kinds({}, kernel=(5, 9)), (9, 9)),
    ],
)
def test_weights_are_shared_for_the_kernels_that_a_kind_has(
    found: SearchSpace, kernels: tuple[int, int], kind: str
) -> None:
    MBCONV.check(found)
    largest = {name: options[-1] for name, options in found.choices.items()}
    genotype = found.genotype({**largest, **{n: kind for n in largest if n.endswith(".kind")}})
    dims = dimensions(found, genotype)
    first = 7 if kind == "separable" else kernels[0]
    assert [block.kernel for block in dims.blocks] == [first, kernels[1]]
    _check_subnet(found, genotype)


@pytest.mark.parametrize("kind", ["inverted", "fused", "residual"])
@pytest.mark.parametrize(("key", "value"), [("expansion", 4), ("se", 0.5)])
def test_weights_are_shared_for_what_counts_where_a_choice_does_not(
    key: str, value: Option, kind: str
) -> None:
    choices: dict[str, tuple[Option, ...]] = {"stages.0.blocks.0.kind": ("inverted", kind)}
    choices[f"stages.0.blocks.0.{key}"] = {"expansion": (1, 2), "se": (0, 0.25)}[key]
    fixed = {**_alone(kind="inverted", expansion=2).fixed, key: value}
    found = SearchSpace("some", "mbconv", choices, fixed, {key: {"kind": ("inverted",)}})
    MBCONV.check(found)
    _check_subnet(found, found.genotype({n: options[-1] for n, options in choices.items()}))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"when": {}}, "'stages.0.blocks.0.expansion' has no effect if .* is plain; add when"),
        (
            {"when": {"expansion": {"kind": ["fused", "plain"]}}},
            "change the condition of 'expansion' to when",
        ),
        (
            {"when": {"foo": {"kind": ["plain"]}}, "choices": {"stages.1.foo": [1, 2]}},
            "Unknown name",
        ),
        ({"fixed": {"kind": "residual"}}, "'stem.kernel' would have no effect"),
        ({"when": {"width": {"kind": ["plain"]}}}, "'width', which family 'mbconv' always needs"),
        ({"fixed": {"head.features": 8}}, "'head.features' needs a 'head.width' above 0"),
        ({"fixed": {"depth_multiplier": 1.0}}, "must not be of one block"),
        ({"fixed": {"width_multiplier": "wide"}}, "numbers above 0"),
    ],
)
def test_space_with_choices_without_effect_is_refused(
    tmp_path: Path, parts: dict[str, Any], message: str
) -> None:
    raw = yaml.safe_load((HERE / "kinds.yaml").read_text())
    raw["fixed"] = {**raw["fixed"], **parts.get("fixed", {})}
    raw["choices"] = {**raw["choices"], **parts.get("choices", {})}
    raw["when"] = parts.get("when", raw["when"])
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SpaceError, match=message) as error:
        MBCONV.check(spaces.load_space(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("when", [{}, {"expansion": {"kind": ["residual", "plain", "inverted"]}}])
def test_recommended_condition_is_accepted(tmp_path: Path, when: dict[str, Any]) -> None:
    raw = yaml.safe_load((HERE / "kinds.yaml").read_text())
    raw["choices"] |= {"stages.0.blocks.0.kind": ["residual", "plain"]}
    raw["choices"] |= {"stages.1.kind": ["separable", "inverted"]}
    del raw["choices"]["stages.0.blocks.0.se"]
    raw["when"] = when
    path = tmp_path / "kinds.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SpaceError) as error:
        MBCONV.check(spaces.load_space(path))
    (condition,) = re.findall(r"when: ({.*})", str(error.value))
    assert condition == "{expansion: {kind: [inverted, residual]}}"
    path.write_text(yaml.safe_dump({**raw, "when": yaml.safe_load(condition)}))
    MBCONV.check(spaces.load_space(path))


@pytest.mark.parametrize(
    ("fixed", "choices", "message"),
    [
        (
            {"kind": "plain"},
            {"expansion": (1, 2)},
            "'expansion' has no effect: no block .* fused or",
        ),
        ({"kind": "separable"}, {"se": (0.0, 0.25)}, "'se' has no effect: no block to which it"),
        (
            {"stages.0.blocks.0.kind": "plain", "kind": "fused"},
            {"stages.0.blocks.0.expansion": (1, 2)},
            "'stages.0.blocks.0.expansion' has no effect: no block to which it",
        ),
        ({"stages.0.kind": "plain"}, {"stages.0.se": (0.0, 0.5)}, "'stages.0.se' has no effect"),
        ({}, {"head.activation": ("relu", "relu6")}, "no effect if 'head.width' is 0"),
        ({"head.width": 8}, {"head.activation": ("relu", "relu6")}, ""),
        ({"stages.0.blocks.0.kind": "fused"}, {"expansion": (1, 2)}, ""),
    ],
)
def test_choice_that_no_block_reads_is_refused(
    fixed: dict[str, Option], choices: dict[str, tuple[Option, ...]], message: str
) -> None:
    said = {name: value for name, value in _alone().fixed.items() if name not in choices}
    found = SearchSpace("alone", "mbconv", choices, {**said, **fixed})
    if not message:
        return MBCONV.check(found)
    with pytest.raises(SpaceError, match=message) as error:
        MBCONV.check(found)
    assert "\n" not in str(error.value)


_PLACES = ("", "stages.0.", "stages.0.blocks.0.")
_SAID = (None, "plain", "fused", ("plain", "fused"))  # of a kind: nothing, one, or a choice


def _nested(kinds: Sequence[Any], place: str, when: When) -> SearchSpace:
    """Return a space of two blocks, with a choice of their expansion, and kinds at any place."""
    choices: dict[str, tuple[Option, ...]] = {f"{place}expansion": (1, 2)}
    fixed = {n: v for n, v in _alone().fixed.items() if n != "kind" and n not in choices}
    fixed |= {"stages.0.depth": 2, "stages.1.kind": "plain"}
    for where, said in zip(_PLACES, kinds, strict=True):
        choices |= {f"{where}kind": said} if isinstance(said, tuple) else {}
        fixed |= {f"{where}kind": said} if isinstance(said, str) else {}
    return SearchSpace("nested", "mbconv", choices, fixed, when)


def _idle(found: SearchSpace, name: str) -> list[Option]:
    """Return with which options of the kind closest to a choice it changes no network."""
    of, changed = closest(found.choices, name.rpartition(".")[0], "kind"), dict[Option, bool]()
    for row in product(*found.choices.values()):
        said = found.genotype(dict(zip(found.choices, row, strict=True))).to_dict()
        if name in said and of in said:
            one, other = (found.genotype({**said, name: option}) for option in (1, 2))
            changes = any(
                a.kind != "plain" and a != b
                for a, b in zip(*(dimensions(found, g).blocks for g in (one, other)), strict=True)
            )
            changed[said[of]] = changes or changed.get(said[of], False)
    return [option for option, changes in changed.items() if not changes]


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("when", [{}, {"expansion": {"kind": ("fused",)}}])
def test_choice_is_refused_exactly_where_it_changes_no_network(place: str, when: When) -> None:
    refused, name = set(), f"{place}expansion"
    for kinds in product(_SAID, repeat=3):
        found, why = _nested(kinds, place, when), ""
        try:
            MBCONV.check(found)
        except SpaceError as error:
            why = str(error)
        if why and "no effect if" not in why:
            continue  # of a name that nothing reads
        idle = _idle(found, name)
        assert bool(why) == bool(idle), (kinds, why, idle)
        assert all(f"'{name}' has no effect if" in why for _ in idle)
        refused |= {bool(idle)}
    assert refused == ({False} if when else {True, False})
