"""Commands ``plan``, ``simulate``, ``replan``, ``serve-check`` and ``split``."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.cli.console import run_verb
from hwnas.cli.output import folder_row, print_lines, print_result
from hwnas.core.run_folder import Row
from hwnas.workflows.config import PlanConfig
from hwnas.workflows.plan import plan, simulate
from hwnas.workflows.replan import replan, serve_check
from hwnas.workflows.result_folders import FolderResult
from hwnas.workflows.split import split


def plan_command(config: PlanConfig, arguments: Sequence[str]) -> None:
    """Run ``hwnas plan`` and print its result."""
    run_verb(partial(plan, config, arguments), _print_plan, folder_row)


def _print_plan(console: Console, result: FolderResult) -> None:
    print_result(console, result)
    command = shlex.join(["hwnas", "simulate", f"plan={result.path}", "kill=DEVICE"])
    print_lines(console, [f"Simulate with failures: {command}"])


_MAX_MOVES = 12  #: rows of changes
_PERCENTILES = ("p50", "p95", "p99")


def _load_table(result: FolderResult) -> Table:
    """Return a row for each pool and load."""
    table = Table(
        "pool", "load", "a second", *(f"{name} ms" for name in _PERCENTILES),
        title="Simulated / measured, ± half of the 95 % interval over repeats",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    for row in result.rows["loads"]:
        table.add_row(
            row["pool"], f"{row['load']:.0%}", f"{row['rate_per_s']:.0f}",
            *(_pair(row, name) for name in _PERCENTILES),
        )  # fmt: skip
    return table


def _pair(row: Row, name: str) -> str:
    measured = f"measured_{name}_ms"
    half = (row[f"{measured}_high"] - row[f"{measured}_low"]) / 2
    simulated, error = row[f"simulated_{name}_ms"], row[f"error_{name}"]
    return f"{simulated:.2f} / {row[measured]:.2f}±{half:.2f} ({error:+.0%})"


def _split_table(result: FolderResult) -> Table:
    unsplit = {
        str(row["target"]): row for row in reversed(result.rows["profile"]) if not row["place"]
    }
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1), title="Milliseconds of head + tail",
        show_edge=False,
    )  # fmt: skip
    table.add_column("cut", no_wrap=True)
    table.add_column("after", overflow="fold")
    table.add_column("KiB", justify="right", no_wrap=True)
    table.add_column("work", justify="right", no_wrap=True)
    for target, row in unsplit.items():
        many = f", {row['batch']} images" if row["batch"] != 1 else ""
        table.add_column(f"{target}{many}", justify="right", no_wrap=True)
    for row in result.rows["cuts"]:
        times = [f"{row[f'head_ms.{t}']:.3g} + {row[f'tail_ms.{t}']:.3g}" for t in unsplit]
        sent = f"{row['activation_kib']:.3g}"
        table.add_row(row["name"], row["after"], sent, f"{row['head_macs']:.0%}", *times)
    table.add_row("none", "", "", "", *(f"{row['latency_ms']:.3g}" for row in unsplit.values()))
    return table


def _hour_table(result: FolderResult) -> Table:
    """Return the worst hour of each class: where something failed, in the minute after it."""
    failed = any("replicas_failed" in row for row in result.rows.get("hours", ()))
    shares = {"late": "late", **({"late_after": "late after"} if failed else {})}
    *_, judged = shares
    columns = [column for head in shares.values() for column in (head, "95 %")]
    table = Table(
        "class", "hour", "p50 ms", "p99 ms", "limit", *columns, "lost",
        title="The hour of each class with the most late requests" + " after a failure" * failed,
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    worst: dict[str, Row] = {}
    for row in result.rows.get("classes", ()):
        if row["class"] not in worst or row[judged] > worst[row["class"]][judged]:
            worst[row["class"]] = row
    for name, row in worst.items():
        table.add_row(
            name, str(row["hour"]), f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
            f"{row['p99_limit_ms']:g}", *(cell for share in shares for cell in _share(row, share)),
            str(row["lost"]),
        )  # fmt: skip
    return table


def _share(row: Row, name: str) -> tuple[str, str]:
    """Return a share and its interval."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.2%}", "" if low is None else f"±{(high - low) / 2:.2%}"


def _decisions_table(result: FolderResult) -> Table:
    """Return the largest changes of replicas."""
    rows = result.rows.get("decisions", ())
    moves = [row for row in rows if row["unit"] == "replicas"]
    moves.sort(key=lambda row: -abs(row["after"] - row["before"]) * row["n_hours"])
    title = f"Changes of replicas, the largest of {len(moves)} in decisions.csv"
    table = Table("hours", "device", "model", "replicas", "why", title=title, box=box.SIMPLE_HEAD)
    for row in moves[:_MAX_MOVES]:
        replicas = f"{row['before']} to {row['after']}"
        table.add_row(row["hours"], row["device"], row["model"], replicas, row["why"])
    return table


def _command(
    verb: Callable[..., FolderResult], table: Callable[[FolderResult], Table]
) -> Callable[..., None]:
    """Return the function that runs a verb and prints its result with a table."""

    def command(config: object, arguments: Sequence[str]) -> None:
        run_verb(partial(verb, config, arguments), partial(print_result, table=table), folder_row)

    return command


replan_command = _command(replan, _decisions_table)
serve_check_command = _command(serve_check, _load_table)
simulate_command = _command(simulate, _hour_table)
split_command = _command(split, _split_table)
