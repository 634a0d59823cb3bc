from collections.abc import Callable

import pytest

from hwnas.core.errors import CompileError
from hwnas.hardware.backends import base
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from tests.conftest import target

TASK = Signature(1, 10)


@pytest.fixture(scope="module")
def vit() -> SearchSpace:
    return spaces.load_space(spaces.find("vit_small"))


def _lower(space: SearchSpace) -> Callable[[Genotype], Graph]:
    family = families.get(space.family)
    return lambda genotype: family.lower(space, genotype, TASK)


def _int8_cpu() -> Target:
    cpu = target("cpu")
    cpu.runtime, cpu.dtype = "onnxruntime", "int8"
    return cpu


@pytest.mark.parametrize(
    ("on", "message"),
    [
        (
            target("npu"),
            r"'npu' \(vela, int8\).* \(102 tried\).* Operator '.*norm1' cannot",
        ),
        (target("sketch"), "'sketch' .*Operator 'stages.0.blocks.0.norm1' cannot be written in"),
        (_int8_cpu(), "'cpu' .*Operator 'stages.0.blocks.0.norm1' cannot be written in int8"),
    ],
)
def test_unsupported_space_is_refused_with_operator(
    vit: SearchSpace, on: Target, message: str
) -> None:
    with pytest.raises(CompileError, match=message) as error:
        base.check_space(vit, _lower(vit), on, base.backend_of(on))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("on", [target("cpu"), target("npu"), target("sketch"), _int8_cpu()])
def test_supported_space_is_accepted(tiny: SearchSpace, vit: SearchSpace, on: Target) -> None:
    base.check_space(tiny, _lower(tiny), on, base.backend_of(on))
    if on.dtype == "float32":
        base.check_space(vit, _lower(vit), on, base.backend_of(on))


def test_space_with_one_supported_network_is_accepted(tiny: SearchSpace, vit: SearchSpace) -> None:
    middle = {"resolution": 28, "embedding": 64}

    def lower(genotype: Genotype) -> Graph:
        if middle.items() <= genotype.to_dict().items():
            return _lower(tiny)(tiny.smallest())
        return _lower(vit)(genotype)

    base.check_space(vit, lower, target("npu"), base.backend_of(target("npu")))
    for end in (vit.smallest(), vit.largest()):
        with pytest.raises(CompileError, match=r"blocks\.0\.norm1' cannot"):
            base.backend_of(target("npu")).check(lower(end))
