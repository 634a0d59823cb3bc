from dataclasses import replace
from typing import Any

import pytest

from hwnas.core.errors import ConfigError, SpaceError
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.memory import weight_bytes
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.graph import Graph, Signature
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.spaces import Option, SearchSpace
from hwnas.workflows.networks import Networks
from tests.conftest import target


def _shipped(name: str) -> SearchSpace:
    return spaces.load_space(spaces.find(name))


def _with(space: SearchSpace, **options: Any) -> SearchSpace:
    """Return a space with more options: tuples are choices, ``_`` in names means a dot."""
    choices, fixed = dict(space.choices), dict(space.fixed)
    for name, value in options.items():
        key = "bits" if name.endswith("bits") else "sparsity"
        place = name.removesuffix(key).replace("_", ".")
        if isinstance(value, tuple):
            choices[f"{place}weight_{key}"] = value
        else:
            fixed[f"{place}weight_{key}"] = value
    return replace(space, choices=choices, fixed=fixed)


def _lowered(space: SearchSpace, task: Signature, **options: Option) -> Graph:
    family = families.family_of(space)
    largest = {name: values[-1] for name, values in space.choices.items()}
    return annotations.lower(family, space, space.genotype({**largest, **options}), task)


def _bits(lowered: Graph) -> dict[str, int]:
    return {node.name: node.weight_bits for node in lowered}


def test_closest_option_applies(tiny: SearchSpace, task: Signature) -> None:
    space = _with(tiny, bits=(4, 8), stages_0_blocks_1_bits=5, classifier_bits=6)
    block = "stages.0.blocks"
    assert _bits(_lowered(space, task, weight_bits=4)) == {
        "stem": 4,
        f"{block}.0.expand": 4, f"{block}.0.depthwise": 8, f"{block}.0.project": 4,
        f"{block}.1.expand": 5, f"{block}.1.depthwise": 8, f"{block}.1.project": 5,
        f"{block}.1.add": 8, "head": 4, "pool": 8, "classifier": 6,
    }  # fmt: skip


def test_sparsity_requires_four_input_channels(tiny: SearchSpace, task: Signature) -> None:
    space = _with(tiny, sparsity=("dense", "2:4"), classifier_sparsity="dense", bits=4)
    packing = {n.name: (n.weight_bits, n.is_sparse) for n in _lowered(space, task)}
    sparse = {name for name, (_, is_sparse) in packing.items() if is_sparse}
    assert sparse == {
        *(f"stages.0.blocks.{i}.{part}" for i in (0, 1) for part in ("expand", "project")),
        "head",
    }
    assert packing["stem"] == (4, False), "one input channel"
    assert packing["stages.0.blocks.0.depthwise"] == (8, False)
    assert not any(n.is_sparse for n in _lowered(space, task, weight_sparsity="dense"))


def test_option_of_stage_applies_to_its_blocks(tiny: SearchSpace, task: Signature) -> None:
    result = _bits(_lowered(_with(tiny, stages_0_bits=(3, 4)), task))
    assert result["stages.0.blocks.1.project"] == 4
    assert result["stem"] == result["head"] == 8


def test_bits_of_absent_block_have_no_effect(tiny: SearchSpace) -> None:
    space = _with(tiny, stages_0_blocks_1_bits=(4, 8))
    assignment = {name: options[0] for name, options in space.choices.items()}
    name = "stages.0.blocks.1.weight_bits"
    assert space.genotype({**assignment, name: 4}).id == space.genotype({**assignment, name: 8}).id


@pytest.mark.parametrize("name", ["tiny", "resnet_small", "vit_small"])
def test_network_without_bits_is_unchanged(name: str, task: Signature) -> None:
    space = _shipped(name)
    family, largest = families.family_of(space), space.largest()
    assert annotations.lower(family, space, largest, task) == family.lower(space, largest, task)
    bits = {n.weight_bits for n in _lowered(_with(space, bits=5), task) if n.op.weight_shape}
    assert bits <= {5, 8}
    assert 5 in bits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": (2, 4)}, "'weight_bits' is 2; allowed: whole numbers from 3 to 8"),
        ({"bits": 4.5}, "'weight_bits' is 4.5; allowed"),
        ({"bits": "few"}, "'weight_bits' is few; allowed"),
        (
            {"sparsity": ("dense", 124)},
            r"'weight_sparsity' is 124; allowed: dense and '2:4'",
        ),
        ({"stem_sparsity": "2:4"}, "Unknown name 'stem.weight_sparsity'"),
        ({"stages_7_bits": 4}, "Unknown name 'stages.7.weight_bits'"),
        ({"tail_bits": 4}, "Unknown name 'tail.weight_bits'"),
        (
            {"stages_0_bits": 4, "stages_0_blocks_0_bits": 5, "stages_0_blocks_1_bits": 5},
            "'stages.0.weight_bits' has no effect",
        ),
    ],
)
def test_invalid_bits_and_sparsity_are_refused(
    tiny: SearchSpace, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpaceError, match=message) as error:
        families.family_of(_with(tiny, **options))
    assert "\n" not in str(error.value)


def test_vela_needs_less_flash_for_fewer_bits(npu: Target, task: Signature) -> None:
    space = _shipped("dense_packed")
    nets = [_lowered(space, task, weight_bits=bits) for bits in (3, 4, 5, 8)]
    costs = [
        compile_tflite(write_tflite(random_int8_network(net)), net, npu).cost.figures
        for net in nets
    ]
    flash = [cost["flash_kib"].value for cost in costs]
    assert flash == sorted(flash)
    assert flash[1] < 0.55 * flash[3]
    assert costs[1]["latency_ms"].value <= costs[3]["latency_ms"].value
    files = [write_tflite(random_int8_network(net)) for net in nets]
    assert len({len(content) for content in files}) == 1  # all files store int8


def test_vela_needs_less_flash_for_sparse_weights(npu: Target, task: Signature) -> None:
    space = _with(_shipped("dense_packed"), sparsity=("dense", "2:4"))
    for bits in (4, 8):
        dense, sparse = (
            _lowered(space, task, weight_bits=bits, weight_sparsity=kind)
            for kind in ("dense", "2:4")
        )
        dense_figures, sparse_figures = (
            compile_tflite(write_tflite(random_int8_network(net)), net, npu).cost.figures
            for net in (dense, sparse)
        )
        assert sparse_figures["flash_kib"].value < 0.9 * dense_figures["flash_kib"].value
        assert sparse_figures["latency_ms"].value <= dense_figures["latency_ms"].value
        assert weight_bytes(sparse) < 0.9 * weight_bytes(dense)


@pytest.mark.parametrize("name", ["cpu", "sketch", "raspi4"])
@pytest.mark.parametrize("key", ["bits", "sparsity"])
def test_targets_without_packing_refuse_bits_and_sparsity(
    name: str, key: str, tiny: SearchSpace, task: Signature
) -> None:
    space = _with(tiny, **{key: 4 if key == "bits" else "2:4"})
    message = rf"'weight_{key}', which has no benefit on .*=vela\."
    with pytest.raises(ConfigError, match=message):
        Networks(target(name), space, {space.name: families.family_of(space)}, task)
