"""Pools of a plan as servers run them: names, models, replicas and rates by hour."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.core.manifest import read_manifest
from hwnas.export import proof_file
from hwnas.export.folder import PROOF
from hwnas.fleet.deployment.onnx_served import ServedModel, to_served_model
from hwnas.fleet.models import runtime_of_target, target_of_run
from hwnas.fleet.plan import (
    DeploymentPlan,
    HourPlan,
    PoolType,
    RequestRoute,
    TimedRuntime,
    format_hours,
)
from hwnas.hardware import backends
from hwnas.hardware.backends import onnx_files

_MAX_NAME = 40  # characters of a name: Kubernetes appends up to 63
_EXPORTED = {"float32": onnx_files.FLOAT32, "int8": onnx_files.INT8}
_GPUS = ("cuda", "tensorrt")  # execution providers that run on GPUs of NVIDIA
_CPU = "cpu"
#: Providers in the files, by provider of the timings.
_SERVED = {_CPU: "", **{name: name for name in (*_GPUS, "openvino")}, "nvtensorrtrtx": "cuda"}
MAX_BUSY = 0.9  #: maximum utilisation for an autoscaler, which acts at 10 % more


@dataclass(frozen=True)
class PoolModelSource:
    """File of a pool's model, and the settings with which servers run it: those of its timing."""

    file: Path | None = None  #: ONNX file; ``None``: unknown
    threads: int = 1  #: threads of an inference
    provider: str = ""  #: execution provider of onnxruntime: ``cuda``, ...; empty: CPU
    note: str = ""  #: message for the user; empty: none
    unserved: str = ""  #: reason why no server can run it; empty: a server can

    @property
    def is_on_gpu(self) -> bool:
        """True if the model needs an NVIDIA GPU."""
        return self.provider in _GPUS


@dataclass(frozen=True)
class DeployedPool:
    """A pool over all hours of a plan."""

    name: str  #: name in the deployed files, a DNS label
    of: str  #: name of the pool type in the plan
    kind: PoolType
    source: PoolModelSource
    model: ServedModel | None  #: ``None``: the model file is unknown
    replicas: tuple[int, ...]  #: number of replicas by hour
    rates: tuple[float, ...]  #: planned requests/s by hour
    max_per_machine: int  #: maximum replicas on one machine; 0: unlimited
    busy: float  #: maximum utilisation of a replica over the hours, in [0, 1]
    start: int = 0  #: hour that is deployed first
    start_s: float = 0.0  #: seconds from a machine's order to its first response
    slots: int = 1  #: maximum replicas per machine

    @property
    def peak(self) -> int:
        """Maximum number of replicas over the hours."""
        return max(self.replicas)

    @property
    def least(self) -> int:
        """Minimum number of replicas over the hours that have any."""
        return min(n for n in self.replicas if n)

    @property
    def initial_replicas(self) -> int:
        """Number of replicas deployed first, those of hour ``start``; if 0, ``least``.

        An autoscaler cannot scale from 0, and only plans of a day or week have a schedule.
        """
        return self.replicas[self.start] or self.least

    @property
    def is_scaled(self) -> bool:
        """True if an autoscaler changes the replicas by CPU utilisation.

        On GPUs, and with batches, CPU utilisation does not show the load.
        """
        is_meaningful = self.kind.batch == 1 and self.busy <= MAX_BUSY
        return is_meaningful and not self.source.is_on_gpu

    def with_batch(self, batch: int) -> "DeployedPool":
        """Return a copy with maximum batch size ``batch``, no wait, and the name ``NAME-of-N``."""
        name = f"{self.name}-of-{batch}"
        return replace(self, name=name, kind=replace(self.kind, batch=batch, wait_ms=0.0))


def deployed_pools(
    plan: DeploymentPlan, busy: Mapping[str, float]
) -> tuple[list[DeployedPool], dict[str, str]]:
    """Return the pools that servers can run, and reasons why not for the others, by name.

    ``busy`` has the maximum utilisation of replicas in [0, 1]; its keys, and those of the reasons,
    are names of pool types in the plan.

    Raises:
        RunError: the export or run of a model cannot be read.
        CompileError: a model is not a classifier.
    """
    used = {pool.kind for hour_plan in plan.hours for pool in hour_plan.pools}
    sources = {
        hour_plan: _model_source(kind)
        for hour_plan, kind in plan.kinds.items()
        if hour_plan in used
    }
    cut = {r.second for hour_plan in plan.hours for r in (*hour_plan.routes, *hour_plan.degraded)
           if plan.is_split(r.first, r.second)}  # fmt: skip
    files = {
        hour_plan: source.file for hour_plan, source in sources.items() if source.file is not None
    }
    tails = {
        file for hour_plan, file in files.items() if hour_plan in cut
    }  # inputs are activations, not images
    models = _served_models({*files.values()} - tails) | {
        f: to_served_model(f.read_bytes()) for f in tails
    }
    result, unserved, labels = [], {}, set[str]()
    for hour_plan, source in sources.items():
        if source.unserved:
            unserved[hour_plan] = source.unserved
            continue
        kind = plan.kinds[hour_plan]
        name = dns_label(f"{kind.device}-{kind.model}-b{kind.batch}", hour_plan, labels)
        model = None if source.file is None else models[source.file]
        result.append(
            _deployed_pool(plan, hour_plan, name, source, model, busy.get(hour_plan, 0.0))
        )
    return result, unserved


