"""The results of a search: the verified front of each target, and its files."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.analysis import search_page
from hwnas.analysis.figures import front_png
from hwnas.analysis.page.html import render
from hwnas.analysis.result_section import SearchResultData, result_section
from hwnas.analysis.search_page import FrontData
from hwnas.analysis.sections import class_tables
from hwnas.core.run_folder import Row, RunFolder
from hwnas.export import picking
from hwnas.hardware import backends
from hwnas.hardware.backends.offline import COST as OFFLINE_COST
from hwnas.hardware.target import EnergyModel, PowerModel, Target
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front
from hwnas.nas.member import Member
from hwnas.nas.verified_files import FORMAT, classes_record, confusions
from hwnas.tasks.intervals import describe_classes
from hwnas.tasks.metrics import metric_of
from hwnas.training import inference
from hwnas.training.data import ImageData
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search.cascades import CASCADES_FILE as CASCADES
from hwnas.workflows.search.cascades import EXITS_FILE as EXITS
from hwnas.workflows.search.cascades import CascadeReport, ExitReport
from hwnas.workflows.search.context import TargetContext

if TYPE_CHECKING:
    from hwnas.workflows.search.baseline import BaselineComparison

#: Files of a finished search in the folder of its target.
FILES = (
    "front.csv", "front.json", "front.png", "report.html", "candidates.parquet", "manifest.json",
)  # fmt: skip
LONGER = "trained.fidelities, train.epochs, finish.epochs"  #: options that extend training
BASELINE = "baseline.csv"  #: file with the comparison with the baseline, if one was given


@dataclass(frozen=True)
class NotFinetuned:
    """Likely front members of a target that are not fine-tuned."""

    ids: list[str]  #: most probable first
    options: list[str]  #: options with which the resumed search fine-tunes them

    def messages(self, probability: float, run: Path) -> list[str]:
        """Return a message with their number and the command that fine-tunes them.

        Empty without networks.

        Args:
            probability: The option ``finish.probability``.
            run: The run folder.
        """
        if not self.ids:
            return []
        command = shlex.join(["hwnas", "resume", str(run), *self.options])
        limits = " and ".join(option.partition("=")[0] for option in self.options)
        return [
            f"{len(self.ids)} more may be on the front (finish.probability={probability:g}), but "
            f"were not fine-tuned because of {limits}. To continue: {command}"
        ]


@dataclass(frozen=True)
class TargetFront:
    """The result for one target: its front by compiled files, with reports on it."""

    context: TargetContext
    folder: RunFolder  #: folder of the target
    candidates: list[Candidate]  #: as a search for this target alone would have them
    front: Front  #: members fastest first
    against: "BaselineComparison | None"  #: comparison with the baseline, if one is given
    cascades: CascadeReport = field(default_factory=CascadeReport)
    exits: ExitReport = field(default_factory=ExitReport)
    #: ids of members without int8 training, because time ran out
    without_int8_training: Collection[str] = ()
    #: ids of candidates that are likely on the front but not fine-tuned, most probable first
    unfinished: Sequence[str] = ()
    more: Sequence[str] = ()  #: messages about how to fine-tune these

    @property
    def members(self) -> Sequence[Member]:
        """The compiled networks, fastest first, also those that left the front."""
        return self.front.members

    @property
    def recommended(self) -> Member | None:
        """The knee of the front; ``None`` if it is empty, or none beats a constant answer."""
        return picking.recommended(self.front)

    @property
    def notes(self) -> list[str]:
        """Warnings about networks that failed, or whose int8 version, metric or energy is poor."""
        ids = sorted(self.without_int8_training)
        message = (
            f"{len(ids)} members lose more than finish.max_int8_drop in int8, as the time limit "
            f"ended before their int8 training: {', '.join(ids)}. An export trains its network for "
            "int8."
        )
        failures = failure_messages(self.front.failed)
        return [
            *failures,
            *[message] * bool(ids),
            *self._chance_level_messages,
            *self._energy_warnings,
        ]

    @property
    def headline(self) -> list[str]:
        """One sentence, if no member is better than a constant answer; else empty."""
        return chance_level_headline(self.front, self.context.parts.data)

    @property
    def _chance_level_messages(self) -> list[str]:
        if not self.front.at_chance_level or self.headline:
            return []
        qualities = {m.candidate.id: m.quality for m in self.members}
        data = self.context.parts.data
        return inference.chance_level_messages(data, "test", qualities, LONGER)

    @property
    def _energy_warnings(self) -> list[str]:
        metered = [e for m in self.members if (e := m.figures["energy_mj"]).source == "measured"]
        if not (n := sum(energy.low == 0 for energy in metered)):
            return []
        return [
            f"Energy of {n} of {len(metered)} members is not significantly above idle by "
            f"target.meter={self.context.config.target.meter}: only the upper interval ends are "
            "reliable. If this holds for all, check that the meter measures the device."
        ]

    @property
    def measurement_advice(self) -> str:
        """Message about networks to measure next on a device that is not connected; else empty."""
        config = self.context.config
        if not backends.get(config.target.runtime).is_offline or config.cost != OFFLINE_COST:
            return ""
        from hwnas.workflows.profile_kit import measurement_advice

        networks = self.context.parts.networks
        return measurement_advice(config, networks, self.candidates, self.folder.path)

    def result(self, manifest: Row) -> SearchResultData:
        """Return the data of the first section of the report: members, limits and facts."""
        config = self.context.parts.config
        facts = [
            ("target", f"{config.target.name}: {config.target.caveat}"),
            ("search", search_words(manifest)),
        ]
        is_one_of_several = self.context.is_one_of_several
        return SearchResultData(
            str(self.folder.path.parent if is_one_of_several else self.folder.path),
            self.members,
            self.recommended,
            config.objectives,
            config.allowed.limits,
            facts,
            self.context.target if is_one_of_several else "",
            self.headline,
        )

    @property
    def data(self) -> FrontData:
        """Candidates, members and the limits of the budget, for pages and plots of the front."""
        config = self.context.parts.config
        overlay = None if self.against is None else self.against.overlay
        title = f"{config.searched} on {config.target.name}"
        return FrontData(
            self.candidates, [*self.members], config.objectives, config.allowed, overlay, title
        )


@dataclass(frozen=True)
class SearchOutcome:
    """The results of a search."""

    folder: RunFolder
    manifest: Row
    fronts: Sequence[TargetFront] = ()  #: of each target with a compiled network
    for_all: Front = field(default_factory=Front)  #: joint front of several targets, else empty
    missed: Sequence[str] = ()  #: why other targets, or all together, have no front
    leader: str = ""  #: message, if another process ends the search; else empty
    #: duration in seconds by name of the phase
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def foreign(self) -> list[str]:
        """Warnings about latency tables of another machine."""
        devices = [f.context.device for f in self.fronts]
        tables = {d.table.from_another_machine for d in devices if d is not None} - {""}
        lead = "Searched with a latency table of another machine"
        return [f"{lead}: {table}." for table in sorted(tables)]

    @property
    def notes(self) -> list[str]:
        """Messages about baselines, targets without a front, and tables of other machines.

        The last one is ``leader``, if it is not empty.
        """
        against = [line for f in self.fronts if f.against for line in f.against.sentences]
        return [*against, *self.missed, *self.foreign, *[self.leader] * bool(self.leader)]


def search_words(manifest: Row) -> str:
    """Return the number of candidates and the duration as text, given the manifest of a run."""
    minutes, seconds = divmod(round(sum(manifest["seconds"].values())), 60)
    duration = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    is_resumed = any(option.startswith("run.resume=") for option in manifest["arguments"])
    since = " since it was resumed" * is_resumed
    return f"{manifest['n_candidates']} candidates; {duration}{since}"


def chance_level_headline(front: Front, data: ImageData) -> list[str]:
    """Return a sentence if no member is better than a constant answer, as a list; else empty."""
    if not front.is_at_chance_level:
        return []
    return [
        f"No network is better than {inference.constant_answer(data, 'test')} by its 95 % "
        f"interval: none is recommended, and export needs force=true. Train longer: {LONGER}."
    ]


def failure_messages(failed: Mapping[str, str]) -> list[str]:
    """Return a message for each network that failed, given the reasons by id."""
    return [f"{name} is left out, it could not be verified: {why}" for name, why in failed.items()]


def final_record(
    phases: Reporter, candidates: Sequence[Candidate], members: Sequence[Member]
) -> Row:
    """Return the entries that a finished search adds to the manifest: status, counts, seconds."""
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
    """Write the front as CSV, JSON, figure and page, its tables, and the manifest.

    An entry ``baseline`` is added to ``manifest``, if there is one.
    """
    parts, folder, against = front.context.parts, front.folder, front.against
    members, config = front.members, parts.config
    write_baseline(folder, against)
    for more in (front.cascades, front.exits):
        more.write(folder, config.metric)
    if against is not None:
        manifest["baseline"] = baseline_record(against)
    rows, counts = [member.row(parts.space) for member in members], parts.data.class_counts
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
            "constant": parts.data.constant("test").to_json(),
        }
        | ({"classes": classes_record(counts, confusions(members))} if counts else {})
        | ({"unverified": dict(front.front.failed)} if front.front.failed else {})
        | ({"hurried": sorted(front.without_int8_training)} if front.without_int8_training else {})
        | ({"guessing": list(guessing)} if (guessing := front.front.at_chance_level) else {})
        | ({"unfinished": list(front.unfinished)} if front.unfinished else {})
        | ({} if against is None else {"baseline": against.to_json()}),
    )
    title = f"{front.data.title}, {parts.data.name}"
    folder.write_bytes("front.png", front_png(replace(front.data, title=title)))
    facts = [
        *([("classes", describe_classes(counts))] if counts else []),
        ("target", config.target.caveat),
        ("cost model", _describe_costs(manifest)),
        ("energy", describe_energy(config.target)),
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
    page = replace(page, results=[result_section(front.result(manifest))])
    if against is not None:
        page = search_page.with_more(page, against.sentences, [against.table()])
    refused = [m.refusal for m in members if m.int8_is_slower]
    page = search_page.with_more(page, [*front.notes, *front.more, *refused])
    for more in (front.cascades, front.exits):
        page = search_page.with_more(page, more.sentences, more.tables, more.pictures)
    if counts:
        page = search_page.with_more(page, [], class_tables(counts, confusions(members)))
    folder.write_bytes("report.html", render(page).encode())
    folder.write_manifest(manifest)


def remove_front_files(folder: RunFolder, manifest: Row) -> None:
    """Write a manifest without a front and remove the files of an earlier, outdated front.

    Files of networks in ``models`` are kept.
    """
    for name in (BASELINE, CASCADES, EXITS, *FILES):
        if name not in ("candidates.parquet", "manifest.json"):
            (folder.path / name).unlink(missing_ok=True)
    folder.write_manifest(manifest)


def write_baseline(folder: RunFolder, against: "BaselineComparison | None") -> None:
    """Write the comparison as ``baseline.csv``; without a baseline remove this file."""
    folder.write_or_remove_csv(BASELINE, [] if against is None else against.speedup.rows())


def baseline_record(against: "BaselineComparison") -> Row:
    """Return the entry ``baseline`` of the manifest: the comparison without its table."""
    return {name: value for name, value in against.to_json().items() if name != "levels"}


def n_images_read(candidates: Sequence[Candidate]) -> int:
    """Return the number of evaluated validation images, summed over all distinct candidates."""
    return sum(int(c.details.get("n_images", 0)) for c in {c.id: c for c in candidates}.values())


def _describe_costs(manifest: Row) -> str:
    """Return the source of the candidates' costs as text."""
    table = manifest["latency_table"]
    text = str(manifest["config"]["cost"])
    if "cost_model" in manifest.get("own", {}):
        text = manifest["own"]["cost_model"]
    if table is not None and text == "table":
        text += f", {table['path']}"
        text += f"; from another machine: {table['foreign']}" if table["foreign"] else ""
    return text


def _energy_source(target: Target) -> EnergyModel | PowerModel:
    source = target.energy or target.power
    assert source is not None
    return source


def describe_energy(target: Target) -> str:
    """Return the source of modelled energies as text."""
    if target.energy is not None:
        return f"{target.energy.technology}; {target.energy.source}"
    assert target.power is not None
    low, high = target.power.active_w_low, target.power.active_w_high
    per = "" if target.power.per_device else " for each busy core"
    return f"latency times {low:g} to {high:g} W{per}: {target.power.source}"


# Folders of several targets.


def folder_of(folder: RunFolder, target: str) -> RunFolder:
    """Create and return the folder of a target within the folder of the search."""
    of_target = RunFolder(folder.path / target)
    of_target.path.mkdir(exist_ok=True)
    return of_target


def manifest_of(manifest: Row, target: str) -> Row:
    """Return the manifest of a target's folder, given the manifest of the run."""
    inner = {n: v for n, v in manifest.items() if n not in ("targets", "objectives")}
    target_facts: Row = manifest["targets"][target]
    return {**inner, **target_facts, "part_of": ".."}
