"""Weights of Once-for-all's MobileNetV3 supernets, under the names that ours have.

Source: Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791; names of
https://github.com/mit-han-lab/once-for-all, older and newer ones.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from hwnas.families.checks import n_stages
from hwnas.space import SearchSpace

#: What only counts batches.
_COUNTERS = "num_batches_tracked"
#: Names of parts of a block, in order: the first that fits is replaced.
_PARTS = (
    (r"inverted_bottleneck\.conv\.weight", "expand.weight"),
    (r"inverted_bottleneck\.bn\.(\w+)", r"expand.norm.\1"),
    (r"depth_conv\.conv\.weight", "depthwise.weight"),
    (r"depth_conv\.conv\.(\d+to\d+)_matrix", r"depthwise.transforms.\1"),
    (r"depth_conv\.bn\.(\w+)", r"depthwise.norm.\1"),
    (r"depth_conv\.se\.fc\.reduce\.(\w+)", r"se.reduce.\1"),
    (r"depth_conv\.se\.fc\.expand\.(\w+)", r"se.excite.\1"),
    (r"point_linear\.conv\.weight", "project.weight"),
    (r"point_linear\.bn\.(\w+)", r"project.norm.\1"),
)
#: Names outside blocks.
_WHOLE = (
    (r"first_conv\.conv\.weight", "stem.weight"),
    (r"first_conv\.bn\.(\w+)", r"stem.norm.\1"),
    (r"final_expand_layer\.conv\.weight", "head.weight"),
    (r"final_expand_layer\.bn\.(\w+)", r"head.norm.\1"),
    (r"feature_mix_layer\.conv\.weight", "features.weight"),
    (r"classifier\.linear\.(\w+)", r"classifier.\1"),
)


def is_from(state: Mapping[str, Tensor]) -> bool:
    """Return whether weights have Once-for-all's names."""
    return any(name.startswith("first_conv.") for name in state)


def translated(state: Mapping[str, Tensor], space: SearchSpace) -> dict[str, Tensor]:
    """Return weights under our names; what is not known keeps its own.

    Args:
        state: Once-for-all's.
        space: Of the supernet that they are for: blocks are numbered through all its stages.
    """
    places = [
        f"stages.{stage}.{index}.inverted"
        for stage in range(n_stages(space))
        for index in range(max(int(depth) for depth in space.options(f"stages.{stage}.depth")))
    ]
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not name.endswith(_COUNTERS):
            ours = _renamed(name, places)
            linear = ours.startswith("features.") or ".se." in ours
            found[ours] = tensor.flatten(1) if linear and tensor.dim() == 4 else tensor
    if "features.weight" in found:  # theirs has no bias
        found.setdefault("features.bias", torch.zeros(len(found["features.weight"])))
    return found


def _renamed(name: str, places: list[str]) -> str:
    # Elastic layers wrap plain ones of the same name, and newer versions shortened a block's.
    plain = name.replace(".mobile_inverted_conv.", ".conv.")
    plain = re.sub(r"\b(bn|linear)\.\1\.", r"\1.", plain)
    plain = plain.replace(".conv.conv.weight", ".conv.weight")
    block = re.fullmatch(r"blocks\.(\d+)\.conv\.(.+)", plain)
    if block is None:
        return _replaced(plain, _WHOLE) or name
    part = _replaced(block[2], _PARTS)
    index = int(block[1])
    return f"{places[index]}.{part}" if part and index < len(places) else name


def _replaced(name: str, rules: tuple[tuple[str, str], ...]) -> str | None:
    for pattern, ours in rules:
        if match := re.fullmatch(pattern, name):
            return match.expand(ours)
    return None
