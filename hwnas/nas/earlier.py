"""Networks of an earlier search: those that ``start_from`` names, and candidates for others."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, TypeGuard

from hwnas.core.errors import RunError, SpaceError
from hwnas.core.files import link_or_copy, write_file
from hwnas.core.run_folder import INPUTS, WEIGHTS
from hwnas.core.typed_files import read_json, to_json_bytes
from hwnas.models.spaces import Genotype, Space
from hwnas.nas.candidates import Candidate
from hwnas.nas.run import Run

_OPTION = "start_from"
_FILE = f"{_OPTION}.json"  # in the folder of the inputs of a search


class _KeptNetwork(TypedDict):
    search_space: str
    genotype: dict[str, Any]


class _KeptNetworks(TypedDict):
    networks: list[_KeptNetwork]


def in_space(candidates: Iterable[Candidate], space: Space, option: str) -> list[Candidate]:
    """Return candidates of an earlier search as candidates of a space.

    Args:
        candidates: The candidates.
        space: The search space.
        option: The option that named the earlier search, for messages.

    Raises:
        SpaceError: a candidate is not in this space.
    """
    every = [*candidates]
    genotypes = _genotypes_in_space([c.genotype for c in every], space, option)
    return [replace(c, genotype=g) for c, g in zip(every, genotypes, strict=True)]


def _genotypes_in_space(genotypes: Iterable[Genotype], space: Space, option: str) -> list[Genotype]:
    spaces, converted = {member.name: member for member in space.members}, []
    for genotype in genotypes:
        if genotype.space not in spaces:
            raise SpaceError(
                f"{option}: candidate {genotype.id} is of search space '{genotype.space}', but "
                f"search_space is {', '.join(spaces)}. Set search_space to '{genotype.space}' or "
                "its YAML file, or name another search."
            )
        converted.append(spaces[genotype.space].genotype(genotype.to_dict()))
    return converted


def are_kept(folder: str | None) -> TypeGuard[str]:
    """Return whether the folder of a search has the genotypes of ``start_from``."""
    return folder is not None and Path(folder, INPUTS, _FILE).is_file()


def keep(folder: str, genotypes: Sequence[Genotype]) -> None:
    """Write the genotypes of ``start_from`` into the folder of a search, unless they are there.

    A resumed search reads them there, as the earlier search may have changed.
    """
    if genotypes and not are_kept(folder):
        rows = [{"search_space": g.space, "genotype": g.to_dict()} for g in genotypes]
        write_file(Path(folder, INPUTS, _FILE), to_json_bytes({"networks": rows}))


def link_weights(run: Run, supernets: Path) -> None:
    """Link the checkpoints of an earlier search to where a new one looks for them, if missing.

    They may be missing there as the search was copied from another machine. A checkpoint of
    another training has another name, and is not used.
    """
    for weights in (run.path / WEIGHTS, run.path.parent / WEIGHTS):  # the latter of several targets
        for path in weights.glob("*/*.safetensors"):
            target = supernets / path.relative_to(weights)
            if not target.exists():
                link_or_copy(path, target)


def kept(folder: str, space: Space) -> tuple[Genotype, ...]:
    """Return the genotypes that ``keep`` wrote into the folder of a search.

    Raises:
        RunError: the file is damaged.
        SpaceError: one of them is not in the search space.
    """
    rows = read_json(_KeptNetworks, Path(folder, INPUTS, _FILE), RunError)["networks"]
    known = [Genotype(r["search_space"], tuple(sorted(r["genotype"].items()))) for r in rows]
    return tuple(_genotypes_in_space(known, space, _OPTION))


def genotypes(run: Run, space: Space) -> tuple[Genotype, ...]:
    """Return the distinct genotypes of the search ``start_from``, in order of its trials.

    Raises:
        RunError: the trials cannot be read.
        SpaceError: a candidate is not in the search space.
    """
    run.check_complete()
    known = [candidate.genotype for candidate in run.candidates]
    return tuple({g.id: g for g in _genotypes_in_space(known, space, _OPTION)}.values())


def note_on_data(run: Run, digest: str) -> list[str]:
    """Return a message if the search ``start_from`` had other data than those with a digest."""
    digests = run.manifest.get("digests", {}).items()
    before = {value for name, value in digests if name.rpartition(".")[2] == "data"}
    if not before or digest in before:
        return []
    return [
        f"{_OPTION}={run.path}: that search had other data "
        f"(dataset={run.config['dataset']['name']}). Its networks are trained on the data of this "
        "search."
    ]
