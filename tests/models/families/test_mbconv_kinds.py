"""Kinds of blocks other than inverted residuals, multipliers, and their spaces."""

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
from hwnas.models.families.mbconv.lowering import KIND_OPTIONS, dimensions, scale_width
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


def _single_network(**changes: Option) -> SearchSpace:
    """Return a space of one network: two stages of one block each."""
    fixed: dict[str, Option] = {"resolution": 12, "kind": "plain", "kernel": 3, "expansion": 1}
    fixed |= {"activation": "relu", "stem.width": 16, "stem.kernel": 3, "stem.stride": 1}
    for stage in range(2):
        fixed |= {f"stages.{stage}.depth": 1, f"stages.{stage}.width": 16 << stage}
        fixed[f"stages.{stage}.stride"] = stage + 1
    fixed |= {"head.width": 0} | changes
    space = SearchSpace("alone", "mbconv", {}, fixed)
    MBCONV.check(space)
    return space


def _lowered(space: SearchSpace) -> dict[str, str]:
    nodes = MBCONV.lower(space, space.largest(), Signature(1, 10))
    return {node.name: str(node.op).removesuffix(" int8 b1") for node in nodes}


def test_residual_blocks_match_resnet_family() -> None:
    space = _single_network(kind="residual")
    fixed = {name: v for name, v in space.fixed.items() if name not in ("kind", "head.width")}
    other = SearchSpace("alone", "resnet", {}, {**fixed, "block": "basic", "stem.pool": 0})
    resnet_nodes = families.get("resnet").lower(other, other.largest(), Signature(1, 10))
    assert [*_lowered(space).values()] == [str(n.op).removesuffix(" int8 b1") for n in resnet_nodes]


def test_residual_sum_is_fused_into_last_convolution() -> None:
    space = _single_network(kind="residual")
    nodes = {
        n.name: n for n in fuse(MBCONV.lower(space, space.largest(), Signature(1, 10)), "float32")
    }
    first, second = nodes["stages.0.blocks.0.second"], nodes["stages.1.blocks.0.second"]
    assert first.op.kind == second.op.kind == "conv2d+bn+add+relu"
    assert first.inputs[-1] == "stem"  # equal shapes: no projection
    assert second.inputs[-1] == "stages.1.blocks.0.shortcut"


def test_operators_of_each_kind() -> None:
    separable = _lowered(_single_network(kind="separable"))
    assert separable["stages.1.blocks.0.depthwise"] == "conv2d+bn+relu 16x12x12->16x6x6 k3 s2 g16"
    assert separable["stages.1.blocks.0.pointwise"] == "conv2d+bn+relu 16x6x6->32x6x6 k1 s1 g1"
    plain = _lowered(_single_network(kind="plain"))
    assert plain["stages.1.blocks.0.conv"] == "conv2d+bn+relu 16x12x12->32x6x6 k3 s2 g1"
    wide = _lowered(_single_network(kind="residual", expansion=2))
    assert wide["stages.1.blocks.0.first"] == "conv2d+bn+relu 16x12x12->64x6x6 k3 s2 g1"
    assert wide["stages.1.blocks.0.shortcut"] == "conv2d+bn 16x12x12->32x6x6 k1 s2 g1"
    assert wide["pool"] == "mean 32x6x6->32x1x1 k1 s1 g1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TARGETS)
def test_kinds_run_entirely_on_npus(kind: str, name: str) -> None:
    for expansion in (1, 2):
        more: dict[str, Option] = {"se": 0.25} if "se" in KIND_OPTIONS[kind] else {}
        space = _single_network(kind=kind, expansion=expansion, **more)
        lowered = MBCONV.lower(space, space.largest(), Signature(3, 10))
        cost = compile_tflite(
            write_tflite(random_int8_network(lowered)), lowered, target(name)
        ).cost
        assert {layer.placement for layer in cost.layers} == {"NPU"}
        assert cost.reason == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shipped", ["dense_small", "cpu_small"])
