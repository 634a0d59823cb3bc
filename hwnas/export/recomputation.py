"""Recomputes files and numbers of an export from its proof and its images.

Digests in the proof do not detect a file that was changed together with its digest. What follows
from the rest of the export is therefore computed again; the remainder is unproven without a
signature. No code of the export is executed.
"""

import ast
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hwnas import tasks
from hwnas.core import safe_read
from hwnas.core.quantity import Quantity
from hwnas.export import c_source, standalone
from hwnas.export.folder import CARD
from hwnas.export.proof_file import Proof, operators_from_json, target_of
from hwnas.export.reference_images import ReferenceImages
from hwnas.export.runtimes import TORCH, kinds
from hwnas.models.graph import n_macs, n_params
from hwnas.tasks.base import Task
from hwnas.tasks.metrics import metric_of

PREPROCESSING = "preprocessing.json"
_ARRAY = f"{c_source.FOLDER}/model.c"
_MAX_BYTES = 16 << 20
_MAX_ARRAY_BYTES = 1 << 30  # five characters for each byte of the network


def network_code(recorded: Proof) -> str:
    """Return the text of ``model.py``, as this version writes it for the network of a proof.

    Raises:
        CompileError: an operator is not supported in ``model.py``.
    """
    graph = operators_from_json(recorded["model"]["operators"])
    return standalone.source(graph, "Network of the proof.", _task(recorded))


def contradictions(folder: Path, recorded: Proof, images: ReferenceImages) -> Iterator[str]:
    """Yield a message per file, or key of a file, that contradicts other parts of an export.

    Files of the task, ``preprocessing.json``, ``model.py``, the C array and numbers of
    ``proof.json`` are computed again from the proof and the images. Nothing: no contradiction.

    Raises:
        CompileError: an operator of the proof is not supported in ``model.py``.
    """
    for name, content in _task(recorded).files().items():
        if _read(folder, name) != content.decode():
            yield f"{name} is not that of the task in the proof"
    yield from _preprocessing(folder, recorded)
    if TORCH in recorded["files"]:
        written, expected = _read(folder, TORCH), network_code(recorded)
        if _definitions(written) != _definitions(expected):
            yield f"{TORCH} is not the network of the proof"
    yield from _array(folder, recorded)
    yield from _numbers(recorded, images)


def _array(folder: Path, recorded: Proof) -> Iterator[str]:
    """Yield the C array of the network if it has other bytes than the TFLite files."""
    if _ARRAY not in recorded["files"]:
        return
    array = _read(folder, _ARRAY, _MAX_ARRAY_BYTES)
    numbers = re.findall(r"\d+", array.partition("{")[2].partition("}")[0])
    tflite = {n for n in recorded["files"] if n.endswith(".tflite")}
    known = {recorded["files"][name] for name in tflite}
    content = bytes(int(number) & 255 for number in numbers)
    if hashlib.sha256(content).hexdigest() not in known:
        yield f"{_ARRAY} has other bytes than {' and '.join(sorted(tflite))}"


def unproven(folder: Path, recorded: Proof) -> str:
    """Return a text on the parts of an export that only a signature can prove.

    It lists Python files whose code differs from what this version of hwnas writes.
    """
    task, target = _task(recorded), target_of(recorded)
    expected = standalone.runners({*recorded["files"]}, task, target)
    if TORCH in recorded["files"]:
        expected[TORCH] = network_code(recorded)
    other = [n for n, text in expected.items() if _code(_read(folder, n)) != _code(text)]
    code = f" This version writes other code in {', '.join(other)}." if other else ""
    c_code = " the C code," if _ARRAY in recorded["files"] else ""
    return (
        f"Not checked, as only a signature (key=public.pem) proves it: {CARD},{c_code} training, "
        f"origin and costs (+target=... measures costs again).{code}"
    )


def _task(recorded: Proof) -> Task:
    return tasks.from_json({**recorded["task"]})


