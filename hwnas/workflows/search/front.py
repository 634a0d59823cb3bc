"""The verified fronts that a search ends with, and the files of one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from hwnas.analysis import search_page
from hwnas.analysis.figures import FrontPanel, front_png
from hwnas.analysis.page.html import render
from hwnas.analysis.search_page import FrontData
from hwnas.core.run_folder import Row, RunFolder
from hwnas.hardware.energy import EnergyModel, PowerModel
from hwnas.hardware.target import Target
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.nas.verified_files import FORMAT
from hwnas.tasks.metrics import metric_of
from hwnas.training import inference
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search.baseline import BaselineComparison
from hwnas.workflows.search.cascades import CASCADES_FILE as CASCADES
from hwnas.workflows.search.cascades import EXITS_FILE as EXITS
from hwnas.workflows.search.cascades import CascadeReport, ExitReport
from hwnas.workflows.search.context import TargetContext

#: What a search that was verified writes.
FILES = (
    "front.csv", "front.json", "front.png", "report.html", "candidates.parquet", "manifest.json",
)  # fmt: skip
LONGER = "train.epochs, finish.epochs"  #: options that train members longer
BASELINE = "baseline.csv"  #: where a baseline was given


@dataclass(frozen=True)
class TargetFront:
    """The front of one target."""

    context: TargetContext
    folder: RunFolder
    candidates: list[Candidate]  #: as a search for this target alone would see them
    members: list[Member]
    against: BaselineComparison | None
    failed: Mapping[str, str] = field(default_factory=dict)  #: see ``Verification``
    cascades: CascadeReport = field(default_factory=CascadeReport)
    exits: ExitReport = field(default_factory=ExitReport)
    in_int8_in_haste: Collection[str] = ()  #: ids of members that there was no time to train for it
    #: the metric on validation of finished members that may be guessing, by id
    guessing: Mapping[str, float] = field(default_factory=dict)
    unfinished: Sequence[str] = ()  #: ids of others that may be on it, the most probable first
    more: Sequence[str] = ()  #: how these would be finished, in a sentence

    @property
    def notes(self) -> list[str]:
        """What is not as it should be: left out, hurried, guessing or not metered, in sentences."""
        found = sorted(self.in_int8_in_haste)
        told = (
            f"{len(found)} lose more than finish.max_int8_drop in int8 and are calibrated alone: "
            f"finish.minutes ended. An export trains its network for int8: {', '.join(found)}."
        )
        return [*self.unverified, *[told] * bool(found), *self._guessing_words, *self._hidden]

    @property
    def _guessing_words(self) -> list[str]:
        """Which members may be guessing, in a sentence."""
        if not self.guessing:
            return []
        return inference.chance_level_messages(self.context.parts.data, self.guessing, LONGER)

    @property
    def _hidden(self) -> list[str]:
        """How many members' energy the meter does not tell from idling, in a sentence."""
        metered = [e for m in self.members if (e := m.figures["energy_mj"]).source == "measured"]
        if not (n := sum(energy.low == 0 for energy in metered)):
            return []
        return [
            f"Energy of {n} of {len(metered)} is not told from idling by "
            f"target.meter={self.context.config.target.meter}: its upper ends hold, its values are "
            "what may be expected below them. If all are so, see whether it sees the device."
        ]

    @property
    def unverified(self) -> list[str]:
        """Which networks could not be verified, and why, in sentences."""
        return left_out(self.failed)

    @property
    def data(self) -> FrontData:
        """What is put on pages and drawn."""
        config = self.context.parts.config
        beside = None if self.against is None else self.against.beside
        return FrontData(self.candidates, self.members, config.objectives, config.allowed, beside)


@dataclass(frozen=True)
class SearchOutcome:
    """What a search came to."""

    folder: RunFolder
    manifest: Row
    fronts: Sequence[TargetFront] = ()  #: of each target for which anything was verified
    for_all: Sequence[Member] = ()  #: of several targets: networks for all
    missed: Sequence[str] = ()  #: why there is no front of other targets, or of all
    leader: str = ""  #: in a sentence, the command that verifies the front, if it is another one
    seconds: Mapping[str, float] = field(default_factory=dict)  #: by phase

    @property
    def foreign(self) -> list[str]:
        """Which latency tables are of another machine, in sentences."""
        devices = [front.context.device for front in self.fronts]
        tables = {device.table.from_another_machine for device in devices if device is not None} - {
            ""
        }
        return [f"Searched with a foreign table: {table}." for table in sorted(tables)]

    @property
    def notes(self) -> list[str]:
        """What is to be known besides the fronts, in sentences."""
        against = [line for f in self.fronts if f.against for line in f.against.sentences]
        return [*against, *self.missed, *self.foreign, *[self.leader] * bool(self.leader)]


def left_out(failed: Mapping[str, str]) -> list[str]:
    """Return which networks could not be verified, and why, in sentences."""
    return [f"{name} is left out, it could not be verified: {why}" for name, why in failed.items()]


