"""Cascades of the verified members of a search, on one target or from one to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from hwnas.analysis import sections as report
from hwnas.analysis.page.model import PageTable, SvgFigure
from hwnas.core.run_folder import RunFolder
from hwnas.models.families import annotations
from hwnas.nas import cascades, early_exits
from hwnas.nas.cascades import Cascade, CascadeLink, CascadeStage
from hwnas.nas.early_exits import POINTS, EarlyExits, ExitNetworkResults
from hwnas.nas.member import Member
from hwnas.tasks.predictions import read_exit_predictions, read_predictions
from hwnas.workflows.config import SearchConfig

CASCADES_FILE = "cascades.csv"


@dataclass(frozen=True)
class CascadeReport:
    """What cascades of a target's members come to; there may be none."""

    stages: Sequence[CascadeStage] = ()  #: members with answers, within the budget
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
        return [f"{told}: {CASCADES_FILE}."]

    @property
    def tables(self) -> list[PageTable]:
        """What a page lists of them."""
        return [report.cascades_table(self.found)] * any(c.on_front for c in self.found)

    @property
    def pictures(self) -> list[SvgFigure]:
        """What a page draws of them."""
        return [report.cascades_figure(self.stages, self.found)] if self.tables else []

    def write(self, folder: RunFolder, metric: str) -> None:
        """Write the table; take away that of an earlier end of the search.

        Args:
            folder: Of the search for the target.
            metric: Of the task.
        """
        if self.found:
            folder.write_csv(CASCADES_FILE, [cascade.row(metric) for cascade in self.found])
        else:
            (folder.path / CASCADES_FILE).unlink(missing_ok=True)


def cascades_of_target(
    config: SearchConfig, here: Sequence[CascadeStage], server: Sequence[CascadeStage]
) -> CascadeReport:
    """Return the cascades of a target's members.

    Args:
        config: Of the search for the target.
        here: The members.
        server: Those on the target that ``link.to`` names, if that is another one.
    """
    way = CascadeLink(str(config.link.to), config.link.latency_ms, config.link.usd_per_m)
    return CascadeReport(here, cascades.find_cascades(here, config.allowed, server, way))


def stages(folder: RunFolder, members: Sequence[Member], batch: int) -> list[CascadeStage]:
    """Return the members within the budget whose answers were kept, the fastest first.

    Only those of single images: others do not leave alone.

    Args:
        folder: Of the search for the target.
        members: Of its front.
        batch: Images of an inference, of networks that do not choose them.
    """
    found = []
    for member in members:
        if member.candidate.genotype.to_dict().get(annotations.BATCH, batch) != 1:
            continue
        heard = read_predictions(folder.path, member.candidate.id)
        if heard is not None and member.is_deliverable:
            found.append(CascadeStage(member.candidate.id, member.figures, heard))
    return sorted(found, key=lambda stage: stage.latency_ms)


def _times(ratios: Sequence[float]) -> str:
    """Return ratios in words."""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f} times"
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f} times (median {median(ratios):.2f})"


# What leaving early comes to for the verified members of a search that have exits.

EXITS_FILE = "exits.csv"


@dataclass(frozen=True)
class ExitReport:
    """What leaving early comes to; there may be no exits."""

    networks: Sequence[ExitNetworkResults] = ()  #: members with exits, within the budget
    found: Sequence[EarlyExits] = ()

    @cached_property
    def sentences(self) -> list[str]:
        """What it comes to, in words."""
        each = [[e for e in self.found if e.network.id == n.id] for n in self.networks]
        picked = [best for found in each if (best := early_exits.within(found, POINTS)) is not None]
        if not picked:
            return []
        shares, lost = ([getattr(e, name) for e in picked] for name in ("share_of_worst", "lost"))
        off = max(abs(e.deviation) for e in picked)
        n = len(picked)
        return [
            f"{n} member{'s' * (n != 1)} with exits: leaving early takes {_span(shares, '.0%')} of "
            f"the latency on the average for {_span(lost, '.2f')} points of accuracy, test split; "
            f"thresholds chosen on validation to lose at most {POINTS}. Expected latencies are "
            f"within {off:.1%} of what was foreseen: {EXITS_FILE}. Limits are held against the way "
            "to the end, segment by segment.",
        ]

    @property
    def tables(self) -> list[PageTable]:
        """What a page lists of it."""
        return [report.exits_table(self.found)] if self.found else []

    @property
    def pictures(self) -> list[SvgFigure]:
        """What a page draws of it."""
        return [report.exits_figure(self.networks, self.found)] if self.found else []

    def write(self, folder: RunFolder, metric: str) -> None:
        """Write the table; take away that of an earlier end of the search.

        Args:
            folder: Of the search for the target.
            metric: Of the task.
        """
        if self.found:
            folder.write_csv(EXITS_FILE, [each.row(metric) for each in self.found])
        else:
            (folder.path / EXITS_FILE).unlink(missing_ok=True)


def exits_of_target(folder: RunFolder, members: Sequence[Member]) -> ExitReport:
    """Return what leaving early comes to for members within the budget."""
    networks = []
    for member in members:
        heard = read_exit_predictions(folder.path, member.candidate.id) if member.segments else None
        if heard is not None and member.is_deliverable:
            networks.append(
                ExitNetworkResults(member.candidate.id, member.figures, member.segments, heard)
            )
    found = [each for network in networks for each in early_exits.swept(network)]
    return ExitReport(networks, early_exits.judged(found))


def _span(values: Sequence[float], form: str) -> str:
    """Return numbers in words."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{min(values):{form}} to {max(values):{form}} (median {median(values):{form}})"
