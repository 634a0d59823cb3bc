"""The contract of network families."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hwnas.hardware.backends import onnx_files
from hwnas.models.families.base import Family
from hwnas.models.families.layers import fold_batch_norm, weights_of
from hwnas.models.graph import INPUT, Node, Signature, n_macs
from hwnas.models.onnx.writer import write_fp32
from hwnas.models.spaces import Genotype, SearchSpace


class FamilyContract:
    """Tests that every network family must pass.

    A subclass provides the fixtures ``family`` and ``family_space`` (a search space of it), and
    optionally ``signature`` (input channels and outputs) and ``genotypes`` (the tested networks).
    Fixtures may have parameters to test several spaces.
    """

    @pytest.fixture
    def signature(self) -> Signature:
        """Return the number of input channels and of outputs of the tested networks."""
        return Signature(in_channels=1, n_outputs=10)

    @pytest.fixture
    def genotypes(self, family_space: SearchSpace) -> list[Genotype]:
        """Return the tested networks: the smallest, the largest, and random ones."""
        rng = random.Random(1)
        ends = [family_space.smallest(), family_space.largest()]
        return ends + [family_space.sample(rng) for _ in range(20)]

    @pytest.mark.parametrize("signature", [Signature(1, 10), Signature(3, 7)])
    @pytest.mark.parametrize("training", [False, True])
    def test_extracted_network_equals_the_supernet(
        self,
        family: Family,
        family_space: SearchSpace,
        genotypes: list[Genotype],
        signature: Signature,
        training: bool,
    ) -> None:
        """``extract(g)(x)`` and ``forward(x, g)`` have exactly equal outputs, in both modes.

        Otherwise verification would compile another network than the search scored.
        """
        torch.manual_seed(0)
        supernet = family.supernet(family_space, signature)
        supernet.module.train()
        for genotype in genotypes:  # batch norm statistics that differ from the initial ones
            supernet.forward(_images(family, family_space, genotype, signature), genotype)
        supernet.module.train(training)
        for genotype in genotypes:
            images = _images(family, family_space, genotype, signature)
            extracted = supernet.extract(genotype)
            with torch.no_grad():
                outputs, expected = extracted(images), supernet.forward(images, genotype)
            assert outputs.shape == (len(images), signature.n_outputs), _location(genotype)
            apart = f"outputs differ by up to {float((outputs - expected).abs().max()):.3g}"
            assert torch.equal(outputs, expected), f"{_location(genotype)}: {apart}"

    def test_extracting_leaves_the_supernet_as_it_was(
        self, family: Family, family_space: SearchSpace, signature: Signature
    ) -> None:
        """``extract`` copies weights, so that fine-tuning a subnet does not change the supernet."""
        supernet = family.supernet(family_space, signature)
        before = {k: v.clone() for k, v in supernet.module.state_dict().items()}
        network = supernet.extract(family_space.largest())
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(1.0)
        after = supernet.module.state_dict()
        changed = [key for key in before if not torch.equal(before[key], after[key])]
        assert not changed, f"weights that a subnet shares with its supernet: {changed}"

    def test_lowered_operators_read_what_earlier_ones_give(
        self,
        family: Family,
        family_space: SearchSpace,
        genotypes: list[Genotype],
        signature: Signature,
    ) -> None:
        """Operators are in order of execution, and their shapes match."""
        for genotype in genotypes:
            graph = family.lower(family_space, genotype, signature)
            resolution = family.resolution(family_space, genotype)
            known = {INPUT: (signature.in_channels, resolution, resolution)}
            for node in graph:
                location = _location(genotype, node)
                assert {*node.inputs} <= {*known}, f"{location}: reads {node.inputs}"
                assert known[node.inputs[0]] == node.op.in_shape, location
                assert node.name not in known, f"{location}: a second operator of that name"
                known[node.name] = node.op.out_shape
            assert graph.output.op.out_shape == (signature.n_outputs, 1, 1), _location(
                genotype, graph.output
            )

    def test_lowered_macs_equal_macs_counted_on_the_network(
        self,
        family: Family,
        family_space: SearchSpace,
        genotypes: list[Genotype],
        signature: Signature,
    ) -> None:
        """Each operator has as many MACs as the module of its name."""
        for genotype in genotypes:
            network = family.build(family_space, genotype, signature).eval()
            graph = family.lower(family_space, genotype, signature)
            counted = _counted_macs(network, _images(family, family_space, genotype, signature)[:1])
            for node in graph:
                n_counted = counted.get(node.name, 0)
                expected = f"{node.op.n_macs} MACs in the graph, {n_counted} counted on the module"
                assert node.op.n_macs == n_counted, f"{_location(genotype, node)}: {expected}"
            message = f"{counted['']} MACs counted, {n_macs(graph)} in modules of operators"
            assert counted[""] == n_macs(graph), f"{_location(genotype)}: {message}"

    def test_lowered_operators_are_modules_with_the_lowered_shapes(
        self,
        family: Family,
        family_space: SearchSpace,
        genotypes: list[Genotype],
        signature: Signature,
    ) -> None:
        """The module with an operator's name returns the operator's output."""
        for genotype in genotypes:
            network = family.build(family_space, genotype, signature).eval()
            graph = family.lower(family_space, genotype, signature)
            modules = dict(network.named_modules())
            shapes: dict[str, tuple[int, ...]] = {}
            for node in graph:
                assert node.name in modules, f"{_location(genotype, node)}: no module of that name"
                modules[node.name].register_forward_hook(
                    lambda m, i, out, name=node.name, shapes=shapes: shapes.update(
                        {name: tuple(out.shape[1:])}
                    )
                )
            network(_images(family, family_space, genotype, signature))
            for node in graph:
                assert node.name in shapes, (
                    f"{_location(genotype, node)}: its module was not called"
                )
                c, h, w = node.op.out_shape
                given = f"{_location(genotype, node)}: its module gives {shapes[node.name]}"
                assert shapes[node.name] in ((c, h, w), (c,)), given

    def test_onnx_file_computes_what_the_network_computes(
        self,
        family: Family,
        family_space: SearchSpace,
        genotypes: list[Genotype],
        signature: Signature,
    ) -> None:
        """The graph with the weights of a subnet computes that subnet."""
        torch.manual_seed(0)
        supernet = family.supernet(family_space, signature)
        supernet.module.eval()
        for genotype in genotypes[:6]:
            network = fold_batch_norm(supernet.extract(genotype))
            graph = family.lower(family_space, genotype, signature)
            session = onnx_files.session(write_fp32(graph, weights_of(network, graph)))
            images = _images(family, family_space, genotype, signature)
            with torch.no_grad():
                expected = network(images).numpy()
            largest = max(1.0, float(np.abs(expected).max()))
            apart = float(np.abs(session.run(images.numpy()) - expected).max())
            assert apart <= 1e-4 * largest, (
                f"{_location(genotype)}: outputs differ by up to {apart:.3g}"
            )

    def test_every_parameter_gets_a_gradient_from_some_genotype(
        self,
        family: Family,
        family_space: SearchSpace,
        genotypes: list[Genotype],
        signature: Signature,
    ) -> None:
        """Every weight is part of some network of the space; others would never be trained."""
        supernet = family.supernet(family_space, signature)
        supernet.module.train()
        rng = random.Random(2)
        more = (family_space.sample(rng) for _ in range(200))
        idle = ["all"]
        for genotype in itertools.chain(genotypes, more):
            images = _images(family, family_space, genotype, signature)[:2]
            loss = supernet.forward(images, genotype).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            idle = [name for name, p in supernet.module.named_parameters() if p.grad is None]
            if not idle:
                break
        assert not idle, f"parameters without a gradient: {idle}"


def _location(genotype: Genotype, node: Node | None = None) -> str:
    """Return genotype and operator of a failure as text."""
    options = ", ".join(f"{name}={option}" for name, option in genotype.options)
    operator = f", operator '{node.name}' ({node.op})" if node else ""
    return f"genotype {genotype.id} ({options}){operator}"


def _images(
    family: Family, space: SearchSpace, genotype: Genotype, signature: Signature
) -> torch.Tensor:
    resolution = family.resolution(space, genotype)
    images = torch.randn(4, signature.in_channels, resolution, resolution)
    return images.to(memory_format=torch.channels_last)


def _counted_macs(network: nn.Module, images: torch.Tensor) -> dict[str, int]:
    """Return the MACs that torch counts by module name; ``""`` is the whole network."""
    # The counter does not support fused attention.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network(images)
    root = type(network).__name__
    counts = {name: sum(flops.values()) // 2 for name, flops in counter.get_flop_counts().items()}
    inner = {name.removeprefix(f"{root}."): n for name, n in counts.items() if name != root}
    return {**inner, "": counts["Global"]}
