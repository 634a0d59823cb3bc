"""Vision transformers: the plain network of one genotype."""

from typing import final

from torch import Tensor, nn

from hwnas.families.blocks import Add, Attention, ConvNormAct, Mean, PixelLinear, PixelNorm
from hwnas.families.vit.lowering import POSITION_KERNEL, Block, Dimensions
from hwnas.op import Signature


@final
class TransformerBlock(nn.Module):
    """Attention and a perceptron, each normalised before and added after.

    Source: Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020,
    https://arxiv.org/abs/2002.04745.
    """

    def __init__(self, block: Block, embedding: int, act: str):
        super().__init__()
        self.norm1 = PixelNorm(embedding)
        self.qkv = PixelLinear((embedding, 3 * block.inner))
        self.attention = Attention(block.heads)
        self.project = PixelLinear((block.inner, embedding))
        self.add1 = Add()
        self.norm2 = PixelNorm(embedding)
        self.expand = PixelLinear((embedding, block.hidden), act)
        self.reduce = PixelLinear((block.hidden, embedding))
        self.add2 = Add()

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        x = self.add1(x, self.project(self.attention(self.qkv(self.norm1(x)))))
        out: Tensor = self.add2(x, self.reduce(self.expand(self.norm2(x))))
        return out


@final
class VisionTransformer(nn.Module):
    """The network of one genotype; its modules have the names of the lowered operators."""

    def __init__(self, dims: Dimensions, signature: Signature):
        super().__init__()
        c, act = dims.embedding, dims.activation
        self.patches = ConvNormAct((signature.in_channels, c), dims.patch, dims.patch, 1, "")
        self.position = ConvNormAct((c, c), POSITION_KERNEL, 1, c, "")
        self.tokens = Add()
        blocks = nn.ModuleList(TransformerBlock(block, c, act) for block in dims.blocks)
        self.stages = nn.ModuleList([nn.ModuleDict({"blocks": blocks})])
        self.norm = PixelNorm(c)
        self.pool = Mean()
        self.classifier = nn.Linear(c, signature.n_outputs)

    def block(self, block: Block) -> TransformerBlock:
        """Return the module of a block."""
        found = self.get_submodule(block.name)
        assert isinstance(found, TransformerBlock)
        return found

    def forward(self, images: Tensor) -> Tensor:
        """``(N, C, R, R)`` to outputs ``(N, n_outputs)``."""
        patches = self.patches(images)
        x: Tensor = self.tokens(patches, self.position(patches))
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleDict)
            blocks = stage["blocks"]
            assert isinstance(blocks, nn.ModuleList)
            for block in blocks:
                x = block(x)
        logits: Tensor = self.classifier(self.pool(self.norm(x)))
        return logits
