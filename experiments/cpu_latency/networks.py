"""Build networks outside the search spaces: a ResNet, a vision transformer and a MobileNetV3."""

from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Shape


class Builder:
    """Collects operators; the input of an operator is the previous one by default."""

    def __init__(self, shape: Shape):
        self.nodes: list[Node] = []
        self.shape, self.last = shape, INPUT

    def add(self, kind: str, out: Shape, inputs: tuple[str, ...] = (), **options: int) -> str:
        """Append an operator; return its name."""
        name = f"n{len(self.nodes)}"
        source = inputs or (self.last,)
        shape = self.shape
        if inputs and inputs[0] != self.last:
            shape = next(n.op.out_shape for n in self.nodes if n.name == inputs[0])
        op = OpSpec(kind, shape, out, dtype="float32", **options)
        self.nodes.append(Node(name, op, source))
        self.shape, self.last = out, name
        return name

    def conv(self, kind: str, width: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        """Append a convolution."""
        _, h, w = self.shape
        out = (width, -(-h // stride), -(-w // stride))
        return self.add(kind, out, kernel=kernel, stride=stride, groups=groups)


def resnet(resolution: int = 32) -> Graph:
    """Return a ResNet-20 for CIFAR, with widths 16, 32 and 64."""
    b = Builder((3, resolution, resolution))
    b.conv("conv2d+bn+relu", 16, 3)
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for index in range(3):
            step = stride if index == 0 else 1
            start, shape = b.last, b.shape
            if step != 1 or shape[0] != width:
                b.conv("conv2d+bn", width, 1, step)
                shortcut = b.last
                b.last, b.shape = start, shape
            else:
                shortcut = start
            b.conv("conv2d+bn+relu", width, 3, step)
            main = b.conv("conv2d+bn", width, 3)
            b.add("add+relu", b.shape, (shortcut, main))
    b.add("mean", (64, 1, 1))
    b.add("linear", (100, 1, 1))
    return Graph.of(b.nodes)


def vit(resolution: int = 32, patch: int = 4, width: int = 192, depth: int = 6) -> Graph:
    """Return a vision transformer with layers of the size of DeiT-Tiny's, by default 64 patches."""
    b = Builder((3, resolution, resolution))
    side = resolution // patch
    b.add("conv2d", (width, side, side), kernel=patch, stride=patch)
    for _ in range(depth):
        start = b.last
        b.add("layernorm", b.shape)
        b.add("linear", (3 * width, b.shape[1], b.shape[2]))
        b.add("attention", (width, b.shape[1], b.shape[2]), groups=3)
        projected = b.add("linear", b.shape)
        start = b.add("add", b.shape, (start, projected))
        b.add("layernorm", b.shape)
        b.add("linear+gelu", (4 * width, b.shape[1], b.shape[2]))
        reduced = b.add("linear", (width, b.shape[1], b.shape[2]))
        b.add("add", b.shape, (start, reduced))
    b.add("layernorm", b.shape)
    b.add("mean", (width, 1, 1))
    b.add("linear", (100, 1, 1))
    return Graph.of(b.nodes)


def mobilenet_v3(resolution: int = 32) -> Graph:
    """Return inverted residuals with squeeze-and-excitation and hard-swish."""
    b = Builder((3, resolution, resolution))
    b.conv("conv2d+bn+hardswish", 16, 3)
    for width, kernel, stride, expansion in (
        (24, 3, 2, 4), (24, 5, 1, 3), (40, 5, 2, 4), (40, 5, 1, 6), (96, 5, 2, 6), (96, 5, 1, 6),
    ):  # fmt: skip
        start, (c_in, _, _) = b.last, b.shape
        hidden = c_in * expansion
        b.conv("conv2d+bn+hardswish", hidden, 1)
        depthwise = b.conv("conv2d+bn+hardswish", hidden, kernel, stride, hidden)
        shape = b.shape
        b.add("mean", (hidden, 1, 1))
        b.conv("conv2d+bn+relu", -(-hidden // 4))
        gate = b.conv("conv2d+bn+hardsigmoid", hidden)
        b.shape = shape
        b.add("mul", shape, (depthwise, gate))
        projected = b.conv("conv2d+bn", width)
        if stride == 1 and c_in == width:
            b.add("add", b.shape, (start, projected))
    b.conv("conv2d+bn+hardswish", 384)
    b.add("mean", (384, 1, 1))
    b.add("linear", (100, 1, 1))
    return Graph.of(b.nodes)
