"""A model repository of Triton: a folder for each pool, and the image that holds them.

Source: https://github.com/triton-inference-server/server, docs/user_guide/model_configuration.md.
"""

from collections.abc import Sequence

from hwnas.deployment.pools import Deployed

REPOSITORY = "triton/models"  #: in the folder of the files
IMAGE = "hwnas-models:1"  #: that the Dockerfile builds
HTTP, METRICS = 8000, 8002  #: ports
_BACKEND = "onnxruntime"
_ACCELERATORS = {"tensorrt": "gpu", "openvino": "cpu"}  # execution providers, and where they run

DOCKERFILE = """\
# docker build -t hwnas-models:1 .     # models are ONNX of opset 23: take a release that reads it
ARG TRITON=nvcr.io/nvidia/tritonserver:25.11-py3
FROM ${TRITON}
COPY models /models
"""


def repository(pools: Sequence[Deployed]) -> dict[str, bytes]:
    """Return the files of a repository by their paths in it, and beside it its Dockerfile."""
    found = {"triton/Dockerfile": DOCKERFILE.encode()}
    for pool in pools:
        found[f"{REPOSITORY}/{pool.name}/config.pbtxt"] = config(pool).encode()
        if pool.model is not None:
            found[f"{REPOSITORY}/{pool.name}/1/model.onnx"] = pool.model.content
    return found


def config(pool: Deployed) -> str:
    """Return ``config.pbtxt``: batches and their wait as planned, one instance a replica."""
    threads = _parameter("intra_op_thread_count", pool.source.threads)
    parts = [*_accelerator(pool), threads, _parameter("inter_op_thread_count", 1)]
    return _config(pool, _BACKEND, parts)


def python_config(pool: Deployed) -> str:
    """Return the same for a Triton that has a Python backend alone, and ``triton_model.py``."""
    return _config(pool, "python", [_parameter("threads", pool.source.threads)])


def _config(pool: Deployed, backend: str, more: Sequence[str]) -> str:
    parts = [
        f'name: "{pool.name}"', f'backend: "{backend}"', f"max_batch_size: {pool.kind.batch}",
        *_tensors(pool), *_batching(pool), _instances(pool), *more,
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def arguments(pool: Deployed) -> list[str]:
    """Return the command line that serves one pool."""
    return [
        "tritonserver", "--model-repository=/models", "--model-control-mode=explicit",
        f"--load-model={pool.name}", f"--http-port={HTTP}", f"--metrics-port={METRICS}",
        "--metrics-config=summary_latencies=true",
    ]  # fmt: skip


def _tensors(pool: Deployed) -> list[str]:
    """Return what goes in and comes out; without its file, Triton asks the model."""
    if pool.model is None:
        return []
    model = pool.model
    read, answered = model.types
    outputs = [
        _tensor(name, answered if name == model.answer else "FP32", sizes)
        for name, sizes in model.outputs.items()
    ]
    return [
        f"input [ {_tensor(model.image, read, model.shape)} ]", f"output [ {', '.join(outputs)} ]",
    ]  # fmt: skip


def _tensor(name: str, kind: str, sizes: Sequence[int]) -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {", ".join(map(str, sizes))} ] }}'


def _batching(pool: Deployed) -> list[str]:
    if pool.kind.batch == 1:
        return []
    wait_us = round(pool.kind.wait_ms * 1e3)
    return [f"dynamic_batching {{ max_queue_delay_microseconds: {wait_us} }}"]


def _instances(pool: Deployed) -> str:
    where = "KIND_GPU" if pool.source.is_on_gpu else "KIND_CPU"
    return f"instance_group [ {{ count: 1 kind: {where} }} ]"


def _accelerator(pool: Deployed) -> list[str]:
    name = pool.source.provider
    if name not in _ACCELERATORS:
        return []
    kind = f"{_ACCELERATORS[name]}_execution_accelerator"
    return [f'optimization {{ execution_accelerators {{ {kind}: [ {{ name: "{name}" }} ] }} }}']


def _parameter(key: str, value: int) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
