from dataclasses import replace
from typing import Any

import pytest

from hwnas.core.errors import ConfigError, SpaceError
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Option, SearchSpace
from hwnas.workflows.networks import Networks
from tests.conftest import target

WHEN = {"float_edges": {"precision": ("int8",)}}
BOTH: dict[str, tuple[Option, ...]] = {"precision": ("float32", "int8"), "float_edges": (0, 1)}
ORT = replace(target("cpu"), runtime="onnxruntime")


def with_precision(space: SearchSpace, **options_by_name: Any) -> SearchSpace:
    """Return a space with more options; tuples are choices."""
    choices = {n: options for n, options in options_by_name.items() if isinstance(options, tuple)}
    fixed = {n: value for n, value in options_by_name.items() if n not in choices and n != "when"}
    return replace(
        space,
        choices={**space.choices, **choices},
        fixed={**space.fixed, **fixed},
        when={**space.when, **options_by_name.get("when", {})},
    )


def _lowered(space: SearchSpace, task: Signature, **options: Option) -> Graph:
    largest = {name: values[-1] for name, values in space.choices.items()}
    genotype = space.genotype({**largest, **options})
    return annotations.lower(families.family_of(space), space, genotype, task)


@pytest.fixture
def space(tiny: SearchSpace) -> SearchSpace:
    return with_precision(tiny, **BOTH, when=WHEN)


@pytest.mark.parametrize("name", ["tiny", "resnet_small", "vit_small"])
def test_network_without_precision_is_unchanged(name: str, task: Signature) -> None:
    space = spaces.load_space(spaces.find(name))
    family, largest = families.family_of(space), space.largest()
    assert annotations.lower(family, space, largest, task) == family.lower(space, largest, task)


def test_precision_of_network_overrides_target(space: SearchSpace, task: Signature) -> None:
    for device in (ORT, replace(ORT, dtype="int8")):
        for dtype in ("float32", "int8"):
            run = fused_graph(_lowered(space, task, precision=dtype, float_edges=0), device)
            assert {node.op.dtype for node in run} == {dtype}
    fixed = _lowered(with_precision(space, precision="int8"), task)
    assert fixed.dtype == "int8"


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("tiny", {"stem", "pool", "classifier"}),
        ("resnet_small", {"stem", "pool", "classifier"}),
        ("ofa_mobilenet_v3", {"stem", "pool", "features", "classifier"}),
    ],
)
def test_float_edges_are_float32(name: str, edges: set[str], task: Signature) -> None:
    annotated = with_precision(spaces.load_space(spaces.find(name)), **BOTH, when=WHEN)
    run = fused_graph(_lowered(annotated, task, precision="int8", float_edges=1), ORT)
    assert {node.name for node in run if node.op.dtype == "float32"} == edges
    assert {node.op.dtype for node in run if node.name not in edges} == {"int8"}


def test_float_edges_have_no_effect_in_float32(space: SearchSpace) -> None:
    assignment = {name: options[0] for name, options in space.choices.items()}
    ids = {space.genotype({**assignment, "float_edges": edges}).id for edges in (0, 1)}
    assert len(ids) == 1
    in_int8 = {**assignment, "precision": "int8"}
    genotypes = [space.genotype({**in_int8, "float_edges": edges}) for edges in (0, 1)]
    assert len({genotype.id for genotype in genotypes}) == 2
    for genotype in genotypes:
        in_float = annotations.float_genotype(space, genotype)
        assert in_float is not None
        assert {in_float.id} == ids
        assert annotations.float_genotype(space, in_float) is None
        assert annotations.weight_relevant_genotype(
            genotype
        ) == annotations.weight_relevant_genotype(in_float)


def test_fixed_float_edges_apply_to_int8_only(tiny: SearchSpace, task: Signature) -> None:
    annotated = with_precision(tiny, precision=("float32", "int8"), float_edges=1)
    run = fused_graph(_lowered(annotated, task, precision="int8"), ORT)
    assert {n.name for n in run if n.op.dtype == "float32"} == {"stem", "pool", "classifier"}
    plain = fused_graph(_lowered(annotated, task, precision="float32"), ORT)
    assert {node.op.dtype for node in plain} == {"float32"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": ("float32", "int4")}, "Unknown precision 'int4'"),
        ({"precision": 8}, "Unknown precision '8'"),
        ({"stem.precision": "int8"}, "Unknown name 'stem.precision'"),
        ({"precision": "int8", "float_edges": 2}, "'float_edges' is 2; allowed: 0 and 1"),
        (
            {"float_edges": 1},
            r"'float_edges' has an effect in int8 only: set precision: \[.*int8\]\.$",
        ),
        ({"precision": "float32", "float_edges": 1}, "'float_edges' has an effect in int8 only"),
        (
            BOTH,
            r"'float_edges' has an effect in int8 only: set .* when: {float_edges: {precision: ",
        ),
    ],
)
def test_invalid_precision_is_refused(
    tiny: SearchSpace, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpaceError, match=message) as error:
        families.family_of(with_precision(tiny, **options))
    assert "\n" not in str(error.value)


def test_transformers_refuse_int8() -> None:
    vit = spaces.load_space(spaces.find("vit_small"))
    with pytest.raises(SpaceError, match="precision has int8, but int8 has no"):
        families.family_of(with_precision(vit, precision=("float32", "int8")))


def _networks(device: Target, space: SearchSpace, task: Signature) -> Networks:
    return Networks(device, space, {space.name: families.family_of(space)}, task)


@pytest.mark.parametrize("name", ["npu", "cpu", "raspi4", "nvidia_t4"])
def test_targets_of_one_precision_refuse_choice(
    name: str, space: SearchSpace, task: Signature
) -> None:
    able = "target.runtime=onnxruntime or target.runtime=openvino"
    message = rf"target '{name}' .* Allowed: remove the choice, or use a target with {able}"
    with pytest.raises(ConfigError, match=message) as error:
        _networks(target(name), space, task)
    assert "\n" not in str(error.value)


def test_float16_target_refuses_choice_of_precision(space: SearchSpace, task: Signature) -> None:
    device = replace(target("cpu"), runtime="openvino", dtype="float16")
    with pytest.raises(ConfigError, match=r"Allowed: set target.dtype=float32, or use"):
        _networks(device, space, task)


def test_target_of_network_has_its_precision(space: SearchSpace, task: Signature) -> None:
    networks = _networks(ORT, space, task)
    assignment = {name: options[0] for name, options in space.choices.items()}
    in_int8 = space.genotype({**assignment, "precision": "int8"})
    assert networks.target_of(in_int8) == replace(ORT, dtype="int8")
    assert networks.target_of(space.genotype(assignment)) == ORT
