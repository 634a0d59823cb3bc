"""C files of an export, compiled on this machine with LiteRT in place of TFLite Micro."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from PIL import Image

from hwnas.core.errors import CompileError
from hwnas.core.quantity import Quantity
from hwnas.export.c_source import CNetwork, CTestImages, c_files
from hwnas.export.reference_images import prepared
from hwnas.hardware.backends.vela import compiler
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.regression import RegressionTask
from tests.test_frozen import FROZEN

TFLM = Path(__file__).parent / "tflm"
FLAGS = ("-Wall", "-Wextra", "-Werror", "-O1")
LABELS = tuple(["plain", 'q"uote', "back\\slash", "what??!", "café", "%s %n", "*/", "8", "9", "10"])

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("g++")), reason="no gcc")


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export for an Ethos-U NPU."""
    folder = tmp_path_factory.mktemp("frozen")
    shutil.unpack_archive(FROZEN / "made.zip", folder)
    (path,) = (path for path in (folder / "exports").iterdir() if path.is_dir())
    return path


def _compile(folder: Path, files: dict[str, str]) -> Path:
    """Compile C files with a stub of TFLite Micro; return the program."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    objects = []
    for name, program, standard in (
        ("model.c", "gcc", "c11"), ("network.c", "gcc", "c11"), ("example.cc", "g++", "c++17"),
        (str(TFLM / "host.c"), "gcc", "c11"),
    ):  # fmt: skip
        objects.append(f"{Path(name).stem}.o")
        command = [program, f"-std={standard}", *FLAGS, "-I.", f"-I{TFLM}", "-c", name]
        subprocess.run([*command, "-o", objects[-1]], cwd=folder / "c", check=True)
    subprocess.run(["g++", *objects, "-lm", "-o", "host"], cwd=folder / "c", check=True)
    return folder / "c" / "host"


def _files(
    export: Path, name: str, classes: tuple[str, ...], decoded_side: int = 8
) -> dict[str, str]:
    spec = json.loads((export / "preprocessing.json").read_text()) | {"decoded_side": decoded_side}
    task = ClassificationTask(classes)
    return c_files(_network(export, name), task, spec, _tested(export, spec))


def _network(export: Path, name: str) -> CNetwork:
    sram = Quantity(9.5, "compiler-estimate") if "vela" in name else None
    return CNetwork(name, (export / name).read_bytes(), 'A "title" */ \\', sram)


def _tested(export: Path, spec: Mapping[str, Any]) -> CTestImages:
    """Return images of an export with the outputs of LiteRT."""
    with np.load(export / "images.npz") as content:
        pixels = content["pixels"][:5]
    session = LiteRTSession((export / "model.int8.tflite").read_bytes())
    return CTestImages(pixels, session.run(prepared(pixels, spec["mean"], spec["std"])))


@pytest.fixture(scope="module")
def program(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program of the C files of the int8 network."""
    return _compile(tmp_path_factory.mktemp("c"), _files(export, "model.int8.tflite", LABELS))


def test_c_array_has_bytes_of_model_file(export: Path, tmp_path: Path, program: Path) -> None:
    completed = subprocess.run([program, "model"], capture_output=True, check=True)
    assert completed.stdout == (export / "model.int8.tflite").read_bytes()
    name = "model.vela.tflite"
    files = _files(export, name, LABELS)
    program = _compile(tmp_path, files)
    completed = subprocess.run([program, "model"], capture_output=True, check=True)
    assert completed.stdout == (export / name).read_bytes()
    assert "MicroMutableOpResolver<1> resolver;" in files["c/example.cc"]
    assert "resolver.AddEthosU()" in files["c/example.cc"]


def test_arena_and_operators_of_a_microcontroller_without_an_npu(export: Path) -> None:
    files = _files(export, "model.int8.tflite", LABELS)
    operators = re.findall(r"resolver.Add(\w+)\(\)", files["c/example.cc"])
    assert {"Conv2D", "FullyConnected"} <= {*operators}
    assert f"MicroMutableOpResolver<{len(operators)}> resolver;" in files["c/example.cc"]
    network = Interpreter(str(export / "model.int8.tflite"))
    network.allocate_tensors()
    sizes = {t["index"]: int(np.prod(t["shape"])) for t in network.get_tensor_details()}
    largest = max(  # one operator reads and writes these at the same time
        sum(sizes[t] for t in (*details["inputs"][:1], *details["outputs"]))
        for details in network._get_ops_details()
    )
    (kib,) = re.findall(r"// ([\d.]+) KiB of activations \(modelled\)", files["c/example.cc"])
    assert largest <= float(kib) * 1024 <= 2 * largest
    (arena,) = re.findall(r"kArenaBytes = (\d+);", files["c/example.cc"])
    assert int(arena) == pytest.approx(float(kib) * 1024 + 16 * 1024, abs=1)
    assert (
        "9.5 KiB of activations (compiler-estimate)"
        in (_files(export, "model.vela.tflite", LABELS)["c/README.md"])
    )


