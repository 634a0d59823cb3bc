"""The pools of a plan as servers run them: names, models, replicas and rates by hour."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.core.manifest import read_manifest
from hwnas.export import proof_file
from hwnas.export.folder import PROOF
from hwnas.fleet.deployment.onnx_served import ServedModel, served
from hwnas.fleet.models import ran_by, target_of_run
from hwnas.fleet.plan import DeploymentPlan, HourPlan, PoolType, RequestRoute, TimedRuntime
from hwnas.fleet.summary import spelt
from hwnas.hardware import backends
from hwnas.hardware.backends import onnx_files

_LONGEST = 40  # characters of a name: Kubernetes appends its own, up to 63
_EXPORTED = {"float32": onnx_files.FLOAT32, "int8": onnx_files.INT8}
_GPUS = ("cuda", "tensorrt")  # execution providers that run on GPUs of NVIDIA
_CPU = "cpu"
#: Providers that files say, by those by which models were timed.
_SERVED = {_CPU: "", **{name: name for name in (*_GPUS, "openvino")}, "nvtensorrtrtx": "cuda"}
MOST_BUSY = 0.9  #: of replicas: above, an autoscaler that wants a tenth more sees none too few


@dataclass(frozen=True)
class PoolModelSource:
    """Where the model of a pool is, and what servers run it on: as it was timed."""

    file: Path | None = None  #: ONNX; none: it is not known
    threads: int = 1
    provider: str = ""  #: what of onnxruntime runs it; empty: the CPU
    note: str = ""  #: what its user should know, in a sentence
    unserved: str = ""  #: why no server runs it; empty: one does

    @property
    def is_on_gpu(self) -> bool:
        """Whether it wants a GPU of NVIDIA."""
        return self.provider in _GPUS


@dataclass(frozen=True)
class DeployedPool:
    """A pool over all hours of a plan."""

    name: str  #: a label of DNS
    of: str  #: how the plan calls it
    kind: PoolType
    source: PoolModelSource
    model: ServedModel | None
    replicas: tuple[int, ...]  #: by hour
    rates: tuple[float, ...]  #: requests a second that it must bear, by hour
    spread: int  #: of its replicas that one machine may hold; 0: any number
    busy: float  #: share of the time that a replica works in the hour in which it works most
    start: int = 0  #: the hour that is deployed first
    start_s: float = 0.0  #: from the order of a machine of its device to the first answer
    slots: int = 1  #: of a machine of its device

    @property
    def peak(self) -> int:
        """Replicas in the hour that has most."""
        return max(self.replicas)

    @property
    def least(self) -> int:
        """Replicas in the hour that has least, where there are any."""
        return min(n for n in self.replicas if n)

    @property
    def begun(self) -> int:
        """Replicas that are deployed first: those of that hour; where it rests then, the least.

        An autoscaler adds nothing to none, and plans of no day or week have nothing else to.
        """
        return self.replicas[self.start] or self.least

    @property
    def is_scaled(self) -> bool:
        """Whether it is scaled by how busy its CPU is.

        A busy GPU leaves that idle, and batches grow with the load: it is as busy at many.
        """
        is_told = self.kind.batch == 1 and self.busy <= MOST_BUSY
        return is_told and not self.source.is_on_gpu

    def with_batch(self, batch: int) -> "DeployedPool":
        """Return the pool with another largest batch, under another name."""
        name = f"{self.name}-of-{batch}"
        return replace(self, name=name, kind=replace(self.kind, batch=batch, wait_ms=0.0))


def deployed(
    plan: DeploymentPlan, busy: Mapping[str, float]
) -> tuple[list[DeployedPool], dict[str, str]]:
    """Return the pools that servers run, and why they don't run the others, by name in the plan.

    Args:
        plan: The plan.
        busy: Share of the time that replicas of a pool work at most, by name in the plan.

    Raises:
        RunError: the export or run that a model is of cannot be read.
        CompileError: its file is no classifier.
    """
    used = {pool.kind for of in plan.hours for pool in of.pools}
    sources = {of: _source(kind) for of, kind in plan.kinds.items() if of in used}
    cut = {r.second for of in plan.hours for r in (*of.routes, *of.degraded)
           if plan.is_split(r.first, r.second)}  # fmt: skip
    files = {of: source.file for of, source in sources.items() if source.file is not None}
    tails = {file for of, file in files.items() if of in cut}  # they read no images
    models = _models({*files.values()} - tails) | {f: served(f.read_bytes()) for f in tails}
    found, unserved, taken = [], {}, set[str]()
    for of, source in sources.items():
        if source.unserved:
            unserved[of] = source.unserved
            continue
        kind = plan.kinds[of]
        name = label(f"{kind.device}-{kind.model}-b{kind.batch}", of, taken)
        model = None if source.file is None else models[source.file]
        found.append(_over_hours(plan, of, name, source, model, busy.get(of, 0.0)))
    return found, unserved


def _models(files: set[Path]) -> dict[Path, ServedModel]:
    """Return models that all read images of one size, the largest: any of them may be asked."""
    contents = {file: file.read_bytes() for file in sorted(files)}
    shapes = [served(content).shape for content in contents.values()]
    size = (max((h for _, h, _ in shapes), default=0), max((w for *_, w in shapes), default=0))
    return {file: served(content, size) for file, content in contents.items()}


def _over_hours(
    plan: DeploymentPlan,
    of: str,
    name: str,
    source: PoolModelSource,
    model: ServedModel | None,
    busy: float,
) -> DeployedPool:
    hours = by_hour(plan)
    pools = [next((pool for pool in hour.pools if pool.kind == of), None) for hour in hours]
    spreads = [pool.spread for pool in pools if pool is not None and pool.spread]
    goodput = max(pool.goodput for pool in pools if pool is not None)  # as it was corrected
    kind = replace(plan.kinds[of], goodput=goodput)
    at = plan.devices[kind.device]
    return DeployedPool(
        name, of, kind, source, model,
        tuple(0 if pool is None else pool.replicas for pool in pools),
        tuple(_rate(hour, of) for hour in hours), min(spreads, default=0), busy, busiest(plan),
        at.start_s, at.slots,
    )  # fmt: skip


def busiest(plan: DeploymentPlan) -> int:
    """Return the hour in which most is asked for, all classes together."""
    asked = [sum(rates) for rates in zip(*(c.borne for c in plan.classes.values()), strict=True)]
    return asked.index(max(asked))


def by_hour(plan: DeploymentPlan) -> list[HourPlan]:
    """Return what runs in each hour."""
    found = {hour: of for of in plan.hours for hour in of.hours}
    return [found[hour] for hour in sorted(found)]


def _rate(hour: HourPlan, of: str) -> float:
    """Return the requests a second that reach a pool, first or by escalation."""
    return sum(r.rate * ((r.first == of) + (r.second == of) * r.share) for r in hour.routes)


def label(said: str, salt: str, taken: set[str]) -> str:
    """Return a label of DNS that is not taken, and take it.

    Args:
        said: What it is like.
        salt: What tells it from others that are like it.
        taken: Labels that there are.
    """
    found = re.sub(r"[^a-z0-9]+", "-", said.lower()).strip("-")
    found = found if found[:1].isalpha() else f"m-{found}".rstrip("-")
    if len(found) > _LONGEST or found in taken:
        digest = hashlib.sha256(salt.encode()).hexdigest()[:6]
        found = f"{found[: _LONGEST - 7].rstrip('-')}-{digest}"
    taken.add(found)
    return found


def _source(kind: PoolType) -> PoolModelSource:
    """Return how the model of a kind is served: as it was timed on the device of its pools."""
    ran = kind.ran or _as_before(kind)
    if unserved := _alone(ran.runtime):
        return PoolModelSource(unserved=unserved)
    file = next((f for f in _files(kind, ran) if f.is_file()), None)
    if kind.accuracy is None and file is None:
        return PoolModelSource(
            unserved="it is a part of a network that was cut: there is no file of it"
        )
    notes = [*_of_file(kind, ran, file), *_of_device(kind, ran)]
    return PoolModelSource(file, ran.threads or 1, _SERVED.get(ran.provider, ""), "; ".join(notes))


def _as_before(kind: PoolType) -> TimedRuntime:
    """Return by what a model was timed where a plan doesn't say it: by what its accuracy is of."""
    place = Path(kind.place)
    if (place / PROOF).is_file():
        return ran_by(proof_file.target_of(proof_file.read_proof(place)), place)
    if (place / "manifest.json").is_file():
        return ran_by(target_of_run(read_manifest(place, "fronts")["config"], place), place)
    return TimedRuntime("")


