"""Cases of damaged and foreign files: a modification, and a command that reads the file."""

import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper

from benchmarks.odd_inputs import runner
from benchmarks.odd_inputs.case import Case
from benchmarks.odd_inputs.invalid_options import PLAN_FILES
from hwnas.core.package import ROOT

_SPACE_START = "family: mbconv\nchoices:\n  resolution: [8, 12]\n"

Damage = Callable[[Path], object]
Contents = dict[str, str | bytes]


@dataclass(frozen=True)
class _Change:
    """A change to a folder with ``run`` and ``export``, and the command that is run after it."""

    name: str
    damage: Damage
    arguments: tuple[str, ...]


#: Texts of which the message must contain one, by the prefix of a case's name.
_EXPECTED_TEXTS = {
    "manifest": ("manifest.json",),
    "front": ("front.json",),
    "models": ("models/",),
    "candidates": ("candidates.parquet", "study.db"),
    "study": ("study.db",),
    "proof": ("proof.json",),
    "images": ("images.npz",),
    "model.py": ("model.py",),
    "model.": (
        "model.py",
        "model.safetensors",
        "model.fp32.onnx",
        "model.int8.onnx",
        "model.int8.tflite",
    ),
    "key": ("key",),
    "space": ("my.yaml", "'my'"),
    "target": ("mine", "target."),
    "table": ("t.csv",),
    "csv": ("t.csv",),
    "reference": ("r.yaml",),
    "latency table": ("latency_tables", "operators.csv", "calibration.json", "provenance.json"),
    "onnx": ("m.onnx",),
    "genotype": ("genotype",),
    "data": ("/proc", "/dev", "/sys", "Data set"),
    "arrays": ("d.npz",),
    "service": ("s.yaml", "class 'one'", "fronts", "front.csv", "load.csv"),
    "fleet": ("f.yaml", "class 'one'", "carbon.here"),
}


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for change in _all_changes():
        prefix = next(prefix for prefix in _EXPECTED_TEXTS if change.name.startswith(prefix))
        # verify returns 1 if an export differs from its proof.
        codes = (1, 2) if change.arguments[0] == "verify" else (2,)
        yield Case(
            change.name, "file", change.arguments, _EXPECTED_TEXTS[prefix],
            prepare=partial(_prepare, change.damage), codes=codes,
        )  # fmt: skip


def _prepare(damage: Damage, folder: Path) -> None:
    ignored = shutil.ignore_patterns("supernets")
    shutil.copytree(_base_folder(), folder, symlinks=True, dirs_exist_ok=True, ignore=ignored)
    damage(folder)


@functools.cache
def _base_folder() -> Path:
    """Return a folder with a run and its export."""
    base = Path(tempfile.mkdtemp(prefix="odd-base-"))
    atexit.register(shutil.rmtree, base)
    quick = ["+target=npu", "search_space=tiny", "train.epochs=2", "n_trials=8", "finish.epochs=0"]
    folders = ["run.dir=run", "run.supernets=supernets", "study.workers=1"]
    for arguments in (
        ["search", *quick, *folders, "trained.fidelities=[1]", "budget=none"],
        ["export", "run=run", "pick=fastest", "dir=exports"],
    ):
        result = runner.run(arguments, base, limit_s=600)
        assert result.code == 0, result.err
    (export,) = (base / "exports").glob("????????????")
    export.rename(base / "export")
    shutil.rmtree(base / "exports")
    return base


def _all_changes() -> Iterator[_Change]:
    yield from _manifest_changes()
    yield from _front_changes()
    yield from _study_changes()
    yield from _proof_changes()
    yield from _space_changes()
    yield from _target_changes()
    yield from _table_changes()
    yield from _model_changes()
    yield from _data_changes()
    yield from _plan_changes()


def _write(name: str, content: str | bytes) -> Damage:
    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def _change_json(name: str, change: Callable[[Any], object]) -> Damage:
    def rewrite(folder: Path) -> None:
        (path,) = sorted(folder.glob(name))[:1]
        content = json.loads(path.read_text())
        change(content)
        if path.name == "manifest.json":
            del content["sha256"]  # so that hwnas reports the change and not the digest
        path.write_text(json.dumps(content))

    return rewrite


