"""What a run verified: ``models/ID.json`` of each member, and ``front.json`` of all."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from hwnas.errors import RunError
from hwnas.figure import FigureRow, Source
from hwnas.metrics import is_known, paid, qualities
from hwnas.records import read_json
from hwnas.records.schema import Unfit, fitted

FORMAT = 1  #: of both files as they are written; earlier ones say none
MemberRow = dict[str, Any]  #: values by column; none is an object or a list


class Made(TypedDict):
    """``models/ID.json``: a member's figures and files."""

    format: NotRequired[int]
    genotype: dict[str, int | float | str]
    figures: dict[str, FigureRow]
    details: dict[str, float]
    files: dict[str, str]  #: sha256 by suffix
    weights: NotRequired[str]  #: what tells them from others of the same network
    layers: NotRequired[list[dict[str, Any]]]
    segments: NotRequired[list[dict[str, FigureRow]]]  #: of a network with exits: figures of each


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


def read_made(run: Path, genotype_id: str) -> Made | None:
    """Return what a run wrote of a member that it verified; ``None`` if it did not.

    Raises:
        RunError: it is damaged, or of a newer version.
    """
    path = run / "models" / f"{genotype_id}.json"
    try:
        return read_json(Made, path, RunError, newest=FORMAT)
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
    except Unfit as problem:
        raise RunError(f"{path} cannot be read: {problem}.") from None
    return found


def unverified(run: Path, genotype_id: str) -> str:
    """Return why a run could not verify a candidate; empty if it could, or did not try."""
    front = read_front(run)
    return "" if front is None else front.get("unverified", {}).get(genotype_id, "")


def _check_objectives(names: list[str]) -> None:
    if not {*names} & {*qualities()} or not paid(names) or not all(map(is_known, names)):
        raise Unfit(f"'objectives' are {', '.join(names)}; allowed: a metric of answers and costs")


def _check_member(row: MemberRow, objectives: Iterable[str], at: str) -> None:
    """Refuse a row without its identity and its verified figures, or with figures that are none."""
    for name in (*_MEMBER, *objectives):
        if row.get(name) is None:
            raise Unfit(f"'{at}.{name}' is missing")
    for name, value in row.items():
        fitted(_MEMBER.get(name, _SCALAR), value, f"{at}.{name}")
    figures = [name.removesuffix("_source") for name in row if name.endswith("_source")]
    for name in figures:
        for part in ("", "_low", "_high"):
            fitted(float | None, row.get(f"{name}{part}"), f"{at}.{name}{part}")
        fitted(Source | None, row[f"{name}_source"], f"{at}.{name}_source")
    for name in objectives:
        fitted(float, row[name], f"{at}.{name}")
    verified = {name.removeprefix(_VERIFIED) for name in figures if name.startswith(_VERIFIED)}
    for target in {name.rpartition(".")[0] for name in verified} or {""}:
        if not any(f"{target}.{name}".lstrip(".") in verified for name in _answers()):
            raise Unfit(f"'{at}' does not say how well its file answers")


def _answers() -> list[str]:
    """Return the names of verified figures that say how well a file answers."""
    return [f"{metric}_{dtype}" for metric in qualities() for dtype in ("int8", "fp32")]


_VERIFIED = "verified_"
_SCALAR = str | int | float | bool | None
_MEMBER: dict[str, Any] = {"id": str, "verified_fits_budget": bool, "verified_on_front": bool}
