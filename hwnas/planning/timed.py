"""By what models were timed, as fronts say it: so servers must run them, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwnas import backends
from hwnas.errors import HwnasError, RunError
from hwnas.families import running
from hwnas.planning.plan import Ran
from hwnas.records.schema import Unfit
from hwnas.target import Target, from_facts


def as_it_ran(
    genotype: Mapping[str, object], batch: object, threads: object, where: str
) -> tuple[int, int]:
    """Return the batch and threads of a network, which may say so itself; else as its target does.

    Raises:
        RunError: neither says one number.
    """
    said = genotype.get(running.BATCH, batch), genotype.get(running.THREADS, threads)
    if not all(str(number).isdecimal() for number in said):
        raise RunError(f"{where}: a network's batch is {said[0]}, its threads are {said[1]}: "
                       "allowed is one number of each.")  # fmt: skip
    return int(str(said[0])), int(str(said[1]))


def ran_by(target: Target, place: Path, threads: int | None = None) -> Ran:
    """Return by what networks of a target are timed.

    Args:
        target: The target.
        place: What says so.
        threads: What a network chose; default: those of the target.
    """
    return ran_in(target.engine, target.name, place, threads or target.threads)


def ran_in(engine: str, target: str, place: Path, threads: int) -> Ran:
    """Return the same by the names of a target and of its engine, as tables are named by them.

    Of a target out of reach it is not known what runs networks.
    """
    runtime = next((n for n in backends.names() if f"{engine}-".startswith(f"{n}-")), "")
    variant = engine.removeprefix(runtime).removeprefix("-").partition(".")[0]
    is_known = runtime and backends.get(runtime).measured
    return Ran(target, str(place), runtime, (variant or "cpu") if is_known else "", threads)


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
