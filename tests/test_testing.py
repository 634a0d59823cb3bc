"""Failures of contract tests name the genotype and the operator."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import pytest
import torch
from torch import Tensor, nn

from hwnas.models import families
from hwnas.models.families.base import Supernet, TrainingRecipe
from hwnas.models.graph import Graph, Node, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.testing import FamilyContract

_MBCONV = families.get("mbconv")


@final
@dataclass
class WrongFamily:
    """The family ``mbconv`` with a wrong graph or supernet."""

    change: Callable[[Node], Node] = lambda node: node
    wrong_supernet: bool = False

    @property
    def recipe(self) -> TrainingRecipe:
        return _MBCONV.recipe

    def check(self, space: SearchSpace) -> None:
        _MBCONV.check(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        return _MBCONV.resolution(space, genotype)

    def lower(self, space: SearchSpace, genotype: Genotype, task: Signature) -> Graph:
        return Graph.of(map(self.change, _MBCONV.lower(space, genotype, task)))

    def build(self, space: SearchSpace, genotype: Genotype, task: Signature) -> nn.Module:
        return _MBCONV.build(space, genotype, task)

    def supernet(self, space: SearchSpace, task: Signature) -> Supernet:
        supernet = _MBCONV.supernet(space, task)
        return WrongSupernet(supernet) if self.wrong_supernet else supernet


@final
@dataclass
class WrongSupernet:
    """Supernet with an offset in its outputs and an unused weight."""

    inner: Supernet

    def __post_init__(self) -> None:
        self.inner.module.register_parameter("idle", nn.Parameter(torch.zeros(1)))

    @property
    def module(self) -> nn.Module:
        return self.inner.module

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        return self.inner.forward(images, genotype) + 1

    def extract(self, genotype: Genotype) -> nn.Module:
        return self.inner.extract(genotype)


def _change_operator(name: str, **changes: object) -> Callable[[Node], Node]:
    def change(node: Node) -> Node:
        if node.name != name:
            return node
        return replace(node, op=replace(node.op, **changes))  # type: ignore[arg-type]

    return change


def _rename_classifier(node: Node) -> Node:
    return replace(node, name="tail") if node.name == "classifier" else node


@pytest.mark.parametrize(
    ("change", "test", "message"),
    [
        (
            _change_operator("stages.0.blocks.0.depthwise", kernel=9),
            "test_lowered_macs_equal_macs_counted_on_the_network",
            r"operator 'stages\.0\.blocks\.0\.depthwise' \(.* k9 .*MACs in the graph, \d+ counted",
        ),
        (
            _change_operator("head", out_shape=(16, 5, 5)),
            "test_lowered_operators_are_modules_with_the_lowered_shapes",
            r"operator 'head' .* gives \(16, 4, 4\)",
        ),
        (
            _change_operator("head", out_shape=(16, 5, 5)),
            "test_lowered_operators_read_what_earlier_ones_give",
            "operator 'pool'",
        ),
        (
            _rename_classifier,
            "test_lowered_operators_are_modules_with_the_lowered_shapes",
            "operator 'tail' .* no module of that name",
        ),
        (
            _rename_classifier,
            "test_lowered_macs_equal_macs_counted_on_the_network",
            "operator 'tail' .* 0 counted",
        ),
    ],
)
def test_failure_names_genotype_and_operator(
    tiny: SearchSpace, task: Signature, change: Callable[[Node], Node], test: str, message: str
) -> None:
    genotype = tiny.smallest()
    with pytest.raises(AssertionError, match=f"genotype {genotype.id}.*{message}"):
        getattr(FamilyContract(), test)(WrongFamily(change), tiny, [genotype], task)


def test_supernet_failure_names_genotype_and_weights(tiny: SearchSpace, task: Signature) -> None:
    genotype, suite, wrong = tiny.smallest(), FamilyContract(), WrongFamily(wrong_supernet=True)
    with pytest.raises(AssertionError, match=rf"genotype {genotype.id} .*differ by up to 1"):
        suite.test_extracted_network_equals_the_supernet(wrong, tiny, [genotype], task, False)
    with pytest.raises(AssertionError, match="without a gradient: \\['idle'\\]"):
        suite.test_every_parameter_gets_a_gradient_from_some_genotype(wrong, tiny, [genotype], task)