def test_random_networks_of_shipped_spaces_run_on_npus(shipped: str, name: str) -> None:
    space, rng = spaces.load_space(spaces.find(shipped)), random.Random(1)
    MBCONV.check(space)
    for genotype in [space.smallest(), *(space.sample(rng) for _ in range(8))]:
        lowered = MBCONV.lower(space, genotype, Signature(3, 10))
        cost = compile_tflite(
            write_tflite(random_int8_network(lowered)), lowered, target(name)
        ).cost
        assert cost.reason == ""
        pooling = [layer.macs for layer in cost.layers if layer.operator == "Mean"]
        computed = sum(trim_kernel(op).node.op.n_macs for op in random_int8_network(lowered).ops)
        assert sum(layer.macs for layer in cost.layers) - sum(pooling) == computed


@pytest.mark.parametrize("kind", KINDS)
def test_int8_outputs_of_each_kind_match_onnxruntime(kind: str) -> None:
    space = _single_network(kind=kind)
    _, lowered, network = quantised(space, space.largest(), Signature(1, 10))
    images = np.random.default_rng(0).normal(size=(20, 1, 12, 12)).astype(np.float32)
    difference = LiteRTSession(write_tflite(network)).run(images) - oracle(network)(images)
    assert np.abs(difference).max() / network.ops[-1].out.scale <= 1.001
    assert len(network.ops) == len(lowered)


