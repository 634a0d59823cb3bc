"""Cascades of the verified members of a search, on one target or from one to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hwnas.answers import read_heard
from hwnas.config import SearchConfig
from hwnas.families import running
from hwnas.report import cascades as report
from hwnas.report.explorer import Picture, Table
from hwnas.results import RunFolder
from hwnas.searching import cascades
from hwnas.searching.cascades import Cascade, Stage, Way
from hwnas.searching.member import Member

FILE = "cascades.csv"


@dataclass(frozen=True)
class Cascades:
    """What cascades of a target's members come to; there may be none."""

    stages: Sequence[Stage] = ()  #: members with answers, within the budget
    found: Sequence[Cascade] = ()

    @property
    def sentences(self) -> list[str]:
        """What they come to, in words."""
        if len(self.stages) < 2 and not self.found:
            return []
        ahead = [cascade for cascade in self.found if cascade.on_front]
        if not ahead:
            return ["No cascade of two members is on the front by expected latency."]
        n = len(ahead)
        told = (
            f"{n} cascade{'s' * (n != 1)} of two members {'are' if n != 1 else 'is'} on the front "
            "by expected latency, test split"
        )
        if ratios := cascades.speedups(self.stages, self.found):
            told += f"; {_times(ratios)} as fast as the fastest member that is as accurate"
        return [f"{told}: {FILE}."]

    @property
    def tables(self) -> list[Table]:
        """What a page lists of them."""
        return [report.table(self.found)] * any(c.on_front for c in self.found)

    @property
    def pictures(self) -> list[Picture]:
        """What a page draws of them."""
        return [report.picture(self.stages, self.found)] if self.tables else []

    def write(self, folder: RunFolder, metric: str) -> None:
        """Write the table; take away that of an earlier end of the search.

        Args:
            folder: Of the search for the target.
            metric: Of the task.
        """
        if self.found:
            folder.write_csv(FILE, [cascade.row(metric) for cascade in self.found])
        else:
            (folder.path / FILE).unlink(missing_ok=True)


def of(config: SearchConfig, here: Sequence[Stage], server: Sequence[Stage]) -> Cascades:
    """Return the cascades of a target's members.

    Args:
        config: Of the search for the target.
        here: The members.
        server: Those on the target that ``link.to`` names, if that is another one.
    """
    way = Way(str(config.link.to), config.link.latency_ms, config.link.usd_per_m)
    return Cascades(here, cascades.found(here, config.allowed, server, way))


def stages(folder: RunFolder, members: Sequence[Member], batch: int) -> list[Stage]:
    """Return the members within the budget whose answers were kept, the fastest first.

    Only those of single images: others do not leave alone.

    Args:
        folder: Of the search for the target.
        members: Of its front.
        batch: Images of an inference, of networks that do not choose them.
    """
    found = []
    for member in members:
        if member.candidate.genotype.to_dict().get(running.BATCH, batch) != 1:
            continue
        heard = read_heard(folder.path, member.candidate.id)
        if heard is not None and member.is_deliverable:
            found.append(Stage(member.candidate.id, member.figures, heard))
    return sorted(found, key=lambda stage: stage.latency_ms)


def _times(ratios: Sequence[float]) -> str:
    """Return ratios in words."""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f} times"
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f} times (median {median(ratios):.2f})"
