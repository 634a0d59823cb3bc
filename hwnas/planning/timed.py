"""By what models were timed, as fronts say it: so servers must run them, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwnas import backends
from hwnas.errors import HwnasError, RunError
from hwnas.planning.plan import Ran
from hwnas.records.schema import Unfit
from hwnas.target import Target, from_facts


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
