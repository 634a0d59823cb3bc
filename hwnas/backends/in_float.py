"""Is a network faster in int8? Its files are timed in turns with those of the same in float32."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hwnas.backends.base import Artefacts, Files, Trained
from hwnas.cost.in_float import columns


def compared(network: Trained, files: Files, artefacts: Artefacts) -> Mapping[str, float]:
    """Return how fast a network is beside the same in float32, by column.

    Args:
        network: Whose space says in which dtype it computes; of others there is nothing to be said.
        files: Its own, on the disk.
        artefacts: What makes files and times them; nothing is said where nothing is measured.
    """
    if network.lowered.dtype != "int8":
        return {}
    real = replace(network, lowered=replace(network.lowered, dtype="float32"), int8=None)
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder:
        others = {}
        for suffix, content in artefacts.build(real).items():
            others[suffix] = Path(folder, f"float32{suffix}")
            others[suffix].write_bytes(content)
        found = artefacts.in_turns(files, others)
    return {} if found is None else columns(found)
