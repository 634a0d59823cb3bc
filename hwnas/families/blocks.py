"""Plain layers that families share: each computes one operator of the lowered network."""

from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hwnas.op import Lowered


def activation(name: str) -> nn.Module:
    """Return the module of an activation; in place where its gradient needs no input."""
    modules: dict[str, nn.Module] = {
        "relu6": nn.ReLU6(inplace=True),
        "relu": nn.ReLU(inplace=True),
        "hardswish": nn.Hardswish(),
        "hardsigmoid": nn.Hardsigmoid(),
        "gelu": nn.GELU(),
        "": nn.Identity(),
    }
    return modules[name]


@final
class ConvNormAct(nn.Module):
    """Convolution, batch norm and activation: one operator on the target."""

    def __init__(self, shape: tuple[int, int], kernel: int, stride: int, groups: int, act: str):
        super().__init__()
        c_in, c_out = shape
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(c_out)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.act(self.norm(self.conv(x)))
        return out

    def fold(self) -> None:
        """Move the batch norm, as it stands, into the convolution; for inference only."""
        if isinstance(self.norm, nn.BatchNorm2d):
            self.conv = fuse_conv_bn_eval(self.conv.eval(), self.norm.eval())
            self.norm = nn.Identity()


@final
class LinearAct(nn.Module):
    """Fully connected layer and activation: one operator on the target."""

    def __init__(self, shape: tuple[int, int], act: str):
        super().__init__()
        self.linear = nn.Linear(*shape)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, ..., C)`` to ``(N, ..., C')``."""
        out: Tensor = self.act(self.linear(x))
        return out


@final
class Add(nn.Module):
    """Sum of two tensors and activation; a module, so that its output can be observed."""

    def __init__(self, act: str = ""):
        super().__init__()
        self.act = activation(act)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Both ``(N, C, H, W)``."""
        out: Tensor = self.act(a + b)
        return out


@final
class Gate(nn.Module):
    """Product of each channel with a factor of its own."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """``(N, C, H, W)`` and ``(N, C)`` to ``(N, C, H, W)``."""
        return x * gate[:, :, None, None]


@final
class SqueezeExcitation(nn.Module):
    """Channels weighted by what the whole image shows.

    Source: Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018,
    https://arxiv.org/abs/1709.01507; with the hard sigmoid of MobileNetV3,
    https://arxiv.org/abs/1905.02244.
    """

    def __init__(self, channels: int, reduced: int):
        super().__init__()
        self.squeeze = Mean()
        self.reduce = LinearAct((channels, reduced), "relu")
        self.excite = LinearAct((reduced, channels), "hardsigmoid")
        self.scale = Gate()

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        gate = self.excite(self.reduce(self.squeeze(x)))
        out: Tensor = self.scale(x, gate)
        return out


@final
class Mean(nn.Module):
    """Mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C)``."""
        return x.mean((2, 3))


def fold_batch_norm(network: nn.Module) -> nn.Module:
    """Fold every batch norm of a plain network into its convolution, in place; return it."""
    for module in network.modules():
        if isinstance(module, ConvNormAct):
            module.fold()
    return network.eval()


def layer_of(network: nn.Module, name: str) -> nn.Conv2d | nn.Linear:
    """Return the convolution or linear layer that computes a lowered operator."""
    module = network.get_submodule(name)
    layer = module
    if isinstance(module, ConvNormAct):
        layer = module.conv
    elif isinstance(module, LinearAct):
        layer = module.linear
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    return layer


def weights_of(
    network: nn.Module, lowered: Lowered
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return weight and bias of each operator of a network whose batch norm is folded."""
    found = {}
    for node in lowered:
        if node.op.weight_shape:
            layer = layer_of(network, node.name)
            assert layer.bias is not None, "fold the batch norm first"
            found[node.name] = (layer.weight.detach().numpy(), layer.bias.detach().numpy())
    return found
