"""By what models were timed, as fronts say it: so servers must run them, too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas import backends
from hwnas.errors import HwnasError, RunError
from hwnas.families import running
from hwnas.planning.plan import Ran
from hwnas.records.schema import Unfit
from hwnas.target import Target, from_facts


@dataclass(frozen=True)
class Numbers:
    """In which batches and on how many threads latencies were measured."""

    batch: int
    threads: int

    @staticmethod
    def of(genotype: Mapping[str, object], batch: object, threads: object, where: str) -> "Numbers":
        """Return how a network ran, which may say so itself; else as its target does.

        Raises:
            RunError: neither says one number.
        """
        said = genotype.get(running.BATCH, batch), genotype.get(running.THREADS, threads)
        if not all(str(number).isdecimal() for number in said):
            raise RunError(f"{where}: a network's batch is {said[0]}, its threads are {said[1]}: "
                           "allowed is one number of each.")  # fmt: skip
        return Numbers(*(int(str(number)) for number in said))


def ran_by(target: Target, place: Path, threads: int | None = None) -> Ran:
    """Return by what networks of a target are timed; of one out of reach that is not known.

    Args:
        target: The target.
        place: What says so.
        threads: What a network chose; default: those of the target.
    """
    variant = target.engine.removeprefix(target.runtime).removeprefix("-").partition(".")[0]
    provider = (variant or "cpu") if backends.get(target.runtime).measured else ""
    return Ran(target.name, str(place), target.runtime, provider, threads or target.threads)


def target_of_run(config: Mapping[str, Any], place: Path) -> Target:
    """Return the target of a run.

    Args:
        config: That of its manifest.
        place: Its folder, for messages.

    Raises:
        RunError: it is none.
    """
    try:
        return from_facts(config["target"])
    except (Unfit, HwnasError) as problem:
        raise RunError(f"fronts: {place}: the target of its manifest: {problem}.") from None
