"""ONNX files, which every export holds, and what runs them here: whichever backend opens them.

Package onnx is imported where files are written alone: they run, and libraries do, without it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import final

import numpy as np

from hwnas.backends.base import Files, Floats, Recosted, Trained, opened
from hwnas.cost.base import Cost
from hwnas.cost.host import dtype_of
from hwnas.errors import ConfigError
from hwnas.graph import Graph
from hwnas.int8.network import QuantisedNetwork, stand_in
from hwnas.runtimes.base import Session
from hwnas.target import Target

FLOAT32, INT8 = "model.fp32.onnx", "model.int8.onnx"  #: of exports


def session(model: bytes) -> Session:
    """Return an ONNX file as something that runs on this machine.

    Raises:
        CompileError: it is refused.
    """
    return opened(FLOAT32, {".onnx": model})


def int8_session(network: QuantisedNetwork) -> Session:
    """Return an int8 network as something that runs on this machine, as exports hold it."""
    from hwnas.runtimes.onnx_writer import write_int8

    return opened(INT8, {".onnx": write_int8(network, any_batch=True)})


def write(network: Trained, lowered: Graph, dtype: str, *, any_batch: bool = False) -> bytes:
    """Return a network as an ONNX file that computes in int8, or else in float32.

    Args:
        network: The network.
        lowered: Its operators as they are written in float32; an inference reads their
            batch, on their threads.
        dtype: In which the target computes it.
        any_batch: Whether an inference may read any number of images.
    """
    from hwnas.runtimes.onnx_writer import write_fp32, write_int8

    if dtype == "int8":
        assert network.int8 is not None
        op = lowered[0].op
        return write_int8(network.int8, any_batch=any_batch, batch=op.batch, threads=op.threads)
    return write_fp32(lowered, network.weights, any_batch=any_batch)


def random_model(lowered: Graph) -> bytes:
    """Return an ONNX model with random weights, of the dtypes of its operators."""
    from hwnas.runtimes.onnx_writer import write_fp32, write_int8
    from hwnas.runtimes.stand_in import random_weights

    if any(node.op.dtype == "int8" for node in lowered):
        return write_int8(stand_in(lowered))
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

    def build(self, network: Trained) -> Mapping[str, bytes]:
        """Return an ONNX file: int8 for what the target computes in int8, else float32."""
        dtype = dtype_of(network.lowered, self._target)
        return {".onnx": write(network, network.lowered, dtype)}

    def delivered(self, network: Trained) -> Mapping[str, bytes]:
        """Return no files: there is no device."""
        return {}

    def judge(self, files: Files, lowered: Graph, batches: Iterable[Floats]) -> tuple[Floats, Cost]:
        """Run the file on this host; model its cost."""
        loaded = session(files[".onnx"].read_bytes())
        outputs = np.concatenate([loaded.run(images) for images in batches])
        return outputs, self._estimate(lowered)

    def recost(self, files: Files, lowered: Graph, images: Floats) -> Recosted:
        """Refuse: there is no device.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(self._unmeasurable)

    def in_turns(self, files: Files, other: Files) -> None:
        """Return nothing: nothing is measured."""
