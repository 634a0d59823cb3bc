"""Measurement kits: network files, their description, and a script that measures them."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph
from hwnas.models.int8 import tflite
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.spaces import Genotype

SCRIPTS = ("measure.py", "runtimes.py")  #: the second is imported by the first
#: number of networks that are measured repeatedly (sentinels), to notice a change of speed
N_SENTINELS = 3


@dataclass(frozen=True)
class KitNetwork:
    """A network of a kit."""

    genotype: Genotype  #: its choices in the search space
    graph: Graph  #: fused, in the target's dtype


def write_kit(
    folder: Path, networks: Sequence[KitNetwork], target: Target, command: str
) -> list[str]:
    """Write a kit: networks with random weights, ``kit.json`` and the scripts that measure them.

    Return notes about TFLite files that were not written, each once; ONNX files always are. The
    first three networks are the sentinels.

    Args:
        folder: New folder of the kit; missing parents are created.
        networks: Networks to measure.
        target: Target of the networks.
        command: Command line that reads the results, without ``measured=CSV``.

    Raises:
        ConfigError: the folder exists.
    """
    if folder.exists():
        raise ConfigError(f"kit={folder} already exists: name another folder, or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".kit-") as temporary:
        kit = Path(temporary) / "kit"
        (kit / "networks").mkdir(parents=True)
        entries = [_entry(kit, i, network, notes) for i, network in enumerate(networks)]
        description = {
            "version": 1,
            "target": target.name,
            "batch": target.batch,
            "dtype": target.dtype,
            "threads": target.threads,
            "per_device": target.power is not None and target.power.per_device,
            "channels": networks[0].graph[0].op.in_shape[0],
            "outputs": networks[0].graph[-1].op.out_shape[0],
            "command": command,
            "folder": str(folder),
            "networks": entries,
        }
        (kit / "kit.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
        for name in SCRIPTS:
            shutil.copyfile(Path(__file__).parent / name, kit / name)
        kit.rename(folder)
    return sorted(set(notes))


def _entry(kit: Path, index: int, network: KitNetwork, notes: list[str]) -> dict[str, object]:
    from hwnas.models.onnx import opsets  # imports onnx

    files, digests = _files(network.graph, notes), dict[str, str]()
    files[".onnx"], versions = opsets.with_lowest_opset(files[".onnx"])
    for suffix, content in files.items():
        (kit / "networks" / f"{network.genotype.id}{suffix}").write_bytes(content)
        digests[suffix] = hashlib.sha256(content).hexdigest()
    return {
        "id": network.genotype.id,
        "role": "sentinel" if index < N_SENTINELS else "network",
        "search_space": network.genotype.space,
        "genotype": network.genotype.to_dict(),
        "onnx": versions,
        "sha256": digests,
    }


def _files(graph: Graph, notes: list[str]) -> dict[str, bytes]:
    files = {".onnx": onnx_files.random_model(graph)}
    if graph[0].op.dtype != "int8":
        notes.append("No TFLite files: they are written only for target.dtype=int8.")
    elif graph[0].op.batch > 1:
        notes.append("No TFLite files: they are written only for target.batch=1.")
    else:
        try:
            files[".tflite"] = tflite.write_tflite(random_int8_network(graph))
        except CompileError as error:
            notes.append(f"No TFLite files: {error}")

    return files
