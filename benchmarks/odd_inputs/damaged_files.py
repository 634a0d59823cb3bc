"""Damaged and foreign files: the modification and the commands that read the file."""

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
from benchmarks.odd_inputs.front_door import PLANNED
from hwnas.core.package import ROOT

_SPACE = "family: mbconv\nchoices:\n  resolution: [8, 12]\n"

Damage = Callable[[Path], object]
Contents = dict[str, str | bytes]


@dataclass(frozen=True)
class _Damaged:
    """A change to a folder with ``run``, ``export`` and ``tiny.yaml``, and the next commands."""

    name: str
    damage: Damage
    arguments: tuple[str, ...]


#: Text that the message must contain, by the prefix of a case's name.
_NAMED = {
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
    for of in _all():
        kind = next(kind for kind in _NAMED if of.name.startswith(kind))
        # verify returns 1 if an export differs from its proof.
        codes = (1, 2) if of.arguments[0] == "verify" else (2,)
        yield Case(
            of.name, "file", of.arguments, _NAMED[kind], prepare=partial(_prepared, of.damage),
            codes=codes,
        )  # fmt: skip


def _prepared(damage: Damage, here: Path) -> None:
    ignored = shutil.ignore_patterns("supernets")
    shutil.copytree(_base(), here, symlinks=True, dirs_exist_ok=True, ignore=ignored)
    damage(here)


@functools.cache
def _base() -> Path:
    """Return a folder with a run and its export."""
    base = Path(tempfile.mkdtemp(prefix="odd-base-"))
    atexit.register(shutil.rmtree, base)
    quick = ["+target=npu", "search_space=tiny", "train.epochs=2", "n_trials=8", "finish.epochs=0"]
    places = ["run.dir=run", "run.supernets=supernets", "study.workers=1"]
    for arguments in (
        ["search", *quick, *places, "trained.fidelities=[1]", "budget=none"],
        ["export", "run=run", "pick=fastest", "dir=exports"],
    ):
        ran = runner.run(arguments, base, limit_s=600)
        assert ran.code == 0, ran.err
    (made,) = (base / "exports").glob("????????????")
    made.rename(base / "export")
    shutil.rmtree(base / "exports")
    return base


def _all() -> Iterator[_Damaged]:
    yield from _manifests()
    yield from _fronts()
    yield from _studies()
    yield from _proofs()
    yield from _spaces()
    yield from _targets()
    yield from _tables()
    yield from _models()
    yield from _data()
    yield from _plans()


def _text(name: str, content: str | bytes) -> Damage:
    def damage(here: Path) -> None:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def _json(name: str, change: Callable[[Any], object]) -> Damage:
    def damage(here: Path) -> None:
        (path,) = sorted(here.glob(name))[:1]
        content = json.loads(path.read_text())
        change(content)
        if path.name == "manifest.json":
            del content["sha256"]  # the change itself has to be found
        path.write_text(json.dumps(content))

    return damage


def _put(*path: str | int, value: object) -> Callable[[Any], object]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def _doubled(name: str) -> Damage:
    def damage(here: Path) -> None:
        (path,) = sorted(here.glob(name))[:1]
        first, rest = path.read_text().split("{", 1)
        key = rest.split(":", 1)[0].strip()
        path.write_text(f"{first}{{{key}: 1,{rest}")

    return damage


def _instead(name: str, make: Callable[[Path], object]) -> Damage:
    def damage(here: Path) -> None:
        (path,) = sorted(here.glob(name))[:1]
        path.unlink()
        make(path)

    return damage


_WHY, _COMPARE = ("why", "run=run", "id=front"), ("compare", "runs=[run]", "run.dir=out")
_EXPORT = ("export", "run=run", "dir=out")
_RESUME = ("search", "run.resume=run")
_ANYTHING: Contents = {
    "empty": "", "cut": '{"verb": "sea', "list": "[]", "number": "3", "null": "null",
    "binary": bytes(range(256)) * 8, "deep": "[" * 100_000, "nan": '{"format": NaN}',
    "digits": "1" * 5000, "utf16": '{"a": 1}'.encode("utf-16"),
}  # fmt: skip


def _manifests() -> Iterator[_Damaged]:
    name = "run/manifest.json"
    for how, content in _ANYTHING.items():
        for verb in (_WHY, _COMPARE, _EXPORT, _RESUME):
            yield _Damaged(f"manifest {how} {verb[0]}", _text(name, content), verb)
    changes: dict[str, Callable[[Any], object]] = {
        "newer": _put("format", value=99),
        "format of text": _put("format", value="2"),
        "arguments of numbers": _put("arguments", value=[1]),
        "verb of a list": _put("verb", value=[]),
        "config of a list": _put("config", value=[]),
        "budget of text": _put("config", "budget", value="edge"),
        "budget of lists": _put("config", "budget", "latency_ms", value=[1]),
        "trials of text": _put("config", "n_trials", value="many"),
        "trials below zero": _put("config", "n_trials", value=-1),
        "target of text": _put("config", "target", value="npu"),
        "study of text": _put("config", "study", value="x"),
        "versions of numbers": _put("versions", value={"hwnas": 1}),
        "digests of lists": _put("digests", value=[]),
        "finishing of text": _put("finishing", value="x"),
        "task of nothing": _put("task", value={}),
        "images of text": _put("images", value="x"),
        "more": _put("colour", value="red"),
        "no config": lambda content: content.pop("config"),
        "no sampler": lambda content: content["config"].pop("sampler"),
        "targets of text": _put("targets", value="x"),
    }
    for how, change in changes.items():
        for verb in (_WHY, _EXPORT):
            yield _Damaged(f"manifest {how} {verb[0]}", _json(name, change), verb)
    for verb in (_WHY, _COMPARE, _EXPORT, _RESUME):
        yield _Damaged(f"manifest doubled {verb[0]}", _doubled(name), verb)
        yield _Damaged(f"manifest a folder {verb[0]}", _instead(name, Path.mkdir), verb)
        yield _Damaged(f"manifest a pipe {verb[0]}", _instead(name, os.mkfifo), verb)
        link = _instead(name, lambda path: path.symlink_to("/dev/zero"))
        yield _Damaged(f"manifest a device {verb[0]}", link, verb)


def _fronts() -> Iterator[_Damaged]:
    name = "run/front.json"
    for how, content in _ANYTHING.items():
        yield _Damaged(f"front {how}", _text(name, content), _EXPORT)
    changes: dict[str, Callable[[Any], object]] = {
        "members of text": _put("members", value="x"),
        "member of nothing": _put("members", 0, value={}),
        "id of a number": _put("members", 0, "id", value=3),
        "latency of text": _put("members", 0, "latency_ms", value="fast"),
        "latency of a list": _put("members", 0, "latency_ms", value=[1]),
        "source of nothing": _put("members", 0, "latency_ms_source", value="guess"),
        "stays of text": _put("members", 0, "verified_on_front", value="yes"),
        "objectives of a list": _put("objectives", value=["accuracy"]),
        "objectives of nothing": _put("objectives", value={}),
        "objective of another name": _put("objectives", "beauty", value="max"),
        "no members": lambda content: content.pop("members"),
    }
    for how, change in changes.items():
        for verb in (_EXPORT, _COMPARE):
            yield _Damaged(f"front {how} {verb[0]}", _json(name, change), verb)
    yield _Damaged("front doubled", _doubled(name), _EXPORT)
    yield _Damaged("front a folder", _instead(name, Path.mkdir), _EXPORT)
    made = "run/models/*.json"
    for how, change in {
        "files of text": _put("files", value="x"),
        "figures of text": _put("figures", value="x"),
        "figure of one number": _put("figures", "latency_ms", value=[1]),
        "no details": lambda content: content.pop("details"),
    }.items():
        yield _Damaged(f"models {how}", _json(made, change), _WHY)
    for how, content in {"text": "x", "csv": "a,b\n1,2\n"}.items():
        for verb in (_COMPARE, _EXPORT):
            yield _Damaged(f"candidates {how} {verb[0]}", _candidates_of(content), verb)
    for column, value in {"trial": "x", "accuracy": "x", "state": 1, "latency_ms_low": "x"}.items():
        yield _Damaged(f"candidates {column} of others", _candidates(column, value), _EXPORT)
    yield _Damaged("candidates without id", _candidates("id", None), _EXPORT)


def _candidates_of(content: str) -> Damage:
    def damage(here: Path) -> None:
        (here / "run" / "candidates.parquet").write_text(content)
        (here / "run" / "study.db").write_text(content)

    return damage


def _candidates(column: str, value: object) -> Damage:
    def damage(here: Path) -> None:
        path = here / "run" / "candidates.parquet"
        table = pq.read_table(path)
        i = table.column_names.index(column)
        table = table.remove_column(i)
        if value is not None:
            table = table.add_column(i, column, pa.array([value] * table.num_rows))
        pq.write_table(table, path)

    return damage


def _studies() -> Iterator[_Damaged]:
    path = "run/study.db"

    def cut(here: Path) -> None:
        content = (here / path).read_bytes()
        (here / path).write_bytes(content[: len(content) // 2])

    def sql(text: str) -> Damage:
        def damage(here: Path) -> None:
            with contextlib.closing(sqlite3.connect(here / path)) as connection, connection:
                connection.execute(text)

        return damage

    damages: dict[str, Damage] = {
        "garbage": _text(path, bytes(range(256)) * 100),
        "empty": _text(path, b""),
        "cut": cut,
        "a folder": _instead(path, Path.mkdir),
        "no trials": sql("DROP TABLE trials"),
        "no attributes": sql("DROP TABLE trial_system_attributes"),
        "no studies": sql("DELETE FROM studies"),
        "candidates of text": sql(
            "UPDATE trial_system_attributes SET value_json = '3' WHERE key = 'hwnas:candidate'"
        ),
        "space of text": sql("UPDATE study_user_attributes SET value_json = '3'"),
        "parameters of text": sql("UPDATE trial_params SET distribution_json = 'x'"),
    }
    for how, damage in damages.items():
        # An empty study is a new one. A resumed search takes the space from the file.
        for verb in (_WHY,) if how in ("empty", "space of text") else (_WHY, _RESUME):
            yield _Damaged(f"study {how} {verb[0]}", damage, verb)


def _proofs() -> Iterator[_Damaged]:
    name, verify = "export/proof.json", ("verify", "export")
    for how, content in _ANYTHING.items():
        yield _Damaged(f"proof {how}", _text(name, content), verify)
    op = ("model", "operators", 0, "op")
    for how, change in {
        "earlier": _put("format", value=1),
        "holds maybe": _put("checks", 0, "holds", value="maybe"),
        "holds what does not": _put("checks", 0, "found", value=1e9),
        "no checks": _put("checks", value=[]),
        "input below zero": _put("model", "input", value=[1, -8, -8]),
        "input of 10^18": _put("model", "input", value=[10**6, 10**6, 10**6]),
        "no operators": _put("model", "operators", value=[]),
        "no outputs": _put("model", "n_outputs", value=0),
        "stride 0": _put(*op, "stride", value=0),
        "kernel of text": _put(*op, "kernel", value="3"),
        "kind of others": _put(*op, "kind", value="fft"),
        "shape of two": _put(*op, "in_shape", value=[1, 2]),
        "inputs of itself": _put("model", "operators", 0, "inputs", value=["later"]),
        "task of others": _put("task", "name", value="nothing"),
        "task of a list": _put("task", value=[]),
        "no classes": _put("task", "classes", value=[]),
        "target of text": _put("target", value="npu"),
        "target of others": _put("target", "runtime", value="nothing"),
        "target with more": _put("target", "colour", value="red"),
        "mean of text": _put("dataset", "normalisation", "mean", value=["x"]),
        "std of zero": _put("dataset", "normalisation", "std", value=[0]),
        "resolution of 10^9": _put("dataset", "max_resolution", value=10**9),
        "images of 10^12": _put("n_images", value=10**12),
        "figures of text": _put("figures", "latency_ms", value="fast"),
        "limit of zero": _put("budget", value={"latency_ms": {"limit": 0, "margin": 0}}),
        "files of numbers": _put("files", "model.py", value=1),
        "more": _put("colour", value="red"),
    }.items():
        yield _Damaged(f"proof {how}", _json(name, change), verify)
    yield _Damaged("proof doubled", _doubled(name), verify)
    archives: Contents = {"text": "x", "zip": _zip({}), "huge": _zip({"pixels": _HUGE})}
    for how, content in archives.items():
        yield _Damaged(f"images of {how}", _replaced("images.npz", content), verify)
    objects = io.BytesIO()
    np.savez(objects, pixels=np.array([{}]), targets=[0], expected=[0])
    yield _Damaged("images of objects", _replaced("images.npz", objects.getvalue()), verify)
    for how, content in {
        "exit": "import sys; sys.exit(0)", "_exit": "import os; os._exit(0)", "syntax": "def (",
        "no load": "x = 1", "killed": "import os; os.kill(os.getpid(), 9)", "text": "\x00",
        "prints": "print('ok'); import sys; sys.exit()", "answers": "def load():\n return print\n",
    }.items():  # fmt: skip
        yield _Damaged(f"model.py {how}", _replaced("model.py", content), verify)
    bad_files: Contents = {"text": "x", "empty": "", "bytes": bytes(range(256)) * 64}
    for file in ("model.safetensors", "model.fp32.onnx", "model.int8.onnx", "model.int8.tflite"):
        for how, bad in bad_files.items():
            yield _Damaged(f"{file} of {how}", _replaced(file, bad), verify)
    yield _Damaged("key of text", _text("key", "x"), ("verify", "export", "key=key"))
    yield _Damaged("key to sign of text", _text("key", "x"), (*_EXPORT, "sign=key"))


_HUGE = (
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


def _replaced(name: str, content: str | bytes) -> Damage:
    """Replace a file of the export and its digest in the proof: a forgery."""

    def damage(here: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (here / "export" / name).write_bytes(data)
        change = _put("files", name, value=hashlib.sha256(data).hexdigest())
        _json("export/proof.json", change)(here)

    return damage


_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{n}: &{n} [{','.join(['*' + m] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)
)
_YAML: Contents = {
    "empty": "", "text": "x", "list": "[1]", "cut": "a: [", "bomb": _BOMB, "deep": "[" * 5000,
    "tag": "!!python/object/apply:os.system ['true']", "own tag": "a: !x 1", "binary": b"\x00\xff",
    "large": "a: " + "x" * (1 << 20), "itself": "&a [*a]",
}  # fmt: skip


def _spaces() -> Iterator[_Damaged]:
    search = ("search", "+target=npu", "search_space=my.yaml", "run.dir=out", "n_trials=2")
    for how, content in _YAML.items():
        yield _Damaged(f"space {how}", _text("my.yaml", content), search)
    tiny = (ROOT / "search_spaces" / "tiny.yaml").read_text()
    changes = {
        "doubled key": f"{tiny}\nfamily: mbconv\n",
        "doubled choice": tiny.replace("choices:\n", "choices:\n  resolution: [8]\n"),
        "family of others": tiny.replace("mbconv", "nothing"),
        "family of a number": tiny.replace("mbconv", "3"),
        "width of 10^9": tiny.replace("stem.width: [", "stem.width: [1000000000, "),
        "wide": _SPACE + "  stem.width: [8, 1000000000]\n",
        "depth of 10^8": _SPACE + "  stages.0.depth: [1, 100000000]\n",
        "width of nan": _SPACE + "  stem.width: [.nan]\n",
        "width of infinity": _SPACE + "  stem.width: [.inf]\n",
        "width below zero": _SPACE + "  stem.width: [-8]\n",
        "options of objects": _SPACE + "  stem.width: [{a: 1}]\n",
        "options of dates": _SPACE + "  stem.width: [2001-01-01]\n",
        "many options": _SPACE + f"  stem.width: {list(range(1, 5000))}\n",
        "when of text": f"{tiny}\nwhen: always\n",
    }
    for how, content in changes.items():
        yield _Damaged(f"space {how}", _text("my.yaml", content), search)
    yield _Damaged("space a folder", lambda here: (here / "my.yaml").mkdir(), search)
    yield _Damaged("space a pipe", lambda here: os.mkfifo(here / "my.yaml"), search)


def _targets() -> Iterator[_Damaged]:
    given = ("search", "--config-dir", "mine", "+target=mine", "search_space=tiny", "run.dir=out")
    for how, content in _YAML.items():
        if how not in ("empty",):
            yield _Damaged(f"target {how}", _text("mine/target/mine.yaml", content), given)
    npu = (ROOT / "conf" / "target" / "npu.yaml").read_text()
    for how, content in {
        "doubled": f"{npu}\nname: other\n",
        "more": f"{npu}\ncolour: red\n",
        "clock of text": npu + "\nthreads: many\n",
        "tag in it": npu + "\nthreads: !!python/name:os.system x\n",
    }.items():
        yield _Damaged(f"target {how}", _text("mine/target/mine.yaml", content), given)


def _tables() -> Iterator[_Damaged]:
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
    for how, content in tables.items():
        yield _Damaged(f"table {how}", _text("t.csv", content), search)
    head = "accuracy,latency_ms\n"
    compare = (
        "compare", "runs=[t.csv]", "objectives={accuracy: max, latency_ms: min}", "run.dir=out"
    )  # fmt: skip
    fronts: Contents = {
        "empty": "", "header": head, "nan": f"{head}nan,1\n", "ragged": f"{head}1\n",
        "doubled": "accuracy,accuracy,latency_ms\n1,1,1\n", "binary": bytes(range(256)),
        "words": f"{head}x,1\n", "zero": f"{head}0.5,0\n", "below zero": f"{head}0.5,-3\n",
    }  # fmt: skip
    for how, content in fronts.items():
        yield _Damaged(f"csv {how}", _text("t.csv", content), compare)
    yield _Damaged("csv a pipe", lambda here: os.mkfifo(here / "t.csv"), compare)
    for how, content in _YAML.items():
        arguments = ("compare", "runs=[run]", "reference=r.yaml", "run.dir=out")
        yield _Damaged(f"reference {how}", _text("r.yaml", content), arguments)


def _latency_table(name: str, change: Callable[[str], str]) -> Damage:
    """Copy a latency table, change one of its files, and update its digest."""

    def damage(here: Path) -> None:
        inside = "cpu/onnxruntime-float32-1t-b1"
        place = here / "latency_tables" / inside
        shutil.copytree(ROOT / "latency_tables" / inside, place)
        text = change((place / name).read_text())
        (place / name).write_text(text)
        if name != "provenance.json":
            digest = hashlib.sha256(text.encode()).hexdigest()
            _json(
                f"latency_tables/{inside}/provenance.json", _put("digests", name, value=[digest])
            )(here)

    return damage


def _models() -> Iterator[_Damaged]:
    table = (
        "search", "+target=cpu", "target.runtime=onnxruntime", "search_space=mbconv_small",
        "table.allow_other_machine=true", "budget=none", "run.dir=out", "n_trials=2",
    )  # fmt: skip
    rows = "operators.csv"
    for how, change in {
        "latency of zero": lambda text: text.replace(",0.001064177,", ",0,", 1),
        "latency below zero": lambda text: text.replace(",0.001064177,", ",-1,", 1),
        "latency of nan": lambda text: text.replace(",0.001064177,", ",nan,", 1),
        "shape of text": lambda text: text.replace("1x28x28", "ax28x28", 1),
        "shape of 10^12": lambda text: text.replace("1x28x28", "1x28x1000000000000", 1),
        "stride of zero": lambda text: text.replace(",3,2,1,float32", ",3,0,1,float32", 1),
        "column twice": lambda text: text.replace("stride", "kernel", 1),
        "ragged": lambda text: text + "x\n",
    }.items():
        yield _Damaged(f"latency table {how}", _latency_table(rows, change), table)
    for how, text in {
        "empty": "",
        "list": "[]",
        "nan": '{"mbconv_small": NaN}',
        "deep": "[" * 9999,
    }.items():
        for name in ("calibration.json", "provenance.json"):
            damage = _latency_table(name, lambda _, text=text: text)  # type: ignore[misc]
            yield _Damaged(f"latency table {name} {how}", damage, table)
    profile = ("profile", "+target=npu", "genotype=m.onnx")
    others: Contents = {"text": "x", "empty": "", "bytes": bytes(range(256)) * 9}
    for how, content in others.items():
        yield _Damaged(f"onnx {how}", _text("m.onnx", content), profile)
    for how, model in {
        "stride 0": _conv(strides=[0, 0]),
        "stride below zero": _conv(strides=[-1, -1]),
        "kernel 0": _conv(kernel_shape=[0, 0]),
        "pads of 10^9": _conv(pads=[10**9] * 4),
        "pads below zero": _conv(pads=[-99] * 4),
        "groups 0": _conv(group=0),
        "groups of 7": _conv(group=7),
        "dilations 0": _conv(dilations=[0, 0]),
        "input of 10^15": _conv(shape=(1, 1, 10**7, 10**8)),
        "input of 0": _conv(shape=(1, 1, 0, 8)),
        "expand to 10^15": _expanded(),
    }.items():
        yield _Damaged(f"onnx {how}", _text("m.onnx", model), profile)
    yield _Damaged("onnx a device", lambda here: (here / "m.onnx").symlink_to("/dev/zero"), profile)
    yield _Damaged(
        "genotype deep", lambda here: None, ("profile", "+target=npu", 'genotype={"a": [[]]}')
    )


def _conv(shape: Sequence[int] = (1, 1, 8, 8), **attributes: Any) -> bytes:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **{"kernel_shape": [3, 3], **attributes})
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 1, 3, 3], [0.1] * 36)
    return _model([node], shape, [weight])


def _expanded() -> bytes:
    size = helper.make_tensor("s", TensorProto.INT64, [3], [10**5, 10**5, 10**5])
    one = helper.make_tensor("o", TensorProto.FLOAT, [1], [1.0])
    expand = helper.make_node("Expand", ["o", "s"], ["e"])
    return _model([expand, helper.make_node("Add", ["x", "e"], ["y"])], (1, 1, 8, 8), [size, one])


def _model(nodes: list[Any], shape: Sequence[int], tensors: list[Any]) -> bytes:
    read = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph(nodes, "g", [read], [out], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return bytes(made.SerializeToString())


def _data() -> Iterator[_Damaged]:
    search = ("search", "+target=npu", "search_space=tiny", "dataset=images", "run.dir=out")
    for path in ("/proc/self", "/dev", "/dev/zero", "/sys"):
        yield _Damaged(f"data {path}", lambda here: None, (*search, f"dataset.path={path}"))
    arrays: Contents = {
        "text": "x",
        "huge": _zip({"images": _HUGE, "targets": _HUGE}),
        "zip": _zip({}),
    }
    for how, content in arrays.items():
        yield _Damaged(f"arrays {how}", _text("d.npz", content), (*search, "dataset.path=d.npz"))

    def pipe(here: Path) -> None:
        (here / "d" / "a").mkdir(parents=True)
        os.mkfifo(here / "d" / "a" / "x.png")

    def loop(here: Path) -> None:
        (here / "d" / "a").mkdir(parents=True)
        (here / "d" / "a" / "again").symlink_to(here / "d")

    def labels(here: Path) -> None:
        images = [{"bytes": b"x", "path": None}] * 10
        rows = pa.table({"image": images, "label": [{"a": i} for i in range(10)]})
        (here / "d").mkdir()
        pq.write_table(rows, here / "d" / "x.parquet")

    for how, damage in {"pipe": pipe, "loop": loop, "labels of objects": labels}.items():
        yield _Damaged(f"data {how}", damage, (*search, "dataset.path=d"))


def _plans() -> Iterator[_Damaged]:
    plan = ("plan", "service=s.yaml", "fleet=f.yaml", "run.dir=out", "limit_s=5")

    def written(name: str, content: str | bytes, others: Contents | None = None) -> Damage:
        def damage(here: Path) -> None:
            for file, said in {**PLANNED, **(others or {}), name: content}.items():
                _text(file, said)(here)

        return damage

    for of in ("s.yaml", "f.yaml"):
        kind = "service" if of == "s.yaml" else "fleet"
        for how, content in _YAML.items():
            yield _Damaged(f"{kind} {how}", written(of, content), plan)
    service, fleet = PLANNED["s.yaml"], PLANNED["f.yaml"]
    for how, changed in {
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
        yield _Damaged(f"service {how}", written("s.yaml", changed, {"load.csv": ""}), plan)
    for how, changed in {
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
        yield _Damaged(f"fleet {how}", written("f.yaml", changed), plan)
    for how, row in {
        "latency of nan": "a,int8,0.9,cpu,1,nan,table",
        "latency below zero": "a,int8,0.9,cpu,1,-2,table",
        "source of nothing": "a,int8,0.9,cpu,1,2,guess",
        "accuracy of 9": "a,int8,9,cpu,1,2,table",
        "batch of 0": "a,int8,0.9,cpu,0,2,table",
        "no target": "a,int8,0.9,,1,2,table",
    }.items():
        head = PLANNED["front.csv"].splitlines()[0]
        yield _Damaged(f"service front with {how}", written("front.csv", f"{head}\n{row}\n"), plan)