def _set_value(*path: str | int, value: object) -> Callable[[Any], object]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def _duplicate_key(name: str) -> Damage:
    def duplicate(folder: Path) -> None:
        (path,) = sorted(folder.glob(name))[:1]
        first, rest = path.read_text().split("{", 1)
        key = rest.split(":", 1)[0].strip()
        path.write_text(f"{first}{{{key}: 1,{rest}")

    return duplicate


def _replace(name: str, create: Callable[[Path], object]) -> Damage:
    def replace(folder: Path) -> None:
        (path,) = sorted(folder.glob(name))[:1]
        path.unlink()
        create(path)

    return replace


_WHY, _COMPARE = ("why", "run=run", "id=front"), ("compare", "runs=[run]", "run.dir=out")
_EXPORT = ("export", "run=run", "dir=out")
_RESUME = ("search", "run.resume=run")
_INVALID_JSON: Contents = {
    "empty": "", "cut": '{"verb": "sea', "list": "[]", "number": "3", "null": "null",
    "binary": bytes(range(256)) * 8, "deep": "[" * 100_000, "nan": '{"format": NaN}',
    "digits": "1" * 5000, "utf16": '{"a": 1}'.encode("utf-16"),
}  # fmt: skip


def _manifest_changes() -> Iterator[_Change]:
    name = "run/manifest.json"
    for title, content in _INVALID_JSON.items():
        for verb in (_WHY, _COMPARE, _EXPORT, _RESUME):
            yield _Change(f"manifest {title} {verb[0]}", _write(name, content), verb)
    changes: dict[str, Callable[[Any], object]] = {
        "newer": _set_value("format", value=99),
        "format of text": _set_value("format", value="2"),
        "arguments of numbers": _set_value("arguments", value=[1]),
        "verb of a list": _set_value("verb", value=[]),
        "config of a list": _set_value("config", value=[]),
        "budget of text": _set_value("config", "budget", value="edge"),
        "budget of lists": _set_value("config", "budget", "latency_ms", value=[1]),
        "trials of text": _set_value("config", "n_trials", value="many"),
        "trials below zero": _set_value("config", "n_trials", value=-1),
        "target of text": _set_value("config", "target", value="npu"),
        "study of text": _set_value("config", "study", value="x"),
        "versions of numbers": _set_value("versions", value={"hwnas": 1}),
        "digests of lists": _set_value("digests", value=[]),
        "finishing of text": _set_value("finishing", value="x"),
        "task of nothing": _set_value("task", value={}),
        "images of text": _set_value("images", value="x"),
        "more": _set_value("colour", value="red"),
        "no config": lambda content: content.pop("config"),
        "no sampler": lambda content: content["config"].pop("sampler"),
        "targets of text": _set_value("targets", value="x"),
    }
    for title, change in changes.items():
        for verb in (_WHY, _EXPORT):
            yield _Change(f"manifest {title} {verb[0]}", _change_json(name, change), verb)
    for verb in (_WHY, _COMPARE, _EXPORT, _RESUME):
        yield _Change(f"manifest doubled {verb[0]}", _duplicate_key(name), verb)
        yield _Change(f"manifest a folder {verb[0]}", _replace(name, Path.mkdir), verb)
        yield _Change(f"manifest a pipe {verb[0]}", _replace(name, os.mkfifo), verb)
        link = _replace(name, lambda path: path.symlink_to("/dev/zero"))
        yield _Change(f"manifest a device {verb[0]}", link, verb)


def _front_changes() -> Iterator[_Change]:
    name = "run/front.json"
    for title, content in _INVALID_JSON.items():
        yield _Change(f"front {title}", _write(name, content), _EXPORT)
    changes: dict[str, Callable[[Any], object]] = {
        "members of text": _set_value("members", value="x"),
        "member of nothing": _set_value("members", 0, value={}),
        "id of a number": _set_value("members", 0, "id", value=3),
        "latency of text": _set_value("members", 0, "latency_ms", value="fast"),
        "latency of a list": _set_value("members", 0, "latency_ms", value=[1]),
        "source of nothing": _set_value("members", 0, "latency_ms_source", value="guess"),
        "stays of text": _set_value("members", 0, "verified_on_front", value="yes"),
        "objectives of a list": _set_value("objectives", value=["accuracy"]),
        "objectives of nothing": _set_value("objectives", value={}),
        "objective of another name": _set_value("objectives", "beauty", value="max"),
        "no members": lambda content: content.pop("members"),
    }
    for title, change in changes.items():
        for verb in (_EXPORT, _COMPARE):
            yield _Change(f"front {title} {verb[0]}", _change_json(name, change), verb)
    yield _Change("front doubled", _duplicate_key(name), _EXPORT)
    yield _Change("front a folder", _replace(name, Path.mkdir), _EXPORT)
    models = "run/models/*.json"
    for title, change in {
        "files of text": _set_value("files", value="x"),
        "figures of text": _set_value("figures", value="x"),
        "figure of one number": _set_value("figures", "latency_ms", value=[1]),
        "no details": lambda content: content.pop("details"),
    }.items():
        yield _Change(f"models {title}", _change_json(models, change), _WHY)
    for title, content in {"text": "x", "csv": "a,b\n1,2\n"}.items():
        for verb in (_COMPARE, _EXPORT):
            yield _Change(f"candidates {title} {verb[0]}", _overwrite_candidates(content), verb)
    for column, value in {"trial": "x", "accuracy": "x", "state": 1, "latency_ms_low": "x"}.items():
        yield _Change(f"candidates {column} of others", _change_column(column, value), _EXPORT)
    yield _Change("candidates without id", _change_column("id", None), _EXPORT)


