"""Files that are damaged, or are not ours: each is refused in one line, and nothing is left behind.

    python -m benchmarks.odd_files [--base DIR] [NAME ...]

A case is what is done to a copy of a run, its export, a space, a target or a table, and the command
that then reads it. Cases run in forked children of one process, which has imported everything.
``DIR`` keeps the run and the export between calls.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from benchmarks.odd_cases import Case, cases
from hwnas.__main__ import run

LIMIT_S = 60
MEMORY = 24 << 30  # of address space; torch maps much that it does not use
_WARM = (
    "torch", "hwnas.api.search", "hwnas.api.exporting", "hwnas.api.verifying", "hwnas.api.why",
    "hwnas.api.comparing", "hwnas.api.auditing", "hwnas.api.profiling", "hwnas.api.tabular",
)  # fmt: skip


def prepare(base: Path) -> None:
    """Make a run, its export and a benchmark table in a folder."""
    if (base / "export").is_dir():
        return
    quick = ["+target=npu", "search_space=tiny", "train.epochs=2", "n_trials=8", "finish.epochs=0"]
    with contextlib.chdir(base):
        places = ["run.dir=run", "run.supernets=supernets", "study.workers=1"]
        assert run(["search", *quick, *places, "trained.fidelities=[1]", "budget=none"]) == 0
        assert run(["export", "run=run", "pick=fastest", "dir=exports"]) == 0
        (made,) = Path("exports").glob("????????????")
        made.rename("export")
        shutil.rmtree("exports")
        rows = [
            {"a": a, "b": b, "acc": 0.5 + a / 9, "ms": 1.0 + b} for a in range(3) for b in (1, 2)
        ]
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), "table.csv")


def outcome(case: Case, base: Path) -> str:
    """Return what is wrong with how a case ends; empty where it is refused as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder, "here")
        shutil.copytree(base, here, symlinks=True, ignore=shutil.ignore_patterns("supernets"))
        case.damage(here)
        before, began = _listing(here), time.monotonic()
        said = Path(folder, "said")
        if not (child := os.fork()):
            _child(case, here, said)
        _, status = os.waitpid(child, 0)
        took, code = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        lines = said.read_text(errors="replace").splitlines()
        left = sorted(_listing(here) - before)
    wrong = [] if code in (1, 2) else [f"exit code {code}"]
    wrong += (
        [] if sum(line.startswith("hwnas: ") for line in lines) == 1 else [" | ".join(lines[-2:])]
    )
    wrong += ["traceback"] if any(line.startswith("Traceback") for line in lines) else []
    wrong += [f"left {', '.join(left[:3])}"] if left else []
    wrong += [f"took {took:.0f} s"] if took > LIMIT_S else []
    shown = (lines or [""])[-1][:160]
    print(f"{'WRONG' if wrong else 'ok':6}{took:5.1f} s  {case.name}: {shown}", flush=True)
    return "; ".join(wrong)


def _listing(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in found if not name.startswith("supernets")}  # kept for other runs


def _child(case: Case, here: Path, said: Path) -> None:
    """Run the command of a case, and end."""
    code = 99
    try:
        os.chdir(here)
        null, error = os.open(os.devnull, os.O_RDWR), os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(error, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(LIMIT_S)
        sys.argv = ["hwnas"]
        code = run(list(case.arguments))
    except BaseException as error:
        import traceback

        traceback.print_exception(error)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Run all cases, or those whose names begin so; exit with 1 if one goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    os.environ["ODD_ROOT"] = str(Path.cwd())
    wanted = [c for c in cases() if not given.names or c.name.startswith(tuple(given.names))]
    with tempfile.TemporaryDirectory() as folder:
        base = (given.base or Path(folder)).absolute()
        base.mkdir(exist_ok=True)
        # Elsewhere: after torch has used its threads here, forked children would wait for them.
        process = multiprocessing.get_context("spawn").Process(target=prepare, args=(base,))
        process.start()
        process.join()
        assert process.exitcode == 0
        for module in _WARM:
            importlib.import_module(module)
        wrong = {case.name: why for case in wanted if (why := outcome(case, base))}
    for name, why in wrong.items():
        print(f"{name}: {why}")
    print(f"{len(wanted) - len(wrong)} of {len(wanted)} cases are refused in one line.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
