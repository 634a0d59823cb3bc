"""``python -m benchmarks.odd_inputs [--every N] [--only WORD] [--csv FILE]``.

Modules of this folder with ``cases()`` or ``chains()`` take part.
"""

import argparse
import csv
import importlib
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import odd_inputs
from benchmarks.odd_inputs import runner
from benchmarks.odd_inputs.case import Case, Chain
from hwnas.core import package


def _all(kind: str) -> Iterator[Any]:
    for module in pkgutil.iter_modules(odd_inputs.__path__):
        if module.name != "__main__":
            found = importlib.import_module(f"benchmarks.odd_inputs.{module.name}")
            yield from vars(found).get(kind, tuple)()


def _row(of: Case | Chain, verb: str, command: str, wrong: str, ran: runner.Ran) -> dict[str, Any]:
    said = (ran.err.strip().splitlines() or [""])[-1]
    return {
        "mechanism": of.mechanism,
        "verb": verb,
        "option": of.option,
        "command": command[:200],
        "exit": ran.code,
        "seconds": f"{ran.seconds:.1f}",
        "peak_mib": f"{ran.peak_mib:.0f}",
        "said": said.replace(f"{package.ROOT}/", "./")[:300],
        "wrong": wrong,
    }


def main() -> None:
    """Run all cases; exit with 1 if one of them fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="run only every Nth case")
    parser.add_argument(
        "--only", default="", help="run only cases whose mechanism or option contains WORD"
    )
    parser.add_argument("--csv", type=Path, help="CSV file for the results")
    asked = parser.parse_args()
    runner.warm()
    runner.spare_memory()
    rows = []

    def wanted(found: Iterator[Any]) -> list[Any]:
        all_ = [each for each in found if asked.only in f"{each.mechanism} {each.option}"]
        return all_[:: asked.every]

    for case in wanted(_all("cases")):
        wrong, ran = runner.judged(case)
        rows.append(_row(case, case.arguments[0], " ".join(case.arguments), wrong, ran))
        _tell(rows[-1])
    with tempfile.TemporaryDirectory() as name:
        for chain in wanted(_all("chains")):
            wrong, ran = runner.ended(chain, Path(name, "nets"))
            rows.append(_row(chain, "all", " ".join(chain.steps[-1]), wrong, ran))
            _tell(rows[-1])
    if asked.csv:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    bad = sum(bool(row["wrong"]) for row in rows)
    print(f"{len(rows)} inputs, {bad} of them failed")
    sys.exit(bool(bad))


def _tell(row: dict[str, Any]) -> None:
    if row["wrong"]:
        print(
            f"{row['mechanism']}: {row['command']}\n  {row['wrong']}\n  {row['said']}", flush=True
        )


if __name__ == "__main__":
    main()
