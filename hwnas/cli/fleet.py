"""``python -m hwnas simulate``: what the terminal shows of a simulation."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.cli.console import Phases, print_lines, print_phases
from hwnas.core.run_folder import Row
from hwnas.export.options import SplitConfig
from hwnas.workflows.config import PlanConfig, ReplanConfig, ServeCheckConfig, SimulateConfig
from hwnas.workflows.plan import PlanOutcome, plan, simulate
from hwnas.workflows.replan import ServeCheckOutcome, replan, serve_check
from hwnas.workflows.split import SplitOutcome, split

# ``python -m hwnas plan``: what the terminal shows of a plan.


def plan_command(config: PlanConfig, arguments: Sequence[str]) -> None:
    """Plan, and print what was found."""
    console = Console()
    with Phases(console) as phases:
        found = plan(config, arguments, phases)
    print_found(console, found)
    print_lines(
        console,
        [
            f"Open in a browser: {found.path / 'report.html'}",
            f"Simulate with failures: python -m hwnas simulate plan={found.path} kill=DEVICE",
        ],
    )
    print_phases(console, phases)


def print_found(console: Console, found: PlanOutcome) -> None:
    """Print sentences, and where files are."""
    print_lines(console, [*found.sentences, f"Files in {found.path}: {' '.join(found.files)}"])


# ``python -m hwnas serve-check``: what the terminal shows of a server and its simulation.

_SHOWN = ("p50", "p95", "p99")
_MAX_MOVES = 12


def serve_check_command(config: ServeCheckConfig, arguments: Sequence[str]) -> None:
    """Check, and print simulated and measured latencies."""
    console = Console()
    with Phases(console) as phases:
        found = serve_check(config, arguments, phases)
    console.print(_load_table(found))
    print_lines(console, [*found.sentences, f"Files in {found.path}: {' '.join(found.files)}"])
    print_phases(console, phases)


def _load_table(found: ServeCheckOutcome) -> Table:
    """Return a row for each pool and load."""
    shown = Table(
        "pool", "load", "a second", *(f"{name} ms" for name in _SHOWN),
        title="Simulated / measured, ± half of the 95 % interval over repeats",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    for row in found.rows:
        shown.add_row(
            row["pool"], f"{row['load']:.0%}", f"{row['rate_per_s']:.0f}",
            *(_pair(row, name) for name in _SHOWN),
        )  # fmt: skip
    return shown


def _pair(row: Row, name: str) -> str:
    said = f"measured_{name}_ms"
    half = (row[f"{said}_high"] - row[f"{said}_low"]) / 2
    simulated, error = row[f"simulated_{name}_ms"], row[f"error_{name}"]
    return f"{simulated:.2f} / {row[said]:.2f}±{half:.2f} ({error:+.0%})"


# ``python -m hwnas split``: what the terminal shows of a network that was cut in two.


def split_command(configs: Sequence[SplitConfig], arguments: Sequence[str]) -> None:
    """Cut a network in two for one target or several, and print what its parts take."""
    console = Console()
    with Phases(console) as phases:
        found = split(configs, arguments, phases)
    console.print(_split_table(found))
    print_lines(console, [*found.sentences, f"Files in {found.path}: {' '.join(found.files)}"])
    print_phases(console, phases)


def _split_table(found: SplitOutcome) -> Table:
    whole = {str(row["target"]): row for row in reversed(found.profile) if not row["place"]}
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1), title=f"{found.name}: milliseconds of head + tail",
        show_edge=False,
    )  # fmt: skip
    table.add_column("cut", no_wrap=True)
    table.add_column("after", overflow="fold")
    table.add_column("KiB", justify="right", no_wrap=True)
    table.add_column("work", justify="right", no_wrap=True)
    for target, row in whole.items():
        many = f", {row['batch']} images" if row["batch"] != 1 else ""
        table.add_column(f"{target}{many}", justify="right", no_wrap=True)
    for row in found.cuts:
        times = [f"{row[f'head_ms.{t}']:.3g} + {row[f'tail_ms.{t}']:.3g}" for t in whole]
        sent = f"{row['activation_kib']:.3g}"
        table.add_row(row["name"], row["after"], sent, f"{row['head_macs']:.0%}", *times)
    table.add_row("none", "", "", "", *(f"{row['latency_ms']:.3g}" for row in whole.values()))
    return table


def simulate_command(config: SimulateConfig, arguments: Sequence[str]) -> None:
    """Simulate a plan, and print what was seen."""
    console = Console()
    with Phases(console) as phases:
        found = simulate(config, arguments, phases)
    console.print(_simulation_table(found))
    print_found(console, found)
    print_phases(console, phases)


def _simulation_table(found: PlanOutcome) -> Table:
    """Return the worst hour of each class: where something failed, in the minute after it."""
    failed = any("replicas_failed" in row for row in found.tables.get("hours", ()))
    shares = {"late": "late", **({"late_after": "late after"} if failed else {})}
    *_, judged = shares
    columns = [column for head in shares.values() for column in (head, "95 %")]
    shown = Table(
        "class", "hour", "p50 ms", "p99 ms", "limit", *columns, "lost",
        title="The hour of each class with the most late requests" + " after a failure" * failed,
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    worst: dict[str, Row] = {}
    for row in found.tables.get("classes", ()):
        if row["class"] not in worst or row[judged] > worst[row["class"]][judged]:
            worst[row["class"]] = row
    for name, row in worst.items():
        shown.add_row(
            name, str(row["hour"]), f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
            f"{row['p99_limit_ms']:g}", *(cell for share in shares for cell in _share(row, share)),
            str(row["lost"]),
        )  # fmt: skip
    return shown


def _share(row: Row, name: str) -> tuple[str, str]:
    """Return a share and its interval."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.2%}", "" if low is None else f"±{(high - low) / 2:.2%}"


# ``python -m hwnas replan``: what the terminal shows of a plan that telemetry changed.


def replan_command(config: ReplanConfig, arguments: Sequence[str]) -> None:
    """Plan on, and print what was moved, and why."""
    console = Console()
    with Phases(console) as phases:
        found = replan(config, arguments, phases)
    console.print(_decisions_table(found.tables.get("decisions", ())))
    print_found(console, found)
    print_lines(console, [f"Open in a browser: {found.path / 'report.html'}"])
    print_phases(console, phases)


def _decisions_table(rows: Sequence[Row]) -> Table:
    """Return the largest changes of replicas."""
    moves = [row for row in rows if row["unit"] == "replicas"]
    moves.sort(key=lambda row: -abs(row["after"] - row["before"]) * row["n_hours"])
    title = f"Changes of replicas, the largest of {len(moves)} in decisions.csv"
    table = Table("hours", "device", "model", "replicas", "why", title=title, box=box.SIMPLE_HEAD)
    for row in moves[:_MAX_MOVES]:
        replicas = f"{row['before']} to {row['after']}"
        table.add_row(row["hours"], row["device"], row["model"], replicas, row["why"])
    return table
