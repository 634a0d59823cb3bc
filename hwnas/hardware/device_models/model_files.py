"""Networks of the model files that a measurement file names, and the facts of their kits."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from hwnas.core.errors import TableError
from hwnas.core.typed_files import read_json

FACTS = ("batch", "dtype", "threads")  #: columns that must match the target, if present
DATA_FACTS = ("channels", "outputs")  #: columns that must match the data set, if present
#: By a part of the name of a model file; hwnas writes TFLite in int8 only.
_DTYPES = {"int8": "int8", "tflite": "int8", "fp32": "float32"}


class _KitNetwork(TypedDict):
    id: str
    role: str
    onnx: str
    sha256: dict[str, str]
    search_space: str
    genotype: dict[str, Any]


class _Kit(TypedDict):
    version: int
    target: str
    command: str
    folder: NotRequired[str]
    batch: int
    dtype: str
    threads: int
    per_device: NotRequired[bool]
    channels: NotRequired[int]
    outputs: NotRequired[int]
    networks: list[_KitNetwork]


def with_genotypes(rows: Sequence[dict[str, str]], folder: Path) -> list[dict[str, str]]:
    """Return rows with the genotypes of their models, and the facts of the kit, if it is one."""
    try:
        kit = read_json(_Kit, folder / "kit.json", TableError)
    except FileNotFoundError:
        return [row | _model_columns(row["model"], folder) for row in rows]
    facts = {name: str(kit[name]) for name in (*FACTS, *DATA_FACTS) if name in kit}  # type: ignore[literal-required]
    by_id = {network["id"]: network for network in kit["networks"]}
    return [facts | row | _kit_columns(row["model"] or "", by_id) for row in rows]


def _kit_columns(model: str, by_id: Mapping[str, _KitNetwork]) -> dict[str, str]:
    """Return the columns that identify a file of a kit; none if it is not in the kit."""
    name = model.replace("\\", "/").rpartition("/")[2]
    network = by_id.get(name.removesuffix(".onnx").removesuffix(".tflite"))
    if network is None:
        return {"genotype": ""}
    return {"genotype": json.dumps(network["genotype"]), "search_space": network["search_space"]}


def _model_columns(model: str, folder: Path) -> dict[str, str]:
    """Return the columns that identify a file of an export or a run; none if it is of neither.

    None either for pruned networks and segments: the latency is not that of their genotype.
    """
    if not model:
        return {"genotype": ""}
    path, content = folder / model.replace("\\", "/"), dict[str, Any]()
    facts: dict[str, str] = {}
    parts = re.split(r"[._]", path.name)
    proof = (path if path.is_dir() else path.parent) / "proof.json"
    record = path.with_name(f"{parts[0]}.json")  # of the network ID in RUN/models
    if proof.is_file():
        proven = read_json(dict[str, Any], proof, TableError)
        steps = proven.get("finishing", {}).get("steps", [])
        pruned = any(step["step"] == "narrowed" for step in steps)
        if not pruned and (path.is_dir() or path.name in proven.get("files", {})):
            content = proven.get("model", {})
            known = (
                ("channels", content.get("input", [""])[0]),
                ("outputs", content.get("n_outputs")),
            )
            facts = {name: str(value) for name, value in known if value}
    elif record.is_file():
        content = read_json(dict[str, Any], record, TableError)
        facts = _facts_of_run(path, content) if "genotype" in content else {}
    if "genotype" not in content or any(re.fullmatch(r"segment\d+", part) for part in parts):
        return {"genotype": ""}
    columns = {"genotype": json.dumps(content["genotype"])}
    if space := content.get("search_space"):
        columns["search_space"] = str(space)
    dtypes = [_DTYPES[part] for part in parts if part in _DTYPES]
    return columns | facts | dict(zip(["file_dtype"], dtypes, strict=False))


def _facts_of_run(path: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a file in RUN/models, by the manifest of the run."""
    manifest = path.parent.parent / "manifest.json"
    run = read_json(dict[str, Any], manifest, TableError) if manifest.is_file() else {}
    task, target = run.get("task", {}), run.get("config", {}).get("target", {})
    facts = {
        "file_id": re.split(r"[._]", path.name)[0],
        "channels": len(run.get("normalisation", {}).get("mean", ())),
        "outputs": len(task.get("classes") or task.get("values") or ()),
    }
    if path.suffix == ".onnx":
        facts["batch"] = content["genotype"].get("batch") or target.get("batch")
        facts["file_dtype"] = content["genotype"].get("precision") or target.get("dtype")
    return {name: str(value) for name, value in facts.items() if value}
