"""The verified front of a target: its files, and what the terminal shows of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas import build
from hwnas.accuracy.options import TrainedConfig
from hwnas.commands.baseline import Against
from hwnas.commands.console import Phases, print_files, print_lines
from hwnas.energy import EnergyModel, PowerModel
from hwnas.figure import column
from hwnas.report import searched
from hwnas.report.page import render
from hwnas.report.plot import Panel, front_png
from hwnas.results import Candidate, Row, RunFolder
from hwnas.search import columns
from hwnas.search.member import Member
from hwnas.target import Target

#: What a search that was verified writes.
FILES = (
    "front.csv", "front.json", "front.png", "report.html", "candidates.parquet", "manifest.json",
)  # fmt: skip
BASELINE = "baseline.csv"  #: where a baseline was given
_TABLE_ROWS = 24
_SHORT = {"int8": "int8", "float32": "fp32"}


def finished(phases: Phases, candidates: list[Candidate], members: list[Member]) -> Row:
    """Return what a manifest says of a search that came to its end."""
    return {
        "status": "finished",
        "n_candidates": len(candidates),
        "n_distinct": len({candidate.id for candidate in candidates}),
        "n_infeasible": sum(candidate.state == "infeasible" for candidate in candidates),
        "n_front": len(members),
        **({"n_images_read": n_read} if (n_read := _n_read(candidates)) else {}),
        "seconds": {name: round(seconds, 2) for name, seconds in phases.seconds.items()},
    }


def write_front(
    parts: build.Parts,
    folder: RunFolder,
    manifest: Row,
    candidates: list[Candidate],
    members: list[Member],
    against: Against | None,
) -> None:
    """Write the front as CSV, JSON, picture and page, its baseline, and the manifest."""
    config = parts.config
    write_baseline(folder, against)
    if against is not None:
        manifest["baseline"] = told(against)
    rows = [member.row(parts.space) for member in members]
    folder.write_csv("front.csv", rows)
    folder.write_json(
        "front.json",
        {
            "objectives": {n: "max" if column(n).maximise else "min" for n in config.objectives},
            "target": config.target.name,
            "caveat": config.target.caveat,
            "energy_model": asdict(_energy_source(config.target)),
            "budget": config.budget.limits,
            "members": rows,
        }
        | ({} if against is None else {"baseline": against.to_json()}),
    )
    title = f"{config.searched} on {config.target.name}, {parts.data.name}"
    costs = [name for name in config.objectives if name != "accuracy"]
    beside = None if against is None else against.beside
    panel = Panel(candidates, members, costs[0], config.budget, title, beside=beside)
    folder.write_bytes("front.png", front_png(panel))
    facts = [
        ("target", config.target.caveat),
        ("cost model", _cost_words(manifest)),
        ("energy", energy_words(config.target)),
        ("budget", ", ".join(f"{n} <= {v:g}" for n, v in config.budget.limits.items()) or "none"),
        ("search space", f"{config.searched}, {manifest['n_genotypes']:.3g} genotypes"),
        (
            "candidates",
            f"{manifest['n_candidates']}, {manifest['n_distinct']} different, "
            f"{manifest['n_infeasible']} infeasible",
        ),
        ("command", manifest["command"]),
        *((f"version of {name}", version) for name, version in manifest["versions"].items()),
    ]
    found = searched.Front(candidates, members, config.objectives, config.budget, beside)
    page = searched.single(f"hwnas: {title}", found, facts)
    page = (
        page
        if against is None
        else searched.with_baseline(page, against.sentences, [against.table()])
    )
    folder.write_bytes("report.html", render(page).encode())
    folder.write_json("manifest.json", manifest)


def write_baseline(folder: RunFolder, against: Against | None) -> None:
    """Write the table against the baseline; take away that of an earlier one."""
    if against is not None:
        folder.write_csv(BASELINE, against.found.rows())
    else:
        (folder.path / BASELINE).unlink(missing_ok=True)


def told(against: Against) -> Row:
    """Return what a manifest says of a baseline."""
    return {name: value for name, value in against.to_json().items() if name != "levels"}


@dataclass(frozen=True)
class Shown:
    """What the terminal shows of the front of a target."""

    title: str
    candidates: Sequence[Candidate]  #: with what is believed of their accuracy
    members: Sequence[Member]
    finishing: Row  #: how they were finished, as the manifest has it
    against: Against | None


def print_front(console: Console, parts: build.Parts, folder: RunFolder, shown: Shown) -> None:
    """Print the front, how it stands against its baseline, and where the files are."""
    print_members(console, parts, shown)
    own = [BASELINE] if shown.against is not None else []
    print_files(console, parts.config.study.storage, folder, [*FILES, *own, "models/"])


def print_members(console: Console, parts: build.Parts, shown: Shown) -> None:
    """Print the front of a target, its baseline, and where its figures come from."""
    candidates, members, against = shown.candidates, shown.members, shown.against
    table = Table(
        "id", _SHORT[parts.config.target.dtype], "95 %", "searched",
        "ms", "mJ", "SRAM", "flash", "",
        title=shown.title, box=box.SIMPLE_HEAD, padding=0, show_edge=False,
    )  # fmt: skip
    for part in table.columns:
        part.justify, part.no_wrap = "right", True
    listed = _spread(members, _TABLE_ROWS)
    for member in listed:
        accuracy, costs = member.accuracy, member.figures
        assert accuracy.low is not None
        assert accuracy.high is not None
        table.add_row(
            member.candidate.id,
            f"{accuracy.value:.4f}",
            f"±{(accuracy.high - accuracy.low) / 2:.3f}",
            f"{member.candidate.figures['accuracy'].value:.4f}",
            f"{costs['latency_ms'].value:.4f}",
            f"{costs['energy_mj'].value:.5f}",
            f"{costs['sram_kib'].value:.1f}",
            f"{costs['flash_kib'].value:.1f}",
            _label(member),
        )
    console.print(table)
    target = parts.config.target
    infeasible = sum(candidate.state == "infeasible" for candidate in candidates)
    lines = [
        f"{len(members) - len(listed)} more members in front.csv." * (len(listed) < len(members)),
        *([] if against is None else against.sentences),
        f"{len(candidates)} candidates, {infeasible} infeasible; {_verified_words(members)}",
        *_reading_words(candidates, parts),
        _finishing_words(candidates, shown.finishing),
        f"{_SHORT[target.dtype]}: the compiled file on the whole test split, measured; 95 % Wilson "
        "interval.",
        _searched_words(shown, parts.config.accuracy),
        f"ms: {_sources(members, 'latency_ms')}. {target.caveat}.",
        f"SRAM (activations) and flash (weights) in KiB: {_sources(members, 'sram_kib')}.",
        f"mJ: {_sources(members, 'energy_mj')}{_energy_shares(members)}. {energy_words(target)}.",
    ]
    print_lines(console, lines)


def _label(member: Member) -> str:
    if member.over_budget:
        return "over budget"
    if member.on_front:
        return ""
    return "near front" if member.near_front else "left front"


def _verified_words(members: Sequence[Member]) -> str:
    """Return how many members stayed on the front."""
    labels = Counter(map(_label, members))
    told = {
        "near front": "within their interval of it",
        "left front": "off it",
        "over budget": "over budget",
    }
    others = [f"{labels[label]} {words}" for label, words in told.items() if labels[label]]
    on_front = f"{labels['']} on the front"
    return f"{len(members)} verified: {', '.join([on_front, *others])}."


def _n_read(candidates: Sequence[Candidate]) -> int:
    """Return how many times a validation image was read."""
    return sum(int(c.details.get("n_images", 0)) for c in {c.id: c for c in candidates}.values())


def _reading_words(candidates: Sequence[Candidate], parts: build.Parts) -> list[str]:
    """Return what it took to score candidates: trainings, or reading the validation split."""
    scored = {c.id: c for c in candidates if c.state != "infeasible"}
    if parts.config.accuracy == "trained":
        return _training_words([*scored.values()], parts.config.trained)
    stopped = sum(c.state == "stopped" for c in scored.values())
    n_read, n_all = _n_read([*scored.values()]), len(scored) * len(parts.data.validation)
    return [
        f"{n_read:,} of {n_all:,} validation images read ({n_read / n_all:.0%}): {stopped} of "
        f"{len(scored)} networks were found to be dominated before the end."
    ]


def _training_words(scored: Sequence[Candidate], config: TrainedConfig) -> list[str]:
    """Return after which training candidates were stopped, and how many were trained to the end."""
    last = len(config.fidelities)
    n_read = Counter(config.n_read(c.details) for c in scored)
    totals = [sum(config.fidelities[:n]) for n in range(last + 1)]
    spent = sum(totals[n] * count for n, count in n_read.items())
    stopped = [
        f"{n_read[n]} stopped after {_epochs(totals[n])}" for n in range(1, last) if n_read[n]
    ]
    ended = f"{n_read[last]} after {_epochs(totals[last])}"
    return [
        f"{len(scored)} networks trained alone: {', '.join([*stopped, ended])}; {spent} of "
        f"{len(scored) * totals[last]} epochs trained."
    ]


def _finishing_words(candidates: Sequence[Candidate], finish: Row) -> str:
    """Return how many candidates were finished, how, and by whom they were taught."""
    done = {c.id for c in candidates if columns.FINISHED in c.details}
    if not finish["epochs"]:
        return f"{len(done)} finished without further training (finish.epochs=0)."
    words = f"{len(done)} finished, each by {_epochs(finish['epochs'])} more"
    if finish["teacher"] is not None:
        words += f", taught by {finish['teacher']} ({finish['alpha']:.0%} of the loss)"
    return f"{words}."


def _searched_words(shown: Shown, accuracy: str | None) -> str:
    """Return what the searched accuracies of members are."""
    weights = "supernet weights" if accuracy == "supernet" else "trained alone"
    believed = all(m.candidate.figures["accuracy"].source == "modelled" for m in shown.members)
    n_finished = len({c.id for c in shown.candidates if columns.FINISHED in c.details})
    if columns.is_enough(n_finished) and shown.finishing["epochs"]:
        what = "finished"
        if believed:
            what = "what is believed of the finished accuracy, given all that was read"
    else:
        what = weights
        if believed:
            what = f"what is believed of the accuracy, given all that was read; {weights}"
    return f"searched: {what}; fp32, validation split{'' if believed else ', measured'}."


def _epochs(n: int) -> str:
    return f"{n} epoch{'s' * (n != 1)}"


def _sources(members: Sequence[Member], name: str) -> str:
    """Return where a figure comes from, searched and verified."""
    searched = {member.candidate.figures[name].source for member in members}
    verified = {member.figures[name].source for member in members}
    if searched == verified:
        return " and ".join(sorted(verified))
    return f"{' and '.join(sorted(verified))} (searched: {' and '.join(sorted(searched))})"


def _energy_shares(members: Sequence[Member]) -> str:
    """Return what part of the front's energy each component is, where it has components."""
    parts = {"MACs": "energy_macs_mj", "SRAM": "energy_sram_mj", "off-chip": "energy_off_chip_mj"}
    sums = {label: sum(m.details.get(name, 0) for m in members) for label, name in parts.items()}
    total = sum(sums.values())
    if not total:
        return ""
    return ", " + ", ".join(f"{label} {value / total:.0%}" for label, value in sums.items())


def _cost_words(manifest: Row) -> str:
    """Return what said the costs of candidates, and what is foreign about it."""
    table = manifest["latency_table"]
    words = str(manifest["config"]["cost"])
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
    return f"latency times {low:g} to {high:g} W for each busy core: {target.power.source}"


def _spread(members: Sequence[Member], n: int) -> Sequence[Member]:
    """Return at most ``n`` members, evenly over the front, both ends included."""
    if len(members) <= n:
        return members
    return [members[round(i * (len(members) - 1) / (n - 1))] for i in range(n)]
