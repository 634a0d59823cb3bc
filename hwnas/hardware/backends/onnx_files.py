"""ONNX files, which every export holds, and what runs them here: whichever backend opens them.

Package onnx is imported where files are written alone: they run, and libraries do, without it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError
from hwnas.hardware.backends.base import (
    Files,
    Floats,
    RemeasuredCost,
    TrainedNetwork,
    open_artefact,
)
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.costs.measured_cost import dtype_of
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph
from hwnas.models.int8.quantised_network import QuantisedNetwork, random_int8_network

FLOAT32, INT8 = "model.fp32.onnx", "model.int8.onnx"  #: of exports


def session(model: bytes) -> Session:
    """Return an ONNX file as something that runs on this machine.

    Raises:
        CompileError: it is refused.
    """
    return open_artefact(FLOAT32, {".onnx": model})


def int8_session(network: QuantisedNetwork) -> Session:
    """Return an int8 network as something that runs on this machine, as exports hold it."""
    from hwnas.models.onnx.writer import write_int8

    return open_artefact(INT8, {".onnx": write_int8(network, any_batch=True)})


def write_onnx(
    network: TrainedNetwork, lowered: Graph, dtype: str, *, any_batch: bool = False
) -> bytes:
    """Return a network as an ONNX file that computes in int8, or else in float32.

    Args:
        network: The network.
        lowered: Its operators as they are written in float32; an inference reads their
            batch, on their threads.
        dtype: In which the target computes it.
        any_batch: Whether an inference may read any number of images.
    """
    from hwnas.models.onnx.writer import write_fp32, write_int8

    if dtype == "int8":
        assert network.int8 is not None
        op = lowered[0].op
        return write_int8(network.int8, any_batch=any_batch, batch=op.batch, threads=op.threads)
    return write_fp32(lowered, network.weights, any_batch=any_batch)


def random_model(lowered: Graph) -> bytes:
    """Return an ONNX model with random weights, of the dtypes of its operators."""
    from hwnas.models.onnx.writer import write_fp32, write_int8

    if any(node.op.dtype == "int8" for node in lowered):
        return write_int8(random_int8_network(lowered))
    return write_fp32(lowered, random_weights(lowered, 0))


@final
class ModelledArtefacts:
    """An ONNX file, for a device that is not here: only its accuracy is measured.

    Args:
        target: What it is for.
        estimate: What the network costs there.
        unmeasurable: Why nothing can be measured, in a sentence.
    """

    def __init__(self, target: Target, estimate: Callable[[Graph], Cost], unmeasurable: str):
        self._target, self._estimate, self._unmeasurable = target, estimate, unmeasurable

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return an ONNX file: int8 for what the target computes in int8, else float32."""
        dtype = dtype_of(network.lowered, self._target)
        return {".onnx": write_onnx(network, network.lowered, dtype)}

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return no files: there is no device."""
        return {}

    def evaluate(
        self, files: Files, lowered: Graph, batches: Iterable[Floats]
    ) -> tuple[Floats, Cost]:
        """Run the file on this host; model its cost."""
        loaded = session(files[".onnx"].read_bytes())
        outputs = np.concatenate([loaded.run(images) for images in batches])
        return outputs, self._estimate(lowered)

    def remeasure(self, files: Files, lowered: Graph, images: Floats) -> RemeasuredCost:
        """Refuse: there is no device.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(self._unmeasurable)

    def interleaved(self, files: Files, other: Files) -> None:
        """Return nothing: nothing is measured."""


# Weights of networks that nobody has trained.


def random_weights(
    lowered: Graph, seed: int
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return weights by operator that let activations keep their size.

    Source: He et al., "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for node in lowered:
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
