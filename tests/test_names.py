"""Names are unique and specific, and those that plug-ins import exist."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name

import pytest

import hwnas

ROOT = Path(hwnas.__file__).parent
TREES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))
}
#: Too general for a function of a module; the public verbs of the Python API keep theirs.
GENERAL = {"run", "check", "read", "of", "search"}
PUBLIC = {("__main__.py", "run"), ("workflows/python_api.py", "search")}

#: Names that families, backends, metrics, tasks and evaluators of other packages import.
PLUG_INS = (
    "hwnas:Cost", "hwnas:HwnasError", "hwnas:ParetoSampler", "hwnas:Quantity", "hwnas:Score",
    "hwnas.core.agreement:agreement",
    "hwnas.core.errors:ConfigError", "hwnas.core.errors:SpaceError",
    "hwnas.hardware.backends.base:Backend",
    "hwnas.hardware.backends.description:ArtefactType",
    "hwnas.hardware.backends.description:BackendDescription",
    "hwnas.hardware.backends.description:BackendSettings",
    "hwnas.hardware.backends.description:RunnerScript",
    "hwnas.hardware.costs.roofline_cost:RooflineCostModel",
    "hwnas.models.families.base:Family", "hwnas.models.families.base:Supernet",
    "hwnas.models.families.base:TrainingRecipe",
    "hwnas.models.families.elastic_layers:ElasticConv",
    "hwnas.models.families.elastic_layers:ElasticLinear",
    "hwnas.models.families.layers:ConvNormAct", "hwnas.models.families.layers:Mean",
    "hwnas.models.graph:Graph", "hwnas.models.graph:INPUT", "hwnas.models.graph:Node",
    "hwnas.models.graph:OpSpec", "hwnas.models.graph:Shape", "hwnas.models.graph:Signature",
    "hwnas.models.spaces:Genotype", "hwnas.models.spaces:SearchSpace",
    "hwnas.tasks.base:Task", "hwnas.tasks.base:TaskType",
    "hwnas.tasks.metrics:Metric", "hwnas.tasks.metrics.metric:scale",
    "hwnas.testing:BackendContract", "hwnas.testing:CostModelContract",
    "hwnas.testing:FamilyContract", "hwnas.testing:SessionContract",
)  # fmt: skip


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_functions_have_specific_names() -> None:
    general = {
        (path, node.name)
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in GENERAL
    }
    assert general == PUBLIC


@pytest.mark.parametrize("name", PLUG_INS)
def test_name_for_plug_ins_exists(name: str) -> None:
    assert resolve_name(name) is not None


def test_submodules_do_not_hide_public_functions() -> None:
    """Importing a submodule replaces a function with the same name in the package."""
    folders = {path.partition("/")[0] for path in TREES if "/" in path}
    functions = {name for name in dir(hwnas) if callable(getattr(hwnas, name))}
    assert functions > {"search", "compare", "ParetoSampler"}
    assert folders.isdisjoint(functions)


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that the statements of a module define."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.If(body=inner) | ast.Try(body=inner):
                yield from _names(inner)
            case _:
                stored = (n for n in ast.walk(node) if isinstance(n, ast.Name))
                yield from (n.id for n in stored if isinstance(n.ctx, ast.Store))


def test_scripts_use_names_that_exist() -> None:
    names = {_module(path): {*_names(tree.body)} for path, tree in TREES.items()}
    for module in names:
        parent, _, name = module.rpartition(".")
        names.get(parent, set()).add(name)
    unknown = []
    for folder in ("experiments", "benchmarks", "docs"):
        for path in sorted((ROOT.parent / folder).rglob("*.py")):
            modules: dict[str, str] = {}
            tree = ast.parse(path.read_text())
            used: list[tuple[str, str]] = []
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hwnas"):
                    used += [(str(node.module), alias.name) for alias in node.names]
                    modules |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    module = modules.get(node.value.id, "")
                    used += [(module, node.attr)] * (module in names)
            unknown += [(path.name, *use) for use in used if use[1] not in names.get(use[0], ())]
    assert unknown == []


def _module(path: str) -> str:
    return ".".join(("hwnas", *Path(path).with_suffix("").parts)).removesuffix(".__init__")
