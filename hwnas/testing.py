"""What every Family, CostModel and Session must do: suites for pytest, for one's own as well.

A new one adds a subclass with fixtures, not a suite. Have ``conftest.py`` say
``pytest.register_assert_rewrite("hwnas.testing")`` to see the values that an assertion compares.
"""

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hwnas.cost.base import CostModel
from hwnas.families.base import Family
from hwnas.families.blocks import fold_batch_norm, weights_of
from hwnas.figure import COSTS
from hwnas.op import Lowered, Task, n_macs
from hwnas.runtimes.base import Session
from hwnas.runtimes.onnx_writer import write_fp32
from hwnas.runtimes.ort import OrtSession
from hwnas.space import Genotype, SearchSpace


class FamilyContract:
    """A subclass gives the fixtures ``family`` and ``family_space``."""

    @pytest.fixture
    def task(self) -> Task:
        return Task(in_channels=1, n_classes=10)

    @pytest.fixture
    def genotypes(self, family_space: SearchSpace) -> list[Genotype]:
        rng = random.Random(1)
        ends = [family_space.smallest(), family_space.largest()]
        return ends + [family_space.sample(rng) for _ in range(20)]

    @pytest.mark.parametrize("task", [Task(1, 10), Task(3, 7)])
    @pytest.mark.parametrize("training", [False, True])
    def test_extracted_network_equals_the_supernet(
        self,
        family: Family,
        family_space: SearchSpace,
        genotypes: list[Genotype],
        task: Task,
        training: bool,
    ) -> None:
        torch.manual_seed(0)
        supernet = family.supernet(family_space, task)
        supernet.module.train()
        for genotype in genotypes:  # statistics that are not those of a fresh batch norm
            supernet.forward(_images(family, family_space, genotype, task), genotype)
        supernet.module.train(training)
        for genotype in genotypes:
            images = _images(family, family_space, genotype, task)
            extracted = supernet.extract(genotype)
            with torch.no_grad():
                assert torch.equal(extracted(images), supernet.forward(images, genotype))

    def test_extracting_leaves_the_supernet_as_it_was(
        self, family: Family, family_space: SearchSpace, task: Task
    ) -> None:
        supernet = family.supernet(family_space, task)
        before = {k: v.clone() for k, v in supernet.module.state_dict().items()}
        network = supernet.extract(family_space.largest())
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(1.0)
        after = supernet.module.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)

    def test_lowered_macs_equal_macs_counted_on_the_network(
        self, family: Family, family_space: SearchSpace, genotypes: list[Genotype], task: Task
    ) -> None:
        for genotype in genotypes:
            network = family.build(family_space, genotype, task).eval()
            lowered = family.lower(family_space, genotype, task)
            images = _images(family, family_space, genotype, task)[:1]
            assert n_macs(lowered) == _counted_macs(network, images)

    def test_lowered_operators_are_modules_with_the_lowered_shapes(
        self, family: Family, family_space: SearchSpace, genotypes: list[Genotype], task: Task
    ) -> None:
        for genotype in genotypes:
            network = family.build(family_space, genotype, task).eval()
            lowered = family.lower(family_space, genotype, task)
            seen: dict[str, tuple[int, ...]] = {}
            for node in lowered:
                network.get_submodule(node.name).register_forward_hook(
                    lambda m, i, out, name=node.name, seen=seen: seen.update(
                        {name: tuple(out.shape[1:])}
                    )
                )
            network(_images(family, family_space, genotype, task))
            for node in lowered:
                c, h, w = node.op.out_shape
                assert seen[node.name] in ((c, h, w), (c,)), node.name

    def test_onnx_file_computes_what_the_network_computes(
        self, family: Family, family_space: SearchSpace, genotypes: list[Genotype], task: Task
    ) -> None:
        torch.manual_seed(0)
        supernet = family.supernet(family_space, task)
        supernet.module.eval()
        for genotype in genotypes[:6]:
            network = fold_batch_norm(supernet.extract(genotype))
            lowered = family.lower(family_space, genotype, task)
            session = OrtSession(write_fp32(lowered, weights_of(network, lowered)))
            images = _images(family, family_space, genotype, task)
            with torch.no_grad():
                expected = network(images).numpy()
            largest = max(1.0, float(np.abs(expected).max()))
            assert np.abs(session.run(images.numpy()) - expected).max() <= 1e-4 * largest

    def test_every_parameter_gets_a_gradient_from_some_genotype(
        self, family: Family, family_space: SearchSpace, genotypes: list[Genotype], task: Task
    ) -> None:
        supernet = family.supernet(family_space, task)
        supernet.module.train()
        rng = random.Random(2)
        more = (family_space.sample(rng) for _ in range(200))
        idle = ["all"]
        for genotype in itertools.chain(genotypes, more):
            images = _images(family, family_space, genotype, task)[:2]
            loss = supernet.forward(images, genotype).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            idle = [name for name, p in supernet.module.named_parameters() if p.grad is None]
            if not idle:
                break
        assert not idle


def _images(family: Family, space: SearchSpace, genotype: Genotype, task: Task) -> torch.Tensor:
    resolution = family.resolution(space, genotype)
    images = torch.randn(4, task.in_channels, resolution, resolution)
    return images.to(memory_format=torch.channels_last)


def _counted_macs(network: nn.Module, images: torch.Tensor) -> int:
    """Return the multiply-accumulates that torch counts where it computes, whatever the modules."""
    # Fused attention is not counted; the other way of computing it is.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network(images)
    return int(counter.get_total_flops()) // 2


class CostModelContract:
    """A subclass gives the fixtures ``cost_model`` and ``cost_space``."""

    def test_same_genotype_costs_the_same(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        genotype = cost_space.sample(random.Random(3))
        assert cost_model.cost(genotype) == cost_model.cost(genotype)

    def test_every_figure_is_positive_and_has_a_source(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        cost = cost_model.cost(cost_space.sample(random.Random(4)))
        assert set(cost.figures) == set(COSTS)
        for figure in cost.figures.values():
            assert figure.value > 0
            assert figure.source in ("measured", "compiler-estimate", "table", "modelled")
            if figure.low is not None and figure.high is not None:
                assert figure.low <= figure.value <= figure.high

    def test_largest_costs_more_than_smallest(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        small = cost_model.cost(cost_space.smallest()).figures
        large = cost_model.cost(cost_space.largest()).figures
        assert all(large[name].value > small[name].value for name in COSTS)


class SessionContract:
    """A subclass gives the fixture ``session``: a loaded network, its lowering and its oracle."""

    def test_output_is_within_tolerance_of_the_oracle(
        self,
        session: tuple[Session, Lowered, Callable[[NDArray[np.float32]], NDArray[np.float32]]],
        tolerance: float,
    ) -> None:
        loaded, lowered, oracle = session
        rng = np.random.default_rng(0)
        images = rng.normal(size=(20, *lowered[0].op.in_shape)).astype(np.float32)
        outputs = loaded.run(images)
        assert outputs.shape == (20, lowered[-1].op.out_shape[0])
        assert np.abs(outputs - oracle(images)).max() <= tolerance
