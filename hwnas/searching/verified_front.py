"""The verified front of a run, read from its files: of one target, or of all of several."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hwnas.budget import violations
from hwnas.cost.in_float import RATIOS
from hwnas.errors import RunError
from hwnas.figure import Figure, Figures, figures_of
from hwnas.manifest import Manifest
from hwnas.results import Candidate
from hwnas.searching import earlier
from hwnas.searching.member import Member
from hwnas.verified import Made, MemberRow, read_front, read_made

_VERIFIED, _SOURCE = "verified_", "_source"


@dataclass(frozen=True)
class VerifiedFront:
    """What was verified for a front, what left it, too; of a run without one nothing."""

    objectives: Sequence[str]
    members: Sequence[Member]  #: in the order of the file

    @property
    def staying(self) -> list[Member]:
        """Those that fit the budget and stayed on the front."""
        return [member for member in self.members if member.on_front]


def read(run: Path, manifest: Manifest, candidates: Iterable[Candidate]) -> VerifiedFront:
    """Return the verified front of a run.

    Args:
        run: The folder of the run, or of one of its targets.
        manifest: That in the folder.
        candidates: Of the run.

    Raises:
        RunError: a file is damaged, or names what is no candidate.
    """
    if (content := read_front(run)) is None:
        return VerifiedFront((), ())
    known, members = {c.id: c for c in candidates}, []
    limits = earlier.targets(manifest).all_limits
    for row in content["members"]:
        if row["id"] not in known:
            raise RunError(f"{run}: front.json names {row['id']}, which is no candidate.")
        figures, details = _figures(row), _ratios(row)
        if "targets" in manifest:  # each says it in a file of its own
            details = _details(_made(run, manifest, row["id"]))
        over = tuple(name for name, by in violations(limits, figures).items() if by > 0)
        stays, is_near = row["verified_on_front"], bool(row.get("verified_near_front"))
        members.append(Member(known[row["id"]], figures, details, {}, over, stays, is_near))
    return VerifiedFront(tuple(content["objectives"]), members)


def member(run: Path, manifest: Manifest, candidate: Candidate) -> Member | None:
    """Return what a run verified of a candidate by now, on each target that it did; else ``None``.

    Raises:
        RunError: a file is damaged.
    """
    made = _made(run, manifest, candidate.id)
    each = {prefix: figures_of(found["figures"]) for prefix, found in made.items()}
    figures = {f"{prefix}{n}": f for prefix, found in each.items() for n, f in found.items()}
    if not figures:
        return None
    rows = (read_front(run) or {"members": []})["members"]
    stays = next((row["verified_on_front"] for row in rows if row["id"] == candidate.id), None)
    return Member(candidate, figures, _details(made), {}, on_front=stays)


def _made(run: Path, manifest: Manifest, genotype_id: str) -> dict[str, Made]:
    """Return what was written of a network on each target, by what its figures begin with."""
    places = {"": run}
    if "targets" in manifest:
        places = {f"{target}.": run / target for target in manifest["targets"]}
    found = {prefix: read_made(place, genotype_id) for prefix, place in places.items()}
    return {prefix: made for prefix, made in found.items() if made is not None}


def _details(made: Mapping[str, Made]) -> dict[str, float]:
    each = made.items()
    return {f"{prefix}{n}": v for prefix, found in each for n, v in found["details"].items()}


def _ratios(row: MemberRow) -> dict[str, float]:
    found = {name: row.get(f"{_VERIFIED}{name}") for name in RATIOS}
    return {name: value for name, value in found.items() if value is not None}


def _figures(row: MemberRow) -> Figures:
    """Return the verified figures of a row, by name."""
    columns = [n.removesuffix(_SOURCE) for n in row if n.endswith(_SOURCE)]
    return {
        n.removeprefix(_VERIFIED): Figure(
            row[n], row[f"{n}{_SOURCE}"], row.get(f"{n}_low"), row.get(f"{n}_high")
        )
        for n in columns
        if n.startswith(_VERIFIED) and None not in (row.get(n), row[f"{n}{_SOURCE}"])
    }
