"""Lower layers never import higher ones, and each outside library stays where it belongs."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hwnas

ROOT = Path(hwnas.__file__).parent

# Longest prefix wins. A module may import modules of its own layer and of those below.
LAYERS = {
    "": 0,  # the package itself: its version
    "errors": 0,
    "version": 0,
    "content": 0,
    "progress": 0,
    "host": 0,
    "processes": 0,
    "bounds": 0,
    "files": 1,
    "database": 1,
    "figure": 1,
    "budget": 1,
    "metrics": 1,
    "space": 1,
    "union": 1,
    "op": 1,
    "graph": 1,
    "segments": 1,
    "energy": 1,
    "target": 1,
    "timing": 1,
    "memory": 1,
    "machine": 0,
    "agreement": 1,
    "gaussian_process": 1,
    "answers": 3,
    "metering": 1,
    "meters": 1,
    "latency_table": 2,
    "next_step": 2,
    "provenance": 2,
    "pareto": 1,
    "results": 2,
    "manifest": 1,
    "records": 0,
    "identity": 0,
    "verified": 2,
    "candidates": 2,
    "cost": 2,
    "cost.measured": 3,
    "backends": 0,  # those that there are
    "backends.base": 3,
    "backends.measured": 3,
    "backends.in_float": 3,
    "backends.derived": 3,
    "backends.exits": 3,
    "backends.portable": 3,
    "backends.alone": 3,
    "backends.writable": 3,
    "families": 2,
    "families.base": 2,
    "families.mbconv": 2,
    "families.resnet": 2,
    "families.vit": 2,
    "families.blocks": 3,
    "families.exiting": 3,
    "families.mbconv.once_for_all": 3,
    "families.elastic": 3,
    "families.rounding": 3,
    "families.synchronised": 3,
    "families.mbconv.elastic_blocks": 3,
    "families.mbconv.network": 3,
    "families.mbconv.supernet": 3,
    "families.resnet.network": 3,
    "families.resnet.supernet": 3,
    "families.vit.elastic": 3,
    "families.vit.network": 3,
    "families.vit.supernet": 3,
    "tasks": 3,
    "training": 3,
    "accuracy": 3,
    "accuracy.trained": 5,
    "int8": 3,
    "runtimes": 3,
    "tabular": 3,
    "tabular_options": 2,
    "profiling": 4,
    "devices": 2,
    "kit": 4,
    "planning": 6,
    "deployment": 6,
    "searching": 4,
    "comparison": 5,
    "export": 5,
    "finishing": 5,
    "report": 5,
    "report.planned": 6,
    "testing": 4,
    "config": 6,
    "supernets": 5,
    "kept_supernets": 5,
    "training_job": 5,
    "networks": 6,
    "device": 6,
    "build": 6,
    "weights": 6,
    "finishing.finisher": 6,
    "api": 7,
    "commands": 8,
    "__main__": 9,
}

# Outside libraries that are worth keeping in few places.
PLACES = {
    "ethosu": {"backends.vela.compiler"},
    "tvm": {"backends.tvm"},  # and its modules
    "onnxruntime": {
        "backends.onnxruntime.provider",
        "backends.onnxruntime.session",
        "deployment.app",
        "deployment.triton_model",
        "kit.runtimes",
    },
    "onnx": {
        "runtimes.onnx_check",
        "runtimes.onnx_reader",
        "runtimes.onnx_parts",
        "runtimes.onnx_served",
        "runtimes.onnx_versions",
        "runtimes.onnx_writer",
    },
    "scipy": {
        "accuracy.audit",
        "accuracy.fidelity",
        "agreement",
        "comparison.significance",
        "api.elsewhere",
        "cost.calibration",
        "devices.predictor",
        "devices.process",
        "devices.roofline",
        "finishing.compression",
        "gaussian_process",
        "planning.moves",
        "planning.program",
        "planning.simulation",
        "profiling.transfer",
        "searching.acquisition",
        "searching.odds",
        "searching.calibration",
        "searching.pace",
        "tasks.regression.early_stopping",
    },
    "highspy": {"planning.highs"},
    "numba": {"planning.compiled"},  # one file: its cache does not see what others become
    "ray": {"deployment.app"},
    "pynvml": {"meters"},
    "ai_edge_litert": {"backends.vela.litert", "int8.tflite"},
    "flatbuffers": {"int8.tflite"},
    "datasets": {"training.data.hub"},
    "moocore": {"pareto"},
    "pyarrow": {
        "api.exports",
        "api.folders",
        "api.result",
        "api.tables",
        "api.unfinished",
        "candidates",
        "results",
        "tabular",
        "training.data.hub",
    },
    "hydra": {
        "api.composition",
        "api.literal",
        "api.refusals",
        "commands.dispatch",
        "commands.sweep",
        "config",
    },
    "omegaconf": {
        "api.composition",
        "api.refusals",
        "commands.dispatch",
        "commands.sweep",
        "config",
    },
    "optuna": {
        "searching.connection",
        "searching.damage",
        "searching.history",
        "searching.loop",
        "searching.pareto_sampler",
        "searching.sampler",
        "searching.shared_study",
        "searching.recorded",
        "searching.storage",
        "searching.study",
        "searching.trials",
        "searching.unofficial",
    },
    "sqlalchemy": {
        "searching.connection",
        "searching.damage",
        "database",
        "searching.shared_study",
        "searching.recorded",
        "searching.storage",
        "searching.study",
        "searching.trials",
    },
    "matplotlib": {
        "api.pictures",
        "api.result",
        "report.audit",
        "report.cascades",
        "report.comparison",
        "report.planned",
        "report.plot",
    },
    "torch_pruning": {"finishing.pruning"},
    "torch.utils.tensorboard": {"api.tensorboard"},
    "torch.distributed": {"families.synchronised", "training.parallel"},
    "rich": {
        f"commands.{name}"
        for name in (
            "audit",
            "compare",
            "compared",
            "compress",
            "console",
            "export",
            "front",
            "fronts",
            "plan",
            "profile",
            "replan",
            "search",
            "serve_check",
            "simulate",
            "split",
            "tabular",
            "train",
            "verify",
            "watch",
            "why",
        )
    },
}

MODULES = sorted(ROOT.rglob("*.py"))


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


#: Of a backend: data that targets need, which is its package itself and its settings; the rest.
_DESCRIBED, _WORKS = 0, 4


EXISTING = {_name(module) for module in MODULES}


def _layer(name: str) -> int:
    parts = name.split(".")
    if parts[0] == "backends" and len(parts) > 1 and (ROOT / "backends" / parts[1]).is_dir():
        return _DESCRIBED if parts[2:] in ([], ["settings"]) else _WORKS
    while name not in LAYERS:
        assert "." in name, f"hwnas.{name} has no layer: add it to LAYERS"
        name = name.rpartition(".")[0]
    return LAYERS[name]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(path: Path, *, top_level: bool) -> set[str]:
    tree = _tree(path)
    nodes = tree.body if top_level else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_modules_and_classes_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350
    classes = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef))
    for found in classes:
        assert found.end_lineno is not None
        assert found.end_lineno - found.lineno < 200, found.name


def test_there_are_modules() -> None:
    assert len(MODULES) > 40


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module_imports_nothing_above_itself(path: Path) -> None:
    for imported in _imports(path, top_level=True):
        name = imported.removeprefix("hwnas.")
        if imported.startswith("hwnas") and name in EXISTING:
            assert _layer(name) <= _layer(_name(path)), imported


def test_imports_go_round_in_no_circle() -> None:
    existing = {f"hwnas.{_name(path)}".rstrip("."): path for path in MODULES}
    graph = {
        name: {i for i in _imports(path, top_level=False) & existing.keys() if i != "hwnas"}
        for name, path in existing.items()
    }
    # Whoever imports a name of a package imports the package, too, whose names are in submodules.
    packages = {name for name in existing if (ROOT / Path(*name.split(".")[1:])).is_dir()}
    sorter = graphlib.TopologicalSorter(
        {n: {i for i in found if i not in packages} for n, found in graph.items()}
    )
    sorter.prepare()  # raises a CycleError that names a circle


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_outside_libraries_stay_in_their_place(path: Path) -> None:
    for imported in _imports(path, top_level=False):
        for library, places in PLACES.items():
            if f"{imported}.".startswith(f"{library}."):
                name = _name(path)
                assert any(f"{name}.".startswith(f"{place}.") for place in places), imported


def test_private_members_of_optuna_are_used_in_one_place() -> None:
    samplers = [path for path in MODULES if "optuna" in path.read_text()]
    found = {_name(path) for path in samplers if any(_private(path))}
    assert found == {"searching.unofficial"}


def _private(path: Path) -> Iterator[str]:
    """Yield private modules of Optuna that a module imports, and private members of other objects.

    Its own are those of ``self``.
    """
    for imported in _imports(path, top_level=False):
        if imported.startswith("optuna.") and "._" in imported:
            yield imported
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            yield from {ast.unparse(node)} - {f"self.{node.attr}", f"cls.{node.attr}"}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_nothing_dangerous_is_called(path: Path) -> None:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "yaml.load" and _name(path) == "records.bounded":
                continue  # with a loader derived from yaml.SafeLoader
            assert called not in {"eval", "exec", "pickle.load", "yaml.load"}, called
            if called == "torch.load":
                assert "weights_only=True" in ast.unparse(node)