def _tree(text: str) -> ast.Module:
    """Return the syntax tree of Python code without docstrings; empty if it cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=[ast.Expr(value=ast.Constant(value=str())), *rest]):
                node.body = rest
            case ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str())), *rest]):
                node.body = rest
            case ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str())), *rest]):
                node.body = rest
    return tree


def _code(text: str) -> str:
    return ast.dump(_tree(text))


def _definitions(text: str) -> list[str]:
    """Return the code of the network in ``model.py`` and of its loading."""
    kinds_ = ast.ClassDef | ast.FunctionDef
    definitions = [node for node in _tree(text).body if isinstance(node, kinds_)]
    return [ast.dump(node) for node in definitions if node.name != "main"]


def _read(folder: Path, name: str, max_bytes: int = _MAX_BYTES) -> str:
    try:
        return safe_read.read_text(folder / name, max_bytes)
    except (OSError, safe_read.CorruptFileError):
        return ""


def _preprocessing(folder: Path, recorded: Proof) -> Iterator[str]:
    """Yield the keys of ``preprocessing.json`` that contradict the proof."""
    c, h, w = recorded["model"]["input"]
    normalisation = recorded["dataset"]["normalisation"]
    expected = {**normalisation, "shape": [h, w, c], **_task(recorded).preprocessing()}
    try:
        content = safe_read.parse_json(_read(folder, PREPROCESSING))
    except safe_read.CorruptFileError:
        content = None
    values = content if isinstance(content, dict) else {}
    for key, value in expected.items():
        if not same_values(values.get(key), value):
            yield f"{PREPROCESSING}: '{key}' is not that of the proof"


def same_values(actual: object, expected: object) -> bool:
    """Return whether two JSON values are equal, with the same keys and lengths.

    Where ``expected`` is a float, a relative difference of up to 1e-5 is allowed.
    """
    if isinstance(expected, Mapping):
        return (
            isinstance(actual, Mapping)
            and actual.keys() == expected.keys()
            and all(same_values(actual[key], value) for key, value in expected.items())
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(actual, list | tuple)
            and len(actual) == len(expected)
            and all(map(same_values, actual, expected))
        )
    if isinstance(expected, float) and isinstance(actual, int | float):
        return math.isclose(actual, expected, rel_tol=1e-5, abs_tol=1e-12)
    return actual == expected


def _numbers(recorded: Proof, images: ReferenceImages) -> Iterator[str]:
    """Yield the numbers of a proof that contradict its network, its images or its figures."""
    model = recorded["model"]
    graph = operators_from_json(model["operators"])
    expected: dict[str, tuple[Any, Any]] = {
        "model.macs_m": (model["macs_m"], n_macs(graph) / 1e6),
        "model.params_m": (model["params_m"], n_params(graph) / 1e6),
    }
    checks = {check["name"]: check for check in recorded["checks"]}
    for name, row in recorded["artefacts"].items():
        if (agreement := row.get("agreement")) is None:
            continue
        simulated = images.expected_int8 is not None and kinds()[name].dtype == "int8"
        outputs = images.expected_int8 if simulated else images.expected
        assert outputs is not None
        largest = float(np.abs(outputs).max())
        prefix = f"artefacts.{name}.agreement"
        expected[f"{prefix}.n_images"] = agreement["n_images"], len(images.targets)
        expected[f"{prefix}.largest_output"] = agreement["largest_output"], largest
        error = "mean_error" if kinds()[name].dtype == "int8" else "max_error"
        if (value := agreement[error]) is not None:  # type: ignore[literal-required]
            expected[f"checks.{name}.error"] = (
                checks[f"{name}.error"]["found"],
                value / (largest or math.nan),
            )
    for name in recorded["budget"].keys() & recorded["figures"].keys():
        limit, margin = recorded["budget"][name]["limit"], recorded["budget"][name]["margin"]
        metric, figure = metric_of(name), Quantity(*recorded["figures"][name])
        check = checks[f"budget.{name}"]
        expected[f"budget.{name}"] = (
            (margin, check["found"], check["allowed"]),
            (-metric.violation(figure, limit), metric.binding(figure), limit),
        )
    for key, (value, recomputed) in expected.items():
        if not same_values(value, recomputed):
            yield f"proof.json: '{key}' is {value}, computed {recomputed}"
