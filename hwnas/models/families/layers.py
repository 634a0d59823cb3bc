"""Plain layers shared by families, one per operator of a graph; networks with early exits."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hwnas.models.families import annotations
from hwnas.models.graph import INPUT, Graph, Signature, padding
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.models.families.base import Family


def activation(name: str) -> nn.Module:
    """Return the module of an activation; ``""`` is the identity.

    It works in place if its gradient does not need the input.

    Raises:
        KeyError: there is no such activation.
    """
    modules: dict[str, nn.Module] = {
        "relu6": ReLU6(),
        "relu": nn.ReLU(inplace=True),
        "hardswish": nn.Hardswish(),
        "hardsigmoid": nn.Hardsigmoid(),
        "gelu": nn.GELU(),
        "": nn.Identity(),
    }
    return modules[name]


@final
class ReLU6(nn.Module):
    """ReLU6 in place.

    Torch's version keeps a copy of its input for the gradient; the output suffices.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Clamp ``x``, of any shape, to [0, 6] in place, and return it."""
        if torch.is_grad_enabled() and x.requires_grad:
            out: Tensor = _ReLU6.apply(x)  # type: ignore[no-untyped-call]
            return out
        return F.relu6(x, inplace=True)


@final
class _ReLU6(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        out = x.clamp_(0.0, 6.0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        gradient: Tensor = torch.ops.aten.hardtanh_backward(grads[0], out, 0.0, 6.0)
        return gradient


@contextlib.contextmanager
def depthwise_in_float(x: Tensor, groups: int) -> Iterator[Tensor]:
    """Yield the input of a convolution; of a grouped one on a CPU with autocast, in float32.

    Autocast is then off in the context: in bfloat16, grouped convolutions take three times as long
    (oneDNN 3, Zen 4).
    """
    if groups == 1 or x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        yield x
        return
    with torch.autocast("cpu", enabled=False):
        yield x.float()


@final
class ConvNormAct(nn.Module):
    """Convolution, batch norm and activation: one operator on the target."""

    def __init__(self, shape: tuple[int, int], kernel: int, stride: int, groups: int, act: str):
        super().__init__()
        c_in, c_out = shape
        pad = padding(kernel, stride)
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, pad, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(c_out)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        with depthwise_in_float(x, self.conv.groups) as inputs:
            convolved = self.conv(inputs)
        out: Tensor = self.act(self.norm(convolved))
        return out

    def fold(self) -> None:
        """Fold the batch norm into the convolution, for inference."""
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
class PixelLinear(nn.Module):
    """Fully connected layer on the channels of each pixel, and activation."""

    def __init__(self, shape: tuple[int, int], act: str = ""):
        super().__init__()
        self.linear = nn.Linear(*shape)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', H, W)``."""
        out: Tensor = self.act(self.linear(x.permute(0, 2, 3, 1)))
        return out.permute(0, 3, 1, 2)


@final
class PixelNorm(nn.Module):
    """Layer norm of the channels of each pixel."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        out: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return out.permute(0, 3, 1, 2)


@final
class Attention(nn.Module):
    """Multi-head softmax attention among all pixels, without weights."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys and values ``(N, 3 C, H, W)`` to ``(N, C, H, W)``."""
        return attention(x, self.heads)


def attention(x: Tensor, heads: int) -> Tensor:
    """Return softmax attention among all pixels, ``(N, C, H, W)``.

    Args:
        x: Queries, keys and values, in this order, ``(N, 3 C, H, W)``.
        heads: Number of heads.
    """
    n, _, h, w = x.shape
    parts = x.permute(0, 2, 3, 1).reshape(n, h * w, 3, heads, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
    return mixed.transpose(1, 2).reshape(n, h, w, -1).permute(0, 3, 1, 2)


@final
class Add(nn.Module):
    """Sum of two tensors, and activation; a module, so that hooks can observe it."""

    def __init__(self, act: str = ""):
        super().__init__()
        self.act = activation(act)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ``act(a + b)``, all ``(N, C, H, W)``."""
        out: Tensor = self.act(a + b)
        return out


@final
class Gate(nn.Module):
    """Product of each channel with its factor."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return ``x`` ``(N, C, H, W)`` times ``gate`` ``(N, C)``, ``(N, C, H, W)``."""
        return x * gate[:, :, None, None]


@final
class SqueezeExcitation(nn.Module):
    """Squeeze-and-excitation: channels scaled by global context.

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
        return global_mean(x)


def global_mean(x: Tensor) -> Tensor:
    """Return the mean over height and width, ``(N, C, H, W)`` to ``(N, C)``.

    ``x.mean((2, 3))`` is the same, but its gradient is in NCHW order, in which the preceding layers
    take ten times as long.
    """
    return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)


def fold_batch_norm(network: nn.Module) -> nn.Module:
    """Fold every batch norm of a plain network into its convolution, in place.

    Return the network, in evaluation mode.
    """
    for module in network.modules():
        if isinstance(module, ConvNormAct):
            module.fold()
    return network.eval()


def layer_of(network: nn.Module, name: str) -> nn.Conv2d | nn.Linear | nn.LayerNorm:
    """Return the torch layer with the weights of the operator ``name`` of a plain network."""
    layer = module = network.get_submodule(name)
    if isinstance(module, ConvNormAct):
        layer = module.conv
    elif isinstance(module, LinearAct | PixelLinear):
        layer = module.linear
    elif isinstance(module, PixelNorm):
        layer = module.norm
    assert isinstance(layer, nn.Conv2d | nn.Linear | nn.LayerNorm)
    return layer


def weights_of(
    network: nn.Module, graph: Graph
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return weight and bias of each operator that has them, by the operator's name.

    Shapes are torch's, and arrays share memory with the network. Batch norm must be folded. Weight
    and bias of a layer norm are its scale and shift.
    """
    weights = {}
    for node in graph:
        if node.op.n_params:
            layer = layer_of(network, node.name)
            assert layer.bias is not None, "fold the batch norm first"
            weights[node.name] = (layer.weight.detach().numpy(), layer.bias.detach().numpy())
    return weights


def build(
    family: "Family", space: SearchSpace, genotype: Genotype, signature: Signature
) -> nn.Module:
    """Return a network with new random weights, with early exits if the genotype has any."""
    network = family.build(space, genotype, signature)
    graph = annotations.lower(family, space, genotype, signature)
    return ExitNetwork(network, graph) if graph.exits else network


@final
class ExitNetwork(nn.Module):
    """A network with early exits; its modules have the names of the graph's nodes.

    Args:
        network: The network without exits, whose modules are reused.
        graph: The graph with exits.
    """

    def __init__(self, network: nn.Module, graph: Graph):
        super().__init__()
        for name, module in network.named_children():
            self.add_module(name, module)
        known = {node.name: node for node in graph}
        self.exits = nn.ModuleDict()
        for output in graph.exits:
            (c_in, _, _), (c_out, _, _) = known[output].op.in_shape, known[output].op.out_shape
            head = {"pool": Mean(), "classifier": nn.Linear(c_in, c_out)}
            self.exits[output.split(".")[1]] = nn.ModuleDict(head)
        self._steps = [(node.name, node.inputs) for node in graph]
        self._outputs = graph.outputs

    def forward(self, images: Tensor, every: bool = False) -> Tensor:
        """``(N, C, R, R)`` to the last output ``(N, n_outputs)``.

        With ``every``, to the outputs of all exits and the last: ``(n_exits + 1, N, n_outputs)``.
        """
        tensors = {INPUT: images}
        for name, inputs in self._steps:
            tensors[name] = self.get_submodule(name)(*(tensors[source] for source in inputs))
        outputs = [tensors[name] for name in self._outputs]
        return torch.stack(outputs) if every else outputs[-1]
