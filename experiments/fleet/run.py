"""From two searches to a fleet, by one command from a fresh clone.

    pip install -c constraints.txt -e '.[plan]' && python -m experiments.fleet.run

Searches networks for handwritten digits on an NPU (Vela's estimates) and on this machine's CPU
(onnxruntime, measured whole), lets all members of both fronts answer the validation images, plans
for the service and the fleet beside this file, and lets fail what may fail. Runs that are there are
used again. ``python -m experiments.fleet.run quick`` does it with few, small networks.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from ai_edge_litert.interpreter import Interpreter

import hwnas
from hwnas.api.result import SearchResult
from hwnas.progress import Silent
from hwnas.training.data.loading import load
from hwnas.training.dataset import DatasetConfig

HERE, RUNS = Path(__file__).parent, Path("runs/fleet")
DIGITS = DatasetConfig("digits", validation=0.25, test=0.2, shift=0.125)
OPTIONS: dict[str, dict[str, Any]] = {
    "npu": {"target": "npu"},
    "cpu": {
        "target": "cpu",
        "target__runtime": "onnxruntime",
        "cost": "measured",
        "table__dir": RUNS / "tables",
    },
}
QUICK = {"search_space": "tiny", "train__epochs": 6, "n_trials": 10, "finish__epochs": 2}


def searched(name: str, more: dict[str, Any]) -> SearchResult:
    """Return the run of a target, which is made if it is not there."""
    folder = RUNS / name
    if (folder / "front.json").exists():
        return hwnas.load(folder)
    options = {**OPTIONS[name], "budget": "none", "n_trials": 40, "seed": 0, **more}
    return hwnas.search(**options, run__dir=folder)


def probabilities(path: Path, images: np.ndarray) -> np.ndarray:
    """Return what a file answers to prepared images ``(N, C, R, R)``: ``(N, classes)``."""
    answer = _onnx(path) if path.suffix == ".onnx" else _tflite(path)
    logits = np.array([answer(image) for image in images], np.float64)
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def _onnx(path: Path) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda image: session.run(None, {name: np.ascontiguousarray(image[None])})[0][0]


def _tflite(path: Path) -> Any:
    network = Interpreter(str(path))
    network.allocate_tensors()
    (inlet,), (outlet,) = network.get_input_details(), network.get_output_details()
    (scale, zero), (step, centre) = inlet["quantization"], outlet["quantization"]

    def answer(image: np.ndarray) -> np.ndarray:
        whole = np.clip(np.round(image.transpose(1, 2, 0) / scale) + zero, -128, 127)
        network.set_tensor(inlet["index"], whole.astype(np.int8)[None])
        network.invoke()
        return (network.get_tensor(outlet["index"])[0].astype(np.float64) - centre) * step

    return answer


def write_answers(runs: dict[str, Any]) -> int:
    """Write what all members answer to the validation images; return how many images there are."""
    data = load(DIGITS, 64, Silent())
    images, targets = data.validation.images, np.asarray(data.validation.targets.numpy())
    models, correct, confidence = [], [], []
    for name, found in runs.items():
        dtype, suffix = ("int8", "tflite") if name == "npu" else ("float32", "onnx")
        for row in found.front.to_pylist():
            prepared = data.prepare(torch.as_tensor(images), row["resolution"], rounded=True)
            sure = probabilities(found.path / "models" / f"{row['id']}.{suffix}", prepared.numpy())
            models.append(f"{row['id']}-{dtype}")
            correct.append(sure.argmax(1) == targets)
            confidence.append(sure.max(1))
    np.savez_compressed(
        RUNS / "answers.npz", models=np.array(models), correct=np.array(correct),
        confidence=np.array(confidence),
    )  # fmt: skip
    return len(targets)


def main(more: dict[str, Any]) -> None:
    """Search, plan, and simulate failures."""
    runs = {name: searched(name, more) for name in OPTIONS}
    print(f"{write_answers(runs)} validation images were answered.")
    for name in ("service.yaml", "fleet.yaml", "load.csv"):
        (RUNS / name).write_bytes((HERE / name).read_bytes())
    plan = hwnas.plan(RUNS / "service.yaml", RUNS / "fleet.yaml")
    print(*plan.sentences, f"Open in a browser: {plan.path / 'report.html'}", sep="\n")
    for what in ("npu", "spot"):
        print(f"{what} fails:", *hwnas.simulate(plan, kill=what).sentences)


if __name__ == "__main__":
    main(QUICK if sys.argv[1:] == ["quick"] else {})
