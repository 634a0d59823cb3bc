"""The reference page documents every column of search files."""

import re
import zipfile
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from hwnas.tasks import metrics

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "frozen" / "made.zip"
PAGE = (ROOT / "docs" / "reference" / "columns.md").read_text()
NAMES = re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)
_PARTS = re.compile(r"_(low|high|source|sha256)$")
_CHOICE = re.compile(r"(stages|stem|head|exits)\.|resolution$|weight_bits$")


def _is_documented(column: str) -> bool:
    name = _PARTS.sub("", column)
    name = re.sub(r"^(verified_)?(npu|sketch)\.", r"\1", name)
    if name in NAMES or _CHOICE.match(name):
        return True
    name = name.removeprefix("verified_")
    is_read = name.removesuffix("_fp32").removesuffix("_int8") in metrics.all_metrics()
    pattern = re.sub(r"\d+", "N", name).replace("accuracy", "METRIC")
    return is_read or name in NAMES or pattern in NAMES


@pytest.mark.parametrize("name", ["front.csv", "candidates.parquet", "cascades.csv"])
def test_columns_are_documented(name: str) -> None:
    with zipfile.ZipFile(RUNS) as archive:
        files = [path for path in archive.namelist() if path.endswith(f"/{name}")]
        assert files
        for path in files:
            with archive.open(path) as file:
                read_file = (
                    pyarrow.parquet.read_table if name.endswith("parquet") else pyarrow.csv.read_csv
                )
                columns = read_file(file).column_names
            assert [c for c in columns if not _is_documented(c)] == [], path
