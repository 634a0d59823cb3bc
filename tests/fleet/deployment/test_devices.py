"""Pools use the runtime that measured their latencies, independent of their accuracies."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hwnas.fleet.deployment import pools
from hwnas.fleet.deployment.files import deployment_files
from hwnas.fleet.plan import DeploymentPlan, PoolType, TimedRuntime, read_plan, to_yaml
from hwnas.hardware.backends import onnx_files
from hwnas.models.spaces import SearchSpace
from tests.conftest import target
from tests.fleet.deployment import examples
from tests.fleet.deployment.triton_config import parse_config

NAME = "cpu-0a-float32-b1"
Files = dict[str, bytes]


@pytest.fixture
def plan(tmp_path: Path, tiny: SearchSpace) -> DeploymentPlan:
    """Return a plan with accuracies from a run on a CPU."""
    examples.write_run(tmp_path / "cpu", target("cpu"), "0a", examples.model(tiny))
    examples.write_run(tmp_path / "npu", target("npu"), "0b", None)
    return examples.plan(tmp_path / "cpu", tmp_path / "npu")


def _files(plan: DeploymentPlan, slots: int = 1, **kind: Any) -> Files:
    """Return the files of a plan with a modified type and machine of its large pool."""
    kinds = {**plan.kinds, examples.LARGE: replace(plan.kinds[examples.LARGE], **kind)}
    devices = {name: replace(machine, slots=slots) for name, machine in plan.devices.items()}
    files = deployment_files(replace(plan, kinds=kinds, devices=devices), {examples.LARGE: 0.3})
    return {name.removeprefix("deploy/"): content for name, content in files.items()}


def _documents(files: Files) -> dict[str, dict[str, Any]]:
    documents = [*yaml.safe_load_all(files[f"kubernetes/{NAME}.yaml"])]
    for document in documents:
        kubernetes_validate.validate(document, "1.31", strict=True)
    return {document["kind"]: document["spec"] for document in documents}


def _resources(files: Files) -> dict[str, Any]:
    pod = _documents(files)["Deployment"]["template"]["spec"]
    return {**pod["containers"][0]["resources"]["requests"]}


def _ray(files: Files) -> dict[str, Any]:
    tree = ast.parse(files["ray_app.py"])
    (value,) = [node.value for node in tree.body if isinstance(node, ast.AnnAssign)]
    assert value is not None
    return {**ast.literal_eval(value)["pools"][NAME]}


def _config(files: Files) -> Any:
    return parse_config(files[f"triton/models/{NAME}/config.pbtxt"].decode(), NAME)


def test_gpu_pool_with_cpu_accuracy_requests_gpu(plan: DeploymentPlan, tmp_path: Path) -> None:
    cuda = TimedRuntime("cuda", str(tmp_path / "cuda"), "onnxruntime", "cuda", 1)
    files = _files(plan, slots=2, ran=cuda)
    assert _resources(files)["nvidia.com/gpu"] == "1"
    assert "HorizontalPodAutoscaler" not in _documents(files)
    assert _config(files).instance_group[0].kind == 1  # KIND_GPU
    readme = files["README.md"].decode()
    assert "a machine has 2 slots" in readme
    assert "`sharing.timeSlicing`: 2 `replicas`" in readme
    assert (_ray(files)["gpus"], _ray(files)["providers"]) == (0.5, ["CUDAExecutionProvider"])
    assert f"`{NAME}`: " not in readme  # no unknown property
    unshared = _files(plan, ran=cuda)
    assert _ray(unshared)["gpus"] == 1.0
    assert "timeSlicing" not in unshared["README.md"].decode()


def test_cpu_pool_requests_threads_of_model(plan: DeploymentPlan, tmp_path: Path) -> None:
    """No GPU is requested if the accuracy of a network comes from a run on a GPU."""
    examples.write_run(
        tmp_path / "gpu", target("cuda"), "0a", (tmp_path / "cpu/models/0a.onnx").read_bytes()
    )
    cpu = TimedRuntime("cpu", str(tmp_path / "cpu"), "onnxruntime", "cpu", 4)
    files = _files(plan, place=str(tmp_path / "gpu"), ran=cpu)
    assert _resources(files) == {"cpu": "4", "memory": "1028Mi"}
    parameters = {
        parameter.key: parameter.value.string_value for parameter in _config(files).parameters
    }
    assert parameters["intra_op_thread_count"] == "4"
    assert (_ray(files)["threads"], _ray(files)["gpus"]) == (4, 0.0)
    without_runtime = _files(plan, place=str(tmp_path / "gpu"))  # a plan without runtime
    assert _resources(without_runtime)["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (
            TimedRuntime("nvidia_l4", "", "offline", "", 1),
            ["its execution provider is unknown", "set provider"],
        ),
        (
            TimedRuntime("mine"),
            ["its execution provider is unknown", "its number of threads is unknown"],
        ),
        (
            TimedRuntime("cpu", "", "tvm", "cpu", 1),
            ["its latencies are from model.so; servers run 0a.onnx"],
        ),
        (TimedRuntime("gpu", "", "onnxruntime", "nvtensorrtrtx", 1), ["servers use cuda"]),
        (TimedRuntime("cpu", "", "onnxruntime", "xnnpack", 1), ["servers run it on the CPU"]),
    ],
)
def test_readme_names_unknown_runtime_properties(
    plan: DeploymentPlan, ran: TimedRuntime, expected: list[str]
) -> None:
    readme = _files(plan, ran=ran)["README.md"].decode()
    (line,) = [line for line in readme.splitlines() if line.startswith(f"- `{NAME}`: ")]
    assert [text for text in expected if text not in line] == []


def test_readme_names_other_precision_of_latencies(plan: DeploymentPlan) -> None:
    files = _files(plan, model="0a-float16", ran=TimedRuntime("l4", "", "offline", "cuda", 1))
    message = "`cpu-0a-float16-b1`: its latencies are of float16; servers run 0a.onnx in float32"
    assert message in files["README.md"].decode()


def test_model_files_come_from_latency_run_if_missing(plan: DeploymentPlan, tmp_path: Path) -> None:
    ran = TimedRuntime("cpu", str(tmp_path / "cpu"), "onnxruntime", "cpu", 2)
    files = _files(plan, place=str(tmp_path / "npu"), ran=ran)
    assert f"triton/models/{NAME}/1/model.onnx" in files
    assert f"its accuracy is from {tmp_path / 'npu'}" in files["README.md"].decode()


def test_other_working_directory_lacks_only_model_file(plan: DeploymentPlan) -> None:
    ran = TimedRuntime("cpu", "runs/cpu", "onnxruntime", "cpu", 2)
    files = _files(plan, place="runs/cpu", ran=ran)
    assert _resources(files)["cpu"] == "2"
    readme = files["README.md"].decode()
    assert (
        f"its model file is unknown: runs/cpu has none (working directory: {Path.cwd()})." in readme
    )
    assert "is unknown, and" not in readme


def test_plan_stores_runtime_and_reads_older_plans(plan: DeploymentPlan, tmp_path: Path) -> None:
    kind: PoolType = replace(
        plan.kinds[examples.SMALL], ran=TimedRuntime("cpu", "here", "tvm", "cpu", 2)
    )
    (tmp_path / "plan.yaml").write_bytes(
        to_yaml(replace(plan, kinds={**plan.kinds, examples.SMALL: kind}))
    )
    assert read_plan(tmp_path).kinds[examples.SMALL] == kind
    (tmp_path / "plan.yaml").write_bytes(to_yaml(plan))
    older_plan = to_yaml(read_plan(tmp_path))  # numbers in the format of plans
    assert not any("ran" in kind for kind in yaml.safe_load(older_plan)["kinds"].values())
    (tmp_path / "plan.yaml").write_bytes(older_plan)
    assert read_plan(tmp_path).kinds == plan.kinds
    assert to_yaml(read_plan(tmp_path)) == older_plan


def test_unrelated_file_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the source of a model, the working directory is not searched."""
    monkeypatch.chdir(tmp_path)
    Path(onnx_files.FLOAT32).write_bytes(b"another network")
    kind = PoolType("cpu", "a-float32", 1, 0.0, 9.0, 50.0, 1, None, {}, 3.5, "runs/cpu")
    assert not [
        file for file in pools._candidate_files(kind, TimedRuntime("mine")) if file.is_file()
    ]