def test_int8_hardswish_after_sum_is_accurate() -> None:
    space = _single_network(kind="residual", activation="hardswish")
    network, lowered, int8 = quantised(space, space.largest(), Signature(1, 10))
    assert {op.node.name for op in int8.ops if op.inner and op.node.op.base == "add"}
    images = torch.randn(20, *lowered[0].op.in_shape)
    with torch.no_grad():
        expected = network(images).numpy()
    assert np.corrcoef(oracle(int8)(images.numpy()).ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_run_on_npu(name: str) -> None:
    space = spaces.load_space(spaces.find(f"baselines/{name}"))
    MBCONV.check(space)
    assert 6 <= space.n_genotypes() <= 16
    sizes = []
    for genotype in (space.smallest(), space.largest()):
        lowered = MBCONV.lower(space, genotype, Signature(1, 10))
        cost = compile_tflite(
            write_tflite(random_int8_network(lowered)), lowered, target("npu")
        ).cost
        assert cost.reason == ""
        sizes.append((n_macs(lowered), cost.figures["latency_ms"].value))
    assert sizes[1][0] > 10 * sizes[0][0]
    assert sizes[1][1] > 10 * sizes[0][1]


def test_resnet_8_has_published_size() -> None:
    """MLPerf Tiny: 78666 parameters before folding of batch norm, for three channels.

    Source: https://github.com/mlcommons/tiny, benchmark/training/image_classification.
    """
    space = spaces.load_space(spaces.find("baselines/resnet8"))
    options = {"resolution": 28, "width_multiplier": 1.0, "stem.stride": 1}
    lowered = MBCONV.lower(space, space.genotype(options), Signature(3, 10))
    scales = sum(node.op.out_shape[0] for node in lowered if "bn" in node.op.fused)
    assert n_params(lowered) + scales == pytest.approx(78666, rel=0.01)


def test_dense_small_contains_resnet_8_of_five_widths() -> None:
    space = spaces.load_space(spaces.find("dense_small"))
    for width in (8, 16, 24, 32, 48):
        options: dict[str, Option] = {name: o[0] for name, o in space.choices.items()}
        options |= {name: "residual" for name in space.choices if name.endswith(".kind")}
        options |= {"stem.width": width, "stem.stride": 1, "stages.0.stride": 1}
        options |= {f"stages.{stage}.width": width << stage for stage in range(3)}
        blocks = dimensions(space, space.genotype(options)).blocks
        assert [block.c_mid for block in blocks] == [width, 2 * width, 4 * width]
        assert [block.residual for block in blocks] == [True, False, False]


@pytest.mark.parametrize(
    ("width", "multiplier", "expected"),
    [
        (16, 1, 16), (12, 1.0, 12), (0, 0.5, 0), (16, 0.25, 8), (24, 0.75, 24), (32, 0.75, 24),
        (12, 0.75, 12), (4, 0.5, 4), (17, 1.02, 17),
    ],
)  # fmt: skip
def test_widths_are_scaled_as_in_mobilenet(width: int, multiplier: float, expected: int) -> None:
    """24 * 0.75 = 18 is rounded up to 24: 16 would be less than 90 % of it.

    12 * 0.75 = 9 would become 16, which a supernet of width 12 does not have.
    """
    assert scale_width(width, multiplier) == expected


def test_multipliers_scale_all_widths_and_depths() -> None:
    space = spaces.load_space(HERE / "scaled.yaml")
    chosen = {"resolution": 12, "width_multiplier": 1.5, "depth_multiplier": 1.4}
    dims = dimensions(space, space.genotype(chosen))
    assert (dims.stem_width, dims.head.width, dims.head.features) == (24, 64, 72)
    assert [block.name for block in dims.blocks] == [
        f"stages.{stage}.blocks.{index}"
        for stage, depth in enumerate((2, 3))
        for index in range(depth)
    ]
    assert [block.c_out for block in dims.blocks] == [24, 24, 40, 40, 40]
    assert dims.blocks[-1].c_se == 24


def test_supernet_supports_absent_choices(kinds: SearchSpace) -> None:
    torch.manual_seed(0)
    supernet = MBCONV.supernet(kinds, Signature(1, 10))
    plain: dict[str, Option] = {name: options[-1] for name, options in kinds.choices.items()}
    genotype = kinds.genotype({**plain, "stages.0.blocks.0.kind": "plain"})
    assert "stages.0.blocks.0.expansion" not in genotype.to_dict()
    images = torch.randn(2, 1, 11, 11)
    supernet.module.eval()
    with torch.no_grad():
        outputs = supernet.extract(genotype)(images)
        assert torch.equal(outputs, supernet.forward(images, genotype))


@pytest.mark.parametrize(
    ("key", "value"), [("kernel", 5), ("expansion", 4), ("kind", "fused"), ("activation", "relu6")]
)
def test_blocks_added_by_multiplier_equal_those_of_stage(key: str, value: Option) -> None:
    fixed = {**_single_network().fixed, "stem.activation": "relu", "head.activation": "relu"}
    fixed |= {"kind": "inverted", "stages.0.depth": 2, "stages.0.blocks.0." + key: value}
    space = SearchSpace("alone", "mbconv", {}, {**fixed, "depth_multiplier": 1.5})
    MBCONV.check(space)
    blocks = dimensions(space, space.largest()).blocks
    assert [getattr(block, key) == value for block in blocks] == [True, False, False, False, False]
    del fixed[key]
    fixed |= {f"stages.{stage}.blocks.{index}.{key}": value for stage, index in ((0, 1), (1, 0))}
    MBCONV.check(SearchSpace("alone", "mbconv", {}, {**fixed, "depth_multiplier": 1.0}))
    with pytest.raises(SpaceError, match=rf"'stages.0.blocks.0.{key}' must not be of one block"):
        MBCONV.check(SearchSpace("alone", "mbconv", {}, {**fixed, "depth_multiplier": 1.5}))


def _space_with_kinds(fixed: dict[str, Option], **choices: tuple[Option, ...]) -> SearchSpace:
    """Return a space where the kernel of the first stage applies to separable blocks only."""
    kinds = {f"stages.{stage}.blocks.0.kind": KINDS for stage in range(2)}
    chosen = {**kinds, "stages.0.blocks.0.kernel": (3, 7), **choices}
    base = {
        n: v for n, v in _single_network().fixed.items() if n not in ("kind", "kernel", *chosen)
    }
    when = {"kernel": {"kind": ("separable",)}}
    return SearchSpace("some", "mbconv", chosen, {**base, **fixed}, when)


def _check_subnet(space: SearchSpace, genotype: Genotype) -> None:
    """Check that an extracted network equals a built one in shapes and outputs."""
    torch.manual_seed(0)
    supernet = MBCONV.supernet(space, Signature(1, 10))
    extracted, images = supernet.extract(genotype), torch.randn(2, 1, 12, 12)
    built = MBCONV.build(space, genotype, Signature(1, 10))
    shapes = [{n: t.shape for n, t in m.state_dict().items()} for m in (extracted, built)]
    assert shapes[0] == shapes[1]
    torch.testing.assert_close(extracted(images), supernet.forward(images, genotype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("space", "kernels"),
    [
        (_space_with_kinds({"stages.1.kernel": 5}), (3, 5)),
        (_space_with_kinds({"kernel": 5}), (5, 5)),
        (_space_with_kinds({}, kernel=(5, 9)), (9, 9)),
    ],
)
def test_shared_weights_have_kernels_of_kind(
    space: SearchSpace, kernels: tuple[int, int], kind: str
) -> None:
    MBCONV.check(space)
    largest = {name: options[-1] for name, options in space.choices.items()}
    genotype = space.genotype({**largest, **{n: kind for n in largest if n.endswith(".kind")}})
    dims = dimensions(space, genotype)
    first = 7 if kind == "separable" else kernels[0]
    assert [block.kernel for block in dims.blocks] == [first, kernels[1]]
    _check_subnet(space, genotype)


@pytest.mark.parametrize("kind", ["inverted", "fused", "residual"])
@pytest.mark.parametrize(("key", "value"), [("expansion", 4), ("se", 0.5)])
def test_shared_weights_use_fixed_value_of_inactive_choice(
    key: str, value: Option, kind: str
) -> None:
    choices: dict[str, tuple[Option, ...]] = {"stages.0.blocks.0.kind": ("inverted", kind)}
    choices[f"stages.0.blocks.0.{key}"] = {"expansion": (1, 2), "se": (0, 0.25)}[key]
    fixed = {**_single_network(kind="inverted", expansion=2).fixed, key: value}
    space = SearchSpace("some", "mbconv", choices, fixed, {key: {"kind": ("inverted",)}})
    MBCONV.check(space)
    _check_subnet(space, space.genotype({n: options[-1] for n, options in choices.items()}))


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
def test_choices_without_effect_are_refused(
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
def test_choice_without_matching_block_is_refused(
    fixed: dict[str, Option], choices: dict[str, tuple[Option, ...]], message: str
) -> None:
    defaults = {
        name: value for name, value in _single_network().fixed.items() if name not in choices
    }
    space = SearchSpace("alone", "mbconv", choices, {**defaults, **fixed})
    if not message:
        return MBCONV.check(space)
    with pytest.raises(SpaceError, match=message) as error:
        MBCONV.check(space)
    assert "\n" not in str(error.value)


_PLACES = ("", "stages.0.", "stages.0.blocks.0.")
_KIND_VALUES = (None, "plain", "fused", ("plain", "fused"))  # of a kind: none, fixed or a choice


def _nested(kinds: Sequence[Any], place: str, when: When) -> SearchSpace:
    """Return a space of two blocks with a choice of expansion, and kinds at each level."""
    choices: dict[str, tuple[Option, ...]] = {f"{place}expansion": (1, 2)}
    fixed = {n: v for n, v in _single_network().fixed.items() if n != "kind" and n not in choices}
    fixed |= {"stages.0.depth": 2, "stages.1.kind": "plain"}
    for prefix, value in zip(_PLACES, kinds, strict=True):
        choices |= {f"{prefix}kind": value} if isinstance(value, tuple) else {}
        fixed |= {f"{prefix}kind": value} if isinstance(value, str) else {}
    return SearchSpace("nested", "mbconv", choices, fixed, when)


def _kinds_without_effect(space: SearchSpace, name: str) -> list[Option]:
    """Return the options of the closest kind with which a choice changes no network."""
    kind_name, changed = (
        closest(space.choices, name.rpartition(".")[0], "kind"),
        dict[Option, bool](),
    )
    for row in product(*space.choices.values()):
        assignment = space.genotype(dict(zip(space.choices, row, strict=True))).to_dict()
        if name in assignment and kind_name in assignment:
            first, second = (space.genotype({**assignment, name: option}) for option in (1, 2))
            changes = any(
                a.kind != "plain" and a != b
                for a, b in zip(
                    *(dimensions(space, g).blocks for g in (first, second)), strict=True
                )
            )
            changed[assignment[kind_name]] = changes or changed.get(assignment[kind_name], False)
    return [option for option, changes in changed.items() if not changes]


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("when", [{}, {"expansion": {"kind": ("fused",)}}])
def test_choice_is_refused_exactly_if_without_effect(place: str, when: When) -> None:
    refused, name = set(), f"{place}expansion"
    for kinds in product(_KIND_VALUES, repeat=3):
        space, message = _nested(kinds, place, when), ""
        try:
            MBCONV.check(space)
        except SpaceError as error:
            message = str(error)
        if message and "no effect if" not in message:
            continue  # a name that no block reads
        without_effect = _kinds_without_effect(space, name)
        assert bool(message) == bool(without_effect), (kinds, message, without_effect)
        assert all(f"'{name}' has no effect if" in message for _ in without_effect)
        refused |= {bool(without_effect)}
    assert refused == ({False} if when else {True, False})
