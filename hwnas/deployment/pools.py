"""The pools of a plan as servers run them: names, models, replicas and rates by hour."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas import backends
from hwnas.backends import portable
from hwnas.export import recorded
from hwnas.export.folder import PROOF
from hwnas.manifest import read_manifest
from hwnas.planning.plan import HourPlan, Kind, Plan, Ran
from hwnas.planning.timed import ran_by, target_of_run
from hwnas.runtimes.onnx_served import Served, served

_LONGEST = 40  # characters of a name: Kubernetes appends its own, up to 63
_EXPORTED = {"float32": portable.FLOAT32, "int8": portable.INT8}
_GPUS = ("cuda", "tensorrt")  # execution providers that run on GPUs of NVIDIA
_CPU = "cpu"
#: Providers that files say, by those by which models were timed.
_SERVED = {_CPU: "", **{name: name for name in (*_GPUS, "openvino")}, "nvtensorrtrtx": "cuda"}
MOST_BUSY = 0.9  #: of replicas: above, an autoscaler that wants a tenth more sees none too few


@dataclass(frozen=True)
class Source:
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
class Deployed:
    """A pool over all hours of a plan."""

    name: str  #: a label of DNS
    of: str  #: how the plan calls it
    kind: Kind
    source: Source
    model: Served | None
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

    def with_batch(self, batch: int) -> "Deployed":
        """Return the pool with another largest batch, under another name."""
        name = f"{self.name}-of-{batch}"
        return replace(self, name=name, kind=replace(self.kind, batch=batch, wait_ms=0.0))


def deployed(plan: Plan, busy: Mapping[str, float]) -> tuple[list[Deployed], dict[str, str]]:
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


def _models(files: set[Path]) -> dict[Path, Served]:
    """Return models that all read images of one size, the largest: any of them may be asked."""
    contents = {file: file.read_bytes() for file in sorted(files)}
    shapes = [served(content).shape for content in contents.values()]
    size = (max((h for _, h, _ in shapes), default=0), max((w for *_, w in shapes), default=0))
    return {file: served(content, size) for file, content in contents.items()}


def _over_hours(
    plan: Plan, of: str, name: str, source: Source, model: Served | None, busy: float
) -> Deployed:
    hours = by_hour(plan)
    pools = [next((pool for pool in hour.pools if pool.kind == of), None) for hour in hours]
    spreads = [pool.spread for pool in pools if pool is not None and pool.spread]
    goodput = max(pool.goodput for pool in pools if pool is not None)  # as it was corrected
    kind = replace(plan.kinds[of], goodput=goodput)
    at = plan.devices[kind.device]
    return Deployed(
        name, of, kind, source, model,
        tuple(0 if pool is None else pool.replicas for pool in pools),
        tuple(_rate(hour, of) for hour in hours), min(spreads, default=0), busy, busiest(plan),
        at.start_s, at.slots,
    )  # fmt: skip


def busiest(plan: Plan) -> int:
    """Return the hour in which most is asked for, all classes together."""
    asked = [sum(rates) for rates in zip(*(c.borne for c in plan.classes.values()), strict=True)]
    return asked.index(max(asked))


def by_hour(plan: Plan) -> list[HourPlan]:
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


def _source(kind: Kind) -> Source:
    """Return how the model of a kind is served: as it was timed on the device of its pools."""
    ran = kind.ran or _as_before(kind)
    if unserved := _alone(ran.runtime):
        return Source(unserved=unserved)
    file = next((f for f in _files(kind, ran) if f.is_file()), None)
    if kind.accuracy is None and file is None:
        return Source(unserved="it is a part of a network that was cut: there is no file of it")
    notes = [*_of_file(kind, ran, file), *_of_device(kind, ran)]
    return Source(file, ran.threads or 1, _SERVED.get(ran.provider, ""), "; ".join(notes))


def _as_before(kind: Kind) -> Ran:
    """Return by what a model was timed where a plan doesn't say it: by what its accuracy is of."""
    place = Path(kind.place)
    if (place / PROOF).is_file():
        return ran_by(recorded.target_of(recorded.read(place)), place)
    if (place / "manifest.json").is_file():
        return ran_by(target_of_run(read_manifest(place, "fronts")["config"], place), place)
    return Ran("")


def _alone(runtime: str) -> str:
    """Return why no server runs what a runtime does; empty: one does, or it is not known."""
    artefacts = backends.get(runtime).artefacts if runtime else ()
    return next((f"{a.elsewhere}: its file of an export is {a.name}"
                 for a in artefacts if a.elsewhere), "")  # fmt: skip


def _files(kind: Kind, ran: Ran) -> Iterator[Path]:
    """Yield where the model may be: beside its accuracy, else where it was timed."""
    name, _, precision = kind.model.rpartition("-")
    for place in filter(None, dict.fromkeys((kind.place, ran.place))):
        yield Path(place) / _EXPORTED.get(precision, portable.FLOAT32)
        yield Path(place) / "models" / f"{name}.onnx"


def _of_file(kind: Kind, ran: Ran, file: Path | None) -> Iterator[str]:
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


def _of_device(kind: Kind, ran: Ran) -> Iterator[str]:
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
