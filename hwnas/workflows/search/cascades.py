"""Cascades and early exits of the verified members of a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from hwnas.analysis import sections as report
from hwnas.analysis.page.data import PageTable, SvgFigure
from hwnas.core.errors import counted
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
    """Cascades of the members of a target's front; may be empty."""

    #: members of batch size 1 with stored predictions, see ``Member.is_deliverable``; fastest first
    stages: Sequence[CascadeStage] = ()
    pairs: Sequence[Cascade] = ()  #: cascades, fastest first

    @property
    def sentences(self) -> list[str]:
        """One sentence about the cascades on the front; empty with fewer than two members."""
        if len(self.stages) < 2 and not self.pairs:
            return []
        n_images = len(self.stages[0].predictions["validation"].correct) if self.stages else 0
        if not self.pairs and n_images < 2 * cascades.LEAST:
            return [
                f"No cascades: their thresholds need {2 * cascades.LEAST} or more validation "
                f"images, and there are {n_images}."
            ]
        ahead = [cascade for cascade in self.pairs if cascade.on_front]
        if not ahead:
            return []
        n = len(ahead)
        text = (
            f"{counted(n, 'cascade')} of two members {'are' if n != 1 else 'is'} on the front "
            "by expected latency, test split"
        )
        if ratios := cascades.speedups(self.stages, self.pairs):
            text += f"; {_times(ratios)} as fast as the fastest member that is as accurate"
        return [f"{text}: {CASCADES_FILE}."]

    @property
    def tables(self) -> list[PageTable]:
        """The table for a page, as a list; empty if no cascade is on the front."""
        return [report.cascades_table(self.pairs)] * any(c.on_front for c in self.pairs)

    @property
    def pictures(self) -> list[SvgFigure]:
        """The figure for a page, as a list; empty if no cascade is on the front."""
        return [report.cascades_figure(self.stages, self.pairs)] if self.tables else []

    def write(self, folder: RunFolder, metric: str) -> None:
        """Write ``cascades.csv``, one row per cascade; without cascades remove the file.

        Args:
            folder: Folder of the target.
            metric: Metric of the task.
        """
        folder.write_or_remove_csv(CASCADES_FILE, [cascade.row(metric) for cascade in self.pairs])


def cascades_of_target(
    config: SearchConfig, here: Sequence[CascadeStage], server: Sequence[CascadeStage]
) -> CascadeReport:
    """Return the cascades of a target's members.

    Args:
        config: Configuration of the target.
        here: Members of the target.
        server: Members of the target ``link.to``; empty without it, or if it is this target.
    """
    link = CascadeLink(str(config.link.to), config.link.latency_ms, config.link.usd_per_m)
    return CascadeReport(here, cascades.find_cascades(here, config.allowed, server, link))


def stages(folder: RunFolder, members: Sequence[Member], batch: int) -> list[CascadeStage]:
    """Return the deliverable members with stored predictions, fastest first.

    Networks with a batch size above 1 are left out: a cascade decides for each image. See
    ``Member.is_deliverable``.

    Args:
        folder: Folder of the target.
        members: Members of its front.
        batch: Batch size of networks that do not choose one.
    """
    result = []
    for member in members:
        if member.candidate.genotype.to_dict().get(annotations.BATCH, batch) != 1:
            continue
        predictions = read_predictions(folder.path, member.candidate.id)
        if predictions is not None and member.is_deliverable:
            result.append(CascadeStage(member.candidate.id, member.figures, predictions))
    return sorted(result, key=lambda stage: stage.latency_ms)


def _times(ratios: Sequence[float]) -> str:
    """Return ratios as text."""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f} times"
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f} times (median {median(ratios):.2f})"


EXITS_FILE = "exits.csv"


@dataclass(frozen=True)
class ExitReport:
    """Early exits of the members of a target's front; may be empty."""

    #: members with exits and their stored predictions, see ``Member.is_deliverable``
    networks: Sequence[ExitNetworkResults] = ()
    settings: Sequence[EarlyExits] = ()  #: their thresholds that are non-dominated on validation

    @cached_property
    def sentences(self) -> list[str]:
        """One sentence about latency and accuracy with early exits; empty without them."""
        by_network = [[e for e in self.settings if e.network.id == n.id] for n in self.networks]
        picked = [
            best for exits in by_network if (best := early_exits.within(exits, POINTS)) is not None
        ]
        if not picked:
            return []
        shares, lost = ([getattr(e, name) for e in picked] for name in ("share_of_worst", "lost"))
        off = max(abs(e.deviation) for e in picked)
        return [
            f"{counted(len(picked), 'member')} with exits: leaving early takes "
            f"{_span(shares, '.0%')} of the latency on average for {_span(lost, '.2f')} points of "
            f"accuracy, test split; thresholds chosen on validation to lose at most {POINTS}. "
            f"Expected latencies are within {off:.1%} of the prediction: {EXITS_FILE}. Budget "
            "limits apply to the path through all segments.",
        ]

    @property
    def tables(self) -> list[PageTable]:
        """The table for a page, as a list; empty without early exits."""
        return [report.exits_table(self.settings)] if self.settings else []

    @property
    def pictures(self) -> list[SvgFigure]:
        """The figure for a page, as a list; empty without early exits."""
        return [report.exits_figure(self.networks, self.settings)] if self.settings else []

    def write(self, folder: RunFolder, metric: str) -> None:
        """Write ``exits.csv``, one row per network and thresholds; without rows remove the file.

        Args:
            folder: Folder of the target.
            metric: Metric of the task.
        """
        folder.write_or_remove_csv(EXITS_FILE, [setting.row(metric) for setting in self.settings])


def exits_of_target(folder: RunFolder, members: Sequence[Member]) -> ExitReport:
    """Return the early exits of the deliverable members; see ``Member.is_deliverable``.

    Members without exits, or without stored predictions of them, are left out.
    """
    networks = []
    for member in members:
        predictions = (
            read_exit_predictions(folder.path, member.candidate.id) if member.segments else None
        )
        if predictions is not None and member.is_deliverable:
            networks.append(
                ExitNetworkResults(
                    member.candidate.id, member.figures, member.segments, predictions
                )
            )
    exits = [setting for network in networks for setting in early_exits.swept(network)]
    return ExitReport(networks, early_exits.with_on_front(exits))


def _span(values: Sequence[float], form: str) -> str:
    """Return the range of numbers as text."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{min(values):{form}} to {max(values):{form}} (median {median(values):{form}})"