def _alone(runtime: str) -> str:
    """Return why no server runs what a runtime does; empty: one does, or it is not known."""
    artefacts = backends.get(runtime).artefacts if runtime else ()
    return next((f"{a.unavailable_reason}: its file of an export is {a.name}"
                 for a in artefacts if a.unavailable_reason), "")  # fmt: skip


def _files(kind: PoolType, ran: TimedRuntime) -> Iterator[Path]:
    """Yield where the model may be: beside its accuracy, else where it was timed."""
    name, _, precision = kind.model.rpartition("-")
    for place in filter(None, dict.fromkeys((kind.place, ran.place))):
        yield Path(place) / _EXPORTED.get(precision, onnx_files.FLOAT32)
        yield Path(place) / "models" / f"{name}.onnx"


def _of_file(kind: PoolType, ran: TimedRuntime, file: Path | None) -> Iterator[str]:
    """Yield what there is to say of the file that is served."""
    if file is None:
        from_here = "" if Path(kind.place).exists() else f", seen from {Path.cwd()}"
        yield f"no file of it is known: {kind.place} has none{from_here}"
        return
    if kind.place and Path(kind.place) not in file.parents:
        yield f"its accuracy is of {kind.place}; servers run {file}, of the same network"
    precision = kind.model.rpartition("-")[2]
    own = backends.get(ran.runtime).dtypes.get(precision, "") if ran.runtime else ""
    if own and not own.endswith(".onnx"):
        yield (
            f"its latencies are of {own}; servers run {file.name} of the same network, which takes "
            "another time"
        )
    elif precision not in _EXPORTED:
        yield (
            f"its latencies are of {precision}; servers run {file.name}, which computes in "
            "float32 and takes another time"
        )


