"""Serve the pools of a plan by Ray Serve.

    pip install 'ray[serve]' onnxruntime numpy   # cuda, tensorrt: onnxruntime-gpu[cuda,cudnn];
                                                 # openvino: onnxruntime-openvino instead
    ray start --head --resources='{"DEVICE": SLOTS}'   # first machine: its device of the fleet
    ray start --address=HEAD:6379 --resources='{"DEVICE": SLOTS}'   # each other machine
    serve run ray_app:build                            # or hour=12: that hour's replicas and routes

Send an image to the path of its class, as float32 (channels, height, width), normalised as in
preprocessing.json of the export; the response is JSON:

    curl --data-binary @image.f32 http://127.0.0.1:8000/CLASS

Ray opens ports without authentication on all network interfaces: use a private network.

Models are in triton/models next to this file, at the same path on all machines.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import ray
from ray import serve

PLAN: dict[str, Any] = {}  # pools; replicas and routes of equal hours; routes at peaks
HERE = Path(__file__).resolve().parent


class PoolReplica:
    """A replica of a pool, with the planned batch size and wait."""

    def __init__(self, name: str):
        text = PLAN["pools"][name]
        self.name, self.shape, self.dtype = name, text["shape"], np.dtype(text["dtype"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = text["threads"], 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.x64quantprecision", "1")  # int8 without VNNI
        file = str(HERE / "triton" / "models" / name / "1" / "model.onnx")
        first = text["providers"][0]
        if first in ("CUDAExecutionProvider", "TensorrtExecutionProvider"):
            getattr(onnxruntime, "preload_dlls", lambda: None)()  # of CUDA, installed by pip
        self.session = onnxruntime.InferenceSession(
            file, options, text["providers"], enable_fallback=0
        )
        if self.session.get_providers()[0] != first:  # the CPU would be much slower than planned
            raise RuntimeError(f"{name}: {first} is not available: install its onnxruntime.")
        self.images = self.session.get_inputs()[0].name
        for n in {1, text["batch"]}:
            self.session.run(None, {self.images: np.zeros((n, *self.shape), self.dtype)})
        self.batched.set_max_batch_size(text["batch"])
        self.batched.set_batch_wait_timeout_s(text["wait_s"])

    @serve.batch
    async def batched(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """Return a dict per image: ``answer`` (class), ``confidence``, ``logits`` and more.

        For the first part of a split network it has only ``activation`` (bytes) and ``pool``.
        """
        started = time.perf_counter()
        logits, *rated = self.session.run(None, {self.images: np.stack(images)})
        ms = (time.perf_counter() - started) * 1e3
        if not rated:  # first part of a split network: its output is the second's input
            return [{"activation": row.tobytes(), "pool": self.name} for row in logits]
        (sure,) = rated
        return [
            {
                "answer": int(row.argmax()), "confidence": float(rate[0]), "logits": row.tolist(),
                "pool": self.name, "batch": len(images), "compute_ms": ms,
            }
            for row, rate in zip(logits, sure, strict=True)
        ]  # fmt: skip

    async def __call__(self, body: bytes) -> dict[str, Any]:
        """Return the outputs of the model for the bytes of one image, as ``batched``.

        Raises:
            ValueError: the image has the wrong number of bytes.
        """
        return dict(await self.batched(np.frombuffer(body, self.dtype).reshape(self.shape)))


class RequestRouter:
    """HTTP entry: each class has a path, and routes through the pools."""

    def __init__(self, routes: dict[str, list[dict[str, Any]]], pools: dict[str, Any]):
        self.routes, self.pools = routes, pools

    async def __call__(self, request: Any) -> Any:
        """Return the JSON response of the pool that answers, see ``PoolReplica.batched``.

        The route is drawn by its rate. The second pool of a route answers if the confidence of the
        first is below the threshold, or if the network is split. Status 404: there is no such
        class; 400: the image has the wrong size.
        """
        from starlette.responses import JSONResponse

        routes = self.routes.get(request.url.path.strip("/"))
        if not routes:
            known = ", ".join(self.routes)
            return JSONResponse({"error": f"no such class; use the path of one: {known}"}, 404)
        body = await request.body()
        (route,) = random.choices(routes, [option["rate"] for option in routes])
        text = PLAN["pools"][route["first"]]
        needed = np.dtype(text["dtype"]).itemsize * int(np.prod(text["shape"]))
        if len(body) != needed:
            return JSONResponse({"error": f"an image has {needed} bytes, got {len(body)}"}, 400)
        result = await self.pools[route["first"]].remote(body)
        if route["split"]:
            result = await self.pools[route["second"]].remote(result["activation"])
        elif route["second"] and result["confidence"] < route["threshold"]:
            result = await self.pools[route["second"]].remote(body)
        return JSONResponse(result)


def build(arguments: dict[str, str]) -> Any:
    """Return the Ray Serve application with the replicas and routes of ``hour=NUMBER``.

    Without this argument pools are scaled automatically between their minimum and maximum over the
    hours, and each class has the routes of its peak hour.

    Raises:
        ValueError: the hour is not a number, or not in the plan.
    """
    every = PLAN["hours"]
    hours = [
        entry for entry in every if int(arguments.get("hour", entry["hours"][0])) in entry["hours"]
    ]
    if not hours:
        last = max(hour for entry in every for hour in entry["hours"])
        raise ValueError(f"hour={arguments['hour']} is not in the plan: give 0 to {last}.")
    routes = hours[0]["routes"] if "hour" in arguments else PLAN["routes"]
    needed = [
        entry[side] for ways in routes.values() for entry in ways for side in ("first", "second")
    ]
    pools = {name: _pool(name, hours) for name in dict.fromkeys(needed) if name}
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers lack this file
    ingress = serve.deployment(RequestRouter).options(
        name="classes", max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0}
    )
    return ingress.bind(routes, pools)


def _pool(name: str, hours: list[dict[str, Any]]) -> Any:
    text = PLAN["pools"][name]
    replicas = [entry["replicas"][name] for entry in hours if name in entry["replicas"]]
    scale: dict[str, Any] = {"num_replicas": max(replicas)}
    if min(replicas) < max(replicas):
        (first,) = (entry["replicas"] for entry in PLAN["hours"] if PLAN["start"] in entry["hours"])
        scale = {
            "autoscaling_config": {
                "min_replicas": min(replicas), "max_replicas": max(replicas),
                "initial_replicas": first.get(name, min(replicas)),
                "target_ongoing_requests": max(1.0, text["batch"] * text["busy"]),
            }
        }  # fmt: skip
    needs = {"num_cpus": 0, "num_gpus": text["gpus"], "resources": {text["device"]: 1}}
    return (
        serve.deployment(PoolReplica)
        .options(
            name=name, max_ongoing_requests=2 * text["batch"], ray_actor_options=needs, **scale
        )
        .bind(name)
    )
