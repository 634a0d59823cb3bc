"""Files of verified networks: ``models/ID.json`` of each, and ``front.json`` of a front."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from hwnas.core.errors import RunError
from hwnas.core.quantity import (
    Quantities,
    Quantity,
    QuantityRow,
    QuantitySource,
    quantities_from_json,
)
from hwnas.core.schema import SchemaError, validate
from hwnas.core.typed_files import read_json
from hwnas.hardware.derived_metrics import RATIOS
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.base import Confusion
from hwnas.tasks.intervals import ClassScores
from hwnas.tasks.metrics import costs_in, is_metric, quality_names
from hwnas.tasks.metrics.budget import violations

FORMAT = 1  #: of both files; earlier versions wrote none
MemberRow = dict[str, Any]  #: scalar values by column


class VerifiedModelFile(TypedDict):
    """``models/ID.json``: quantities and files of a verified network."""

    format: NotRequired[int]
    genotype: dict[str, int | float | str]  #: options by choice
    figures: dict[str, QuantityRow]  #: verified metric and costs, by name
    details: dict[str, float]  #: other numbers, by name
    files: dict[str, str]  #: SHA-256 of each compiled file, by its suffix
    weights: NotRequired[str]  #: text that identifies the weights
    layers: NotRequired[list[dict[str, Any]]]  #: costs of each layer
    segments: NotRequired[list[dict[str, QuantityRow]]]  #: of a network with exits: costs of each
    confusion: NotRequired[dict[str, dict[str, int]]]  #: number of test images by class and answer


class ClassesRecord(TypedDict):
    """``classes`` of ``front.json``: images and results of each class."""

    images: dict[str, dict[str, int]]  #: number of images by split and class
    confusion: dict[str, dict[str, dict[str, int]]]  #: test images by member, class and answer
    recall: dict[str, dict[str, QuantityRow | None]]  #: by member and class; null without images


class FrontFile(TypedDict):
    """``front.json``: the members of a front, a row each."""

    format: NotRequired[int]
    objectives: dict[str, Literal["max", "min"]]  #: direction by column
    members: list[MemberRow]
    target: NotRequired[str]  #: name of the target
    caveat: NotRequired[str]  #: text about the accuracy of the costs
    energy_model: NotRequired[dict[str, Any]]
    budget: NotRequired[dict[str, float]]  #: limits by column
    budgets: NotRequired[dict[str, dict[str, float]]]  #: limits by target and column
    baseline: NotRequired[dict[str, Any]]  #: hand-designed networks for comparison
    unverified: NotRequired[dict[str, str]]  #: errors of networks that were not verified, by id
    hurried: NotRequired[list[str]]  #: ids of members without int8 training: time ran out
    #: ids of candidates that are likely on the front but not fine-tuned, most probable first
    unfinished: NotRequired[list[str]]
    guessing: NotRequired[list[str]]  #: ids of members not significantly better than a constant
    constant: NotRequired[QuantityRow]  #: metric of the best constant answer on the test split
    classes: NotRequired[ClassesRecord]


def read_model(run: Path, genotype_id: str) -> VerifiedModelFile | None:
    """Return ``models/ID.json`` of a run; ``None`` if the network is not verified.

    Raises:
        RunError: the file is damaged, or of a newer version of hwnas.
    """
    path = run / "models" / f"{genotype_id}.json"
    try:
        return read_json(VerifiedModelFile, path, RunError, newest=FORMAT)
    except FileNotFoundError:
        return None


def read_front(run: Path) -> FrontFile | None:
    """Return ``front.json`` of a run; ``None`` if there is none yet.

    Raises:
        RunError: the file is damaged, or of a newer version of hwnas.
    """
    path = run / "front.json"
    try:
        content = read_json(FrontFile, path, RunError, newest=FORMAT)
    except FileNotFoundError:
        return None
    try:
        _check_objectives([name.rpartition(".")[2] for name in content["objectives"]])
        for i, row in enumerate(content["members"]):
            _check_member(row, content["objectives"], f"members[{i}]")
        ids = [row["id"] for row in content["members"]]
        if twice := next((name for name in ids if ids.count(name) > 1), None):
            raise SchemaError(f"'members' has {twice!r} twice")
    except SchemaError as problem:
        raise RunError(
            f"{path} cannot be read: {problem}. To write it again, resume the search: "
            "hwnas resume FOLDER"
        ) from None
    return content


def unverified(run: Path, genotype_id: str) -> str:
    """Return why a run could not verify a network; empty if it did, or did not try.

    Raises:
        RunError: ``front.json`` is damaged, or of a newer version of hwnas.
    """
    front = read_front(run)
    return "" if front is None else front.get("unverified", {}).get(genotype_id, "")


def _check_objectives(names: list[str]) -> None:
    if not {*names} & {*quality_names()} or not costs_in(names) or not all(map(is_metric, names)):
        raise SchemaError(
            f"'objectives' are {', '.join(names)}; allowed: an accuracy or error metric, and costs"
        )


def _check_member(row: MemberRow, objectives: Iterable[str], location: str) -> None:
    """Reject a row that lacks its id or a verified quantity, or has one of a wrong type."""
    for name in (*_MEMBER, *objectives):
        if row.get(name) is None:
            raise SchemaError(f"'{location}.{name}' is missing")
    for name, value in row.items():
        validate(_MEMBER.get(name, _SCALAR), value, f"{location}.{name}")
    figures = [name.removesuffix("_source") for name in row if name.endswith("_source")]
    for name in figures:
        for part in ("", "_low", "_high"):
            validate(float | None, row.get(f"{name}{part}"), f"{location}.{name}{part}")
        validate(QuantitySource | None, row[f"{name}_source"], f"{location}.{name}_source")
        if row[f"{name}_source"] is not None and row.get(name) is None:
            raise SchemaError(f"'{location}.{name}' is missing")
    for name in objectives:
        validate(float, row[name], f"{location}.{name}")
    verified = {name.removeprefix(_VERIFIED) for name in figures if name.startswith(_VERIFIED)}
    for target in {name.rpartition(".")[0] for name in verified} or {""}:
        if not any(f"{target}.{name}".lstrip(".") in verified for name in _verified_metrics()):
            raise SchemaError(f"'{location}' has no verified accuracy or error")


def _verified_metrics() -> list[str]:
    """Return the names of verified metrics."""
    return [f"{metric}_{dtype}" for metric in quality_names() for dtype in ("int8", "fp32")]


_VERIFIED, _SOURCE = "verified_", "_source"
_SCALAR = str | int | float | bool | None
_MEMBER: dict[str, Any] = {"id": str, "verified_fits_budget": bool, "verified_on_front": bool}


def member_of_file(candidate: Candidate, content: VerifiedModelFile) -> Member:
    """Return a verified candidate by its ``models/ID.json``."""
    return Member(
        candidate,
        quantities_from_json(content["figures"]),
        content["details"],
        content["files"],
        segments=tuple(quantities_from_json(rows) for rows in content.get("segments", ())),
        confusion=content.get("confusion"),
    )


def file_of_member(
    member: Member, weights: str, layers: Iterable[dict[str, Any]]
) -> VerifiedModelFile:
    """Return the content of ``models/ID.json``.

    Args:
        member: The verified network.
        weights: Text that identifies its weights.
        layers: Costs of each layer, as rows.
    """
    content: VerifiedModelFile = {
        "format": FORMAT,
        "genotype": member.candidate.genotype.to_dict(),
        "figures": _rows(member.figures),
        "details": dict(member.details),
        "files": dict(member.files),
        "weights": weights,
        "layers": [*layers],
    }
    if member.confusion is not None:
        content["confusion"] = {name: {**row} for name, row in member.confusion.items()}
    if member.segments:
        content["segments"] = [_rows(segment) for segment in member.segments]
    return content


def member_of_row(candidate: Candidate, row: MemberRow, limits: Mapping[str, float]) -> Member:
    """Return a member by its row of ``front.json``.

    It has no files; its details are only the latencies in int8 relative to float32.

    Args:
        candidate: Its candidate.
        row: The row.
        limits: Limits of the budget, by column.
    """
    columns = [n.removesuffix(_SOURCE) for n in row if n.endswith(_SOURCE)]
    quantities = {
        n.removeprefix(_VERIFIED): Quantity(
            row[n], row[f"{n}{_SOURCE}"], row.get(f"{n}_low"), row.get(f"{n}_high")
        )
        for n in columns
        if n.startswith(_VERIFIED) and None not in (row.get(n), row[f"{n}{_SOURCE}"])
    }
    ratios = {name: row.get(f"{_VERIFIED}{name}") for name in RATIOS}
    known = {name: value for name, value in ratios.items() if value is not None}
    over = tuple(name for name, excess in violations(limits, quantities).items() if excess > 0)
    on_front, is_near = row["verified_on_front"], bool(row.get("verified_near_front"))
    return Member(candidate, quantities, known, {}, over, on_front, is_near)


def figures(models: Mapping[str, VerifiedModelFile]) -> Quantities:
    """Return the verified quantities of one network on all targets, with prefixed names.

    Args:
        models: Content of ``models/ID.json``, by prefix such as ``npu.`` (empty for one target).
    """
    by_prefix = {
        prefix: quantities_from_json(content["figures"]) for prefix, content in models.items()
    }
    return {
        f"{prefix}{n}": f for prefix, quantities in by_prefix.items() for n, f in quantities.items()
    }


def details(models: Mapping[str, VerifiedModelFile]) -> dict[str, float]:
    """Return the details of one network on all targets, with prefixed names.

    Args:
        models: Content of ``models/ID.json``, by prefix such as ``npu.`` (empty for one target).
    """
    items = models.items()
    return {f"{prefix}{n}": v for prefix, record in items for n, v in record["details"].items()}


def _rows(quantities: Quantities) -> dict[str, QuantityRow]:
    rows: dict[str, Any] = {name: quantity.to_json() for name, quantity in quantities.items()}
    return rows


def confusions(members: Iterable[Member]) -> dict[str, Confusion]:
    """Return the confusion matrices by id, of members that have one."""
    return {m.candidate.id: m.confusion for m in members if m.confusion is not None}


def classes_record(
    images: Mapping[str, Mapping[str, int]], matrices: Mapping[str, Confusion]
) -> ClassesRecord:
    """Return the content of ``classes`` in ``front.json``.

    Args:
        images: Number of images by split and class.
        matrices: Confusion matrix by member; of several targets also by target, ``ID on TARGET``.
    """
    recalls = {
        name: zip(rows, ClassScores.of(rows).recalls, strict=True)
        for name, rows in matrices.items()
    }
    record: Any = {
        "images": {split: {**counts} for split, counts in images.items()},
        "confusion": {
            name: {c: {**row} for c, row in rows.items()} for name, rows in matrices.items()
        },
        "recall": {
            name: {c: r and r.to_json() for c, r in pairs} for name, pairs in recalls.items()
        },
    }
    typed: ClassesRecord = record
    return typed
