"""What can be written as a file for a target; no weights are needed to know it."""

import random
from collections.abc import Callable

from hwnas.errors import CompileError
from hwnas.int8 import tflite
from hwnas.op import Lowered
from hwnas.runtimes import onnx_writer
from hwnas.space import Genotype, SearchSpace
from hwnas.target import Target

_DRAWN = 100  #: networks of a space that are looked at before it is refused


def check(lowered: Lowered, target: Target) -> None:
    """Refuse a network, as its family lowers it, that cannot be written for a target.

    Raises:
        CompileError: it names the operator.
    """
    if target.runtime == "vela":
        tflite.check(lowered)
    elif target.dtype == "int8":
        onnx_writer.check_int8(lowered)


def check_space(space: SearchSpace, lower: Callable[[Genotype], Lowered], target: Target) -> None:
    """Refuse a space of which no network can be written for a target.

    Raises:
        CompileError: it names the operator of the smallest network.
    """
    rng, reasons = random.Random(0), list[str]()
    ends = [space.smallest(), space.largest()]
    for genotype in [*ends, *(space.sample(rng) for _ in range(_DRAWN))]:
        try:
            return check(lower(genotype), target)
        except CompileError as error:
            reasons.append(str(error))
    raise CompileError(
        f"Target '{target.name}' ({target.runtime}, {target.dtype}) can run no network of space "
        f"'{space.name}', of {len(reasons)} looked at. {reasons[0]}"
    )
