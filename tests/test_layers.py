"""Layers of the package, import cycles, and places of third-party libraries."""

import ast
import functools
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import hwnas

ROOT = Path(hwnas.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

#: From top to bottom: a folder imports from itself and from the rows below it.
FOLDERS = (
    "testing", "cli", "workflows", "fleet", "analysis", "export", "nas", "training", "hardware",
    "models", "tasks", "core",
)  # fmt: skip
#: Modules of the package itself: public names and entry point.
TOP = {"__init__.py", "__main__.py"}

# Third-party libraries that only some folders or modules may import.
PLACES = {
    "ethosu": {"hardware.backends.vela.compiler"},
    "tvm": {"hardware.backends.tvm"},
    "onnxruntime": {
        "fleet.deployment.app",
        "fleet.deployment.triton_model",
        "hardware.backends.onnxruntime",
        "hardware.kits.runtimes",
    },
    "onnx": {"fleet.deployment.onnx_served", "models.onnx"},
    "scipy": {
        "analysis.significance",
        "core.agreement",
        "core.gaussian_process",
        "fleet.program",
        "fleet.resolve",
        "fleet.simulation",
        "hardware.costs.table_cost",
        "hardware.device_models",
        "hardware.profiling.table_transfer",
        "nas.pareto",
        "tasks.early_stopping",
        "training.evaluation",
        "training.finetuning.compression",
        "workflows.profile_kit",
    },
    "highspy": {"fleet.column_generation"},
    "numba": {"fleet.simulator_core"},  # one file: its cache ignores changes of others
    "ray": {"fleet.deployment.app"},
    "pynvml": {"hardware.meters"},
    "ai_edge_litert": {"hardware.backends.vela.litert", "models.int8.tflite"},
    "flatbuffers": {"models.int8.tflite"},
    "datasets": {"training.data.hub"},
    "moocore": {"core.pareto"},
    "pyarrow": {
        "core.run_folder",
        "nas.benchmark_table",
        "nas.candidates",
        "training.data.hub",
        "training.data.metadata",
        "workflows.result_folders",
        "workflows.front_table",
        "workflows.results",
    },
    "hydra": {"cli.dispatch", "workflows.config"},
    "omegaconf": {"cli.dispatch", "workflows.config"},
    "optuna": {"nas"},
    "sqlalchemy": {"core.database", "nas.study", "nas.storage"},
    "matplotlib": {"analysis", "fleet.page", "workflows.results"},
    "torch_pruning": {"training.finetuning.compression"},
    "torch.utils.tensorboard": {"workflows.train"},
    "torch.distributed": {"models.families.elastic_layers", "training.parallel"},
    "rich": {"cli"},
}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


EXISTING = {f"hwnas.{_name(path)}".rstrip("."): path for path in MODULES}


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    """Return all imported modules and names: in functions and for type checking, too."""
    imported: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            imported |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(imported)


def _folder(name: str) -> str:
    return name.removeprefix("hwnas.").partition(".")[0]


def test_package_has_twelve_folders() -> None:
    folders = {path.name for path in ROOT.iterdir() if any(path.rglob("*.py"))}
    assert folders == set(FOLDERS)
    assert {path.name for path in ROOT.glob("*.py")} == TOP


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_modules_and_classes_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 200, node.name


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent != ROOT], ids=_name)
def test_folder_imports_no_upper_layer(path: Path) -> None:
    layer = FOLDERS.index(_folder(_name(path)))
    for imported in _imports(path):
        if imported in EXISTING and imported != "hwnas":
            assert FOLDERS.index(_folder(imported)) >= layer, imported


def test_no_import_cycles() -> None:
    graph = {
        name: {i for i in _imports(path) & EXISTING.keys() if i != "hwnas"}
        for name, path in EXISTING.items()
    }
    # Importing a name of a package imports the package, too; its names are in submodules.
    packages = {name for name in EXISTING if (ROOT / Path(*name.split(".")[1:])).is_dir()}
    sorter = graphlib.TopologicalSorter(
        {n: {i for i in imported if i not in packages} for n, imported in graph.items()}
    )
    sorter.prepare()  # raises a CycleError that names the cycle


def test_module_names_are_unique_per_folder() -> None:
    """Modules of plug-in interfaces may repeat: each backend, family and section has its own."""
    seams = re.compile(r"(hardware\.backends|models\.families)\.\w+\.\w+$|\.base$")
    places = defaultdict(list)
    for path in MODULES:
        name = _name(path)
        if path.name != "__init__.py" and not seams.search(name):
            places[_folder(name), path.stem].append(name)
    assert [names for names in places.values() if len(names) > 1] == []


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_third_party_libraries_stay_in_listed_places(path: Path) -> None:
    name = _name(path)
    for imported in _imports(path):
        for library, places in PLACES.items():
            if f"{imported}.".startswith(f"{library}."):
                assert any(f"{name}.".startswith(f"{place}.") for place in places), imported


def test_private_members_of_optuna_are_used_in_one_module() -> None:
    samplers = [path for path in MODULES if "optuna" in path.read_text()]
    assert {_name(path) for path in samplers if any(_private_optuna_members(path))} == {
        "nas.trial_attributes"
    }


def _private_optuna_members(path: Path) -> Iterator[str]:
    """Yield private modules of Optuna that a module imports, and private members it uses."""
    for imported in _imports(path):
        if imported.startswith("optuna.") and "._" in imported:
            yield imported
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            yield from {ast.unparse(node)} - {f"self.{node.attr}", f"cls.{node.attr}"}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_unsafe_functions_are_not_called(path: Path) -> None:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "yaml.load" and _name(path) == "core.safe_read":
                continue  # with a loader derived from yaml.SafeLoader
            assert called not in {"eval", "exec", "pickle.load", "yaml.load"}, called
            if called == "torch.load":
                assert "weights_only=True" in ast.unparse(node)
