"""What a run verified: ``models/ID.json`` of each member, and ``front.json`` of all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from hwnas.core.errors import RunError
from hwnas.core.manifest import Manifest
from hwnas.core.quantity import (
    Quantities,
    Quantity,
    QuantityRow,
    QuantitySource,
    quantities_from_json,
)
from hwnas.core.schema import SchemaError, validate
from hwnas.core.typed_files import read_json
from hwnas.hardware.costs.int8_speed import RATIOS
from hwnas.nas import reading
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.metrics import is_known, paid, qualities
from hwnas.tasks.metrics.budget import violations

FORMAT = 1  #: of both files as they are written; earlier ones say none
MemberRow = dict[str, Any]  #: values by column; none is an object or a list


class VerifiedModelFile(TypedDict):
    """``models/ID.json``: a member's figures and files."""

    format: NotRequired[int]
    genotype: dict[str, int | float | str]
    figures: dict[str, QuantityRow]
    details: dict[str, float]
    files: dict[str, str]  #: sha256 by suffix
    weights: NotRequired[str]  #: what tells them from others of the same network
    layers: NotRequired[list[dict[str, Any]]]
    segments: NotRequired[list[dict[str, QuantityRow]]]  #: of a network with exits: figures of each


class FrontFile(TypedDict):
    """``front.json``: the members of a front, a row of columns each."""

    format: NotRequired[int]
    objectives: dict[str, Literal["max", "min"]]
    members: list[MemberRow]
    target: NotRequired[str]
    caveat: NotRequired[str]
    energy_model: NotRequired[dict[str, Any]]
    budget: NotRequired[dict[str, float]]
    budgets: NotRequired[dict[str, dict[str, float]]]  #: of several targets
    baseline: NotRequired[dict[str, Any]]
    unverified: NotRequired[dict[str, str]]  #: why others could not be verified, by id
    hurried: NotRequired[list[str]]  #: ids of members that there was no time to train for int8
    unfinished: NotRequired[list[str]]  #: ids of others that may be on it, likeliest first
    guessing: NotRequired[list[str]]  #: ids of members that may be no better than guessing


def read_made(run: Path, genotype_id: str) -> VerifiedModelFile | None:
    """Return what a run wrote of a member that it verified; ``None`` if it did not.

    Raises:
        RunError: it is damaged, or of a newer version.
    """
    path = run / "models" / f"{genotype_id}.json"
    try:
        return read_json(VerifiedModelFile, path, RunError, newest=FORMAT)
    except FileNotFoundError:
        return None


def read_front(run: Path) -> FrontFile | None:
    """Return the front of a run; ``None`` where there is none yet.

    Raises:
        RunError: it is damaged, or of a newer version.
    """
    path = run / "front.json"
    try:
        found = read_json(FrontFile, path, RunError, newest=FORMAT)
    except FileNotFoundError:
        return None
    try:
        _check_objectives([name.rpartition(".")[2] for name in found["objectives"]])
        for i, row in enumerate(found["members"]):
            _check_member(row, found["objectives"], f"members[{i}]")
    except SchemaError as problem:
        raise RunError(f"{path} cannot be read: {problem}.") from None
    return found


def unverified(run: Path, genotype_id: str) -> str:
    """Return why a run could not verify a candidate; empty if it could, or did not try."""
    front = read_front(run)
    return "" if front is None else front.get("unverified", {}).get(genotype_id, "")


def _check_objectives(names: list[str]) -> None:
    if not {*names} & {*qualities()} or not paid(names) or not all(map(is_known, names)):
        raise SchemaError(
            f"'objectives' are {', '.join(names)}; allowed: a metric of answers and costs"
        )


def _check_member(row: MemberRow, objectives: Iterable[str], at: str) -> None:
    """Refuse a row without its identity and its verified figures, or with figures that are none."""
    for name in (*_MEMBER, *objectives):
        if row.get(name) is None:
            raise SchemaError(f"'{at}.{name}' is missing")
    for name, value in row.items():
        validate(_MEMBER.get(name, _SCALAR), value, f"{at}.{name}")
    figures = [name.removesuffix("_source") for name in row if name.endswith("_source")]
    for name in figures:
        for part in ("", "_low", "_high"):
            validate(float | None, row.get(f"{name}{part}"), f"{at}.{name}{part}")
        validate(QuantitySource | None, row[f"{name}_source"], f"{at}.{name}_source")
    for name in objectives:
        validate(float, row[name], f"{at}.{name}")
    verified = {name.removeprefix(_VERIFIED) for name in figures if name.startswith(_VERIFIED)}
    for target in {name.rpartition(".")[0] for name in verified} or {""}:
        if not any(f"{target}.{name}".lstrip(".") in verified for name in _answers()):
            raise SchemaError(f"'{at}' does not say how well its file answers")


def _answers() -> list[str]:
    """Return the names of verified figures that say how well a file answers."""
    return [f"{metric}_{dtype}" for metric in qualities() for dtype in ("int8", "fp32")]


_VERIFIED = "verified_"
_SCALAR = str | int | float | bool | None
_MEMBER: dict[str, Any] = {"id": str, "verified_fits_budget": bool, "verified_on_front": bool}

# The verified front of a run, read from its files: of one target, or of all of several.

_SOURCE = "_source"


@dataclass(frozen=True)
class VerifiedFront:
    """What was verified for a front, what left it, too; of a run without one nothing."""

    objectives: Sequence[str]
    members: Sequence[Member]  #: in the order of the file

    @property
    def staying(self) -> list[Member]:
        """Those that fit the budget and stayed on the front."""
        return [member for member in self.members if member.on_front]


def read_verified_front(
    run: Path, manifest: Manifest, candidates: Iterable[Candidate]
) -> VerifiedFront:
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
    limits = reading.targets(manifest).all_limits
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
    each = {prefix: quantities_from_json(found["figures"]) for prefix, found in made.items()}
    figures = {f"{prefix}{n}": f for prefix, found in each.items() for n, f in found.items()}
    if not figures:
        return None
    rows = (read_front(run) or {"members": []})["members"]
    stays = next((row["verified_on_front"] for row in rows if row["id"] == candidate.id), None)
    return Member(candidate, figures, _details(made), {}, on_front=stays)


def _made(run: Path, manifest: Manifest, genotype_id: str) -> dict[str, VerifiedModelFile]:
    """Return what was written of a network on each target, by what its figures begin with."""
    places = {"": run}
    if "targets" in manifest:
        places = {f"{target}.": run / target for target in manifest["targets"]}
    found = {prefix: read_made(place, genotype_id) for prefix, place in places.items()}
    return {prefix: made for prefix, made in found.items() if made is not None}


def _details(made: Mapping[str, VerifiedModelFile]) -> dict[str, float]:
    each = made.items()
    return {f"{prefix}{n}": v for prefix, found in each for n, v in found["details"].items()}


def _ratios(row: MemberRow) -> dict[str, float]:
    found = {name: row.get(f"{_VERIFIED}{name}") for name in RATIOS}
    return {name: value for name, value in found.items() if value is not None}


def _figures(row: MemberRow) -> Quantities:
    """Return the verified figures of a row, by name."""
    columns = [n.removesuffix(_SOURCE) for n in row if n.endswith(_SOURCE)]
    return {
        n.removeprefix(_VERIFIED): Quantity(
            row[n], row[f"{n}{_SOURCE}"], row.get(f"{n}_low"), row.get(f"{n}_high")
        )
        for n in columns
        if n.startswith(_VERIFIED) and None not in (row.get(n), row[f"{n}{_SOURCE}"])
    }
