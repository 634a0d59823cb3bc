"""Networks in torch, in the style of common libraries."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Of a ResNet."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.downsample = nn.Sequential()
        if stride > 1:
            shortcut = nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.downsample(x))


class ResNet(nn.Sequential):
    """A small one, with the stem of the large ones."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            BasicBlock(8, 8),
            BasicBlock(8, 16, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        )


class InvertedResidual(nn.Module):
    """Of a MobileNet: with ReLU6, or with squeeze-and-excitation and hard-swish."""

    def __init__(self, c_in: int, c_out: int, stride: int, gated: bool):
        super().__init__()
        hidden = 4 * c_in
        activation = nn.Hardswish if gated else nn.ReLU6
        gate = [SqueezeExcite(hidden)] if gated else []
        self.layers = nn.Sequential(
            nn.Conv2d(c_in, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            activation(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            activation(),
            *gate,
            nn.Conv2d(hidden, c_out, 1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class SqueezeExcite(nn.Module):
    """By convolutions."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.fc2(squeezed))


class LinearGate(nn.Module):
    """Squeeze-and-excitation by linear layers, as in the paper."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = F.silu(self.fc1(x.mean((2, 3))))
        return torch.sigmoid(self.fc2(squeezed)).view(x.shape[0], -1, 1, 1) * x


def mobilenet(gated: bool) -> nn.Sequential:
    """Return a small MobileNetV2, or V3 if gated."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.Hardswish() if gated else nn.ReLU6(),
        InvertedResidual(8, 8, 1, gated),
        InvertedResidual(8, 12, 2, gated),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(12, 10),
    )


class Attention(nn.Module):
    """By torch's function, or by hand."""

    def __init__(self, width: int, n_heads: int, by_hand: bool):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_heads, self.by_hand = n_heads, by_hand

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        parts = self.qkv(x).reshape(n, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        if self.by_hand:
            shares = (q @ k.transpose(-2, -1) * (c // self.n_heads) ** -0.5).softmax(-1)
            mixed = shares @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(n, t, c))
        return out


class MultiHead(nn.Module):
    """By torch's module."""

    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.layer = nn.MultiheadAttention(width, n_heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, x, x, need_weights=False)[0]
        return out


class Transformer(nn.Module):
    """A vision transformer of one block; patches as tokens, their mean classified."""

    def __init__(self, attention: nn.Module, width: int = 12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norm1, self.attention = nn.LayerNorm(width), attention
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        out: Tensor = self.head(x.mean(1))
        return out


class ConvNeXt(nn.Module):
    """A block with tokens last, a scale for each channel, and a flattened image at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm = nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        rows = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        rows = self.narrow(F.gelu(self.wide(rows))) * self.scale
        out: Tensor = self.head((x + rows.permute(0, 3, 1, 2)).flatten(1))
        return out


MODELS = {
    "resnet": ResNet,
    "mobilenet v2": lambda: mobilenet(False),
    "mobilenet v3": lambda: mobilenet(True),
    "linear gate": lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), LinearGate(8)),
    "transformer": lambda: Transformer(Attention(12, 3, by_hand=False)),
    "transformer by hand": lambda: Transformer(Attention(12, 3, by_hand=True)),
    "transformer by module": lambda: Transformer(MultiHead(12, 3)),
    "convnext": ConvNeXt,
}


def model(name: str) -> nn.Module:
    """Return a network in eval mode, with statistics in its batch norms."""
    torch.manual_seed(0)
    network = MODELS[name]()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()
