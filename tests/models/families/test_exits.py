"""Early exits as choices of a space: their position, and equality of all else."""

import copy
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hwnas.core.errors import ConfigError, SpaceError
from hwnas.hardware.backends.artefact_wrappers import SequentialSegments
from hwnas.hardware.backends.onnxruntime import OnnxRuntimeSettings
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.families import annotations, common_checks, layers
from hwnas.models.families.layers import fold_batch_norm, weights_of
from hwnas.models.graph import INPUT, Graph, Signature, fuse, split_at_exits, without_exits
from hwnas.models.int8.quantisation import quantise
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.onnx.writer import write_fp32, write_int8
from hwnas.models.spaces import Option, SearchSpace
from hwnas.training.inference import recalibrate
from hwnas.workflows.networks import Networks
from tests.conftest import target, with_settings

SMALL = Path(__file__).with_name("exits.yaml")


@pytest.fixture
def small() -> SearchSpace:
    return spaces.load_space(SMALL)


def _resnet() -> SearchSpace:
    """Return a space with an exit after the first or the second of three stages."""
    plain = spaces.load_space(spaces.find("resnet_small"))
    exits: dict[str, tuple[Option, ...]] = {"exits.0.active": (0, 1), "exits.0.at": (0, 1)}
    return replace(
        plain, choices={**plain.choices, **exits}, when={"at": {"active": (1,)}}, name="residual"
    )


def _exit_spaces() -> list[SearchSpace]:
    return [spaces.load_space(spaces.find("mbconv_exits")), _resnet()]


def _to_one_pixel() -> SearchSpace:
    """Return a space with an exit after a stage of one pixel."""
    plain = spaces.load_space(SMALL)
    fixed = {**plain.fixed, "resolution": 4, "stem.stride": 2}
    return replace(plain, fixed=fixed, name="to_one_pixel")


def _lowered(space: SearchSpace, task: Signature, seed: int = 0, **options: Option) -> Graph:
    """Return the operators of a random genotype; ``_`` in names means a dot."""
    family, rng = families.family_of(space), random.Random(seed)
    drawn = {name: rng.choice(options) for name, options in space.choices.items()}
    drawn |= {name.replace("_", "."): value for name, value in options.items()}
    return annotations.lower(family, space, space.genotype(drawn), task)


def test_exits_follow_their_stages(task: Signature) -> None:
    mbconv, resnet = _exit_spaces()
    lowered = _lowered(mbconv, task)
    assert lowered.outputs == ("exits.0.classifier", "exits.1.classifier", "classifier")
    for stage in (0, 1):
        lowered = _lowered(resnet, task, exits_0_active=1, exits_0_at=stage)
        names = [node.name for node in lowered]
        place = names.index("exits.0.pool")
        assert names[place - 1].startswith(f"stages.{stage}.")
        assert names[place + 2].startswith(f"stages.{stage + 1}.blocks.0.")
        assert names[place + 1] == "exits.0.classifier"
        assert lowered.output.name == "classifier"


def test_network_without_active_exit_is_unchanged(small: SearchSpace, task: Signature) -> None:
    family = families.family_of(small)
    for active in (0, 1):
        drawn = {name: options[0] for name, options in small.choices.items()}
        genotype = small.genotype({**drawn, "exits.0.active": active})
        lowered = annotations.lower(family, small, genotype, task)
        assert without_exits(lowered) == family.lower(small, genotype, task)
        assert bool(lowered.exits) == bool(active)
        network = layers.build(family, small, genotype, task)
        assert isinstance(network, layers.ExitNetwork) == bool(active)


def test_position_of_inactive_exit_has_no_effect() -> None:
    space = _resnet()
    drawn = {name: options[0] for name, options in space.choices.items()}
    ids = [space.genotype({**drawn, "exits.0.at": stage}).id for stage in (0, 1)]
    assert ids[0] == ids[1]


@pytest.mark.slow
@pytest.mark.parametrize("space", _exit_spaces(), ids=lambda s: s.family)
def test_exits_do_not_change_final_outputs(space: SearchSpace, task: Signature) -> None:
    family = families.family_of(space)
    genotype = space.largest()
    lowered = annotations.lower(family, space, genotype, task)
    torch.manual_seed(0)
    network = layers.build(family, space, genotype, task).eval()
    torch.manual_seed(0)
    plain = family.build(space, genotype, task).eval()
    side = family.resolution(space, genotype)
    images = torch.randn(3, task.in_channels, side, side)
    with torch.inference_mode():
        every = network(images, every=True)
        assert torch.equal(network(images), plain(images))
        assert every.shape == (len(lowered.outputs), 3, task.n_outputs)
        assert torch.equal(every[-1], plain(images))
        assert torch.equal(copy.deepcopy(network)(images, every=True), every)
    # The outputs of an exit: mean and linear layer on the outputs of its stage.
    captured: dict[str, torch.Tensor] = {}
    name = lowered.exits[0].replace("classifier", "pool")
    stage = next(node.inputs[0] for node in lowered if node.name == name)
    hook = network.get_submodule(stage).register_forward_hook(
        lambda module, args, out: captured.update(x=out.clone())
    )
    with torch.inference_mode():
        network(images)
        head = network.get_submodule(lowered.exits[0])
        assert torch.allclose(head(captured["x"].mean((2, 3))), every[0], atol=1e-6)
    hook.remove()


