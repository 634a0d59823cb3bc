"""Cases of the command line: invalid numbers, texts, paths, choices and syntax of options."""

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.odd_inputs.case import Case, Chain
from hwnas.core.options import is_numeric, iter_options
from hwnas.workflows.config import SCHEMAS
from hwnas.workflows.config.grammar import listed

_QUICK_SEARCH = [
    "+target=npu", "search_space=tiny", "accuracy=supernet", "finish.epochs=0", "train.epochs=1",
    "n_trials=3",
]  # fmt: skip
_TABLE_OPTIONS = [
    "accuracy=table", "cost=table", "benchmark.genotype=[op]", "benchmark.accuracy=acc",
    "benchmark.costs={latency_ms: ms}",
]  # fmt: skip
#: Valid commands by verb, in which only the option under test is invalid.
_BASE_COMMANDS = {
    "search": ["search", *_QUICK_SEARCH],
    "tabular": ["search", *_TABLE_OPTIONS, "benchmark.path=t.csv"],
    "train": ["train", "search_space=tiny", "train.epochs=1"],
    "profile": ["profile", "+target=cpu", "search_space=tiny"],
    "why": ["why", "run=there", "id=front"],
    "audit": ["audit", "run=there"],
    "compare": ["compare", "runs=t.csv", "objectives={acc: max, ms: min}"],
    "export": ["export", "run=there"],
    "compress": ["compress", "run=there", "budget.flash_kib=9"],
    "verify": ["verify", "there"],
    "split": ["split", "there"],
    "plan": ["plan", "service=s.yaml", "fleet=f.yaml"],
    "simulate": ["simulate", "plan=there"],
    "serve-check": ["serve-check", "plan=there"],
    "replan": ["replan", "plan=there", "telemetry=t.csv"],
}
#: A valid service and a valid fleet, with a front, by file name.
PLAN_FILES = {
    "front.csv": "id,precision,accuracy,target,batch,latency_ms,source\na,int8,0.9,cpu,1,2,table\n",
    "s.yaml": (
        "fronts: [front.csv]\nclasses:\n"
        "  one: {p99_ms: 60, accuracy_min: 0.8, regions: [here], demand: {rate: 20}}\n"
    ),
    "f.yaml": (
        "devices:\n  vm: {region: here, buy: on_demand, price: 0.1, quota: 4, slots: 2, idle_w: 5,"
        " busy_w: 9, start_s: 9, target: cpu}\n"
    ),
}
_INVALID_NUMBERS = ("nan", "inf", "1e20", "abc ü#{")
_LONG_NAME = "x" * 300
#: Options for input paths by verb, and below those for output paths.
_INPUT_PATHS = {
    "search": ("run.resume", "dataset.path", "search_space", "baseline", "start_from"),
    "tabular": ("benchmark.path", "run.resume"),
    "train": ("dataset.path", "search_space", "train.init_from", "run.resume"),
    "profile": ("dataset.path", "search_space"),
    "why": ("run",),
    "audit": ("run",),
    "compare": ("runs", "reference", "true_front"),
    "export": ("run",),
    "compress": ("run",),
    "verify": ("export",),
    "split": ("export",),
    "plan": ("service", "fleet"),
    "simulate": ("plan",),
    "serve-check": ("plan",),
    "replan": ("plan", "telemetry", "service", "fleet"),
}
_OUTPUT_PATHS = {
    "search": ("run.dir", "run.supernets"),
    "tabular": ("run.dir",),
    "train": ("run.dir", "run.supernets"),
    "profile": ("table.dir",),
    "compare": ("run.dir",),
    "split": ("dir",),
    "plan": ("run.dir",),
}
_INVALID_INPUTS = (
    "missing", "/proc/self", _LONG_NAME, "loop", "loop/x", "empty", "ü {a#b", "../../evil", "",
)  # fmt: skip
_INVALID_OUTPUTS = (
    "/proc/x", "/sys/x", _LONG_NAME, "loop", "loop/x", "file", "file/x", "/dev/null", "",
)  # fmt: skip
_CHOICE_OPTIONS = {
    "search": ("sampler", "budget", "dataset", "task", "accuracy", "cost", "train.optimiser",
               "train.dtype", "target.runtime", "target.meter"),
    "profile": ("dataset", "target.dtype", "target.runtime", "transfer_from"),
    "train": ("dataset", "train.optimiser", "genotype"),
    "compare": ("figures",),
    "plan": ("objective",),
    "serve-check": ("server",),
}  # fmt: skip
_INVALID_CHOICES = ("nonesuch", "../../evil", "ü#{", "null?", "", "x" * 300)
_INVALID_ARGUMENTS = (
    "word", "=3", "{", "nonesuch=1", "run.nonesuch=1", "--nonesuch", "ü=1", "+ü.x=1",
)  # fmt: skip
_LIST_OPTIONS = {
    "search": ("objectives", "trained.fidelities"),
    "tabular": ("benchmark.genotype", "benchmark.costs", "benchmark.reference"),
    "compare": ("objectives",),
}
_SECRET = "geheim"
_URLS = (
    f"postgresql:me:{_SECRET}@h", f"postgresql://me:a@{_SECRET}@h/db",
    f"postgresql://me:{_SECRET}@127.0.0.1:1/db", f"postgresql://127.0.0.1:1/db?password={_SECRET}",
    f"postgresql://me:a/{_SECRET}@127.0.0.1:1/db", f"oracle://me:{_SECRET}@127.0.0.1/db",
    f"postgresql://me:{_SECRET}@h:port/db",
)  # fmt: skip
_UNUSUAL_NAMES = (
    "ü漢字", "a b", "{x}", "a#b", "a=b", "it's", 'say "x"', "[x", "[x]", "(x)", "~x", "a,b", "${x}",
    "x?1", "%20", "a\nb", "\\x", "*", "-x", "null.", "1e5",
)  # fmt: skip


