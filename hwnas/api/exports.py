"""Exports by their folders, for notebooks; and the verbs that write and prove them."""

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hwnas import host
from hwnas.api.composition import compose
from hwnas.api.keywords import as_arguments
from hwnas.api.reporter import Quiet
from hwnas.api.tables import html_lines, html_table
from hwnas.export import recorded
from hwnas.progress import Progress
from hwnas.results import Row


@dataclass(frozen=True)
class Export(os.PathLike[str]):
    """The folder of a model that is ready for the device."""

    path: Path
    notes: tuple[str, ...] = ()  #: what the export said on the way

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def proof(self) -> Row:
        """What ``proof.json`` says: figures, errors against torch, digests of files."""
        return dict(recorded.read(self.path))

    @property
    def files(self) -> list[Path]:
        """The files of the folder."""
        return sorted(path for path in self.path.iterdir() if path.is_file())

    def verify(self, **options: Any) -> list[str]:
        """Repeat the proof with the runtimes at hand; return what was found.

        Raises:
            ProofError: something does not hold.
        """
        return verify(self, **options)

    def _repr_html_(self) -> str:
        said = self.proof
        rows = [{"figure": name, "value": values[0]} for name, values in said["figures"].items()]
        heading = f"{said['model']['name']} in {self.path}"
        table = html_table(pa.Table.from_pylist(rows))
        return f"<h4>{html.escape(heading)}</h4>{table}{html_lines(self.notes)}"


def export(
    run: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
) -> list[Export]:
    """Write models of a search as files for the device, with a proof of what they do.

    Where the same command was cut off, what it had written is returned, too.

    Args:
        run: The search, or its folder.
        progress: Is told of phases.
        options: Of ``python -m hwnas export``: ``pick="knee"``, ``dir="models"``.

    Raises:
        ProofError: a file does not do what it should; its folder is kept.
    """
    host.tune()
    from hwnas.api.exporting import export as write

    given = as_arguments({"run": run, **options})
    quiet = Quiet(progress)
    found = write(compose("export", given), given, quiet, lambda done: None)
    return [Export(path, tuple(quiet.lines)) for path in found]


def compress(
    run: str | os.PathLike[str],
    *,
    pick: str = "knee",
    progress: Progress | None = None,
    **options: Any,
) -> Export:
    """Fit a network of a search into another budget, and write it as ``export`` does.

    Args:
        run: The search, or its folder.
        pick: Which network: an id, or as for ``export``.
        progress: Is told of phases.
        options: Of ``python -m hwnas compress``: ``budget={"flash_kib": 20}``.

    Raises:
        BudgetError: nothing makes it fit.
        ProofError: a file does not do what it should; its folder is kept.
    """
    host.tune()
    from hwnas.api.compressing import Compressed
    from hwnas.api.compressing import compress as fit

    given, found = as_arguments({"run": run, "id": pick, **options}), list[Compressed]()
    quiet = Quiet(progress)
    fit(compose("compress", given), given, quiet, found.append)
    return Export(found[0].done.path, tuple(quiet.lines))


def verify(
    export: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
) -> list[str]:
    """Repeat the proof of an export with the runtimes at hand; return what was found.

    Args:
        export: The folder.
        progress: Is told of phases.
        options: Of ``python -m hwnas verify``: ``data=DIR``, ``target="npu"``.

    Raises:
        ProofError: something does not hold.
    """
    host.tune()
    from hwnas.api.verifying import verify as run

    quiet = Quiet(progress)
    run(compose("verify", as_arguments({"export": export, **options})), quiet)
    return quiet.lines
