import ast
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import hwnas
from hwnas.core.errors import ConfigError
from hwnas.core.manifest import FORMAT
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.backends.tvm import TvmSettings
from hwnas.hardware.backends.vela import VelaSettings
from hwnas.hardware.target import Remote, facts, from_facts
from hwnas.models.graph import Graph
from hwnas.workflows.config.compose import with_resumed
from hwnas.workflows.config.search import checked_cost
from tests.conftest import target, with_settings

ROOT = Path(hwnas.__file__).parent


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    backends._backends_by_name.cache_clear()
    backends.third_party.cache_clear()


def test_compiler_settings_are_checked_at_start() -> None:
    vela, npu = backends.get("vela"), target("npu")
    resolve = backends.resolve_reference(vela.check_tools, vela)
    resolve(npu, None)
    missing = with_settings(npu, replace(npu.section(VelaSettings), config="mine/vela.ini"))
    with pytest.raises(ConfigError, match=r"target\.vela\.config=mine/vela\.ini: no such file\. G"):
        resolve(missing, None)
    with pytest.raises(ConfigError, match="LLVM has no architecture 'foo'"):
        TvmSettings(mtriple="foo-bar-baz")
    tvm, cpu = backends.get("tvm"), target("cpu")
    resolve, remote = backends.resolve_reference(tvm.check_tools, tvm), Remote()
    for known in (
        "riscv64-linux-gnu",
        "armv7l-linux-gnueabihf",
        "i686-linux-gnu",
        "m68k-linux-gnu",
    ):
        foreign = with_settings(cpu, TvmSettings(mtriple=known))
        message = (
            "installed TVM cannot compile for"
            if "m68k" in known
            else "is another machine than this"
        )
        with pytest.raises(ConfigError, match=message):
            resolve(foreign, remote)


@dataclass
class Package:
    name: str


