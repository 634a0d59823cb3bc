"""The folder of a search as explanations read it, finished or not."""

from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.errors import RunError
from hwnas.manifest import Manifest, read_manifest
from hwnas.metrics import paid
from hwnas.results import Candidate, RunFolder
from hwnas.searching import earlier, verified_front
from hwnas.searching.front import distinct
from hwnas.searching.member import Member
from hwnas.searching.recorded import Record
from hwnas.verified import unverified


@dataclass(frozen=True)
class ReadRun:
    """What a run folder holds."""

    folder: RunFolder
    manifest: Manifest
    record: Record

    @property
    def starts_from(self) -> bool:
        """Whether it began with the candidates of another search."""
        each = [self.manifest, *self.manifest.get("targets", {}).values()]
        return any(own.get("config", {}).get("start_from") for own in each)

    @property
    def limits(self) -> dict[str, float]:
        """The limits of the search; with several targets, named after them."""
        return earlier.targets(self.manifest).all_limits

    def verified(self, candidate: Candidate) -> Member | None:
        """Return what the run verified of a candidate; with several targets, on all of them."""
        return verified_front.member(self.folder.path, self.manifest, candidate)

    def unverified(self, genotype_id: str) -> list[str]:
        """Return why it could not verify a candidate, for each target for which it could not."""
        targets, known = self.manifest.get("targets", {}), self.manifest.get("unverified", {})
        told = {target: found.get(genotype_id, "") for target, found in known.items()}
        found = unverified(self.folder.path, genotype_id)
        if not targets:  # without a front, the manifest alone says why
            found = found or "".join(told.values())
        lines = [f"It could not be verified: {found}"] * bool(found)
        for target in targets:
            if found := unverified(self.folder.path / target, genotype_id) or told.get(target, ""):
                lines.append(f"It could not be verified on {target}: {found}")
        return lines

    @property
    def has_several(self) -> bool:
        """Whether several search spaces were searched at once."""
        return isinstance(self.manifest["config"].get("search_space"), list)

    @property
    def sampler(self) -> str:
        """The name of the sampler."""
        return str(self.manifest["config"]["sampler"]["name"])

    @property
    def progress(self) -> str:
        """How far the search is, in words."""
        n, of = len(self.record.candidates), self.manifest["config"]["n_trials"]
        status = self.manifest["status"]
        return f"{n} of {of} trials so far" if status == "running" else f"{n} trials, {status}"


def read_run(path: Path) -> ReadRun:
    """Read a run folder.

    Raises:
        RunError: it is not a search's, or no trial is finished.
    """
    if not path.is_dir():
        raise RunError(f"run={path}: there is no such folder.")
    folder, manifest = RunFolder(path), read_manifest(path, "run")
    if manifest["verb"] != "search":
        raise RunError(f"run={path}: it is not the folder of a search.")
    if "part_of" in manifest:
        raise RunError(f"run={path} is one target of a search: say run={path.absolute().parent}.")
    if (source := earlier.source(path, manifest["config"])) is None:
        raise RunError(f"run={path}: no trial is finished yet.")
    return ReadRun(folder, manifest, source.read())


def as_verified(found: ReadRun) -> list[Candidate]:
    """Return those that stayed on the front, with what was verified; of one target alone."""
    if "targets" in found.manifest:
        return []
    candidates = distinct(found.record.candidates)
    front = verified_front.read(found.folder.path, found.manifest, candidates)
    first, *_ = paid(found.record.objectives)
    members = [
        replace(m.candidate, figures={**m.candidate.figures, **m.all_figures})
        for m in front.staying
    ]
    return sorted(members, key=lambda c: (c.figures[first].value, c.trial))
