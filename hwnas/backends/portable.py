"""ONNX files, which every export holds, and what runs them here: whichever backend opens them."""

from hwnas.backends.base import Trained, opened
from hwnas.int8.network import QuantisedNetwork
from hwnas.op import Lowered
from hwnas.runtimes.base import Session
from hwnas.runtimes.onnx_writer import write_fp32, write_int8

FLOAT32, INT8 = "model.fp32.onnx", "model.int8.onnx"  #: of exports


def session(model: bytes) -> Session:
    """Return an ONNX file as something that runs on this machine.

    Raises:
        CompileError: it is refused.
    """
    return opened(FLOAT32, {".onnx": model})


def int8_session(network: QuantisedNetwork) -> Session:
    """Return an int8 network as something that runs on this machine, as exports hold it."""
    return opened(INT8, {".onnx": write_int8(network, any_batch=True)})


def write(network: Trained, lowered: Lowered, dtype: str) -> bytes:
    """Return a network as an ONNX file that computes in int8, or else in float32.

    Args:
        network: The network.
        lowered: Its operators as they are written in float32.
        dtype: In which the target computes.
    """
    if dtype == "int8":
        assert network.int8 is not None
        return write_int8(network.int8)
    return write_fp32(lowered, network.weights)