def test_c_example_reproduces_proof(export: Path, tmp_path: Path, program: Path) -> None:
    with np.load(export / "images.npz") as content:
        pixels, expected = content["pixels"], content["expected"]
    (tmp_path / "pixels").write_bytes(pixels.tobytes())
    network = Interpreter(str(export / "model.int8.tflite"))
    network.allocate_tensors()
    (inlet,), (outlet,) = network.get_input_details(), network.get_output_details()
    pipe, outputs = subprocess.PIPE, []
    command = [str(program), "run", str(tmp_path / "pixels")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in pixels:
            input_values = np.frombuffer(process.stdout.read(pixels[0].size), np.int8)
            network.set_tensor(inlet["index"], input_values.reshape(inlet["shape"]))
            network.invoke()
            outputs.append(network.get_tensor(outlet["index"])[0])
            process.stdin.write(outputs[-1].tobytes())
            process.stdin.flush()
        lines = process.stderr.read().decode().splitlines()
    scale, zero = outlet["quantization"]
    values = (np.stack(outputs).astype(np.float32) - zero) * scale
    labels, confidences = zip(*(line.rsplit(" ", 1) for line in lines), strict=True)
    classes = [LABELS.index(label) for label in labels]
    assert classes == values.argmax(1).tolist()
    exponentials = np.exp(values - values.max(1, keepdims=True))
    assert np.allclose([float(c) for c in confidences], 1 / exponentials.sum(1), atol=1e-5)
    proof = json.loads((export / "proof.json").read_text())
    agreement = proof["artefacts"]["model.int8.tflite"]["agreement"]
    assert np.mean(classes == expected.argmax(1)) == pytest.approx(agreement["same"])
    assert np.abs(values - expected).max() == pytest.approx(agreement["max_error"], rel=1e-5)


@pytest.fixture(scope="module", params=[8, 12, 20])
def resizing(
    request: pytest.FixtureRequest, export: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """Return a program of the C files for an input side of 12, and the side of stored images."""
    files = _files(export, "model.int8.tflite", LABELS, decoded_side=request.param)
    return _compile(tmp_path_factory.mktemp("c"), files), request.param


@pytest.mark.parametrize("size", [(12, 12), (40, 31), (30, 41), (480, 640), (7, 9)])
def test_c_resize_equals_pillow(resizing: tuple[Path, int], size: tuple[int, int]) -> None:
    program, decoded_side = resizing
    image = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    command = [str(program), "resize", *map(str, size)]
    completed = subprocess.run(command, input=image.tobytes(), capture_output=True, check=True)
    side, bilinear = min(size), Image.Resampling.BILINEAR
    top, left = ((n - side) / 2 for n in size)
    box = left, top, left + side, top + side
    square = Image.fromarray(image).resize((decoded_side, decoded_side), bilinear, box)
    plane = Image.fromarray(np.asarray(square, np.float32)).resize((12, 12), bilinear)
    expected: NDArray[np.uint8] = np.asarray(plane).round().clip(0, 255).astype(np.uint8)
    resized = np.frombuffer(completed.stdout, np.uint8).reshape(12, 12)
    assert np.abs(resized.astype(int) - expected).max() <= 1


def test_regression_outputs_are_in_their_unit(export: Path, tmp_path: Path) -> None:
    task = RegressionTask(("x",) * 10, (0.5,) * 10, (1.0,) * 10, 1.0, 1.0)
    name = "model.int8.tflite"
    images: dict[str, Any] = {"mean": [0.5], "std": [0.25], "decoded_side": 8}
    tested = _tested(export, images)
    files = c_files(_network(export, name), task, images, tested)
    assert "mean[HWNAS_OUTPUTS] = {0.5f, 0.5f" in files["c/network.c"]
    assert "hwnas_classify" not in files["c/network.c"]
    assert _test(tmp_path, files).returncode == 0
    changed = files | {"c/network.c": files["c/network.c"].replace("{0.5f, ", "{0.25f, ", 1)}
    assert "FAILED outputs of the network" in _test(tmp_path, changed).stdout


def _test(folder: Path, files: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the command that the README of the C files names."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (command,) = re.findall(r"^    (cc .*) && (.*)$", files["c/README.md"], re.M)
    subprocess.run([*shlex.split(command[0]), *FLAGS], cwd=folder / "c", check=True)
    return subprocess.run(command[1], cwd=folder / "c", capture_output=True, text=True)


CHANGES = [
    (
        "model.c",
        r"(\d+), (\d+), 0,",
        r"\1, 77, 0,",
        "model.c has the bytes of ../model.int8.tflite",
    ),
    ("network.c", r"static const int8_t quantised.*\n\{-?\d+, -?\d+", None, "all pixel values"),
    (
        "network.c",
        r"support_y = fmaxf\(step_y, 1.0f\)",
        "support_y = 2.0f * step_y",
        "hwnas_resize",
    ),
    ("network.c", r"hwnas_labels\[HWNAS_OUTPUTS\] = \{\n  \"p", None, "hwnas_labels are those"),
    ("network.c", r"output\[i\] - \(", "output[i] - 1 - (", "outputs of the network mean"),
]


def test_test_of_the_files_holds(export: Path, tmp_path: Path) -> None:
    for name in ("model.int8.tflite", "model.vela.tflite"):
        done = _test(tmp_path, _files(export, name, LABELS))
        assert done.returncode == 0
        assert done.stdout.count("ok  ") == len(done.stdout.splitlines()) == 6


@pytest.mark.parametrize(("file", "pattern", "new", "message"), CHANGES)
def test_changed_byte_fails_the_test(
    export: Path, tmp_path: Path, file: str, pattern: str, new: str | None, message: str
) -> None:
    files = _files(export, "model.int8.tflite", LABELS)

    def change(match: "re.Match[str]") -> str:
        text = match.group()
        return match.expand(new) if new else text[:-1] + chr(ord(text[-1]) ^ 1)

    changed = re.sub(pattern, change, files[f"c/{file}"], count=1)
    assert changed != files[f"c/{file}"]
    done = _test(tmp_path, files | {f"c/{file}": changed})
    assert done.returncode == 1
    assert any(re.match(f"FAILED .*{message}", line) for line in done.stdout.splitlines())


def test_float_model_raises(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwnas.hardware.backends.vela.compiler.TensorType.INT8", 99)
    with pytest.raises(CompileError, match="must be int8"):
        compiler.read_interface((export / "model.int8.tflite").read_bytes())
