"""ONNX files, which every export contains: writing them, and sessions on this machine.

The package onnx is imported only where files are written: files run without it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hwnas.hardware.backends.base import TrainedNetwork, open_artefact
from hwnas.hardware.costs.measured_cost import dtype_of
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph
from hwnas.models.int8.quantised_network import QuantisedNetwork, random_int8_network

FLOAT32, INT8 = "model.fp32.onnx", "model.int8.onnx"  #: file names in exports


def session(model: bytes) -> Session:
    """Return the network of an ONNX file's content, loaded on this machine's CPU.

    Raises:
        CompileError: onnxruntime cannot load it.
        ConfigError: onnxruntime is not installed.
    """
    return open_artefact(FLOAT32, {".onnx": model})


def int8_session(network: QuantisedNetwork) -> Session:
    """Return an int8 network, loaded on this machine's CPU as the ONNX file of exports."""
    from hwnas.models.onnx.writer import write_int8

    return open_artefact(INT8, {".onnx": write_int8(network, any_batch=True)})


def write_onnx(
    network: TrainedNetwork, graph: Graph, dtype: str, *, any_batch: bool = False
) -> bytes:
    """Return the content of an ONNX file: int8 if ``dtype`` is int8, else float32.

    Args:
        network: The network; for int8 its ``int8`` is written.
        graph: Its graph with the batch size and threads to write; for float32 its operators, too.
        dtype: Dtype that the target computes in.
        any_batch: Whether an inference may have any number of images.
    """
    from hwnas.models.onnx.writer import write_fp32, write_int8

    if dtype == "int8":
        assert network.int8 is not None
        op = graph[0].op
        return write_int8(network.int8, any_batch=any_batch, batch=op.batch, threads=op.threads)
    return write_fp32(graph, network.weights, any_batch=any_batch)


def check_int8(graph: Graph, target: Target) -> None:
    """Check that a network can be written in int8, if the target computes it in int8.

    Raises:
        CompileError: it cannot; the message names the operator.
    """
    if dtype_of(graph, target) == "int8":
        from hwnas.models.onnx import writer

        writer.check_int8(graph)


def random_model(graph: Graph) -> bytes:
    """Return the content of an ONNX file of a fused graph with random weights.

    It is an int8 file if any operator is in int8, else float32.
    """
    from hwnas.models.onnx.writer import write_fp32, write_int8

    if any(node.op.dtype == "int8" for node in graph):
        return write_int8(random_int8_network(graph))
    return write_fp32(graph, random_weights(graph, 0))


def random_weights(
    graph: Graph, seed: int
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return random weight and bias in float32, by name of the operator, ``(weight, bias)``.

    They preserve the scale of activations. Operators without weights are left out.

    Source: He et al., "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for node in graph:
        shape, c_out = node.op.weight_shape, node.op.out_shape[0]
        if node.op.base == "layernorm":
            weight = 1 + 0.1 * rng.standard_normal(c_out)
        elif shape:
            weight = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        else:
            continue
        bias = 0.1 * rng.standard_normal(c_out)
        weights[node.name] = (weight.astype(np.float32), bias.astype(np.float32))
    return weights
