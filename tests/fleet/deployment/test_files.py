"""Deployment files are valid for Triton, Ray, KServe, Kubernetes and Prometheus."""

import ast
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import numpy as np
import onnx
import onnxruntime
import promql_parser
import pytest
import torch
import yaml
from google.protobuf.text_format import ParseError
from torch.nn import functional as F

from hwnas.core.errors import CompileError
from hwnas.core.quantity import QuantityRow
from hwnas.fleet.deployment import alerts, kubernetes
from hwnas.fleet.deployment import kubernetes as kserve
from hwnas.fleet.deployment import kubernetes as schedule
from hwnas.fleet.deployment import pools as ways
from hwnas.fleet.deployment.alerts import _forecast
from hwnas.fleet.deployment.files import (
    _autoscaler_notes,
    _begin_notes,
    _hour_notes,
    deployment_files,
)
from hwnas.fleet.deployment.onnx_served import CONFIDENCE, to_served_model
from hwnas.fleet.deployment.pools import DeployedPool, PoolModelSource
from hwnas.fleet.deployment.server_files import _peak_routes
from hwnas.fleet.plan import PoolType, RequestRoute
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.models.onnx.opsets import check_opset
from hwnas.models.spaces import SearchSpace
from tests.conftest import target
from tests.fleet.deployment import examples
from tests.fleet.deployment.triton_config import parse_config

_COMMANDS = ("docker", "kubectl apply", "serve run")
POOL = "cpu-0a-float32-b4"
SINGLE_POOL = "cpu-0a-float32-b1"  # serves one request at a time
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory, tiny: SearchSpace) -> Files:
    folder = tmp_path_factory.mktemp("runs")
    examples.write_run(folder / "cpu", target("cpu"), "0a", examples.model(tiny, batch=1))
    examples.write_run(folder / "npu", target("npu"), "0b", None)
    plan = examples.plan(folder / "cpu", folder / "npu")
    files = deployment_files(plan, {examples.SMALL: 0.4, examples.LARGE: 0.3})
    return {name.removeprefix("deploy/"): content for name, content in files.items()}


def _documents(deploy: Files, folder: str) -> list[dict[str, Any]]:
    return [
        document
        for name, content in deploy.items()
        if name.startswith(f"{folder}/") and name.endswith(".yaml")
        for document in yaml.safe_load_all(content)
    ]


@pytest.mark.parametrize("batch", [1, 4])
def test_served_model_accepts_any_batch_and_returns_confidence(
    tiny: SearchSpace, batch: int
) -> None:
    content = examples.model(tiny, batch)
    served = to_served_model(content)
    assert check_opset(served.content) >= 20
    images = np.random.default_rng(0).standard_normal((batch, *served.shape)).astype(np.float32)
    session = onnxruntime.InferenceSession(served.content, providers=["CPUExecutionProvider"])
    expected = OrtSession(content).run(images)
    for n in (1, 3):
        batch_images = np.concatenate([images] * 3)[:n]
        logits, confidence = session.run([served.answer, CONFIDENCE], {served.image: batch_images})
        np.testing.assert_allclose(logits, np.concatenate([expected] * 3)[:n], atol=1e-5)
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        np.testing.assert_allclose(
            confidence[:, 0], (exponentials / exponentials.sum(1, keepdims=True)).max(1), 1e-5
        )


def test_served_model_resizes_larger_images(tiny: SearchSpace) -> None:
    content = examples.model(tiny)
    served = to_served_model(content, (20, 14))
    assert (served.shape, served.shrinks) == ((1, 20, 14), True)
    images = np.random.default_rng(0).standard_normal((2, 1, 20, 14)).astype(np.float32)
    session = onnxruntime.InferenceSession(served.content, providers=["CPUExecutionProvider"])
    (logits,) = session.run([served.answer], {served.image: images})
    resized = F.interpolate(torch.from_numpy(images), (8, 8), mode="bilinear", antialias=True)
    np.testing.assert_allclose(logits, OrtSession(content).run(resized.numpy()), atol=1e-4)


