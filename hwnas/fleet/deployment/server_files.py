"""Model repository of Triton with its image, and the application of Ray Serve.

Source: https://github.com/triton-inference-server/server, docs/user_guide/model_configuration.md.
"""

import json
import math
import pprint
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hwnas.fleet.deployment.pools import DeployedPool, busiest_hour
from hwnas.fleet.plan import DeploymentPlan, HourPlan

REPOSITORY = "triton/models"  #: subfolder of the files
IMAGE = "hwnas-models:1"  #: image built by the Dockerfile
HTTP, METRICS = 8000, 8002  #: ports
_BACKEND = "onnxruntime"
_ACCELERATORS = {"tensorrt": "gpu", "openvino": "cpu"}  # execution providers and their device

DOCKERFILE = """\
# docker build -t hwnas-models:1 .     # models are ONNX of opset 23: use a release that supports it
ARG TRITON=nvcr.io/nvidia/tritonserver:25.11-py3
FROM ${TRITON}
COPY models /models
"""


def repository(pools: Sequence[DeployedPool]) -> dict[str, bytes]:
    """Return the content of Triton's model repository and its Dockerfile, by path.

    Pools whose model file is unknown have only their configuration.
    """
    result = {"triton/Dockerfile": DOCKERFILE.encode()}
    for pool in pools:
        result[f"{REPOSITORY}/{pool.name}/config.pbtxt"] = config(pool).encode()
        if pool.model is not None:
            result[f"{REPOSITORY}/{pool.name}/1/model.onnx"] = pool.model.content
    return result


def config(pool: DeployedPool) -> str:
    """Return the text of a pool's ``config.pbtxt``, with the planned batch size and wait."""
    threads = _parameter("intra_op_thread_count", pool.source.threads)
    parts = [*_accelerator(pool), threads, _parameter("inter_op_thread_count", 1)]
    return _config(pool, _BACKEND, parts)


def python_config(pool: DeployedPool) -> str:
    """Return the text of ``config.pbtxt`` for Triton's Python backend with ``triton_model.py``."""
    return _config(pool, "python", [_parameter("threads", pool.source.threads)])


def _config(pool: DeployedPool, backend: str, more: Sequence[str]) -> str:
    parts = [
        f'name: "{pool.name}"', f'backend: "{backend}"', f"max_batch_size: {pool.kind.batch}",
        *_tensors(pool), *_batching(pool), _instances(pool), *more,
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def server_arguments(pool: DeployedPool) -> list[str]:
    """Return the arguments of a command that serves one pool by Triton."""
    return [
        "tritonserver", "--model-repository=/models", "--model-control-mode=explicit",
        f"--load-model={pool.name}", f"--http-port={HTTP}", f"--metrics-port={METRICS}",
        "--metrics-config=summary_latencies=true",
    ]  # fmt: skip


def _tensors(pool: DeployedPool) -> list[str]:
    """Return inputs and outputs; without a model file Triton reads them from the model."""
    if pool.model is None:
        return []
    model = pool.model
    input_type, output_type = model.types
    outputs = [
        _tensor(name, output_type if name == model.answer else "FP32", sizes)
        for name, sizes in model.outputs.items()
    ]
    return [
        f"input [ {_tensor(model.image, input_type, model.shape)} ]",
        f"output [ {', '.join(outputs)} ]",
    ]


def _tensor(name: str, kind: str, sizes: Sequence[int]) -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {", ".join(map(str, sizes))} ] }}'


def _batching(pool: DeployedPool) -> list[str]:
    if pool.kind.batch == 1:
        return []
    wait_us = round(pool.kind.wait_ms * 1e3)
    return [f"dynamic_batching {{ max_queue_delay_microseconds: {wait_us} }}"]


def _instances(pool: DeployedPool) -> str:
    kind = "KIND_GPU" if pool.source.is_on_gpu else "KIND_CPU"
    return f"instance_group [ {{ count: 1 kind: {kind} }} ]"


def _accelerator(pool: DeployedPool) -> list[str]:
    name = pool.source.provider
    if name not in _ACCELERATORS:
        return []
    kind = f"{_ACCELERATORS[name]}_execution_accelerator"
    return [f'optimization {{ execution_accelerators {{ {kind}: [ {{ name: "{name}" }} ] }} }}']


def _parameter(key: str, value: int) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


# The application of Ray Serve: one file that contains the plan.

NAME = "ray_app.py"
_SCRIPT = Path(__file__).parent / "app.py"
_EMPTY = "PLAN: dict[str, Any] = {}"
_PROVIDERS = {
    "": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider", "openvino": "OpenVINOExecutionProvider",
}  # fmt: skip


def ray_app(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> dict[str, bytes]:
    """Return the content of ``ray_app.py`` by this name; empty if no pool has a model file."""
    able = {pool.of: pool for pool in pools if pool.model is not None}
    if not able:
        return {}
    hours = [_hour(plan, hour_plan, able) for hour_plan in plan.hours]
    content = {
        "pools": {pool.name: _pool(pool) for pool in able.values()},
        "hours": hours,
        "routes": _peak_routes(hours),
        "start": busiest_hour(plan),
    }
    return {NAME: _render_app(content)}


def _render_app(content: dict[str, Any]) -> bytes:
    """Return the application with its ``PLAN``.

    Args:
        content: ``pools`` by name, ``hours`` with replicas and routes, ``routes`` at peaks, and
            ``start``, the hour of the initial replicas.
    """
    plain = json.loads(json.dumps(content))  # lists for tuples, literals only
    literal = pprint.pformat(plain, width=100, sort_dicts=False, compact=True)
    text = _SCRIPT.read_text()
    assert _EMPTY in text
    return text.replace(_EMPTY, f"PLAN: dict[str, Any] = {literal}").encode()


def _pool(pool: DeployedPool) -> dict[str, Any]:
    assert pool.model is not None
    return {
        "device": pool.kind.device, "batch": pool.kind.batch, "wait_s": pool.kind.wait_ms / 1e3,
        "threads": pool.source.threads, "providers": [_PROVIDERS[pool.source.provider]],
        "gpus": _gpus(pool), "shape": pool.model.shape, "busy": pool.busy,
        "dtype": "uint8" if pool.model.types[0] == "UINT8" else "float32",
    }  # fmt: skip


def _gpus(pool: DeployedPool) -> float:
    """Return a replica's fraction of a GPU: slots share one."""
    return math.floor(1e4 / pool.slots) / 1e4 if pool.source.is_on_gpu else 0.0  # Ray's resolution


def _peak_routes(hours: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the routes of each class in its peak hour."""
    result: dict[str, list[dict[str, Any]]] = {}
    peaks: dict[str, float] = {}
    for hour in hours:
        for name, routes in hour["routes"].items():
            rate = sum(route["rate"] for route in routes)
            if rate > peaks.get(name, 0.0):
                result[name], peaks[name] = routes, rate
    return result


def _hour(
    plan: DeploymentPlan, hour_plan: HourPlan, able: dict[str, DeployedPool]
) -> dict[str, Any]:
    routes: dict[str, list[dict[str, Any]]] = {}
    for r in hour_plan.routes:
        if r.first in able and (r.second is None or r.second in able):
            routes.setdefault(r.klass, []).append({
                "first": able[r.first].name, "second": able[r.second].name if r.second else "",
                "rate": r.rate, "threshold": r.threshold, "split": plan.is_split(r.first, r.second),
            })  # fmt: skip
    replicas = {able[p.kind].name: p.replicas for p in hour_plan.pools if p.kind in able}
    return {"hours": hour_plan.hours, "replicas": replicas, "routes": routes}