def _of_device(kind: PoolType, ran: TimedRuntime) -> Iterator[str]:
    """Yield what there is to say of what runs it."""
    cure = f"of `{kind.device}` in fleet.yaml, and plan again"
    if not ran.provider:
        yield (
            "nothing says what runs it, and these files are for a CPU: give provider (cpu, cuda, "
            f"tensorrt or openvino) {cure}"
        )
    elif ran.provider not in _SERVED:
        yield f"it was timed by {ran.provider}; servers run it on the CPU"
    elif ran.provider not in (_SERVED[ran.provider], _CPU):
        yield f"it was timed by {ran.provider}; servers run it by {_SERVED[ran.provider]}"
    if not ran.threads:
        yield f"nothing says on how many threads it was timed, and it has one: give threads {cure}"


def planned_busy(seen: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest share of the time that each pool works, of what simulations saw."""
    found: dict[str, float] = {}
    for busy in seen:
        for name, share in busy.items():
            found[name] = max(found.get(name, 0.0), share)
    return found


# Which pools requests of a class go to, of those that servers run.

_HEAD = """
## Where requests go

Requests of a class are sent to its graph of `kserve/`, or, where it has none, to the Service
`http://POOL:8000/v2/models/POOL/infer`. Without KServe, whoever sends them keeps to these shares:
those of each hour are the routes of `plan.yaml`.

| class | graph | hours of the plan | share | pool | what goes on, and where to |
|---|---|---|---|---|---|
"""

Way = tuple[str, str | None, float]  #: its pools, and the confidence below which requests go on


def ways(plan: DeploymentPlan, klass: str, names: Mapping[str, str]) -> list[list[RequestRoute]]:
    """Return the ways of a class that servers run, by hour.

    Args:
        plan: The plan.
        klass: The class.
        names: Of pools that servers run, by how the plan calls them.
    """
    return [
        [r for r in hour.routes
         if r.klass == klass and r.first in names and (r.second is None or r.second in names)]
        for hour in by_hour(plan)
    ]  # fmt: skip


def way(route: RequestRoute) -> Way:
    """Return what tells a way from others."""
    return route.first, route.second, route.threshold


def routing_table(
    plan: DeploymentPlan, pools: Sequence[DeployedPool], graphs: Mapping[str, str]
) -> str:
    """Return a table of where requests go; empty where no server answers any.

    Args:
        plan: The plan.
        pools: Those that servers run.
        graphs: Names of graphs by class.
    """
    names = {pool.of: pool.name for pool in pools}
    rows = [row for klass in plan.classes for row in _rows(plan, klass, names, graphs)]
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows) if rows else ""


def _rows(
    plan: DeploymentPlan, klass: str, names: Mapping[str, str], graphs: Mapping[str, str]
) -> Iterator[list[str]]:
    """Yield a row for each way of a class, with the hours in which it is taken."""
    every = ways(plan, klass, names)
    found: dict[Way, dict[int, float]] = {}
    for hour, routes in enumerate(every):
        for route in routes:
            share = route.rate / sum(r.rate for r in routes)
            shares = found.setdefault(way(route), {})
            shares[hour] = shares.get(hour, 0.0) + share
    graph = f"`{graphs[klass]}`" if klass in graphs else ""
    for (first, second, threshold), shares in found.items():
        onward = _onward(plan, (first, second, threshold), names)
        hours = "all" if len(shares) == len(every) else spelt([*shares])
        yield [f"`{klass}`", graph, hours, _range([*shares.values()]), f"`{names[first]}`", onward]


def _onward(plan: DeploymentPlan, taken: Way, names: Mapping[str, str]) -> str:
    """Return where requests go on to, and which."""
    first, second, threshold = taken
    if second is None:
        return ""
    if plan.is_split(first, second):
        return f"`{names[second]}`, always: it reads what the first answers"
    return f"`{names[second]}`, below {threshold:.4g}"


def _range(shares: Sequence[float]) -> str:
    """Return shares in per cent, from the least to the largest."""
    ends = dict.fromkeys(f"{100 * end:.3g}" for end in (min(shares), max(shares)))
    return f"{' to '.join(ends)} %"