def test_non_classifier_raises() -> None:
    with pytest.raises(CompileError, match="not valid ONNX"):
        to_served_model(b"nothing")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 3))
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 3))
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out]))
    with pytest.raises(CompileError, match="is not an image classifier"):
        to_served_model(model.SerializeToString())


def test_unsupported_pools_are_omitted_and_noted(deploy: Files) -> None:
    readme = deploy["README.md"].decode()
    assert (
        f"`{examples.NPU}` is omitted, with all routes through it: it runs only on an Arm" in readme
    )
    assert f"`{examples.UNKNOWN}` is omitted" in readme
    assert "latencies are from model.so" in readme
    assert not [name for name in deploy if "npu" in name]


def test_triton_config_has_batches_waits_and_shapes(deploy: Files) -> None:
    text = deploy[f"triton/models/{POOL}/config.pbtxt"].decode()
    config = parse_config(text, POOL)
    assert (config.max_batch_size, config.backend) == (4, "onnxruntime")
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert [(t.name, *t.dims) for t in config.input] == [("images", 1, 8, 8)]
    assert [(t.name, *t.dims) for t in config.output] == [("logits", 10), (CONFIDENCE, 1)]
    model = onnx.load_from_string(deploy[f"triton/models/{POOL}/1/model.onnx"])
    assert [value.name for value in model.graph.output] == ["logits", CONFIDENCE]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("instance_group", "instances"),  # an unknown field
        ("max_batch_size: 4", 'max_batch_size: "4"'),  # a wrong type
        (f'name: "{POOL}"', ""),
        ("max_batch_size: 4", "max_batch_size: 0"),
        ("TYPE_FP32", "TYPE_FLOAT"),  # no such type
    ],
)
def test_triton_config_parser_rejects_damaged_files(deploy: Files, old: str, new: str) -> None:
    text = deploy[f"triton/models/{POOL}/config.pbtxt"].decode()
    with pytest.raises((ParseError, ValueError)):
        parse_config(text.replace(old, new, 1), POOL)