def _register_backend(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Register a backend of a third-party package."""
    existing = importlib.metadata.entry_points(group=backends.GROUP)
    point = EntryPoint(name, value, backends.GROUP)
    vars(point).update(dist=Package("strange"))
    monkeypatch.setattr(backends, "entry_points", lambda group: EntryPoints((*existing, point)))
    backends._backends_by_name.cache_clear()
    backends.third_party.cache_clear()


def _hide_module(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    find = importlib.util.find_spec

    def find_other(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == module else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_other)


def test_backends_match_entry_points() -> None:
    names = {d.name for d in backends.known()}
    folders = {p.parent.name for p in (ROOT / "hardware" / "backends").glob("*/__init__.py")}
    assert names == folders
    assert backends.get("none") is backends.get("modelled")
    assert backends.third_party() == frozenset()


def test_error_for_missing_backend_names_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _hide_module(monkeypatch, "onnxruntime")
    cpu = target("cpu")
    lacking = replace(cpu, runtime="onnxruntime")
    message = "target.runtime=onnxruntime needs onnxruntime, .*: pip install onnxruntime"
    with pytest.raises(ConfigError, match=message):
        base.backend_of(lacking)
    assert base.backend_of(cpu).estimate(Graph((), ())) is None
    assert base.backend_of(target("npu")).cost_models.keys() == {"vela", "roofline"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:THING", "'mine = no_such_module:THING' of package strange cannot be"),
        ("hwnas.hardware.backends:GROUP", "is not a backend: it must be a .*Description"),
    ],
)
def test_broken_backend_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    _register_backend(monkeypatch, "mine", value)
    with pytest.raises(ConfigError, match=message):
        backends.get("mine")
    assert backends.get("vela").name == "vela"
    assert "mine" not in backends.sections()
    with pytest.raises(ConfigError, match=message):
        replace(target("npu"), runtime="mine")


def test_duplicate_backend_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _register_backend(monkeypatch, "tvm", "hwnas.hardware.backends.tvm:DESCRIPTION")
    with pytest.raises(ConfigError, match="Several packages register a backend 'tvm'"):
        backends.get("tvm")


def test_error_for_outdated_install_gives_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "entry_points", lambda group: EntryPoints(()))
    backends._backends_by_name.cache_clear()
    with pytest.raises(ConfigError, match="pip install -e"):
        backends.names()


def test_default_settings_of_third_party_change_no_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    npu = target("npu")
    before = facts(npu)
    assert before["tvm"] is None  # as in digests of earlier runs
    monkeypatch.setattr(backends, "third_party", lambda: frozenset({"tvm"}))
    assert before == {**facts(npu), "tvm": None}
    assert facts(from_facts(before)) == facts(npu)


#: Names of backends that are also other words: a source of figures, no value, not connected.
_PLAIN = {"modelled", "none", "offline"}
#: Libraries that are used beyond their backend.
_SHARED = {"onnxruntime", "openvino"}
#: The texts that name another backend: tables have a digest of what stands around the one; the
#: others run without hwnas, or are for servers that call by these names what runs a model.
_EXEMPT = {
    ("tvm/operators.py", "onnxruntime"),
    ("measure.py", "onnxruntime"),
    ("runtimes.py", "onnxruntime"),  # of kits, which hwnas does not run
    ("app.py", "onnxruntime"),
    ("triton_model.py", "onnxruntime"),
    ("servers.py", "onnxruntime"),
    ("server_files.py", "onnxruntime"),
    ("server_files.py", "openvino"),
    ("fleet_file.py", "openvino"),  # execution providers of servers
    ("pools.py", "openvino"),
    ("onnxruntime/__init__.py", "openvino"),
    *(("catalog.py", name) for name in ("vela", "tvm", "onnxruntime")),  # of hwnas --version
    ("compose.py", "tvm"),  # the option with a program that a user must repeat on resume
    ("proof_file.py", "tvm"),  # whose settings name a program, which is not taken from a proof
    ("c_source.py", "vela"),  # C sources for Ethos-U
    ("export.py", "vela"),
}


def test_backend_names_occur_only_in_their_folder() -> None:
    names = {*backends.names()} - _PLAIN
    assert len(names) >= 3
    result = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        own_backend = parts[2] if parts[1:2] == ("backends",) and len(parts) > 3 else ""
        for text in _texts(path):
            result += [
                f"{path}: {name} in {text!r}"
                for name in names - {own_backend}
                if name in text.lower()
                and ("/".join(parts[2:]) if own_backend else parts[-1], name) not in _EXEMPT
            ]
    assert result == []


def test_compiler_names_occur_only_in_their_folder() -> None:
    names = {*backends.names()} - _PLAIN - _SHARED
    assert names >= {"tvm", "vela"}
    result = []
    for path in sorted(ROOT.rglob("*.py")):
        others = names - {*path.relative_to(ROOT).parts[:-1]}
        others -= {name for file, name in _EXEMPT if file == path.name}
        text = path.read_text().lower()
        result += [f"{path}: {name}" for name in others if re.search(rf"\b{name}\b", text)]
    assert result == []


def _texts(path: Path) -> Iterator[str]:
    """Yield names and strings of a module, without docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    docstrings = {id(b[0].value) for b in bodies if b and isinstance(b[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(alias.name for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_old_names_are_read_from_records_only(tmp_path: Path) -> None:
    current_target = target("nvidia_t4")
    recorded = {**facts(current_target), "runtime": "elsewhere"}
    recorded["elsewhere"] = recorded.pop("offline")
    assert facts(from_facts(recorded)) == facts(current_target)
    with pytest.raises(
        ConfigError, match=r"target.runtime=elsewhere is now target.runtime=offline"
    ):
        replace(current_target, runtime="elsewhere")
    with pytest.raises(
        ConfigError, match="cost=measured_elsewhere was renamed: write cost=device_model"
    ):
        checked_cost("measured_elsewhere", current_target)
    arguments = ["+target=nvidia_t4", "cost=measured_elsewhere", "target.elsewhere.file=a.json"]
    manifest = {"format": FORMAT, "verb": "profile", "arguments": arguments}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    current = ["+target=nvidia_t4", "cost=device_model", "target.offline.file=a.json"]
    assert with_resumed([f"run.resume={tmp_path}"])[:3] == current
