"""C files of an export, compiled on this machine with LiteRT in place of TFLite Micro."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from PIL import Image

from hwnas.core.errors import CompileError
from hwnas.export.c_source import c_files
from hwnas.hardware.backends.vela import compiler
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


def _files(export: Path, name: str, classes: tuple[str, ...]) -> dict[str, str]:
    spec = {**json.loads((export / "preprocessing.json").read_text()), "decoded_side": 8}
    task = ClassificationTask(classes)
    return c_files(name, (export / name).read_bytes(), task, spec, 'A "title" */ \\', 9.5)


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
            read = np.frombuffer(process.stdout.read(pixels[0].size), np.int8)
            network.set_tensor(inlet["index"], read.reshape(inlet["shape"]))
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


@pytest.mark.parametrize("size", [(12, 12), (40, 31), (480, 640), (7, 9)])
def test_c_resize_equals_pillow(program: Path, size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    command = [str(program), "resize", *map(str, size)]
    completed = subprocess.run(command, input=image.tobytes(), capture_output=True, check=True)
    side = min(size)
    top, left = ((n - side) // 2 for n in size)
    square = Image.fromarray(image[top : top + side, left : left + side])
    for n in (8, 12):  # decoded and input sides
        square = square.resize((n, n), Image.Resampling.BILINEAR)
    expected: NDArray[np.uint8] = np.asarray(square)
    resized = np.frombuffer(completed.stdout, np.uint8).reshape(12, 12)
    assert np.abs(resized.astype(int) - expected).max() <= 1


def test_regression_outputs_are_in_their_unit(export: Path) -> None:
    task = RegressionTask(("x",) * 10, (0.5,) * 10, (1.0,) * 10, 1.0, 1.0)
    name = "model.int8.tflite"
    images = {"mean": [0.5], "std": [0.25], "decoded_side": 8}
    files = c_files(name, (export / name).read_bytes(), task, images, "x", 1.0)
    assert "mean[HWNAS_OUTPUTS] = {0.5f, 0.5f" in files["c/network.c"]
    assert "hwnas_classify" not in files["c/network.c"]


def test_float_model_raises(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwnas.hardware.backends.vela.compiler.TensorType.INT8", 99)
    with pytest.raises(CompileError, match="must be int8"):
        compiler.read_interface((export / "model.int8.tflite").read_bytes())
