import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from hwnas.core.errors import ConfigError
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm, weights_of
from hwnas.models.graph import Graph, Signature, n_macs
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.onnx.writer import write_fp32
from hwnas.training.finetuning.compression import check_pruning, prune, resize_graph
from hwnas.training.inference import recalibrate

TASK = Signature(3, 7)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["tiny", "mbconv_mixed", "resnet_small"])
def test_operators_of_pruned_network_match_outputs(name: str, seed: int) -> None:
    """Residuals, depthwise convolutions and gates lose the same channels on all sides."""
    space = spaces.load_space(spaces.find(name))
    family, genotype = families.get(space.family), space.sample(random.Random(seed))
    network, lowered = (
        family.build(space, genotype, TASK),
        family.lower(space, genotype, TASK),
    )
    check_pruning(0.3, lowered)
    pruned, narrower = prune(network, lowered, 0.3)
    images = torch.randn(4, *lowered[0].op.in_shape)
    recalibrate(pruned, images)
    fold_batch_norm(pruned)
    with torch.no_grad():
        expected = pruned(images).numpy()
    model = write_fp32(narrower, weights_of(pruned, narrower))
    np.testing.assert_allclose(OrtSession(model).run(images.numpy()), expected, atol=1e-4)
    assert expected.shape == (4, 7)
    for before, after in zip(lowered[:-1], narrower[:-1], strict=True):
        n = before.op.out_shape[0]
        assert after.op.out_shape == (int(n * 0.7), *before.op.out_shape[1:]), after
        assert after.op.depthwise == before.op.depthwise
    assert 0.4 < n_macs(narrower) / n_macs(lowered) < 0.7
    assert resize_graph(lowered, network) == lowered


@pytest.mark.parametrize("name", ["tiny", "mbconv_small", "resnet_small"])
def test_pruned_network_has_lower_costs(name: str, npu: Target) -> None:
    space = spaces.load_space(spaces.find(name))
    family, genotype = families.get(space.family), space.sample(random.Random(0))
    network, lowered = family.build(space, genotype, TASK), family.lower(space, genotype, TASK)
    _, narrower = prune(network, lowered, 0.3)
    unpruned, pruned = (
        compile_tflite(write_tflite(random_int8_network(ops)), ops, npu).cost
        for ops in (lowered, narrower)
    )
    assert {layer.placement for layer in pruned.layers} == {"NPU"}
    for figure in ("latency_ms", "flash_kib"):
        assert pruned.figures[figure].value < 0.95 * unpruned.figures[figure].value


def test_single_output_is_not_pruned() -> None:
    space = spaces.load_space(spaces.find("tiny"))
    family, genotype, signature = families.get(space.family), space.largest(), Signature(3, 1)
    lowered = family.lower(space, genotype, signature)
    check_pruning(0.3, lowered)
    _, narrower = prune(family.build(space, genotype, signature), lowered, 0.3)
    assert narrower.output.op.out_shape == (1, 1, 1)
    assert 0.4 < n_macs(narrower) / n_macs(lowered) < 0.7


def test_channels_with_smallest_weights_are_pruned() -> None:
    space = spaces.load_space(spaces.find("tiny"))
    family, genotype = families.get(space.family), space.smallest()
    network, lowered = family.build(space, genotype, TASK), family.lower(space, genotype, TASK)
    stem = network.get_submodule("stem.conv")
    kept_channels = [0, 2, 3, 5, 7]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(1.0)
        for name in ("stem", "stages.0.blocks.0.depthwise"):
            for module in network.get_submodule(name).modules():
                if isinstance(module, torch.nn.Conv2d | torch.nn.BatchNorm2d):
                    module.weight[[1, 4, 6]] = 0.1
        images = torch.arange(8.0).view(8, 1, 1, 1)
        assert isinstance(stem, torch.nn.Conv2d)
        stem.weight += images * 1e-3
    pruned, _ = prune(network, lowered, 0.3)
    pruned_stem = pruned.get_submodule("stem.conv")
    assert isinstance(pruned_stem, torch.nn.Conv2d)
    assert torch.equal(pruned_stem.weight, stem.weight[kept_channels])


def test_unsupported_pruning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, vit = (spaces.load_space(spaces.find(name)) for name in ("tiny", "vit_small"))
    lowered = families.get("mbconv").lower(tiny, tiny.smallest(), TASK)
    with pytest.raises(ConfigError, match=r"removes all 8 channels .* at most 0\.87"):
        check_pruning(0.9, lowered)
    check_pruning(0.87, lowered)
    narrow = replace(lowered[0], op=replace(lowered[0].op, out_shape=(5, 1, 1)))
    check_pruning(0.8, Graph((narrow, *lowered[1:]), lowered.outputs))  # 5 * (1 - 0.8) < 1
    with pytest.raises(ConfigError, match=r"networks with layernorm .* are not pruned"):
        check_pruning(0.3, families.get("vit").lower(vit, vit.smallest(), TASK))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'hwnas\[pruning\]'"):
        check_pruning(0.3, lowered)