def finished(phases: Reporter, candidates: list[Candidate], members: list[Member]) -> Row:
    """Return what a manifest says of a search that came to its end."""
    return {
        "status": "finished",
        "n_candidates": len(candidates),
        "n_distinct": len({candidate.id for candidate in candidates}),
        "n_infeasible": sum(candidate.state == "infeasible" for candidate in candidates),
        "n_front": len(members),
        **({"n_images_read": n_read} if (n_read := n_images_read(candidates)) else {}),
        "seconds": {name: round(seconds, 2) for name, seconds in phases.seconds.items()},
    }


def write_front(front: TargetFront, manifest: Row) -> None:
    """Write the front as CSV, JSON, picture and page, its baseline, and the manifest."""
    parts, folder, against = front.context.parts, front.folder, front.against
    members, config = front.members, parts.config
    write_baseline(folder, against)
    for more in (front.cascades, front.exits):
        more.write(folder, config.metric)
    if against is not None:
        manifest["baseline"] = told(against)
    rows = [member.row(parts.space) for member in members]
    folder.write_csv("front.csv", rows)
    folder.write_json(
        "front.json",
        {
            "format": FORMAT,
            "objectives": {n: "max" if metric_of(n).maximise else "min" for n in config.objectives},
            "target": config.target.name,
            "caveat": config.target.caveat,
            "energy_model": asdict(_energy_source(config.target)),
            "budget": dict(config.allowed.limits),
            "members": rows,
        }
        | ({"unverified": dict(front.failed)} if front.failed else {})
        | ({"hurried": sorted(front.in_int8_in_haste)} if front.in_int8_in_haste else {})
        | ({"guessing": sorted(front.guessing)} if front.guessing else {})
        | ({"unfinished": list(front.unfinished)} if front.unfinished else {})
        | ({} if against is None else {"baseline": against.to_json()}),
    )
    title = f"{config.searched} on {config.target.name}, {parts.data.name}"
    folder.write_bytes("front.png", front_png(FrontPanel(front.data, title)))
    facts = [
        ("target", config.target.caveat),
        ("cost model", _cost_words(manifest)),
        ("energy", energy_words(config.target)),
        ("budget", str(config.allowed)),
        ("search space", f"{config.searched}, {manifest['n_genotypes']:.3g} genotypes"),
        (
            "candidates",
            f"{manifest['n_candidates']}, {manifest['n_distinct']} different, "
            f"{manifest['n_infeasible']} infeasible",
        ),
        ("command", manifest["command"]),
        *((f"version of {name}", version) for name, version in manifest["versions"].items()),
    ]
    page = search_page.single(f"hwnas: {title}", front.data, facts)
    if against is not None:
        page = search_page.with_more(page, against.sentences, [against.table()])
    refused = [m.refusal for m in members if m.int8_is_slower]
    page = search_page.with_more(page, [*front.notes, *front.more, *refused])
    for more in (front.cascades, front.exits):
        page = search_page.with_more(page, more.sentences, more.tables, more.pictures)
    folder.write_bytes("report.html", render(page).encode())
    folder.write_json("manifest.json", manifest)


def withdraw(folder: RunFolder, manifest: Row) -> None:
    """Say in the manifest why there is no front; take away that of an earlier end.

    It is not of what was found since. What was verified for it is kept.
    """
    for name in (BASELINE, CASCADES, EXITS, *FILES):
        if name not in ("candidates.parquet", "manifest.json"):
            (folder.path / name).unlink(missing_ok=True)
    folder.write_json("manifest.json", manifest)


def write_baseline(folder: RunFolder, against: BaselineComparison | None) -> None:
    """Write the table against the baseline; take away that of an earlier one."""
    if against is not None:
        folder.write_csv(BASELINE, against.found.rows())
    else:
        (folder.path / BASELINE).unlink(missing_ok=True)


def told(against: BaselineComparison) -> Row:
    """Return what a manifest says of a baseline."""
    return {name: value for name, value in against.to_json().items() if name != "levels"}


def n_images_read(candidates: Sequence[Candidate]) -> int:
    """Return how many times a validation image was read."""
    return sum(int(c.details.get("n_images", 0)) for c in {c.id: c for c in candidates}.values())


def _cost_words(manifest: Row) -> str:
    """Return what said the costs of candidates, and what is foreign about it."""
    table = manifest["latency_table"]
    words = str(manifest["config"]["cost"])
    if "cost_model" in manifest.get("own", {}):
        words = manifest["own"]["cost_model"]
    if table is not None and words == "table":
        words += f", {table['path']}"
        words += f"; foreign: {table['foreign']}" if table["foreign"] else ""
    return words


def _energy_source(target: Target) -> EnergyModel | PowerModel:
    source = target.energy or target.power
    assert source is not None
    return source


def energy_words(target: Target) -> str:
    """Return what energies are modelled from."""
    if target.energy is not None:
        return f"{target.energy.technology}; {target.energy.source}"
    assert target.power is not None
    low, high = target.power.active_w_low, target.power.active_w_high
    of = "" if target.power.per_device else " for each busy core"
    return f"latency times {low:g} to {high:g} W{of}: {target.power.source}"
