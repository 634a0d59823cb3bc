"""Vision transformers and supernets."""

from typing import final

from torch import Tensor, nn

from hwnas.models.families.elastic_layers import (
    ElasticConv,
    ElasticLinear,
    ElasticPixelLinear,
    ElasticPixelNorm,
)
from hwnas.models.families.layers import (
    Add,
    Attention,
    ConvNormAct,
    Mean,
    PixelLinear,
    PixelNorm,
    attention,
)
from hwnas.models.families.vit.lowering import (
    POSITION_KERNEL,
    EncoderBlock,
    ViTDimensions,
    dimensions,
)
from hwnas.models.graph import Signature
from hwnas.models.spaces import Genotype, SearchSpace


@final
class TransformerBlock(nn.Module):
    """Pre-norm attention and perceptron with residual connections.

    Source: Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020,
    https://arxiv.org/abs/2002.04745.
    """

    def __init__(self, block: EncoderBlock, embedding: int, act: str):
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
    """The network of a genotype; its modules have the names of the graph's nodes."""

    def __init__(self, dims: ViTDimensions, signature: Signature):
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

    def block(self, block: EncoderBlock) -> TransformerBlock:
        """Return the module of a block."""
        module = self.get_submodule(block.name)
        assert isinstance(module, TransformerBlock)
        return module

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


@final
class ElasticTransformerBlock(nn.Module):
    """Transformer block with elastic embedding, heads and hidden channels."""

    def __init__(self, block: EncoderBlock, embedding: int, act: str):
        super().__init__()
        self.norm1 = ElasticPixelNorm(embedding)
        self.qkv = ElasticPixelLinear((embedding, block.inner), parts=3)
        self.project = ElasticPixelLinear((block.inner, embedding))
        self.norm2 = ElasticPixelNorm(embedding)
        self.expand = ElasticPixelLinear((embedding, block.hidden), act)
        self.reduce = ElasticPixelLinear((block.hidden, embedding))

    def forward(self, x: Tensor, block: EncoderBlock) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        c = x.shape[1]
        mixed = attention(self.qkv(self.norm1(x), block.inner), block.heads)
        x = x + self.project(mixed, c)
        out: Tensor = x + self.reduce(self.expand(self.norm2(x), block.hidden), c)
        return out

    def copy_to(self, plain: TransformerBlock) -> None:
        """Copy the weights to a plain block."""
        self.norm1.copy_to(plain.norm1)
        self.qkv.copy_to(plain.qkv)
        self.project.copy_to(plain.project)
        self.norm2.copy_to(plain.norm2)
        self.expand.copy_to(plain.expand)
        self.reduce.copy_to(plain.reduce)


@final
class ViTSupernet(nn.Module):
    """Shared weights of a space."""

    def __init__(self, space: SearchSpace, signature: Signature):
        super().__init__()
        self._space, self._task = space, signature
        largest = dimensions(space, space.largest())
        c, patch, act = largest.embedding, largest.patch, largest.activation
        self.patches = ElasticConv((signature.in_channels, c), patch, patch, False, "")
        self.position = ElasticConv((c, c), POSITION_KERNEL, 1, True, "")
        self.blocks = nn.ModuleList(ElasticTransformerBlock(b, c, act) for b in largest.blocks)
        self.norm = ElasticPixelNorm(c)
        self.classifier = ElasticLinear(c, signature.n_outputs)

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        return self

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """``(N, C, R, R)`` to outputs ``(N, n_outputs)``."""
        dims = dimensions(self._space, genotype)
        x: Tensor = self.patches(images, dims.embedding, dims.patch)
        x = x + self.position(x, dims.embedding, POSITION_KERNEL)
        for block in dims.blocks:
            x = self._block(block)(x, block)
        logits: Tensor = self.classifier(self.norm(x).mean((2, 3)))
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return the network of a genotype with copies of the shared weights."""
        dims = dimensions(self._space, genotype)
        network = VisionTransformer(dims, self._task)
        self.patches.copy_to(network.patches)
        self.position.copy_to(network.position)
        for block in dims.blocks:
            self._block(block).copy_to(network.block(block))
        self.norm.copy_to(network.norm)
        self.classifier.copy_to(network.classifier)
        return network.train(self.training)

    def _block(self, block: EncoderBlock) -> ElasticTransformerBlock:
        elastic = self.blocks[block.index]
        assert isinstance(elastic, ElasticTransformerBlock)
        return elastic