@pytest.mark.parametrize("space", [*_exit_spaces(), _to_one_pixel()], ids=lambda s: s.name)
def test_tflite_segments_equal_whole_network_exactly(space: SearchSpace, task: Signature) -> None:
    family, rng = families.family_of(space), random.Random(2)
    drawn = {name: rng.choice(options) for name, options in space.choices.items()}
    genotype = space.genotype({**drawn, "exits.0.active": 1})
    lowered = annotations.lower(family, space, genotype, task)
    torch.manual_seed(1)
    network = layers.build(family, space, genotype, task)
    side = family.resolution(space, genotype)
    images = torch.randn(32, task.in_channels, side, side)
    recalibrate(network, images)
    int8 = quantise(fold_batch_norm(network), lowered, images)
    segments = split_at_exits(lowered)
    assert [n.name for part in segments for n in part] == [n.name for n in lowered]
    assert all(INPUT in part[0].inputs for part in segments)
    row = SequentialSegments(
        [LiteRTSession(write_tflite(int8.subnetwork(part))) for part in segments]
    )
    outputs = row.run(images.numpy())
    expected = LiteRTSession(write_tflite(int8.subnetwork(without_exits(lowered)))).run(
        images.numpy()
    )
    assert np.array_equal(outputs[:, -1], expected)
    assert np.ptp(expected) > 0
    # One file with all outputs, exits first.
    every = LiteRTSession(write_tflite(int8)).outputs(images.numpy())
    assert all(np.array_equal(outputs[:, i], output) for i, output in enumerate(every))
    with torch.inference_mode():
        real = network(images, every=True).numpy()
    for i, wanted in enumerate(real):
        error = np.abs(outputs[:, i] - wanted).mean() / np.abs(wanted).max()
        assert error < 0.05


@pytest.mark.parametrize("space", [*_exit_spaces(), _to_one_pixel()], ids=lambda s: s.name)
def test_onnx_segments_equal_whole_network(space: SearchSpace, task: Signature) -> None:
    family, rng = families.family_of(space), random.Random(3)
    drawn = {name: rng.choice(options) for name, options in space.choices.items()}
    genotype = space.genotype({**drawn, "exits.0.active": 1})
    lowered = annotations.lower(family, space, genotype, task)
    network = layers.build(family, space, genotype, task)
    side = family.resolution(space, genotype)
    images = torch.randn(32, task.in_channels, side, side)
    recalibrate(network, images)
    int8 = quantise(fold_batch_norm(network), lowered, images)
    model = write_int8(int8.subnetwork(without_exits(lowered)), any_batch=True)
    row = [OrtSession(write_int8(int8.subnetwork(part))) for part in split_at_exits(lowered)]
    outputs = SequentialSegments(row).run(images.numpy())
    assert np.array_equal(outputs[:, -1], OrtSession(model).run(images.numpy()))
    weights = weights_of(network, lowered)
    row = [
        OrtSession(write_fp32(fuse(part, "float32"), weights)) for part in split_at_exits(lowered)
    ]
    with torch.inference_mode():
        real = network(images, every=True).numpy()
    result = SequentialSegments(row).run(images.numpy()).transpose(1, 0, 2)
    assert np.abs(result - real).max() < 1e-4 * np.abs(real).max()


REFUSED = [
    ({"exits.0.at": 1}, "'exits.0.at' is 1; allowed: stages from 0 to 0"),
    ({"exits.0.at": 0.5}, "'exits.0.at' needs whole numbers from 0 on, got [0.5]"),
    ({"exits.0.active": 2}, "'exits.0.active' must be 0 or 1, got 2"),
    ({"exits.1.at": 0}, "'exits.1.active' is missing; add it to choices or fixed"),
    ({"exits.0.width": 8}, "Unknown name 'exits.0.width'"),
    ({"exits.2.at": 0, "exits.2.active": 1}, "Unknown name 'exits.2."),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_invalid_exits_are_refused(
    small: SearchSpace, options: dict[str, Option], message: str
) -> None:
    choices = {n: values for n, values in small.choices.items() if n not in options}
    space = replace(small, choices=choices, fixed={**small.fixed, **options})
    with pytest.raises(SpaceError) as error:
        families.family_of(space)
    assert message in str(error.value)


def test_exits_must_be_in_order(small: SearchSpace) -> None:
    space = spaces.load_space(spaces.find("mbconv_exits"))
    swapped = replace(space, choices={**space.choices, "exits.0.at": (1,), "exits.1.at": (0,)})
    with pytest.raises(SpaceError, match="after the stages of earlier exits"):
        families.family_of(swapped)
    last = common_checks.n_stages(space) - 1
    out_of_order = replace(space, choices={**space.choices, "exits.0.at": (last - 1,)})
    with pytest.raises(SpaceError, match=r"no stage is left .* Remove 'exits\.1\.active' and"):
        families.family_of(out_of_order)


def test_error_for_missing_condition_of_exit_gives_it() -> None:
    with pytest.raises(SpaceError, match=r"add when: {at: {active: \[1\]}}"):
        families.family_of(replace(_resnet(), when={}))


def test_target_without_segments_refuses_exits(small: SearchSpace, npu: Target) -> None:
    by_name, task = {small.name: families.family_of(small)}, Signature(1, 10)
    Networks(npu, small, by_name, task)
    with pytest.raises(
        ConfigError, match=r"has early exits, which target 'cpu' \(tvm\).* target.runtime="
    ):
        Networks(target("cpu"), small, by_name, task)
    cpu = with_settings(replace(target("cpu"), runtime="onnxruntime"), OnnxRuntimeSettings())
    Networks(cpu, small, by_name, task)
    with pytest.raises(ConfigError, match=r"Set target.batch=1, not 4"):
        Networks(replace(cpu, batch=4), small, by_name, task)