def _overwrite_candidates(content: str) -> Damage:
    def overwrite(folder: Path) -> None:
        (folder / "run" / "candidates.parquet").write_text(content)
        (folder / "run" / "study.db").write_text(content)

    return overwrite


def _change_column(column: str, value: object) -> Damage:
    def change(folder: Path) -> None:
        path = folder / "run" / "candidates.parquet"
        table = pq.read_table(path)
        index = table.column_names.index(column)
        table = table.remove_column(index)
        if value is not None:
            table = table.add_column(index, column, pa.array([value] * table.num_rows))
        pq.write_table(table, path)

    return change


def _study_changes() -> Iterator[_Change]:
    path = "run/study.db"

    def truncate(folder: Path) -> None:
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(content[: len(content) // 2])

    def execute_sql(statement: str) -> Damage:
        def damage(folder: Path) -> None:
            with contextlib.closing(sqlite3.connect(folder / path)) as connection, connection:
                connection.execute(statement)

        return damage

    damages: dict[str, Damage] = {
        "garbage": _write(path, bytes(range(256)) * 100),
        "empty": _write(path, b""),
        "cut": truncate,
        "a folder": _replace(path, Path.mkdir),
        "no trials": execute_sql("DROP TABLE trials"),
        "no attributes": execute_sql("DROP TABLE trial_system_attributes"),
        "no studies": execute_sql("DELETE FROM studies"),
        "candidates of text": execute_sql(
            "UPDATE trial_system_attributes SET value_json = '3' WHERE key = 'hwnas:candidate'"
        ),
        "space of text": execute_sql("UPDATE study_user_attributes SET value_json = '3'"),
        "parameters of text": execute_sql("UPDATE trial_params SET distribution_json = 'x'"),
    }
    for title, damage in damages.items():
        # A resumed search accepts an empty study as a new one, and reads the space from its file.
        for verb in (_WHY,) if title in ("empty", "space of text") else (_WHY, _RESUME):
            yield _Change(f"study {title} {verb[0]}", damage, verb)


def _proof_changes() -> Iterator[_Change]:
    name, verify = "export/proof.json", ("verify", "export")
    for title, content in _INVALID_JSON.items():
        yield _Change(f"proof {title}", _write(name, content), verify)
    op = ("model", "operators", 0, "op")
    for title, change in {
        "earlier": _set_value("format", value=1),
        "holds maybe": _set_value("checks", 0, "holds", value="maybe"),
        "holds what does not": _set_value("checks", 0, "found", value=1e9),
        "no checks": _set_value("checks", value=[]),
        "input below zero": _set_value("model", "input", value=[1, -8, -8]),
        "input of 10^18": _set_value("model", "input", value=[10**6, 10**6, 10**6]),
        "no operators": _set_value("model", "operators", value=[]),
        "no outputs": _set_value("model", "n_outputs", value=0),
        "stride 0": _set_value(*op, "stride", value=0),
        "kernel of text": _set_value(*op, "kernel", value="3"),
        "kind of others": _set_value(*op, "kind", value="fft"),
        "shape of two": _set_value(*op, "in_shape", value=[1, 2]),
        "inputs of itself": _set_value("model", "operators", 0, "inputs", value=["later"]),
        "task of others": _set_value("task", "name", value="nothing"),
        "task of a list": _set_value("task", value=[]),
        "no classes": _set_value("task", "classes", value=[]),
        "target of text": _set_value("target", value="npu"),
        "target of others": _set_value("target", "runtime", value="nothing"),
        "target with more": _set_value("target", "colour", value="red"),
        "mean of text": _set_value("dataset", "normalisation", "mean", value=["x"]),
        "std of zero": _set_value("dataset", "normalisation", "std", value=[0]),
        "resolution of 10^9": _set_value("dataset", "max_resolution", value=10**9),
        "images of 10^12": _set_value("n_images", value=10**12),
        "figures of text": _set_value("figures", "latency_ms", value="fast"),
        "limit of zero": _set_value("budget", value={"latency_ms": {"limit": 0, "margin": 0}}),
        "files of numbers": _set_value("files", "model.py", value=1),
        "more": _set_value("colour", value="red"),
    }.items():
        yield _Change(f"proof {title}", _change_json(name, change), verify)
    yield _Change("proof doubled", _duplicate_key(name), verify)
    archives: Contents = {"text": "x", "zip": _zip({}), "huge": _zip({"pixels": _HUGE_ARRAY})}
    for title, content in archives.items():
        yield _Change(f"images of {title}", _replace_export_file("images.npz", content), verify)
    objects = io.BytesIO()
    np.savez(objects, pixels=np.array([{}]), targets=[0], expected=[0])
    yield _Change(
        "images of objects", _replace_export_file("images.npz", objects.getvalue()), verify
    )
    for title, content in {
        "exit": "import sys; sys.exit(0)", "_exit": "import os; os._exit(0)", "syntax": "def (",
        "no load": "x = 1", "killed": "import os; os.kill(os.getpid(), 9)", "text": "\x00",
        "prints": "print('ok'); import sys; sys.exit()", "answers": "def load():\n return print\n",
    }.items():  # fmt: skip
        yield _Change(f"model.py {title}", _replace_export_file("model.py", content), verify)
    invalid_files: Contents = {"text": "x", "empty": "", "bytes": bytes(range(256)) * 64}
    for file in ("model.safetensors", "model.fp32.onnx", "model.int8.onnx", "model.int8.tflite"):
        for title, content in invalid_files.items():
            yield _Change(f"{file} of {title}", _replace_export_file(file, content), verify)
    yield _Change("key of text", _write("key", "x"), ("verify", "export", "key=key"))
    yield _Change("key to sign of text", _write("key", "x"), (*_EXPORT, "sign=key"))


_HUGE_ARRAY = (
    b"\x93NUMPY\x01\x00v\x00"
    + (
        "{'descr': '|u1', 'fortran_order': False, 'shape': (100000, 100000, 1000), }".ljust(117)
        + "\n"
    ).encode()
)


def _zip(parts: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def _replace_export_file(name: str, content: str | bytes) -> Damage:
    """Replace a file of the export, and its digest in the proof, as a forger would."""

    def replace(folder: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (folder / "export" / name).write_bytes(data)
        update_digest = _set_value("files", name, value=hashlib.sha256(data).hexdigest())
        _change_json("export/proof.json", update_digest)(folder)

    return replace


_YAML_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{n}: &{n} [{','.join(['*' + m] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)
)
_INVALID_YAML: Contents = {
    "empty": "", "text": "x", "list": "[1]", "cut": "a: [", "bomb": _YAML_BOMB, "deep": "[" * 5000,
    "tag": "!!python/object/apply:os.system ['true']", "own tag": "a: !x 1", "binary": b"\x00\xff",
    "large": "a: " + "x" * (1 << 20), "itself": "&a [*a]",
}  # fmt: skip


def _space_changes() -> Iterator[_Change]:
    search = ("search", "+target=npu", "search_space=my.yaml", "run.dir=out", "n_trials=2")
    for title, content in _INVALID_YAML.items():
        yield _Change(f"space {title}", _write("my.yaml", content), search)
    tiny = (ROOT / "search_spaces" / "tiny.yaml").read_text()
    changes = {
        "doubled key": f"{tiny}\nfamily: mbconv\n",
        "doubled choice": tiny.replace("choices:\n", "choices:\n  resolution: [8]\n"),
        "family of others": tiny.replace("mbconv", "nothing"),
        "family of a number": tiny.replace("mbconv", "3"),
        "width of 10^9": tiny.replace("stem.width: [", "stem.width: [1000000000, "),
        "wide": _SPACE_START + "  stem.width: [8, 1000000000]\n",
        "depth of 10^8": _SPACE_START + "  stages.0.depth: [1, 100000000]\n",
        "width of nan": _SPACE_START + "  stem.width: [.nan]\n",
        "width of infinity": _SPACE_START + "  stem.width: [.inf]\n",
        "width below zero": _SPACE_START + "  stem.width: [-8]\n",
        "options of objects": _SPACE_START + "  stem.width: [{a: 1}]\n",
        "options of dates": _SPACE_START + "  stem.width: [2001-01-01]\n",
        "many options": _SPACE_START + f"  stem.width: {list(range(1, 5000))}\n",
        "when of text": f"{tiny}\nwhen: always\n",
    }
    for title, content in changes.items():
        yield _Change(f"space {title}", _write("my.yaml", content), search)
    yield _Change("space a folder", lambda folder: (folder / "my.yaml").mkdir(), search)
    yield _Change("space a pipe", lambda folder: os.mkfifo(folder / "my.yaml"), search)


def _target_changes() -> Iterator[_Change]:
    command = ("search", "--config-dir", "mine", "+target=mine", "search_space=tiny", "run.dir=out")
    for title, content in _INVALID_YAML.items():
        if title not in ("empty",):
            yield _Change(f"target {title}", _write("mine/target/mine.yaml", content), command)
    npu = (ROOT / "conf" / "target" / "npu.yaml").read_text()
    for title, content in {
        "doubled": f"{npu}\nname: other\n",
        "more": f"{npu}\ncolour: red\n",
        "clock of text": npu + "\nthreads: many\n",
        "tag in it": npu + "\nthreads: !!python/name:os.system x\n",
    }.items():
        yield _Change(f"target {title}", _write("mine/target/mine.yaml", content), command)


def _table_changes() -> Iterator[_Change]:
    search = (
        "search", "accuracy=table", "cost=table", "benchmark.path=t.csv",
        "benchmark.genotype=[a,b]", "benchmark.accuracy=acc", "benchmark.costs={latency_ms: ms}",
        "n_trials=2", "run.dir=out",
    )  # fmt: skip
    head = "a,b,acc,ms\n"
    tables: Contents = {
        "empty": "", "header": head, "text": "x", "binary": bytes(range(256)),
        "nan": f"{head}1,1,nan,1\n", "zero": f"{head}1,1,0.5,0\n",
        "below zero": f"{head}1,1,0.5,-1\n", "infinite": f"{head}1,1,inf,1\n",
        "doubled": "a,a,b,acc,ms\n1,1,1,0.5,1\n", "words": f"{head}1,1,good,1\n",
        "twice": f"{head}1,1,0.5,1\n1,1,0.6,1\n", "ragged": f"{head}1,1\n",
    }  # fmt: skip
    for title, content in tables.items():
        yield _Change(f"table {title}", _write("t.csv", content), search)
    head = "accuracy,latency_ms\n"
    compare = (
        "compare", "runs=[t.csv]", "objectives={accuracy: max, latency_ms: min}", "run.dir=out"
    )  # fmt: skip
    fronts: Contents = {
        "empty": "", "header": head, "nan": f"{head}nan,1\n", "ragged": f"{head}1\n",
        "doubled": "accuracy,accuracy,latency_ms\n1,1,1\n", "binary": bytes(range(256)),
        "words": f"{head}x,1\n", "zero": f"{head}0.5,0\n", "below zero": f"{head}0.5,-3\n",
    }  # fmt: skip
    for title, content in fronts.items():
        yield _Change(f"csv {title}", _write("t.csv", content), compare)
    yield _Change("csv a pipe", lambda folder: os.mkfifo(folder / "t.csv"), compare)
    for title, content in _INVALID_YAML.items():
        arguments = ("compare", "runs=[run]", "reference=r.yaml", "run.dir=out")
        yield _Change(f"reference {title}", _write("r.yaml", content), arguments)


def _change_latency_table(name: str, change: Callable[[str], str]) -> Damage:
    """Copy a latency table, change one of its files, and update its digest."""

    def copy_and_change(folder: Path) -> None:
        table_name = "cpu/onnxruntime-float32-1t-b1"
        table = folder / "latency_tables" / table_name
        shutil.copytree(ROOT / "latency_tables" / table_name, table)
        text = change((table / name).read_text())
        (table / name).write_text(text)
        if name != "provenance.json":
            digest = hashlib.sha256(text.encode()).hexdigest()
            _change_json(
                f"latency_tables/{table_name}/provenance.json",
                _set_value("digests", name, value=[digest]),
            )(folder)

    return copy_and_change


def _model_changes() -> Iterator[_Change]:
    table = (
        "search", "+target=cpu", "target.runtime=onnxruntime", "search_space=mbconv_small",
        "table.allow_other_machine=true", "budget=none", "run.dir=out", "n_trials=2",
    )  # fmt: skip
    rows = "operators.csv"
    for title, change in {
        "latency of zero": lambda text: text.replace(",0.001064177,", ",0,", 1),
        "latency below zero": lambda text: text.replace(",0.001064177,", ",-1,", 1),
        "latency of nan": lambda text: text.replace(",0.001064177,", ",nan,", 1),
        "shape of text": lambda text: text.replace("1x28x28", "ax28x28", 1),
        "shape of 10^12": lambda text: text.replace("1x28x28", "1x28x1000000000000", 1),
        "stride of zero": lambda text: text.replace(",3,2,1,float32", ",3,0,1,float32", 1),
        "column twice": lambda text: text.replace("stride", "kernel", 1),
        "ragged": lambda text: text + "x\n",
    }.items():
        yield _Change(f"latency table {title}", _change_latency_table(rows, change), table)
    for title, text in {
        "empty": "",
        "list": "[]",
        "nan": '{"mbconv_small": NaN}',
        "deep": "[" * 9999,
    }.items():
        for name in ("calibration.json", "provenance.json"):
            damage = _change_latency_table(name, lambda _, text=text: text)  # type: ignore[misc]
            yield _Change(f"latency table {name} {title}", damage, table)
    profile = ("profile", "+target=npu", "genotype=m.onnx")
    others: Contents = {"text": "x", "empty": "", "bytes": bytes(range(256)) * 9}
    for title, content in others.items():
        yield _Change(f"onnx {title}", _write("m.onnx", content), profile)
    for title, model in {
        "stride 0": _conv_model(strides=[0, 0]),
        "stride below zero": _conv_model(strides=[-1, -1]),
        "kernel 0": _conv_model(kernel_shape=[0, 0]),
        "pads of 10^9": _conv_model(pads=[10**9] * 4),
        "pads below zero": _conv_model(pads=[-99] * 4),
        "groups 0": _conv_model(group=0),
        "groups of 7": _conv_model(group=7),
        "dilations 0": _conv_model(dilations=[0, 0]),
        "input of 10^15": _conv_model(shape=(1, 1, 10**7, 10**8)),
        "input of 0": _conv_model(shape=(1, 1, 0, 8)),
        "expand to 10^15": _expand_model(),
    }.items():
        yield _Change(f"onnx {title}", _write("m.onnx", model), profile)
    yield _Change(
        "onnx a device", lambda folder: (folder / "m.onnx").symlink_to("/dev/zero"), profile
    )
    yield _Change(
        "genotype deep", lambda folder: None, ("profile", "+target=npu", 'genotype={"a": [[]]}')
    )


def _conv_model(shape: Sequence[int] = (1, 1, 8, 8), **attributes: Any) -> bytes:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **{"kernel_shape": [3, 3], **attributes})
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 1, 3, 3], [0.1] * 36)
    return _model([node], shape, [weight])


def _expand_model() -> bytes:
    size = helper.make_tensor("s", TensorProto.INT64, [3], [10**5, 10**5, 10**5])
    scalar = helper.make_tensor("o", TensorProto.FLOAT, [1], [1.0])
    expand = helper.make_node("Expand", ["o", "s"], ["e"])
    add = helper.make_node("Add", ["x", "e"], ["y"])
    return _model([expand, add], (1, 1, 8, 8), [size, scalar])


def _model(nodes: list[Any], shape: Sequence[int], initialisers: list[Any]) -> bytes:
    inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    outputs = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return bytes(model.SerializeToString())


def _data_changes() -> Iterator[_Change]:
    search = ("search", "+target=npu", "search_space=tiny", "dataset=images", "run.dir=out")
    for path in ("/proc/self", "/dev", "/dev/zero", "/sys"):
        yield _Change(f"data {path}", lambda folder: None, (*search, f"dataset.path={path}"))
    arrays: Contents = {
        "text": "x",
        "huge": _zip({"images": _HUGE_ARRAY, "targets": _HUGE_ARRAY}),
        "zip": _zip({}),
    }
    for title, content in arrays.items():
        yield _Change(f"arrays {title}", _write("d.npz", content), (*search, "dataset.path=d.npz"))

    def create_pipe(folder: Path) -> None:
        (folder / "d" / "a").mkdir(parents=True)
        os.mkfifo(folder / "d" / "a" / "x.png")

    def create_loop(folder: Path) -> None:
        (folder / "d" / "a").mkdir(parents=True)
        (folder / "d" / "a" / "again").symlink_to(folder / "d")

    def write_labels(folder: Path) -> None:
        images = [{"bytes": b"x", "path": None}] * 10
        rows = pa.table({"image": images, "label": [{"a": i} for i in range(10)]})
        (folder / "d").mkdir()
        pq.write_table(rows, folder / "d" / "x.parquet")

    for title, damage in {
        "pipe": create_pipe,
        "loop": create_loop,
        "labels of objects": write_labels,
    }.items():
        yield _Change(f"data {title}", damage, (*search, "dataset.path=d"))


def _plan_changes() -> Iterator[_Change]:
    plan = ("plan", "service=s.yaml", "fleet=f.yaml", "run.dir=out", "limit_s=5")

    def write_files(name: str, content: str | bytes, other_files: Contents | None = None) -> Damage:
        def write(folder: Path) -> None:
            for file_name, text in {**PLAN_FILES, **(other_files or {}), name: content}.items():
                _write(file_name, text)(folder)

        return write

    for name in ("s.yaml", "f.yaml"):
        prefix = "service" if name == "s.yaml" else "fleet"
        for title, content in _INVALID_YAML.items():
            yield _Change(f"{prefix} {title}", write_files(name, content), plan)
    service, fleet = PLAN_FILES["s.yaml"], PLAN_FILES["f.yaml"]
    for title, content in {
        "limit of nan": service.replace("60", ".nan"),
        "limit below zero": service.replace("60", "-60"),
        "accuracy of 2": service.replace("0.8", "2"),
        "accuracy that none has": service.replace("0.8", "0.99"),
        "limit that none meets": service.replace("60", "0.5"),
        "region that is nowhere": service.replace("here", "moon"),
        "rate of infinity": service.replace("20", ".inf"),
        "rate below zero": service.replace("20", "-1"),
        "rate of 10^12": service.replace("20", "1000000000000"),
        "no front": service.replace("front.csv", "gone.csv"),
        "no classes": "fronts: [front.csv]\nclasses: {}\n",
        "more": service + "colour: red\n",
        "demand that is empty": service.replace("rate: 20", "csv: load.csv"),
        "budget of nothing": service + "budgets: {cost_per_day: 0.0001}\n",
    }.items():
        yield _Change(f"service {title}", write_files("s.yaml", content, {"load.csv": ""}), plan)
    for title, content in {
        "price of nan": fleet.replace("0.1", ".nan"),
        "no price": fleet.replace("price: 0.1, ", ""),
        "quota below zero": fleet.replace("quota: 4", "quota: -4"),
        "quota of 10^18": fleet.replace("quota: 4", "quota: 1000000000000000000"),
        "bought by nobody": fleet.replace("on_demand", "magic"),
        "link to itself": fleet + "links: {here-here: {rtt_ms: 5}}\n",
        "link of text": fleet + "links: {here: 5}\n",
        "no devices": "devices: {}\n",
        "like itself": fleet.replace("target: cpu", "like: vm"),
        "carbon that is gone": fleet + "carbon: {here: gone.csv}\n",
        "more": fleet + "colour: red\n",
    }.items():
        yield _Change(f"fleet {title}", write_files("f.yaml", content), plan)
    for title, row in {
        "latency of nan": "a,int8,0.9,cpu,1,nan,table",
        "latency below zero": "a,int8,0.9,cpu,1,-2,table",
        "source of nothing": "a,int8,0.9,cpu,1,2,guess",
        "accuracy of 9": "a,int8,9,cpu,1,2,table",
        "batch of 0": "a,int8,0.9,cpu,0,2,table",
        "no target": "a,int8,0.9,,1,2,table",
    }.items():
        head = PLAN_FILES["front.csv"].splitlines()[0]
        yield _Change(
            f"service front with {title}", write_files("front.csv", f"{head}\n{row}\n"), plan
        )
