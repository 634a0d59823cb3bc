"""A plain implementation of a supernet of inverted residuals, as in the code of Once-for-all.

It uses float32 and images in torch's default memory format (NCHW). Each forward pass crops the
weights, and batch norm is a separate layer. The results are the same as those of
``hwnas.models.families.mbconv.supernet``; the benchmarks check this.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.models.families.mbconv.lowering import MBConvBlock, dimensions
from hwnas.models.graph import Signature
from hwnas.models.spaces import Genotype, SearchSpace


@final
class PlainConv(nn.Module):
    """Convolution over the first channels and the centre of the kernel, with batch norm."""

    def __init__(self, shape: tuple[int, int], kernel: int, stride: int, depthwise: bool):
        super().__init__()
        c_in, c_out = shape
        groups = c_in if depthwise else 1
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(c_out)
        self.depthwise = depthwise

    def forward(self, x: Tensor, c_out: int, kernel: int) -> Tensor:
        crop = (self.conv.weight.shape[-1] - kernel) // 2
        centre = slice(crop, crop + kernel)
        c_in = 1 if self.depthwise else x.shape[1]
        weight = self.conv.weight[:c_out, :c_in, centre, centre].contiguous()
        groups = c_out if self.depthwise else 1
        x = F.conv2d(x, weight, None, self.conv.stride, kernel // 2, 1, groups)
        bn = self.bn
        assert bn.running_mean is not None
        assert bn.running_var is not None
        return F.batch_norm(
            x,
            bn.running_mean[:c_out],
            bn.running_var[:c_out],
            bn.weight[:c_out],
            bn.bias[:c_out],
            bn.training,
            0.1 if bn.momentum is None else bn.momentum,
        )


@final
class PlainBlock(nn.Module):
    def __init__(self, block: MBConvBlock):
        super().__init__()
        c_mid = block.c_mid
        self.expand = PlainConv((block.c_in, c_mid), 1, 1, False)
        self.depthwise = PlainConv((c_mid, c_mid), block.kernel, block.stride, True)
        self.project = PlainConv((c_mid, block.c_out), 1, 1, False)

    def forward(self, x: Tensor, block: MBConvBlock) -> Tensor:
        y = F.relu6(self.expand(x, block.c_mid, 1), inplace=True)
        y = F.relu6(self.depthwise(y, block.c_mid, block.kernel), inplace=True)
        out: Tensor = self.project(y, block.c_out, 1)
        return x + out if block.residual else out


@final
class PlainSupernet(nn.Module):
    def __init__(self, space: SearchSpace, task: Signature):
        super().__init__()
        self._space = space
        largest = dimensions(space, space.largest())
        shape = (task.in_channels, largest.stem_width)
        self.stem = PlainConv(shape, largest.stem_kernel, largest.stem_stride, False)
        self.blocks = nn.ModuleDict(
            {b.name.replace(".", "-"): PlainBlock(b) for b in largest.blocks}
        )
        self.head = PlainConv((largest.blocks[-1].c_out, largest.head.width), 1, 1, False)
        self.classifier = nn.Linear(largest.head.width, task.n_outputs)

    @property
    def module(self) -> nn.Module:
        return self

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        dims = dimensions(self._space, genotype)
        x = F.relu6(self.stem(images, dims.stem_width, dims.stem_kernel), inplace=True)
        for block in dims.blocks:
            x = self.blocks[block.name.replace(".", "-")](x, block)
        x = F.relu6(self.head(x, dims.head.width, 1), inplace=True)
        logits: Tensor = self.classifier(x.mean(3).mean(2))
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        raise NotImplementedError("subnets are validated in place")

    def copy_from(self, supernet: nn.Module) -> None:
        """Copy the weights of a supernet of ``hwnas.models.families.mbconv.supernet``."""
        weights = supernet.state_dict()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                source = name.replace(".conv.weight", ".weight").replace(".bn.", ".norm.")
                if name.startswith("blocks."):
                    _, block, layer = source.split(".", 2)
                    _, stage, _, index = block.split("-")
                    source = f"stages.{stage}.{index}.inverted.{layer}"
                parameter.copy_(weights[source])
