"""Pools run as their models were timed on their own device, wherever accuracies come from."""

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
from tests.fleet.deployment import made
from tests.fleet.deployment.triton_config import parsed

NAME = "cpu-0a-float32-b1"
Files = dict[str, bytes]


@pytest.fixture
def plan(tmp_path: Path, tiny: SearchSpace) -> DeploymentPlan:
    """Return a plan whose accuracies are of a run on a CPU."""
    made.write_run(tmp_path / "cpu", target("cpu"), "0a", made.model(tiny))
    made.write_run(tmp_path / "npu", target("npu"), "0b", None)
    return made.plan(tmp_path / "cpu", tmp_path / "npu")


def _files(plan: DeploymentPlan, slots: int = 1, **kind: Any) -> Files:
    """Return the files of a plan with another kind and machine of its large pool."""
    kinds = {**plan.kinds, made.LARGE: replace(plan.kinds[made.LARGE], **kind)}
    devices = {name: replace(at, slots=slots) for name, at in plan.devices.items()}
    found = deployment_files(replace(plan, kinds=kinds, devices=devices), {made.LARGE: 0.3})
    return {name.removeprefix("deploy/"): content for name, content in found.items()}


def _documents(found: Files) -> dict[str, dict[str, Any]]:
    documents = [*yaml.safe_load_all(found[f"kubernetes/{NAME}.yaml"])]
    for document in documents:
        kubernetes_validate.validate(document, "1.31", strict=True)
    return {document["kind"]: document["spec"] for document in documents}


def _resources(found: Files) -> dict[str, Any]:
    pod = _documents(found)["Deployment"]["template"]["spec"]
    return {**pod["containers"][0]["resources"]["requests"]}


def _ray(found: Files) -> dict[str, Any]:
    tree = ast.parse(found["ray_app.py"])
    (said,) = [node.value for node in tree.body if isinstance(node, ast.AnnAssign)]
    assert said is not None
    return {**ast.literal_eval(said)["pools"][NAME]}


def _config(found: Files) -> Any:
    return parsed(found[f"triton/models/{NAME}/config.pbtxt"].decode(), NAME)


def test_pools_on_gpus_get_them_though_accuracies_are_of_a_cpu(
    plan: DeploymentPlan, tmp_path: Path
) -> None:
    cuda = TimedRuntime("cuda", str(tmp_path / "cuda"), "onnxruntime", "cuda", 1)
    found = _files(plan, slots=2, ran=cuda)
    assert _resources(found)["nvidia.com/gpu"] == "1"
    assert "HorizontalPodAutoscaler" not in _documents(found)
    assert _config(found).instance_group[0].kind == 1  # KIND_GPU
    said = found["README.md"].decode()
    assert "a machine has 2 slots" in said
    assert "`sharing.timeSlicing`: 2 `replicas`" in said
    assert (_ray(found)["gpus"], _ray(found)["providers"]) == (0.5, ["CUDAExecutionProvider"])
    assert f"`{NAME}`: " not in said  # nothing is unknown of it
    whole = _files(plan, ran=cuda)
    assert _ray(whole)["gpus"] == 1.0
    assert "timeSlicing" not in whole["README.md"].decode()


def test_pools_on_cpus_get_the_threads_of_their_models(
    plan: DeploymentPlan, tmp_path: Path
) -> None:
    """And no GPU, where a network is in the fronts of both, and one of them has its accuracy."""
    made.write_run(
        tmp_path / "gpu", target("cuda"), "0a", (tmp_path / "cpu/models/0a.onnx").read_bytes()
    )
    cpu = TimedRuntime("cpu", str(tmp_path / "cpu"), "onnxruntime", "cpu", 4)
    found = _files(plan, place=str(tmp_path / "gpu"), ran=cpu)
    assert _resources(found) == {"cpu": "4", "memory": "1028Mi"}
    said = {each.key: each.value.string_value for each in _config(found).parameters}
    assert said["intra_op_thread_count"] == "4"
    assert (_ray(found)["threads"], _ray(found)["gpus"]) == (4, 0.0)
    before = _files(plan, place=str(tmp_path / "gpu"))  # a plan that doesn't say it
    assert _resources(before)["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(
    ("ran", "words"),
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
def test_what_is_not_known_of_a_device_is_said(
    plan: DeploymentPlan, ran: TimedRuntime, words: list[str]
) -> None:
    said = _files(plan, ran=ran)["README.md"].decode()
    (line,) = [line for line in said.splitlines() if line.startswith(f"- `{NAME}`: ")]
    assert [each for each in words if each not in line] == []


def test_latencies_of_other_precisions_are_said(plan: DeploymentPlan) -> None:
    found = _files(plan, model="0a-float16", ran=TimedRuntime("l4", "", "offline", "cuda", 1))
    words = "`cpu-0a-float16-b1`: its latencies are of float16; servers run 0a.onnx in float32"
    assert words in found["README.md"].decode()


def test_files_are_where_models_were_timed_if_not_beside_their_accuracies(
    plan: DeploymentPlan, tmp_path: Path
) -> None:
    ran = TimedRuntime("cpu", str(tmp_path / "cpu"), "onnxruntime", "cpu", 2)
    found = _files(plan, place=str(tmp_path / "npu"), ran=ran)
    assert f"triton/models/{NAME}/1/model.onnx" in found
    assert f"its accuracy is from {tmp_path / 'npu'}" in found["README.md"].decode()


def test_from_another_folder_only_the_file_is_not_found(plan: DeploymentPlan) -> None:
    ran = TimedRuntime("cpu", "runs/cpu", "onnxruntime", "cpu", 2)
    found = _files(plan, place="runs/cpu", ran=ran)
    assert _resources(found)["cpu"] == "2"
    said = found["README.md"].decode()
    assert (
        f"its model file is unknown: runs/cpu has none (working directory: {Path.cwd()})." in said
    )
    assert "is unknown, and" not in said


def test_plans_say_it_and_those_of_before_are_read(plan: DeploymentPlan, tmp_path: Path) -> None:
    kind: PoolType = replace(
        plan.kinds[made.SMALL], ran=TimedRuntime("cpu", "here", "tvm", "cpu", 2)
    )
    (tmp_path / "plan.yaml").write_bytes(
        to_yaml(replace(plan, kinds={**plan.kinds, made.SMALL: kind}))
    )
    assert read_plan(tmp_path).kinds[made.SMALL] == kind
    (tmp_path / "plan.yaml").write_bytes(to_yaml(plan))
    before = to_yaml(read_plan(tmp_path))  # numbers as plans write them
    assert not any("ran" in kind for kind in yaml.safe_load(before)["kinds"].values())
    (tmp_path / "plan.yaml").write_bytes(before)
    assert read_plan(tmp_path).kinds == plan.kinds
    assert to_yaml(read_plan(tmp_path)) == before


def test_a_file_that_lies_about_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing says what a model was timed from, the working directory is no place of it."""
    monkeypatch.chdir(tmp_path)
    Path(onnx_files.FLOAT32).write_bytes(b"another network")
    kind = PoolType("cpu", "a-float32", 1, 0.0, 9.0, 50.0, 1, None, {}, 3.5, "runs/cpu")
    assert not [
        file for file in pools._candidate_files(kind, TimedRuntime("mine")) if file.is_file()
    ]
