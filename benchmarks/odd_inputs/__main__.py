"""Run all cases of invalid and unusual input.

    python -m benchmarks.odd_inputs [--every N] [--only WORD] [--csv FILE]

Cases are those of ``cases()`` and ``chains()`` of all modules in this folder.
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


def _collect(kind: str) -> Iterator[Any]:
    for info in pkgutil.iter_modules(odd_inputs.__path__):
        if info.name != "__main__":
            module = importlib.import_module(f"benchmarks.odd_inputs.{info.name}")
            yield from vars(module).get(kind, tuple)()


def _row(
    case: Case | Chain, verb: str, command: str, violations: str, result: runner.CommandResult
) -> dict[str, Any]:
    message = (result.err.strip().splitlines() or [""])[-1]
    return {
        "mechanism": case.mechanism,
        "verb": verb,
        "option": case.option,
        "command": command[:200],
        "exit": result.code,
        "seconds": f"{result.seconds:.1f}",
        "peak_mib": f"{result.peak_mib:.0f}",
        "said": message.replace(f"{package.ROOT}/", "./")[:300],
        "wrong": violations,
    }


def main() -> None:
    """Run the selected cases; exit with 1 if one of them fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="run only every Nth case")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="run only cases with this mechanism or option"
    )
    parser.add_argument("--csv", type=Path, help="CSV file for the results")
    arguments = parser.parse_args()
    runner.import_modules()
    runner.limit_memory()
    rows = []

    def select(cases: Iterator[Any]) -> list[Any]:
        selected = [case for case in cases if arguments.only in f"{case.mechanism} {case.option}"]
        return selected[:: arguments.every]

    for case in select(_collect("cases")):
        violations, result = runner.run_case(case)
        rows.append(_row(case, case.arguments[0], " ".join(case.arguments), violations, result))
        _print_failure(rows[-1])
    with tempfile.TemporaryDirectory() as name:
        for chain in select(_collect("chains")):
            violations, result = runner.run_chain(chain, Path(name, "nets"))
            rows.append(_row(chain, "all", " ".join(chain.steps[-1]), violations, result))
            _print_failure(rows[-1])
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    n_failed = sum(bool(row["wrong"]) for row in rows)
    print(f"{len(rows)} inputs, {n_failed} of them failed")
    sys.exit(bool(n_failed))


def _print_failure(row: dict[str, Any]) -> None:
    if row["wrong"]:
        print(
            f"{row['mechanism']}: {row['command']}\n  {row['wrong']}\n  {row['said']}", flush=True
        )


if __name__ == "__main__":
    main()
