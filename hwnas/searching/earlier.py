"""What an earlier search found, finished or not: by its folder, wherever its study lies."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.budget import Budget
from hwnas.candidates import read_candidates
from hwnas.errors import RunError, SpaceError, unknown
from hwnas.manifest import Manifest, Options, read_manifest
from hwnas.metrics import column, quality
from hwnas.results import Candidate
from hwnas.searching import columns, recorded
from hwnas.searching.targets import Targets
from hwnas.space import Space
from hwnas.union import stem


@dataclass(frozen=True)
class Found:
    """What a search has found so far."""

    objectives: Sequence[str]
    candidates: Sequence[Candidate]  #: in order of trials; of several targets as the search does
    seconds: Mapping[int, float]  #: as of a ``Record``
    notes: tuple[str, ...] = ()  #: what is not as it should be


def read_search(path: Path, option: str) -> Manifest:
    """Return the manifest of the folder of a search.

    Args:
        path: The folder.
        option: By which the user named it.

    Raises:
        RunError: it is none.
    """
    manifest = read_manifest(path, option)
    if manifest["verb"] != "search":
        raise RunError(f"{option}={path} is a run of '{manifest['verb']}', not of 'search'.")
    return manifest


def found(path: Path, manifest: Manifest, option: str) -> Found:
    """Return what a search found: if finished by ``candidates.parquet``, else by its study.

    The file is read five times faster, but has no times, and a study may be out of reach. Of a
    search for one target it has the metric as it is believed in the end: see ``as_read``.

    Raises:
        RunError: nothing can be read, or no trial is finished yet.
    """
    config = manifest["config"]
    place = source(path, config)
    if manifest.get("status") != "running" and place is not None:
        with contextlib.suppress(RunError):
            outline = place.outline()
            names = [member.name for member in outline.space.members]
            read = [columns.read(quality(outline.objectives))]
            if (candidates := read_candidates(path, names, read)) is not None:
                return Found(outline.objectives, candidates, outline.seconds)
    try:
        if place is None:
            raise RunError("no trial is finished yet.")
        record = place.read()
    except RunError as error:
        objectives = _objectives(manifest)
        read = [columns.read(quality(objectives))]
        if (candidates := read_candidates(path, _spaces(config), read)) is None:
            raise RunError(f"{option}={path}: {error}") from None
        note = "its study cannot be read: candidates.parquet instead, which has no times"
        return Found(objectives, candidates, {}, (note,))
    return Found(record.objectives, record.candidates, record.seconds)


def as_read(known: Found, path: Path, manifest: Manifest) -> Found:
    """Return what a search found with the metric as it read it, whether it has ended or not.

    Args:
        known: What was found.
        path: The folder of the search.
        manifest: Of the search.
    """
    metric = quality(known.objectives)
    read = columns.read(metric)
    if not any(read in candidate.details for candidate in known.candidates):
        return known
    if (place := source(path, manifest["config"])) is not None:
        with contextlib.suppress(RunError):
            return replace(known, candidates=place.read().candidates)

    def without_interval(candidate: Candidate) -> Candidate:
        if (value := candidate.details.get(read)) is None:
            return candidate
        figure = replace(candidate.figures[metric], value=value, low=None, high=None)
        return replace(candidate, figures={**candidate.figures, metric: figure})

    note = f"{column(metric).label} as it was read has no intervals in candidates.parquet"
    candidates = [without_interval(candidate) for candidate in known.candidates]
    return replace(known, candidates=candidates, notes=(*known.notes, note))


def source(folder: Path, config: Options) -> recorded.Source | None:
    """Return where the study of a run lies; ``None`` where it has begun none."""
    where = config.get("study")
    if where is not None and where["storage"] is not None:
        return recorded.in_database(where["storage"], where["name"])
    return recorded.in_file(folder / "study.db") if (folder / "study.db").exists() else None


def targets(manifest: Manifest) -> Targets:
    """Return the targets of a run; that of a run for one has no name."""
    if "targets" not in manifest:
        return Targets({"": Budget.of(manifest["config"]["budget"])})
    own = manifest["targets"].items()
    return Targets({target: Budget.of(of["config"]["budget"]) for target, of in own})


def whole(path: Path, manifest: Manifest, option: str) -> tuple[Path, Manifest]:
    """Return the run of which a folder is one target, with its manifest; else the folder itself."""
    if "part_of" not in manifest:
        return path, manifest
    return path.absolute().parent, read_search(path.absolute().parent, option)


def candidates(path: Path, option: str, target: str | None = None) -> list[Candidate]:
    """Return the candidates of a search in order of trials, as a search for one target sees them.

    Args:
        path: The folder of the search, or that of one of its targets within.
        option: By which the user named it.
        target: Of several, the one that sees them; default: that of the folder, else all do.

    Raises:
        RunError: it is no search, it is not for that target, or all of its trials cannot be read.
    """
    own = read_search(path, option)
    folder, manifest = whole(path, own, option)
    if folder != path and (there := believed(path, own, manifest)) is not None:
        return there
    known = found(folder, manifest, option)
    if known.notes and manifest.get("status") == "running":
        raise RunError(
            f"{option}={path}: the search is not finished, and its study cannot be read; "
            "candidates.parquet may lack trials. Finish it with: "
            f"python -m hwnas search run.resume={folder}"
        )
    if folder != path:
        target = own["config"]["target"]["name"]
    if target is None or "targets" not in manifest:
        return [*known.candidates]
    if target not in manifest["targets"]:
        others = ", ".join(manifest["targets"])
        raise RunError(
            f"{option}={path}: that search is for {others}, not for {target}; once it is finished, "
            f"name what one of them found: {option}={path / next(iter(manifest['targets']))}"
        )
    return [targets(manifest).seen(candidate, target) for candidate in known.candidates]


def believed(path: Path, own: Manifest, manifest: Manifest) -> list[Candidate] | None:
    """Return the candidates of one of several targets with what is believed of them.

    As of a run for one target: what the search went by in the end.

    Args:
        path: The folder of the target.
        own: Its manifest.
        manifest: Of the search.

    Returns:
        ``None`` where the search is not finished.
    """
    if not own.get("status") == manifest.get("status") == "finished":
        return None
    return read_candidates(path, _spaces(own["config"]))


def of_space(known: Iterable[Candidate], space: Space, option: str) -> list[Candidate]:
    """Return candidates of an earlier search as those of a space.

    Raises:
        SpaceError: one is not of this space.
    """
    spaces, found = {member.name: member for member in space.members}, []
    for candidate in known:
        genotype = candidate.genotype
        if genotype.space not in spaces:
            raise SpaceError(unknown(f"search space of {option}", genotype.space, spaces))
        own = spaces[genotype.space].genotype(genotype.to_dict())
        found.append(replace(candidate, genotype=own))
    return found


def _spaces(config: Options) -> list[str]:
    """Return the names of the search spaces; of a benchmark table, what its file is called."""
    if not (named := config.get("search_space")):
        return [Path(config["table"]["path"]).name.partition(".")[0]]
    return [stem(str(name)) for name in (named if isinstance(named, list) else [named])]


def _objectives(manifest: Manifest) -> Sequence[str]:
    config = manifest["config"]
    declared_ones = manifest.get("objectives") or config.get("objectives")
    return declared_ones or ("accuracy", *config["table"]["costs"])
