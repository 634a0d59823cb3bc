"""What a search that goes on, or was cut off, has found so far."""

from pathlib import Path

import pyarrow as pa

from hwnas.metrics import quality
from hwnas.results import table_of
from hwnas.searching import earlier


def so_far(path: Path) -> pa.Table | None:
    """Return the candidates in its study, a row each; ``None`` of a search that has ended.

    Raises:
        RunError: no trial is finished yet, or its study cannot be read.
    """
    own = earlier.read_search(path, "path")
    folder, manifest = earlier.whole(path, own, "path")
    study = earlier.source(folder, manifest["config"])
    if manifest.get("status") != "running" or study is None:
        return None
    outline, candidates = study.outline(), earlier.candidates(path, "path")
    metric = quality(outline.objectives)
    rows = [candidate.row(outline.space, metric) for candidate in candidates]
    return table_of(rows)