def _served_models(files: set[Path]) -> dict[Path, ServedModel]:
    """Return models that all accept images of the largest size."""
    contents = {file: file.read_bytes() for file in sorted(files)}
    shapes = [to_served_model(content).shape for content in contents.values()]
    size = (max((h for _, h, _ in shapes), default=0), max((w for *_, w in shapes), default=0))
    return {file: to_served_model(content, size) for file, content in contents.items()}


def _deployed_pool(
    plan: DeploymentPlan,
    pool_type: str,
    name: str,
    source: PoolModelSource,
    model: ServedModel | None,
    busy: float,
) -> DeployedPool:
    hours = plan.by_hour().values()
    pools = [next((pool for pool in hour.pools if pool.kind == pool_type), None) for hour in hours]
    spreads = [pool.spread for pool in pools if pool is not None and pool.spread]
    goodput = max(pool.goodput for pool in pools if pool is not None)  # as corrected
    kind = replace(plan.kinds[pool_type], goodput=goodput)
    machine = plan.devices[kind.device]
    return DeployedPool(
        name, pool_type, kind, source, model,
        tuple(0 if pool is None else pool.replicas for pool in pools),
        tuple(_pool_rate(hour, pool_type) for hour in hours), min(spreads, default=0), busy,
        busiest_hour(plan), machine.start_s, machine.slots,
    )  # fmt: skip


def busiest_hour(plan: DeploymentPlan) -> int:
    """Return the hour, from 0, with the highest demand of all classes together."""
    request_class = [
        sum(rates) for rates in zip(*(c.borne for c in plan.classes.values()), strict=True)
    ]
    return request_class.index(max(request_class))


def _pool_rate(hour: HourPlan, pool_type: str) -> float:
    """Return the requests/s of a pool, direct and escalated."""
    return sum(
        r.rate * ((r.first == pool_type) + (r.second == pool_type) * r.share) for r in hour.routes
    )


def dns_label(text: str, salt: str, taken: set[str]) -> str:
    """Return a DNS label of at most 40 characters similar to ``text``, and add it to ``taken``.

    If the label is too long or already in ``taken``, it ends in a hash of ``salt``.
    """
    result = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    result = result if result[:1].isalpha() else f"m-{result}".rstrip("-")
    if len(result) > _MAX_NAME or result in taken:
        digest = hashlib.sha256(salt.encode()).hexdigest()[:6]
        result = f"{result[: _MAX_NAME - 7].rstrip('-')}-{digest}"
    taken.add(result)
    return result


def _model_source(kind: PoolType) -> PoolModelSource:
    """Return how servers run the model of a pool type: as in its timing."""
    runtime = kind.ran or _runtime_of_place(kind)
    if unserved := _unserved_reason(runtime.runtime):
        return PoolModelSource(unserved=unserved)
    file = next((f for f in _candidate_files(kind, runtime) if f.is_file()), None)
    if kind.accuracy is None and file is None:
        return PoolModelSource(unserved="it is a part of a split network without a file")
    notes = [*_file_notes(kind, runtime, file), *_device_notes(kind, runtime)]
    return PoolModelSource(
        file, runtime.threads or 1, _SERVED.get(runtime.provider, ""), "; ".join(notes)
    )


def _runtime_of_place(kind: PoolType) -> TimedRuntime:
    """Return the runtime of a model in plans without ``ran``: that of its source."""
    place = Path(kind.place)
    if (place / PROOF).is_file():
        return runtime_of_target(proof_file.target_of(proof_file.read_proof(place)), place)
    if (place / "manifest.json").is_file():
        return runtime_of_target(
            target_of_run(read_manifest(place, "fronts")["config"], place), place
        )
    return TimedRuntime("")


def _unserved_reason(runtime: str) -> str:
    """Return why no server can run a runtime's models; empty if one can or it is unknown."""
    artefacts = backends.get(runtime).artefacts if runtime else ()
    return next((f"{a.unavailable_reason}: its file of an export is {a.name}"
                 for a in artefacts if a.unavailable_reason), "")  # fmt: skip


def _candidate_files(kind: PoolType, runtime: TimedRuntime) -> Iterator[Path]:
    """Yield possible files of the model: next to its accuracy, then next to its timing."""
    name, _, precision = kind.model.rpartition("-")
    for place in filter(None, dict.fromkeys((kind.place, runtime.place))):
        yield Path(place) / _EXPORTED.get(precision, onnx_files.FLOAT32)
        yield Path(place) / "models" / f"{name}.onnx"