def prepare(folder: Path) -> None:
    """Create the files of the cases: a table, an empty folder, a file, a link to itself."""
    (folder / "t.csv").write_text("op,acc,ms\na,0.5,1\nb,0.6,2\nc,0.7,3\n")
    for name, content in PLAN_FILES.items():
        (folder / name).write_text(content)
    (folder / "empty").mkdir()
    (folder / "file").write_text("no run")
    os.symlink("loop", folder / "loop")


def cases() -> Iterator[Case]:
    """Yield all commands that must be rejected."""
    yield from _number_cases()
    for mechanism, options_by_verb, values in (
        ("read from a place", _INPUT_PATHS, _INVALID_INPUTS),
        ("written to a place", _OUTPUT_PATHS, _INVALID_OUTPUTS),
        ("choice", _CHOICE_OPTIONS, _INVALID_CHOICES),
        ("list", _LIST_OPTIONS, ("[", "{a", "[ü#", "3", "[nan,null]", "{nonesuch: nan}")),
    ):
        for verb, options in options_by_verb.items():
            for option in options:
                for value in values:
                    yield _case(mechanism, verb, option, value)
    for base in _BASE_COMMANDS.values():
        for argument in _INVALID_ARGUMENTS:
            key = argument.strip("+").partition("=")[0]
            names = (key or argument, argument, key.partition(".")[0] or argument)
            yield Case("grammar", argument, [*base, argument], names, prepare=prepare)
    for name in ("../../evil", "..", "a/b", "ü\n", _LONG_NAME):
        yield _case("name of a folder", "search", "target.name", name)
    for url in _URLS:
        storage = [f"study.storage={url}", "study.reconnect_timeout_s=1"]
        arguments = [*_BASE_COMMANDS["tabular"], *storage]
        yield Case("password", "study.storage", arguments, secret=_SECRET, prepare=prepare)


def _number_cases() -> Iterator[Case]:
    verbs = {
        option.name: verb
        for verb, schema in SCHEMAS.items()
        for option in iter_options(schema)
        if is_numeric(option.field.type) and option.name.count(".") < 2
    }
    for option, verb in verbs.items():
        for value in _INVALID_NUMBERS:
            if option not in ("target.facts", "benchmark.reference"):
                yield _case("number", verb, option, value)
    for value in _INVALID_NUMBERS:
        for name in ("budget.latency_ms", "target.facts.price_usd_per_h"):
            yield _case("number", "search", name, value)


def _case(mechanism: str, verb: str, option: str, value: str) -> Case:
    """Return a case in which an option of the base command has the given value."""
    base = [a for a in _BASE_COMMANDS[verb] if a.partition("=")[0].lstrip("+") != option]
    arguments = [value or "."] if option == "export" else [f"{option}={value}"]
    if option == "export":
        base = [verb]
    if option.startswith("target.") and verb in ("verify", "split"):
        arguments.insert(0, "+target=cpu")
    names = (option, option.rpartition(".")[2].removesuffix("s"), value or "export")
    return Case(mechanism, option, [*base, *arguments], names, prepare=prepare)


def chains() -> Iterator[Chain]:
    """Yield unusual names of folders in which all commands must succeed."""
    for name in _UNUSUAL_NAMES:
        base = ["run.supernets=nets", *_QUICK_SEARCH]
        run, out = f"{name}/run", f"{name}/out"
        yield Chain(
            "odd path",
            name,
            (
                ["search", *base, f"run.dir={run}"],
                ["search", f"run.resume={run}", "n_trials=4"],
                ["why", f"run={run}", "id=front"],
                ["compare", f"runs={listed([run])}", f"run.dir={name}/compared", "n_bootstrap=0"],
                ["export", f"run={run}", f"dir={out}", "pick=fastest"],
                ["verify", f"export={out}/{{id}}" if name[0] == "-" else f"{out}/{{id}}"],
            ),
        )