def test_manifests_are_valid_and_match_plan(deploy: Files) -> None:
    documents = _documents(deploy, "kubernetes")
    for document in documents:
        if document["kind"] != "Kustomization":
            kubernetes_validate.validate(document, "1.31", strict=True)
    kinds, others = (
        {d["kind"]: d["spec"] for d in documents if d.get("metadata", {}).get("name") == name}
        for name in (POOL, SINGLE_POOL)
    )
    scaling, deployment = others.pop("HorizontalPodAutoscaler"), kinds["Deployment"]
    assert kinds.keys() == others.keys() == {"Deployment", "Service", "PodDisruptionBudget"}
    assert (deployment["replicas"], scaling["minReplicas"], scaling["maxReplicas"]) == (3, 2, 2)
    assert scaling["metrics"][0]["resource"]["target"]["averageUtilization"] == 30
    # On full machines, a rollout with surge pods would hang.
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    pod = deployment["template"]["spec"]
    assert pod["nodeSelector"] == {"hwnas/device": "cpu"}
    assert pod["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "DoNotSchedule"
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1028Mi"}
    (resources,) = [d["resources"] for d in documents if d["kind"] == "Kustomization"]
    assert {f"kubernetes/{name}" for name in resources} <= deploy.keys()
    assert b"&id" not in deploy[f"kubernetes/{POOL}.yaml"]


def _patches_by_hour(documents: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return the documents that are applied in each hour; check that each hour has one job."""
    files = {d["metadata"]["name"]: d["data"]["hour.yaml"] for d in documents
             if d["kind"] == "ConfigMap"}  # fmt: skip
    patches: dict[int, list[dict[str, Any]]] = {}
    for job in (d["spec"] for d in documents if d["kind"] == "CronJob"):
        minute, hours, *days = job["schedule"].split()
        assert (minute, days, job["timeZone"]) == ("0", ["*", "*", "*"], "Etc/UTC")
        (volume,) = job["jobTemplate"]["spec"]["template"]["spec"]["volumes"]
        for hour in map(int, hours.split(",")):
            assert hour not in patches
            patches[hour] = [*yaml.safe_load_all(files[volume["configMap"]["name"]])]
    return patches


def test_replicas_and_routes_change_per_hour(deploy: Files) -> None:
    pods, routes = ([*yaml.safe_load_all(deploy[f"{folder}/schedule.yaml"])]
                    for folder in ("kubernetes", "kserve"))  # fmt: skip
    for document in {route["kind"]: route for route in routes}.values():
        kubernetes_validate.validate(document, "1.31", strict=True)
    scaled = _patches_by_hour(pods)
    assert len(scaled) == 24
    for hour, parts in scaled.items():
        (pods_of,) = [d["spec"] for d in parts if d["kind"] == "Deployment"]
        assert pods_of == {"replicas": 3 if 8 <= hour < 20 else 1}
        least = {d["metadata"]["name"]: d["spec"].get("minReplicas") for d in parts}
        assert least == {POOL: None, SINGLE_POOL: 2}
    graphs = _patches_by_hour(routes)
    assert len(graphs) == 24
    jobs = {d["metadata"]["name"]: d["spec"]["schedule"] for d in pods if d["kind"] == "CronJob"}
    assert jobs["hwnas-replicas-8-0"].startswith("0 8,9,10")  # named after its first hour
    (deployed,) = [d for d in _documents(deploy, "kserve") if d["kind"] == "InferenceGraph"]
    for hour, (graph,) in graphs.items():
        jsonschema.validate(graph["spec"], _GRAPH)
        assert (graph == deployed) == (8 <= hour < 20)


def test_pools_start_with_one_hour_and_scale_to_zero() -> None:
    def pool(name: str, *replicas: int) -> DeployedPool:
        kind = PoolType("cpu", name, 1, 0.0, 9.0, 50.0, 1, None, {}, 3.5, "")
        rates = (0.0, 1.0, 1.0)
        return DeployedPool(
            name, name, kind, PoolModelSource(), None, replicas, rates, 1, 0.5, 1, 90.5
        )

    pools = [pool("a", 3, 0, 2), pool("b", 0, 3, 4)]
    manifests = kubernetes.manifests(pools)
    specs = [
        next(yaml.safe_load_all(manifests[f"kubernetes/{p.name}.yaml"]))["spec"] for p in pools
    ]
    assert [spec["replicas"] for spec in specs] == [2, 3]  # nothing else starts the first pool
    hours = [yaml.safe_load_all(kubernetes.hour_patches(pools, hour)) for hour in range(3)]
    parts = [[(d["kind"], *d["spec"].values()) for d in documents] for documents in hours]
    scaler = "HorizontalPodAutoscaler"
    assert parts[0] == [(scaler, 3), ("Deployment", 0)]  # the first pool ran in the previous hour
    assert parts[1] == [("Deployment", 0), ("Deployment", 3), (scaler, 3)]
    assert parts[2] == [
        ("Deployment", 2),
        (scaler, 2),
        (scaler, 4),
    ]  # replicas that were added stay
    missing = yaml.safe_load(alerts.alert_rules(pools)["prometheus/rules.yaml"])["groups"][0][
        "rules"
    ][4]
    promql_parser.parse(missing["expr"])
    assert missing["for"] == "211s"  # starting may take 91 s
    assert 'and on() sum(hwnas:forecast_requests_per_second{model="a"}) > 0' in missing["expr"]


def test_apply_commands_match_scheduled_jobs(deploy: Files) -> None:
    """Patches require server-side apply; jobs of other plans are selected by label."""
    readme = deploy["README.md"].decode()
    applied = [line for line in readme.splitlines() if line.startswith("kubectl apply")]
    assert len(applied) == 2
    assert all("apply --server-side --force-conflicts" in line for line in applied)
    (command,) = [line for line in readme.splitlines() if line.startswith("kubectl delete")]
    key, _, value = command.split("#")[0].split()[-1].partition("=")
    kinds = {"CronJob", "ConfigMap"}
    for document in _documents(deploy, "kubernetes") + _documents(deploy, "kserve"):
        if document["kind"] in kinds:
            assert document["metadata"]["labels"][key] == value


def test_readme_mentions_schedules_only_with_changes(deploy: Files) -> None:
    readme = deploy["README.md"].decode()
    assert "`kubernetes/schedule.yaml` and `kserve/schedule.yaml` change them every hour" in readme
    kind = PoolType("cpu", "a", 4, 0.0, 9.0, 50.0, 1, None, {}, 3.5, "")
    source = PoolModelSource()
    day, few = (
        DeployedPool("a", "a", kind, source, None, (1,) * n, (*[1.0] * (n - 1), 2.0), 1, 0.5)
        for n in (24, 3)
    )
    assert _hour_notes([day], []) == []  # equal route shares
    assert _hour_notes([day], ["`kserve/schedule.yaml`"])  # only routes differ
    assert "3 hours are not a day or week" in _hour_notes([few], [])[0]


def test_pools_without_cpu_load_relation_are_not_autoscaled() -> None:
    def pool(batch: int, busy: float) -> DeployedPool:
        kind = PoolType("cpu", "a", batch, 0.0, 9.0, 50.0, 1, None, {}, 3.5, "")
        return DeployedPool("a", "a", kind, PoolModelSource(), None, (1, 2), (1.0, 2.0), 1, busy)

    notes = {
        batch_and_busy: [*_autoscaler_notes(pool(*batch_and_busy))]
        for batch_and_busy in ((1, 0.9), (1, 0.92), (4, 0.3))
    }
    assert notes[1, 0.9] == []
    assert "busy 92% of the time, and autoscalers act at 10 % more" in notes[1, 0.92][0]
    assert "batches grow with the load" in notes[4, 0.3][0]
    for batch_and_busy, messages in notes.items():
        written = kubernetes.manifests([pool(*batch_and_busy)])["kubernetes/a.yaml"]
        assert (b"HorizontalPodAutoscaler" in written) is not bool(messages)


def test_weekly_hours_are_converted_to_cron() -> None:
    """Plans begin on Monday, cron weeks on Sunday; equal days share one job."""
    nights = [24 * day + hour for day in range(7) for hour in (0, 1)]
    assert schedule.cron_times([*nights, 6 * 24 + 9], 168) == [
        "0 0,1 * * 1,2,3,4,5,6",
        "0 0,1,9 * * 0",
    ]
    assert schedule.cron_times([8, 9], 24) == ["0 8,9 * * *"]
    assert (
        schedule.schedule("a", [b"x", b"y"], []) == schedule.schedule("a", [b"x"] * 24, []) == b""
    )


def _forecast_at(rule: str, minutes: int) -> float:
    """Return the value of a rule at minutes after Monday 0:00 UTC."""
    day, minute = divmod(minutes, 24 * 60)
    values = {"day_of_week": (day + 1) % 7, "hour": minute // 60, "minute": minute % 60}
    functions = {name: lambda result=value: result for name, value in values.items()}
    part = r"vector\((\d+)\) and on\(\) \((.+?) >= (\d+)\) and on\(\) \(.+? <= (\d+)\)"
    parts = re.findall(part, rule)
    now = eval(parts[0][1], {**functions, "floor": math.floor})
    (forecast,) = (float(rate) for rate, _, first, last in parts if int(first) <= now <= int(last))
    return forecast


@pytest.mark.parametrize(("n", "begin"), [(24, 1320), (24, 1110), (168, 9960), (168, 9975)])
def test_jobs_and_forecasts_start_at_begin_of_plan(n: int, begin: int) -> None:
    rates = [float(hour) for hour in range(n)]
    rule = _forecast(rates, begin)
    promql_parser.parse(rule)
    for since in range(0, n * 60, 15 if n == 24 else 405):
        assert _forecast_at(rule, (begin + since) % (n * 60)) == since // 60
    first, minute = divmod(begin, 60)
    days = {24: "* * *", 168: "* * 1"}[n]  # the third hour is on Monday, though it began on Sunday
    assert schedule.cron_times([2], n, begin) == [f"{minute} {(first + 2) % 24} {days}"]


def test_deployment_files_contain_begin_of_plan() -> None:
    plan = replace(examples.plan(Path("cpu"), Path("npu")), begin_min=22 * 60 + 30)
    files = deployment_files(plan, {})
    jobs = [d for d in yaml.safe_load_all(files["deploy/kubernetes/schedule.yaml"])
            if d["kind"] == "CronJob"]  # fmt: skip
    busy = ",".join(str(hour) for hour in range(6, 18))  # hours 8 to 19 begin at 6:30 UTC
    assert f"30 {busy} * * *" in {job["spec"]["schedule"] for job in jobs}
    assert "minute() - 30" in files["deploy/prometheus/rules.yaml"].decode()
    readme = files["deploy/README.md"].decode()
    assert "Hour 0 of the plan begins at 22:30 UTC" in readme
    assert "| hours of the plan |" in readme
    short = [replace(plan.hours[0], hours=[0, 1])]  # has no jobs and no forecasts
    assert not _begin_notes(replace(plan, hours=short))


def test_node_labels_are_valid() -> None:
    assert kubernetes.node_label("jetson orin/64") == "jetson-orin-64"
    assert kubernetes.node_label("cpu_spot") == "cpu_spot"


def test_single_route_has_no_splitter() -> None:
    route = RequestRoute("web", 40.0, "a", "b", 0.3, 0.7, 0.9, 0.0, 0.0, 0.0)
    nodes = kserve._graph("web", [route], {"a": "pool-a", "b": "pool-b"})["spec"]["nodes"]
    assert list(nodes) == ["root"]
    assert nodes["root"]["routerType"] == "Sequence"
    assert [step["name"] for step in nodes["root"]["steps"]] == ["first", "second"]


def test_classes_with_several_routes_have_graphs(deploy: Files) -> None:
    def single(name: str, rate: float, klass: str = "web") -> RequestRoute:
        return RequestRoute(klass, rate, name, None, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0)

    plan = examples.plan(Path(), Path())
    day, night = plan.hours
    day = replace(day, routes=[single(examples.SMALL, 36.0), single(examples.LARGE, 24.0)])
    night = replace(
        night, routes=[single(examples.LARGE, 5.0), single(examples.LARGE, 1.0, "counter")]
    )
    plan = replace(plan, hours=[day, night])
    names = {examples.SMALL: POOL, examples.LARGE: SINGLE_POOL}
    kind = PoolType("cpu", "a", 1, 0.0, 9.0, 50.0, 1, None, {}, 3.5, "")
    pools = [DeployedPool(name, pool, kind, PoolModelSource(), None, (1,) * 24, (1.0,) * 24, 0, 0.5)
             for pool, name in names.items()]  # fmt: skip
    graphs = kserve.inference_graphs(plan, pools)
    assert {*graphs} == {"kserve/class-web.yaml", "kserve/schedule.yaml"}
    (graph,) = yaml.safe_load_all(graphs["kserve/class-web.yaml"])
    jsonschema.validate(graph["spec"], _GRAPH)
    nodes = graph["spec"]["nodes"]
    assert nodes["root"]["routerType"] == "Splitter"
    assert [step["weight"] for step in nodes["root"]["steps"]] == [60, 40]
    urls = [nodes[f"route-{i}"]["steps"][0]["serviceUrl"].split("/")[2] for i in range(2)]
    assert urls == [f"{POOL}:8000", f"{SINGLE_POOL}:8000"]
    rows = ways.routing_table(plan, pools, kserve.graph_names(plan, pools)).splitlines()[-3:]
    assert rows == [
        f"| `web` | `class-web` | all | 40 to 100 % | `{SINGLE_POOL}` |  |",
        f"| `web` | `class-web` | 8-19 | 60 % | `{POOL}` |  |",
        f"| `counter` |  | 0-7 20-23 | 100 % | `{SINGLE_POOL}` |  |",
    ]
    readme = deploy["README.md"].decode()
    assert f"| `class-web` | all | 33.3 to 66.7 % | `{SINGLE_POOL}` |  |" in readme
    assert (
        f"| `class-web` | all | 33.3 to 66.7 % | `{POOL}` | `{SINGLE_POOL}`, below 0.62 |" in readme
    )


def test_readme_omits_commands_for_missing_files() -> None:
    plan = examples.plan(Path("no"), Path("no"))
    plain = deployment_files(
        replace(plan, hours=[replace(h, routes=h.routes[-1:]) for h in plan.hours]), {}
    )
    readme = plain["deploy/README.md"].decode()
    assert not [name for name in plain if name.startswith(("deploy/kserve", "deploy/ray"))]
    commands = [line.split()[0] for line in readme.splitlines() if line.startswith(_COMMANDS)]
    assert commands == ["docker", "kubectl"]
    assert "ray_app" not in readme
    hours = [replace(hour, pools=hour.pools[-1:], routes=[]) for hour in plan.hours[1:]]
    hour = replace(hours[0], hours=[*range(examples.HOURS)])
    files = deployment_files(replace(plan, hours=[hour]), {})
    assert {*files} == {"deploy/README.md"}
    readme = files["deploy/README.md"].decode()
    assert "No pool of this plan can be deployed." in readme
    assert f"`{examples.UNKNOWN}` is omitted" in readme
    assert "```" not in readme


def test_manifest_validator_rejects_damaged_files(deploy: Files) -> None:
    document = next(yaml.safe_load_all(deploy[f"kubernetes/{POOL}.yaml"]))
    document["spec"]["replica"] = document["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.31", strict=True)


#: Schema of KServe's InferenceGraph spec for the fields that are written; steps are complete.
#: Source: https://github.com/kserve/kserve, config/crd/full.
_STEP = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "condition": {"type": "string"}, "data": {"type": "string"},
        "dependency": {"enum": ["Soft", "Hard"]}, "name": {"type": "string"},
        "nodeName": {"type": "string"}, "serviceName": {"type": "string"},
        "serviceUrl": {"type": "string"}, "weight": {"type": "integer"},
    },
}  # fmt: skip
_ROUTER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["routerType"],
    "properties": {
        "routerType": {"enum": ["Sequence", "Splitter", "Ensemble", "Switch"]},
        "steps": {"type": "array", "items": _STEP},
    },
}
_GRAPH = {
    "type": "object",
    "additionalProperties": False,
    "required": ["nodes"],
    "properties": {"nodes": {"type": "object", "additionalProperties": _ROUTER}},
}


def test_cascade_graph_continues_below_confidence_threshold(deploy: Files) -> None:
    document = next(d for d in _documents(deploy, "kserve") if d["kind"] == "InferenceGraph")
    jsonschema.validate(document["spec"], _GRAPH)
    nodes = document["spec"]["nodes"]
    weights = {step["nodeName"]: step["weight"] for step in nodes["root"]["steps"]}
    assert sum(weights.values()) == 100
    assert weights["route-0"] == 67  # 40 of 60 a second
    first, second = nodes["route-0"]["steps"]
    assert first["serviceUrl"] == f"http://{POOL}:8000/v2/models/{POOL}/infer"
    assert second["condition"] == f'outputs.#(name=="{CONFIDENCE}").data.#(<{examples.THRESHOLD:g})'
    assert second["data"] == "$request"
    services = {d["metadata"]["name"] for d in _documents(deploy, "kubernetes")[:-1]
                if d["kind"] == "Service"}  # fmt: skip
    for node in nodes.values():
        urls = [s["serviceUrl"] for s in node["steps"] if "serviceUrl" in s]
        assert {url.split("/")[2].partition(":")[0] for url in urls} <= services


def test_alert_rules_are_valid(deploy: Files) -> None:
    groups = yaml.safe_load(deploy["prometheus/rules.yaml"])["groups"]
    assert len({group["name"] for group in groups}) == len(groups) == 2
    for group in groups:
        assert {*group} == {"name", "rules"}
        for rule in group["rules"]:
            promql_parser.parse(rule["expr"])
            keys = {"alert", "expr", "for", "labels", "annotations"}
            assert {*rule} == (keys if "alert" in rule else {"record", "labels", "expr"})
    (pool_group,) = [group for group in groups if group["name"] == f"hwnas-{POOL}"]
    rules = {rule.get("alert", "forecast"): rule["expr"] for rule in pool_group["rules"]}
    assert rules["HwnasLate"].endswith("> 9000")  # µs
    assert rules["HwnasBusy"].endswith("> 55")  # a tenth more than a replica's goodput
    assert "compute_infer" not in rules["HwnasBusy"]  # it counts a batch once per request
    assert "vector(40)" in rules["forecast"]
    assert "hour() >= 8) and on() (hour() <= 19)" in rules["forecast"]


def test_busy_alert_tolerates_planned_load() -> None:
    """A plan may use the whole goodput of a replica with full batches."""
    ms: QuantityRow = (45.0, "measured", None, 50.0)

    def threshold(batch: int, goodput: float, busy: float) -> tuple[str, float]:
        kind = PoolType("cpu", "a", batch, 0.0, 9.0, goodput, 1, None, {str(batch): ms}, 3.5, "")
        pool = DeployedPool("a", "a", kind, PoolModelSource(), None, (4,), (4 * goodput,), 0, busy)
        rules = yaml.safe_load(alerts.alert_rules([pool])["prometheus/rules.yaml"])["groups"][0][
            "rules"
        ]
        (busy_rule,) = [rule for rule in rules if rule.get("alert") == "HwnasBusy"]
        promql_parser.parse(busy_rule["expr"])
        expression, _, limit = busy_rule["expr"].rpartition(" > ")
        return expression, float(limit)

    per_replica, limit = threshold(8, 100.0, 0.934)
    assert per_replica.startswith('sum(rate(nv_inference_request_success{model="a"}[5m])) / count(')
    assert limit == pytest.approx(110.0)
    assert threshold(8, 156.0, 0.99)[1] == pytest.approx(0.99 * 8 / 0.050)  # the maximum
    single_expression, limit = threshold(1, 100.0, 0.5)
    assert "exec_count" not in single_expression
    assert limit == pytest.approx(0.55)


def test_ray_app_contains_pools_routes_and_hours(deploy: Files) -> None:
    tree = ast.parse(deploy["ray_app.py"])
    (value,) = [node.value for node in tree.body if isinstance(node, ast.AnnAssign)]
    assert value is not None
    content = ast.literal_eval(value)
    assert content["pools"][POOL]["wait_s"] == 0.002
    (peak, quiet) = content["hours"]
    assert (peak["replicas"][POOL], quiet["replicas"][POOL]) == (3, 1)
    assert peak["routes"]["web"][0]["threshold"] == examples.THRESHOLD
    assert "counter" not in peak["routes"]  # on the NPU
    assert content["routes"] == peak["routes"]


def test_ray_app_has_routes_of_classes_idle_at_peak() -> None:
    day, night = ({"first": name, "second": "", "rate": 9.0} for name in ("a", "b"))
    less = {**day, "rate": 1.0}
    hours = [{"routes": {"day": [less], "night": [night]}}, {"routes": {"day": [day]}}]
    assert _peak_routes(hours) == {"day": [day], "night": [night]}


def test_weekly_forecasts_begin_on_monday() -> None:
    """Plans begin on Monday, the days of PromQL on Sunday."""
    rule = _forecast([*[1.0] * 24, *[2.0] * 144])
    promql_parser.parse(rule)
    assert rule.startswith("(vector(1) and on() ((24 * ((day_of_week() + 6) % 7) + hour()) >= 0)")
