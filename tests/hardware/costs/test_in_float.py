from dataclasses import dataclass, field, replace

import pytest

from hwnas.core.errors import CompileError
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.derived_metrics import FasterThanFloat
from hwnas.hardware.timing import InterleavedTimings, Timing
from hwnas.models.families import annotations
from hwnas.models.spaces import Genotype, SearchSpace
from tests.models.families.test_precision import BOTH, WHEN, with_precision

TIMING = Timing(0.5, 0.4, 0.6, 9)


@dataclass
class FixedLatencies:
    """A cost model with a given latency for each dtype."""

    latencies: dict[str, Quantity]
    max_cost_queries: int | None = 3
    requested: list[str] = field(default_factory=list)

    def cost(self, genotype: Genotype) -> Cost:
        dtype = str(genotype.to_dict()["precision"])
        self.requested.append(dtype)
        return Cost({"latency_ms": self.latencies[dtype]}, {"cycles": 1.0})


@pytest.fixture
def space(tiny: SearchSpace) -> SearchSpace:
    return with_precision(tiny, **BOTH, when=WHEN)


def _genotype(space: SearchSpace, dtype: str) -> Genotype:
    assignment = {name: options[0] for name, options in space.choices.items()}
    return space.genotype({**assignment, "precision": dtype})


def _model(
    space: SearchSpace, fixed: FixedLatencies, ratio: Quantity | None = None
) -> FasterThanFloat:
    def interleaved(genotype: Genotype, other: Genotype) -> InterleavedTimings:
        assert (genotype.to_dict()["precision"], other.to_dict()["precision"]) == (
            "int8", "float32",
        )  # fmt: skip
        assert ratio is not None
        return InterleavedTimings(TIMING, TIMING, ratio)

    turns = None if ratio is None else interleaved
    return FasterThanFloat(
        fixed, lambda genotype: annotations.float_genotype(space, genotype), turns
    )


@pytest.mark.parametrize(
    ("here", "there", "refused"),
    [
        (Quantity(0.5, "table", 0.4, 0.6), Quantity(0.7, "table", 0.6, 0.8), False),
        (Quantity(0.5, "table", 0.4, 0.6), Quantity(0.6, "table", 0.5, 0.7), True),
        (Quantity(0.9, "modelled"), Quantity(0.7, "modelled"), True),
    ],
)
def test_int8_not_faster_than_float32_is_refused(
    space: SearchSpace, here: Quantity, there: Quantity, *, refused: bool
) -> None:
    model = _model(space, FixedLatencies({"int8": here, "float32": there}))
    cost = model.cost(_genotype(space, "int8"))
    assert cost.figures == {"latency_ms": here}
    assert cost.details == {"cycles": 1.0, "float32_latency_ms": there.value}
    assert bool(cost.reason) is refused
    if refused:
        assert f"in float32 {there.value:.4g} ms ({here.source})" in cost.reason
    assert model.max_cost_queries == 3


def test_measured_latencies_are_interleaved(space: SearchSpace) -> None:
    fixed = FixedLatencies({"int8": Quantity(0.5, "measured")})
    for ratio, refused in ((0.9, False), (0.99, True), (1.3, True)):
        figure = Quantity(ratio, "measured", ratio - 0.02, ratio + 0.02)
        cost = _model(space, fixed, figure).cost(_genotype(space, "int8"))
        assert cost.details["int8_over_float32"] == ratio
        assert cost.details["int8_over_float32_high"] == ratio + 0.02
        assert cost.details["float32_latency_ms"] == TIMING.median_ms
        assert bool(cost.reason) is refused
    assert "1.30 times (1.28 to 1.32) as long as in float32, timed in turns" in cost.reason


def test_float32_and_fixed_int8_are_not_compared(space: SearchSpace) -> None:
    fixed = FixedLatencies(dict.fromkeys(("int8", "float32"), Quantity(0.5, "measured")))
    cost = _model(space, fixed).cost(_genotype(space, "float32"))
    assert (cost.reason, cost.details) == ("", {"cycles": 1.0})
    alone = with_precision(replace(space, choices={"precision": ("int8",)}))
    genotype = alone.genotype({"precision": "int8"})
    assert not _model(alone, fixed).cost(genotype).reason
    assert fixed.requested == ["float32", "int8"]


def test_refusal_of_compiler_is_raised(space: SearchSpace) -> None:
    class Refusing:
        max_cost_queries: int | None = 0

        def cost(self, genotype: Genotype) -> Cost:
            raise CompileError("no")

    model = FasterThanFloat(
        Refusing(), lambda genotype: annotations.float_genotype(space, genotype)
    )
    with pytest.raises(CompileError, match="no"):
        model.cost(_genotype(space, "int8"))
