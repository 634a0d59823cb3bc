"""Networks in int8 with some operators in float32."""

import random
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from hwnas.core.errors import CompileError
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.memory import weight_bytes
from hwnas.models import spaces
from hwnas.models.families.annotations import float_edges
from hwnas.models.graph import Graph, Node, OpSpec, Signature
from hwnas.models.int8.quantisation import calibrate, quantise
from hwnas.models.int8.quantised_network import QuantisedNetwork, int8_tensors, random_int8_network
from hwnas.models.int8.simulation import SimulatedInt8
from hwnas.models.onnx.writer import check_int8, write_int8
from tests.conftest import target
from tests.models.int8.networks import calibrated

ORT = replace(target("cpu"), runtime="onnxruntime")


def mixed(lowered: Graph) -> Graph:
    float_nodes = float_edges(lowered)
    nodes = tuple(replace(node, in_float=node.name in float_nodes) for node in lowered)
    return replace(lowered, nodes=nodes, dtype="int8")


def _network(
    name: str, seed: int, task: Signature
) -> tuple[SimulatedInt8, QuantisedNetwork, torch.Tensor, torch.Tensor]:
    """Return a network with float edges (simulated and int8), images and float outputs."""
    space = spaces.load_space(spaces.find(name))
    genotype = space.sample(random.Random(seed))
    network, lowered, images = calibrated(space, genotype, task, seed)
    graph = mixed(lowered)
    with torch.no_grad():
        answers = network(images)
    return (
        SimulatedInt8(network, graph, calibrate(network, graph, images)),
        quantise(network, graph, images),
        images,
        answers,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "cpu_small", "mbconv_mixed", "resnet_small"])
def test_file_matches_simulation(name: str, task: Signature) -> None:
    for seed in range(3):
        simulated, int8, images, answers = _network(name, seed, task)
        result = OrtSession(write_int8(int8, any_batch=True)).run(images.numpy())
        with torch.no_grad():
            expected = simulated(images).numpy()
        largest = np.abs(expected).max()
        assert np.abs(result - expected).mean() < 2e-3 * largest
        assert np.abs(result - answers.numpy()).mean() < 0.05 * largest


def test_only_tensors_of_int8_operators_are_quantised(task: Signature) -> None:
    _, int8, *_ = _network("tiny", 0, task)
    model = onnx.load_from_string(write_int8(int8))
    quantised = {n.name.partition("/")[0] for n in model.graph.node if n.op_type[:4] == "Quan"}
    assert quantised == int8_tensors(op.node for op in int8.ops)
    assert "input" not in quantised
    assert not {"pool", "classifier"} & quantised
    assert "stem" in quantised  # blocks read it
    dtypes = {t.name: numpy_helper.to_array(t).dtype for t in model.graph.initializer}
    assert dtypes["stem/weight"] == dtypes["classifier/weight"] == np.float32
    inner = {n: d for n, d in dtypes.items() if n.startswith("stages.0") and n.endswith("/weight")}
    assert inner
    assert {*inner.values()} == {np.dtype(np.int8)}


def test_quantisation_aware_training_trains_float_edges(task: Signature) -> None:
    simulated, _, images, _ = _network("tiny", 0, task)
    simulated.train()
    torch.autograd.backward(simulated(images).square().mean())
    gradients = [p.grad for p in simulated.parameters() if p.requires_grad]
    assert all(gradient is not None for gradient in gradients)
    before = simulated.quantised()
    with torch.no_grad():
        simulated.network.get_parameter("classifier.weight").mul_(2)
    after = simulated.quantised()
    (real, _), (doubled, _) = before.ops[-1].real, after.ops[-1].real  # type: ignore[misc]
    np.testing.assert_allclose(doubled, 2 * real)
    assert after.ops[-1].weights is None


def test_random_model_counts_float32_weights(task: Signature) -> None:
    space = spaces.load_space(spaces.find("tiny"))
    network, lowered, images = calibrated(space, space.largest(), task)
    del network
    graph = fused_graph(mixed(lowered), ORT)
    outputs = OrtSession(onnx_files.random_model(graph)).run(images.numpy()[:1])
    assert np.isfinite(outputs).all()
    reals = [op.node.name for op in random_int8_network(graph).ops if op.real is not None]
    assert reals == ["stem", "classifier"]
    int8_graph = fused_graph(replace(lowered, dtype="int8"), ORT)
    parameters = sum(n.op.n_params for n in lowered if n.name in reals)
    extra = weight_bytes(graph) - weight_bytes(int8_graph)
    assert 2 * parameters < extra < 3 * parameters  # four bytes instead of one, no scales


def test_operators_without_int8_may_be_float32() -> None:
    shape = (8, 4, 4)
    node = Node("norm", OpSpec("layernorm", shape, shape), ("input",))
    with pytest.raises(CompileError, match="norm"):
        check_int8(Graph.of([node]))
    check_int8(Graph.of([replace(node, in_float=True)]))