def _file_notes(kind: PoolType, runtime: TimedRuntime, file: Path | None) -> Iterator[str]:
    """Yield notes on the deployed file."""
    if file is None:
        from_here = "" if Path(kind.place).exists() else f" (working directory: {Path.cwd()})"
        yield f"its model file is unknown: {kind.place} has none{from_here}"
        return
    if kind.place and Path(kind.place) not in file.parents:
        yield f"its accuracy is from {kind.place}; servers run {file} of the same network"
    precision = kind.model.rpartition("-")[2]
    timed = backends.get(runtime.runtime).dtypes.get(precision, "") if runtime.runtime else ""
    if timed and not timed.endswith(".onnx"):
        yield (
            f"its latencies are from {timed}; servers run {file.name} of the same network, whose "
            "latency differs"
        )
    elif precision not in _EXPORTED:
        yield (
            f"its latencies are of {precision}; servers run {file.name} in float32, whose latency "
            "differs"
        )


def _device_notes(kind: PoolType, runtime: TimedRuntime) -> Iterator[str]:
    """Yield notes on the execution provider and threads."""
    fix = f"of `{kind.device}` in the fleet file, and plan again"
    if not runtime.provider:
        yield (
            "its execution provider is unknown, and these files are for a CPU: set provider (cpu, "
            f"cuda, tensorrt or openvino) {fix}"
        )
    elif runtime.provider not in _SERVED:
        yield f"it was timed with {runtime.provider}; servers run it on the CPU"
    elif runtime.provider not in (_SERVED[runtime.provider], _CPU):
        yield f"it was timed with {runtime.provider}; servers use {_SERVED[runtime.provider]}"
    if not runtime.threads:
        yield f"its number of threads is unknown, and it has 1: set threads {fix}"


def max_utilisation(utilisations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the maximum over simulations of the utilisation in [0, 1], by pool."""
    result: dict[str, float] = {}
    for busy in utilisations:
        for name, share in busy.items():
            result[name] = max(result.get(name, 0.0), share)
    return result


_HEAD = """
## Routes

Send requests of a class to its graph of `kserve/` or, without a graph, to the Service
`http://POOL:8000/v2/models/POOL/infer`. Without KServe, clients must follow these shares; the
routes of `plan.yaml` have those of each hour.

| class | graph | hours of the plan | share | pool | escalation |
|---|---|---|---|---|---|
"""

RoutePath = tuple[str, str | None, float]  #: pools, and the confidence threshold of escalation


def routes_by_hour(
    plan: DeploymentPlan, request_class: str, names: Mapping[str, str]
) -> list[list[RequestRoute]]:
    """Return the routes of a class in each hour, of those whose pools are all deployed.

    ``names`` has the deployed pools, by name of the pool type in the plan.
    """
    return [
        [r for r in hour.routes if r.klass == request_class
         and {r.first, r.second or r.first} <= names.keys()]
        for hour in plan.by_hour().values()
    ]  # fmt: skip


def path_of(route: RequestRoute) -> RoutePath:
    """Return (first pool, second pool or ``None``, confidence threshold) of a route."""
    return route.first, route.second, route.threshold


def routing_table(
    plan: DeploymentPlan, pools: Sequence[DeployedPool], graphs: Mapping[str, str]
) -> str:
    """Return a section of the README with a table of routes; empty if no pool is deployed.

    Args:
        plan: Plan.
        pools: Deployed pools.
        graphs: Names of KServe's graphs by class.
    """
    names = {pool.of: pool.name for pool in pools}
    rows = [
        row
        for request_class in plan.classes
        for row in _routing_rows(plan, request_class, names, graphs)
    ]
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows) if rows else ""


def _routing_rows(
    plan: DeploymentPlan, request_class: str, names: Mapping[str, str], graphs: Mapping[str, str]
) -> Iterator[list[str]]:
    """Yield a row per route of a class, with its hours."""
    every = routes_by_hour(plan, request_class, names)
    result: dict[RoutePath, dict[int, float]] = {}
    for hour, routes in enumerate(every):
        for route in routes:
            share = route.rate / sum(r.rate for r in routes)
            shares = result.setdefault(path_of(route), {})
            shares[hour] = shares.get(hour, 0.0) + share
    graph = f"`{graphs[request_class]}`" if request_class in graphs else ""
    for (first, second, threshold), shares in result.items():
        onward = _next_pool(plan, (first, second, threshold), names)
        hours = "all" if len(shares) == len(every) else format_hours([*shares])
        yield [
            f"`{request_class}`",
            graph,
            hours,
            _percent_range([*shares.values()]),
            f"`{names[first]}`",
            onward,
        ]


def _next_pool(plan: DeploymentPlan, path: RoutePath, names: Mapping[str, str]) -> str:
    """Return the escalation of a route as text."""
    first, second, threshold = path
    if second is None:
        return ""
    if plan.is_split(first, second):
        return f"`{names[second]}`, always: it reads the first part's activation"
    return f"`{names[second]}`, below {threshold:.4g}"


def _percent_range(shares: Sequence[float]) -> str:
    """Return the range of shares in per cent."""
    ends = dict.fromkeys(f"{100 * end:.3g}" for end in (min(shares), max(shares)))
    return f"{' to '.join(ends)} %"
