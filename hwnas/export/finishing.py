"""The weights of a picked network, made ready for export: as they are in the supernet."""

from dataclasses import dataclass, field

from torch import nn

from hwnas.accuracy.supernet import SupernetEvaluator
from hwnas.errors import CompileError
from hwnas.int8.network import QuantisedNetwork
from hwnas.int8.quantise import quantise
from hwnas.op import Lowered
from hwnas.results import Row
from hwnas.runtimes.onnx_writer import check_int8
from hwnas.space import Genotype


@dataclass(frozen=True)
class Finished:
    """A network that is ready for export."""

    network: nn.Module  #: plain, in eval mode
    lowered: Lowered
    int8: QuantisedNetwork | None  #: ``None`` where it cannot be written in int8
    record: Row = field(default_factory=dict)  #: what was done to the weights, for the proof


def finish(evaluator: SupernetEvaluator, genotype: Genotype, lowered: Lowered) -> Finished:
    """Return the network with the supernet's weights, recalibrated, and in int8 if it can be."""
    network = evaluator.network(genotype)
    record: Row = {"weights": "supernet, batch norm recalibrated", "int8": None}
    try:
        check_int8(lowered)
    except CompileError as error:
        return Finished(network, lowered, None, {**record, "no_int8": str(error)})
    images = evaluator.calibration_images(genotype)
    int8 = quantise(network, lowered, images)
    record["int8"] = f"post-training, {len(images)} calibration images"
    return Finished(network, lowered, int8, record)
