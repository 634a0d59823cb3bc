"""Weights of Once-for-all's MobileNetV3: outputs of subnets compared with its definition.

The reference below computes a subnet from the state dict alone, one function per layer.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.core.errors import RunError
from hwnas.models import families, spaces
from hwnas.models.graph import Signature
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training.initial_weights import initialise

WIDTHS = (24, 40, 80, 112, 160)
STRIDES = (2, 2, 2, 1, 2)
HSWISH = (False, False, True, True, True)
GATED = (False, True, False, True, True)
STEM = 16

State = dict[str, Tensor]


def _divisible(value: float) -> int:
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


@pytest.fixture(scope="module")
def ofa() -> SearchSpace:
    return spaces.load_space(spaces.find("ofa_mobilenet_v3"))


@pytest.fixture(scope="module")
def state() -> State:
    """Return random weights with the names of Once-for-all's checkpoints."""
    rng, weights = torch.Generator().manual_seed(0), State()

    def put(name: str, *shape: int) -> None:
        scale = (2 / max(1, torch.Size(shape[1:]).numel())) ** 0.5
        weights[name] = torch.randn(*shape, generator=rng) * scale

    def norm(name: str, channels: int) -> None:
        weights[f"{name}.weight"] = 0.5 + torch.rand(channels, generator=rng)
        weights[f"{name}.bias"] = 0.1 * torch.randn(channels, generator=rng)
        weights[f"{name}.running_mean"] = 0.1 * torch.randn(channels, generator=rng)
        weights[f"{name}.running_var"] = 0.5 + torch.rand(channels, generator=rng)
        weights[f"{name}.num_batches_tracked"] = torch.tensor(7)

    put("first_conv.conv.weight", STEM, 3, 3, 3)
    norm("first_conv.bn", STEM)
    first = "blocks.0.mobile_inverted_conv"
    put(f"{first}.depth_conv.conv.weight", STEM, 1, 3, 3)
    norm(f"{first}.depth_conv.bn", STEM)
    put(f"{first}.point_linear.conv.weight", STEM, STEM, 1, 1)
    norm(f"{first}.point_linear.bn", STEM)
    c_in = STEM
    for stage, width in enumerate(WIDTHS):
        for index in range(4):
            block, mid = f"blocks.{1 + 4 * stage + index}.mobile_inverted_conv", 6 * c_in
            put(f"{block}.inverted_bottleneck.conv.conv.weight", mid, c_in, 1, 1)
            norm(f"{block}.inverted_bottleneck.bn.bn", mid)
            put(f"{block}.depth_conv.conv.conv.weight", mid, 1, 7, 7)
            for size, smaller in ((7, 5), (5, 3)):
                eye = torch.eye(smaller**2)
                noise = 0.05 * torch.randn(eye.shape, generator=rng)
                weights[f"{block}.depth_conv.conv.{size}to{smaller}_matrix"] = eye + noise
            norm(f"{block}.depth_conv.bn.bn", mid)
            if GATED[stage]:
                reduced = _divisible(mid // 4)
                put(f"{block}.depth_conv.se.fc.reduce.weight", reduced, mid, 1, 1)
                put(f"{block}.depth_conv.se.fc.reduce.bias", reduced)
                put(f"{block}.depth_conv.se.fc.expand.weight", mid, reduced, 1, 1)
                put(f"{block}.depth_conv.se.fc.expand.bias", mid)
            put(f"{block}.point_linear.conv.conv.weight", width, mid, 1, 1)
            norm(f"{block}.point_linear.bn.bn", width)
            c_in = width
    put("final_expand_layer.conv.weight", 960, c_in, 1, 1)
    norm("final_expand_layer.bn", 960)
    put("feature_mix_layer.conv.weight", 1280, 960, 1, 1)
    put("classifier.linear.weight", 1000, 1280)
    put("classifier.linear.bias", 1000)
    return weights


def _norm(x: Tensor, s: State, name: str) -> Tensor:
    c = x.shape[1]
    mean, var, weight, bias = (
        s[f"{name}.{key}"][:c] for key in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(x, mean, var, weight, bias)


def _kernel(s: State, conv: str, c: int, size: int) -> Tensor:
    weight, now = s[f"{conv}.conv.weight"][:c], 7
    while now > size:
        smaller = now - 2
        centre = weight[:, :, 1:-1, 1:-1].reshape(c, smaller**2)
        mapped = centre @ s[f"{conv}.{now}to{smaller}_matrix"].T
        weight, now = mapped.reshape(c, 1, smaller, smaller), smaller
    return weight


def _gate(x: Tensor, s: State, name: str) -> Tensor:
    c = x.shape[1]
    reduced = _divisible(c // 4)
    y = x.mean((2, 3), keepdim=True)
    y = F.conv2d(
        y, s[f"{name}.reduce.weight"][:reduced, :c], s[f"{name}.reduce.bias"][:reduced]
    ).relu()
    y = F.conv2d(y, s[f"{name}.expand.weight"][:c, :reduced], s[f"{name}.expand.bias"][:c])
    return x * F.relu6(y + 3) / 6


def reference(s: State, values: dict[str, Any], x: Tensor) -> Tensor:
    """Return the logits of the subnet of a genotype."""
    x = F.hardswish(_norm(F.conv2d(x, s["first_conv.conv.weight"], None, 2, 1), s, "first_conv.bn"))
    first, y = "blocks.0.mobile_inverted_conv", x
    y = F.conv2d(y, s[f"{first}.depth_conv.conv.weight"], None, 1, 1, 1, STEM)
    y = _norm(y, s, f"{first}.depth_conv.bn").relu()
    y = F.conv2d(y, s[f"{first}.point_linear.conv.weight"])
    x = x + _norm(y, s, f"{first}.point_linear.bn")
    for stage, width in enumerate(WIDTHS):
        for index in range(values[f"stages.{stage + 1}.depth"]):
            chosen = f"stages.{stage + 1}.blocks.{index}"
            kernel, expansion = values[f"{chosen}.kernel"], values[f"{chosen}.expansion"]
            block = f"blocks.{1 + 4 * stage + index}.mobile_inverted_conv"
            c, stride = x.shape[1], STRIDES[stage] if index == 0 else 1
            mid = _divisible(c * expansion)
            act = F.hardswish if HSWISH[stage] else F.relu
            y = F.conv2d(x, s[f"{block}.inverted_bottleneck.conv.conv.weight"][:mid])
            y = act(_norm(y, s, f"{block}.inverted_bottleneck.bn.bn"))
            weight = _kernel(s, f"{block}.depth_conv.conv", mid, kernel)
            y = F.conv2d(y, weight, None, stride, kernel // 2, 1, mid)
            y = act(_norm(y, s, f"{block}.depth_conv.bn.bn"))
            if GATED[stage]:
                y = _gate(y, s, f"{block}.depth_conv.se.fc")
            y = F.conv2d(y, s[f"{block}.point_linear.conv.conv.weight"][:width, :mid])
            y = _norm(y, s, f"{block}.point_linear.bn.bn")
            x = x + y if stride == 1 and c == width else y
    x = _norm(F.conv2d(x, s["final_expand_layer.conv.weight"]), s, "final_expand_layer.bn")
    x = F.hardswish(x).mean((2, 3), keepdim=True)
    x = F.hardswish(F.conv2d(x, s["feature_mix_layer.conv.weight"])).flatten(1)
    return F.linear(x, s["classifier.linear.weight"], s["classifier.linear.bias"])


def _small_genotype(ofa: SearchSpace, seed: int) -> Genotype:
    """Return a genotype with the lowest resolution, for speed."""
    ends = {-2: ofa.smallest(), -1: ofa.largest()}
    drawn = ends.get(seed) or ofa.sample(random.Random(seed))
    return ofa.genotype({**_first_options(ofa), **drawn.to_dict(), "resolution": 128})


def _first_options(ofa: SearchSpace) -> dict[str, Any]:
    return {name: options[0] for name, options in ofa.choices.items()}


@pytest.mark.slow
@pytest.mark.parametrize("names", ["as trained", "newer"])
def test_subnets_have_outputs_of_checkpoint(
    ofa: SearchSpace, state: State, tmp_path: Path, names: str
) -> None:
    path = tmp_path / "ofa.pth"
    saved = state if names == "as trained" else _rename_weights(state)
    torch.save({"state_dict": saved}, path)
    supernet = families.get("mbconv").supernet(ofa, Signature(3, 1000))
    assert initialise(supernet.module, ofa, path) == ()
    supernet.module.eval().double()  # deep random networks amplify rounding errors
    exact = {n: t.double() if t.is_floating_point() else t for n, t in state.items()}
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(2, 3, 128, 128, generator=rng, dtype=torch.float64)
    with torch.inference_mode():
        for seed in range(-2, 4) if names == "as trained" else (0,):
            genotype = _small_genotype(ofa, seed)
            expected = reference(exact, genotype.to_dict(), images)
            outputs = supernet.forward(images, genotype)
            assert (outputs - expected).abs().max() < 1e-9 * expected.abs().max()


def _rename_weights(state: State) -> State:
    """Return the weights with the names of later versions of the project."""
    return {
        name.replace("mobile_inverted_conv", "conv").replace(
            "classifier.linear.", "classifier.linear.linear."
        ): tensor
        for name, tensor in state.items()
    }


def test_classifier_for_other_classes_is_reinitialised(
    ofa: SearchSpace, state: State, tmp_path: Path
) -> None:
    path = tmp_path / "ofa.pth"
    torch.save(state, path)
    supernet = families.get("mbconv").supernet(ofa, Signature(3, 7))
    names = ("classifier.bias", "classifier.weight")
    before = {name: supernet.module.state_dict()[name].clone() for name in names}
    assert initialise(supernet.module, ofa, path) == names
    after = supernet.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in names)
    assert torch.equal(after["stem.weight"], state["first_conv.conv.weight"])


def test_both_classifiers_are_reinitialised_for_optional_head(tmp_path: Path) -> None:
    kinds, path = spaces.load_space(Path(__file__).with_name("kinds.yaml")), tmp_path / "ours.pth"
    assert kinds.options("head.width") == (0, 16)
    family = families.get("mbconv")
    weights = family.supernet(kinds, Signature(1, 10)).module.state_dict()
    torch.save(weights, path)
    module = family.supernet(kinds, Signature(1, 7)).module
    reinitialised = initialise(module, kinds, path)
    assert {name.partition(".")[0] for name in reinitialised} == {"classifier", "headless"}
    assert torch.equal(module.state_dict()["stem.weight"], weights["stem.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.pop("blocks.3.mobile_inverted_conv.depth_conv.conv.5to3_matrix"),
            r"1 of \d+ weights are missing",
        ),
        (
            lambda s: s.update({"blocks.77.mobile_inverted_conv.extra": torch.ones(1)}),
            "1 additional weights",
        ),
        (lambda s: s.update({"first_conv.conv.weight": torch.ones(16, 1, 3, 3)}), "has the shape"),
    ],
)
def test_weights_of_another_network_are_refused(
    ofa: SearchSpace, state: State, tmp_path: Path, change: Any, message: str
) -> None:
    path, changed = tmp_path / "ofa.pth", dict(state)
    change(changed)
    torch.save(changed, path)
    supernet = families.get("mbconv").supernet(ofa, Signature(3, 1000))
    with pytest.raises(RunError, match=message):
        initialise(supernet.module, ofa, path)


def test_truncated_file_or_file_without_weights_is_refused(
    ofa: SearchSpace, state: State, tmp_path: Path
) -> None:
    module = families.get("mbconv").supernet(ofa, Signature(3, 1000)).module
    with pytest.raises(RunError, match="file not found"):
        initialise(module, ofa, tmp_path / "absent.pth")
    path = tmp_path / "ofa.pth"
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RunError, match="cannot be read"):
        initialise(module, ofa, path)
    torch.save({"epoch": 3}, path)
    with pytest.raises(RunError, match="contains no weights"):
        initialise(module, ofa, path)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code was run",))


def test_file_with_code_is_refused(
    ofa: SearchSpace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.pth"
    torch.save({"state_dict": _Evil()}, path)
    module = families.get("mbconv").supernet(ofa, Signature(3, 1000)).module
    with pytest.raises(RunError, match="cannot be read"):
        initialise(module, ofa, path)
    assert "code was run" not in capsys.readouterr().out
