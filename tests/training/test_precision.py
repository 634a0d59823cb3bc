"""The number format of training, and layers that always compute in float32."""

from functools import partial

import pytest
import torch
from torch import Tensor

from hwnas.models import families, spaces
from hwnas.models.families.elastic_layers import ElasticConv
from hwnas.models.families.layers import ConvNormAct
from hwnas.models.graph import Graph, Signature
from hwnas.training import inference


def _lowered(name: str, *, largest: bool = True) -> Graph:
    space = spaces.load_space(spaces.find(name))
    genotype = space.largest() if largest else space.smallest()
    return families.family_of(space).lower(space, genotype, Signature(1, 10))


@pytest.mark.parametrize(
    ("name", "largest", "faster"),
    [
        ("resnet_small", True, "bfloat16"),
        ("mbconv_small", True, "float32"),  # its dense layers are memory-bound
        ("tiny", False, "float32"),
    ],
)
def test_dense_networks_are_trained_in_bfloat16_on_able_cpu(
    name: str, *, largest: bool, faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = _lowered(name, largest=largest)
    for able in (True, False):
        monkeypatch.setattr(inference, "_multiplies_bfloat16", lambda able=able: able)
        assert inference.choose_precision("auto", lowered, "cpu") == (faster if able else "float32")
        assert inference.choose_precision("auto", lowered, "cuda") == "float32"
        for given in ("float32", "bfloat16"):
            assert inference.choose_precision(given, lowered, "cpu") == given


@pytest.mark.parametrize("is_elastic", [False, True])
def test_depthwise_convolutions_compute_in_float32(*, is_elastic: bool) -> None:
    dtypes: list[torch.dtype] = []

    def record_dtype(_: object, inputs: tuple[Tensor, ...]) -> None:
        dtypes.append(inputs[0].dtype)

    images = torch.randn(4, 8, 6, 6)
    for groups, expected in ((8, torch.float32), (1, torch.bfloat16)):
        if is_elastic:
            layer: torch.nn.Module = ElasticConv((8, 8), 3, depthwise=groups > 1)
        else:
            layer = ConvNormAct((8, 8), 3, 1, groups, "relu")
        norm = layer.norm
        assert isinstance(norm, torch.nn.Module)
        norm.register_forward_pre_hook(record_dtype)
        inputs = (images, 8, 3) if is_elastic else (images,)
        outputs = inference.forward(partial(layer, *inputs), images, "bfloat16")
        assert outputs.dtype == torch.float32
        torch.autograd.backward(outputs.square().mean())
        assert dtypes.pop() == expected
