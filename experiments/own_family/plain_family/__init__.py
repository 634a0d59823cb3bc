"""A family of plain networks: stages of convolutions, with the resolution halved at each stage.

Source: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
recognition", ICLR 2015, https://arxiv.org/abs/1409.1556; with batch norm, strides instead of
pooling, and a mean over all pixels instead of fully connected layers.

A family defines three consistent views of a network: the operators that a target runs (``lower``),
the module that computes them (``build``), and weight sharing with other networks (``supernet``).
All three start from ``layers``, so that nothing is defined twice.
"""

import re
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families.base import Supernet, TrainingRecipe
from hwnas.models.families.elastic_layers import ElasticConv, ElasticLinear
from hwnas.models.families.layers import ConvNormAct, Mean
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Shape, Signature
from hwnas.models.spaces import Genotype, SearchSpace

_ACT = "relu"
_KERNEL = re.compile(r"stages\.\d+\.blocks\.\d+\.kernel")


@dataclass(frozen=True)
class Layer:
    """The dimensions of a convolution."""

    name: str
    c_in: int
    c_out: int
    kernel: int
    stride: int


def layers(space: SearchSpace, genotype: Genotype, signature: Signature) -> list[Layer]:
    """Return the convolutions of a network in order."""
    values, convolutions, c_in = space.values(genotype), list[Layer](), signature.in_channels
    for stage in range(n_stages(space)):
        for index in range(int(values[f"stages.{stage}.depth"])):
            kernel = int(values[f"stages.{stage}.blocks.{index}.kernel"])
            c_out = int(values[f"stages.{stage}.width"])
            name, stride = f"stage{stage}_conv{index}", 2 if index == 0 else 1
            convolutions.append(Layer(name, c_in, c_out, kernel, stride))
            c_in = c_out
    return convolutions


def n_stages(space: SearchSpace) -> int:
    """Return the number of stages of a space."""
    return sum(n.startswith("stages.") and n.endswith(".depth") for n in names(space))


def names(space: SearchSpace) -> list[str]:
    """Return all names that a space defines, choices and constants."""
    return [*space.choices, *space.fixed]


class PlainNet(nn.Module):
    """The network of one genotype; every operator of ``lower`` is a module of the same name."""

    def __init__(self, convolutions: list[Layer], signature: Signature):
        super().__init__()
        for c in convolutions:
            self.add_module(c.name, ConvNormAct((c.c_in, c.c_out), c.kernel, c.stride, 1, _ACT))
        self.pool = Mean()
        self.classifier = nn.Linear(convolutions[-1].c_out, signature.n_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Compute outputs ``(N, n_outputs)`` from images ``(N, C, R, R)``."""
        for module in self.children():
            images = module(images)
        return images


class PlainSupernet(nn.Module):
    """The shared weights of all subnets; every layer has its largest dimensions."""

    def __init__(self, space: SearchSpace, signature: Signature):
        super().__init__()
        self.space, self.signature = space, signature
        largest = layers(space, space.largest(), signature)
        # The first layer of a stage accepts the largest width of the previous stage, at any depth.
        for c in largest:
            conv = ElasticConv((c.c_in, c.c_out), c.kernel, c.stride, depthwise=False, act=_ACT)
            self.add_module(c.name, conv)
        self.classifier = ElasticLinear(largest[-1].c_out, signature.n_outputs)

    @property
    def module(self) -> nn.Module:
        """The module with the shared weights, for training and checkpoints."""
        return self

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """Compute the outputs ``(N, n_outputs)`` of a subnet from images ``(N, C, R, R)``."""
        for c in layers(self.space, genotype, self.signature):
            images = self._conv(c)(images, c.c_out, c.kernel)
        logits: Tensor = self.classifier(images.mean((2, 3)))
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return a separate network of a subnet, with copies of its weights."""
        convolutions = layers(self.space, genotype, self.signature)
        network = PlainNet(convolutions, self.signature)
        for c in convolutions:
            plain = network.get_submodule(c.name)
            assert isinstance(plain, ConvNormAct)
            self._conv(c).copy_to(plain)
        self.classifier.copy_to(network.classifier)
        return network.train(self.training)

    def _conv(self, layer: Layer) -> ElasticConv:
        conv = self.get_submodule(layer.name)
        assert isinstance(conv, ElasticConv)
        return conv


@final
class Plain:
    """The object of the entry point, with the methods of ``hwnas.models.families.base.Family``."""

    @property
    def recipe(self) -> TrainingRecipe:
        """Return the default training settings of these networks."""
        return TrainingRecipe("sgd", lr=0.1, weight_decay=5e-5)

    def check(self, space: SearchSpace) -> None:
        """Raise a ``SpaceError`` if networks cannot be built from a space.

        It is called before all other methods. They need not check the space again. The depths and
        blocks were already checked when the file was read.
        """
        stages = range(max(1, n_stages(space)))
        parts = ("depth", "width", "blocks.0.kernel")
        required = {"resolution", *(f"stages.{stage}.{part}" for stage in stages for part in parts)}
        for name in sorted(required - {*names(space)}):
            raise SpaceError(f"Space '{space.name}': '{name}' is missing.")
        for name in names(space):
            if name not in required and not _KERNEL.fullmatch(name):
                raise SpaceError(f"Space '{space.name}': {unknown_name('name', name, required)}")
            odd = name.endswith(".kernel")
            for option in space.options(name):
                if not isinstance(option, int) or option < 1 or (odd and option % 2 == 0):
                    allowed = "odd numbers" if odd else "whole numbers above 0"
                    raise SpaceError(f"Space '{space.name}': '{name}' needs {allowed}.")

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the input images of a network."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the fused operators in execution order, for compilers, cost models and tables."""
        nodes, source = [], INPUT
        resolution = self.resolution(space, genotype)
        shape: Shape = (signature.in_channels, resolution, resolution)
        for c in layers(space, genotype, signature):
            out = (c.c_out, -(-shape[1] // c.stride), -(-shape[2] // c.stride))
            op = OpSpec(f"conv2d+bn+{_ACT}", shape, out, c.kernel, c.stride)
            nodes.append(Node(c.name, op, (source,)))
            source, shape = c.name, out
        pooled = (shape[0], 1, 1)
        nodes.append(Node("pool", OpSpec("mean", shape, pooled), (source,)))
        logits = OpSpec("linear", pooled, (signature.n_outputs, 1, 1))
        return Graph.of((*nodes, Node("classifier", logits, ("pool",))))

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return a separate network with initial weights."""
        return PlainNet(layers(space, genotype, signature), signature)

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return the shared initial weights of all networks of a space."""
        return PlainSupernet(space, signature)
