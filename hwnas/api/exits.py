"""What leaving early comes to for the verified members of a search that have exits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from hwnas.answers import read_exits
from hwnas.report import exits as report
from hwnas.report.explorer import Picture, Table
from hwnas.results import RunFolder
from hwnas.searching import exits
from hwnas.searching.exits import POINTS, EarlyExits, Exiting
from hwnas.searching.member import Member

FILE = "exits.csv"


@dataclass(frozen=True)
class Exits:
    """What leaving early comes to; there may be no exits."""

    networks: Sequence[Exiting] = ()  #: members with exits, within the budget
    found: Sequence[EarlyExits] = ()

    @cached_property
    def sentences(self) -> list[str]:
        """What it comes to, in words."""
        each = [[e for e in self.found if e.network.id == n.id] for n in self.networks]
        picked = [best for found in each if (best := exits.within(found, POINTS)) is not None]
        if not picked:
            return []
        shares, lost = ([getattr(e, name) for e in picked] for name in ("share_of_worst", "lost"))
        off = max(abs(e.deviation) for e in picked)
        n = len(picked)
        return [
            f"{n} member{'s' * (n != 1)} with exits: leaving early takes {_span(shares, '.0%')} of "
            f"the latency on the average for {_span(lost, '.2f')} points of accuracy, test split; "
            f"thresholds chosen on validation to lose at most {POINTS}. Expected latencies are "
            f"within {off:.1%} of what was foreseen: {FILE}. Limits are held against the way to "
            "the end, segment by segment.",
        ]

    @property
    def tables(self) -> list[Table]:
        """What a page lists of it."""
        return [report.table(self.found)] if self.found else []

    @property
    def pictures(self) -> list[Picture]:
        """What a page draws of it."""
        return [report.picture(self.networks, self.found)] if self.found else []

    def write(self, folder: RunFolder, metric: str) -> None:
        """Write the table; take away that of an earlier end of the search.

        Args:
            folder: Of the search for the target.
            metric: Of the task.
        """
        if self.found:
            folder.write_csv(FILE, [each.row(metric) for each in self.found])
        else:
            (folder.path / FILE).unlink(missing_ok=True)


def of(folder: RunFolder, members: Sequence[Member]) -> Exits:
    """Return what leaving early comes to for members within the budget."""
    networks = []
    for member in members:
        heard = read_exits(folder.path, member.candidate.id) if member.segments else None
        if heard is not None and member.is_deliverable:
            networks.append(Exiting(member.candidate.id, member.figures, member.segments, heard))
    found = [each for network in networks for each in exits.swept(network)]
    return Exits(networks, exits.judged(found))


def _span(values: Sequence[float], form: str) -> str:
    """Return numbers in words."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{min(values):{form}} to {max(values):{form}} (median {median(values):{form}})"
