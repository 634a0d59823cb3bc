"""What ``python -m hwnas`` and ``python -m hwnas <verb> --help`` print."""

from collections.abc import Mapping
from typing import Any

import yaml

from hwnas import backends, content, metrics
from hwnas.api.options import options
from hwnas.budget import Budget
from hwnas.commands import defaults
from hwnas.version import __version__

#: Config groups by what they are called on the command line.
_GROUPS = {
    "+target=": "targets",
    "budget=": "budgets",
    "dataset=": "data sets",
    "task=": "tasks",
    "sampler=": "samplers",
}


_WRITING = (
    "Paths, names, ids and URLs are taken as they are written, whatever signs they hold; those in",
    "quotes are what is in the quotes, null is none. [A,B] is a list where several can be given;",
    "elements with a comma need quotes. With -m, commas outside quotes and lists separate runs.",
)


def overview(verbs: Mapping[str, str]) -> str:
    """Return the list of verbs."""
    lines = [
        f"hwnas {__version__}: hardware-constrained neural architecture search",
        "",
        "usage: python -m hwnas <verb> [option=value ...]",
        "",
        "verbs:",
        *(f"  {verb:<13}{text}" for verb, text in verbs.items()),
        "",
        "Start with:  python -m hwnas search +target=npu",
        "More of a verb:  python -m hwnas <verb> --help",
    ]
    return "\n".join(lines)


#: Facts of the device, and what only data sets set.
_HIDDEN = {
    "search": ("target.",),
    "profile": ("target.", "train.", "trained."),
    "train": ("trained.",),
    "verify": ("target.",),
}
#: What cannot be left out.
_FIRST = {
    "search": "+target=<name> ",
    "train": "",
    "profile": "+target=<name> ",
    "why": "run=DIR id=GENOTYPE ",
    "audit": "run=DIR ",
    "compare": "runs='[DIR,DIR]' ",
    "export": "run=DIR ",
    "compress": "run=DIR id=GENOTYPE budget.METRIC=LIMIT ",
    "verify": "DIR ",
    "plan": "service=FILE fleet=FILE ",
    "simulate": "plan=DIR ",
    "replan": "plan=DIR telemetry=FILE|URL ",
    "serve-check": "plan=DIR ",
}
_ABOUT = {
    "search": [
        "Scores candidates by training each alone, or in a supernet (accuracy=trained, supernet),",
        "finishes those that may be on the Pareto front, verifies each from its compiled artefact,",
        "and writes runs/search/<time>/.",
    ],
    "train": [
        "Trains the supernet of a search space, which searches with the same options use then, and",
        "reads the accuracy of its smallest, its largest and 10 random subnets. With genotype=...",
        "it trains one network alone. Writes runs/train/<time>/; the same command goes on with",
        "what was interrupted. On several GPUs or machines: torchrun ... -m hwnas train ...",
    ],
    "profile": [
        "Compiles, tunes and times the operators of a search space on a target, measures whole",
        "networks to calibrate their sum, and reports the error on networks it has not seen.",
        "Writes latency_tables/<target>/; only what is new is measured, and Ctrl-C loses nothing.",
    ],
    "audit": [
        "Trains networks of a finished search alone, from scratch, and says how well the supernet",
        "ranks them: rank correlations with intervals, the noise of seeds, and what would leave",
        "the front. Writes DIR/audit/ and into the report; the same command goes on with what was",
        "interrupted. It takes k + n_repeated trainings: give fewer epochs to take less time.",
    ],
    "why": [
        "Reads the folder of a search, finished or not, and says of one candidate: when and why",
        "it was proposed, what was expected of it and what was found, which limits it keeps and",
        "breaks, what it beat when it came, and what beats it now. Writes nothing.",
    ],
    "export": [
        "Takes models of a finished search to the device: files of each runtime, runners of ten",
        "lines, a stand-alone model.py, a model card, and proof.json: outputs against torch,",
        "accuracy of each file itself, costs against the budget. Writes runs/export/<time>/<id>/;",
        "what does not hold is kept as <id>.failed, and the exit code is 1.",
        "pick: the knee is the member farthest above the chord of the front, all objectives scaled",
        "to 0..1. An expression is 'COLUMN max|min where CONDITION' or 'where CONDITION', with",
        "< <= > >= == != and or not ( ); columns are the verified figures (accuracy, latency_ms,",
        "energy_mj, ..., see search --help; npu.latency_ms with several targets).",
    ],
    "compress": [
        "Fits a network of a finished search into another budget without a new search: weights of",
        "few bits where they gain most and lose least, as the target's compiler and the network",
        "say layer by layer, and fewer channels where that does not suffice. Trains it for that,",
        "and writes runs/compress/<time>/<id>/ as export does, with the proof.",
    ],
    "verify": [
        "Repeats the proof of an export with the runtimes at hand: files, outputs against torch's",
        "(which the export holds: torch is not needed), the accuracy on the test split where torch",
        "and the data are, and with +target=... the costs on that target. A missing, changed or",
        "extra file is named; exit code 1. It runs model.py and compiled libraries of the folder:",
        "verify only what you would run. Writes nothing.",
    ],
    "compare": [
        "Compares the fronts of searches, finished or not, and of other tools (CSV files with a",
        "column for each objective; NAME_low, NAME_high, id, run, group if you like): indicators",
        "with intervals, tests over seeds, tables that answer questions, figures for a paper, and",
        "report.html, an interactive page of all that needs no network.",
        "Writes runs/compare/<time>/; the same input gives the same numbers.",
    ],
    "plan": [
        "Chooses which models of fronts run on which devices, at which batch size, in how many",
        "replicas and in which hour, and which requests go where, so that p99, accuracies, quotas",
        "and budgets hold, with any one machine dead or all spot machines gone where that is asked",
        "for. Plans are simulated, and corrected until no class has 1 % late in any hour.",
        "Writes runs/plan/<time>/: plan.yaml, report.html, tables, and deploy/, what launches it",
        "by Triton on Kubernetes, KServe or Ray Serve. pip install 'hwnas[plan]'.",
    ],
    "simulate": [
        "Simulates the hours of a plan by discrete events: arrivals at random or in the bursts of",
        "a trace, batches, escalations, failures with retries, machines slowed by heat. Says p50,",
        "p99 and the share of late requests of each class, cost and energy, with intervals over",
        "seeds. Writes runs/simulate/<time>/; the same input gives the same bytes.",
    ],
    "replan": [
        "Changes a plan by what was seen since: demands, late answers, machines that are down.",
        "Hours in which nothing changed stay as they are; others are solved again near what runs:",
        "moves count move_cost, and at most most_moved of an hour's replicas are stopped, unless",
        "demand could not be served otherwise. telemetry is a CSV file with a column time (dates,",
        "or seconds since 1970) or hour (of the plan), and class, requests_per_s, late, p99_ms, or",
        "device, machines_down; or the URL of a Prometheus server, which query.* ask.",
        "Writes runs/replan/<time>/: a plan as any; where something moved, decisions.csv says why.",
    ],
    "serve-check": [
        "Serves pools of a plan by Triton or Ray Serve on this machine's loopback, measures how",
        "long batches take there, simulates a replica with that, and sends it requests at random",
        "times. Latencies count from when requests were due. Prints simulated and measured p50,",
        "p95 and p99 by load, with 95 % intervals over repeats. A machine whose speed drifts is",
        "refused: end other programs. Writes runs/serve-check/<time>/. Servers are packages of",
        "Python: pip install --no-deps nvidia-pytriton, or 'ray[serve]'; python=PATH names an",
        "interpreter that has one.",
    ],
}
_EXAMPLES = {
    "compress": [
        "compress run=runs/search/<time> id=3f2a budget.flash_kib=20",
        "compress run=runs/search/<time> id=most_accurate budget.latency_ms=0.1 prune=[0]",
    ],
    "export": [
        "export run=runs/search/<time> pick=knee      # or most_accurate, fastest, smallest, all",
        "export run=runs/search/<time> pick=3f2a      # an id, or how it begins",
        "export run=runs/search/<time> pick='accuracy max where latency_ms <= 0.8 and flash_kib"
        " <= 300'",
        "export run=runs/search/<time> pick='where energy_mj < 0.1 or not sram_kib > 64'",
    ],
    "verify": [
        "verify runs/export/<time>/<id>",
        "verify runs/export/<time>/<id> data=DIR                 # the data set is in DIR",
        "verify runs/export/<time>/<id> +target=npu",
    ],
    "plan": [
        "plan service=service.yaml fleet=fleet.yaml",
        "plan service=service.yaml fleet=fleet.yaml objective=carbon limit_s=60",
    ],
    "simulate": [
        "simulate plan=runs/plan/<time>",
        "simulate plan=runs/plan/<time> trace=arrivals.csv n_seeds=10",
        "simulate plan=runs/plan/<time> kill=spot",
        "simulate plan=runs/plan/<time> 'kill=[cpu,gpu]' hours=[12,20] throttle=cpu:0.7",
    ],
    "replan": [
        "replan plan=runs/plan/<time> telemetry=seen.csv",
        "replan plan=runs/plan/<time> telemetry=seen.csv move_cost=0.5 most_moved=0.1",
        "replan plan=runs/plan/<time> telemetry=http://localhost:9090 query.window_h=6"
        " 'query.rate=sum by (class) (rate(requests_total[5m]))'",
    ],
    "serve-check": [
        "serve-check plan=runs/plan/<time>",
        "serve-check plan=runs/plan/<time> server=ray loads=[0.5,0.9] seconds=30 repeats=5",
        "serve-check plan=runs/plan/<time> python=servers/bin/python drift=0.1",
    ],
    "search": [
        "search +target=npu budget.latency_ms=0.3 budget.sram_kib=32",
        "search +target=cpu cost=measured budget=none",
        "search +target=npu dataset=fashion_mnist dataset.path=DIR n_trials=600",
        "search +target=npu task=regression dataset=digit_angles",
        "search '+target=[npu,cpu]' npu.budget.latency_ms=0.3 cpu.budget.latency_ms=0.1",
        "search +target=npu study.workers=2",
        "search +target=npu study.storage=postgresql://USER@HOST/NAME   # on every machine",
        "search -m +target=npu sampler=pareto,nsga2 seed=0,1,2          # one run each",
        "search +target=npu baseline=runs/search/<time>      # how much faster, at equal accuracy?",
        "search run.resume=runs/search/<time>",
        "search accuracy=table cost=table table.path=FILE.parquet 'table.genotype=[e0,e1]'"
        " table.accuracy=COLUMN 'table.costs={latency_ms: COLUMN}' sampler=pareto",
        "search --config-dir mydir +target=myboard",
    ],
    "train": [
        "train dataset=fashion_mnist dataset.path=DIR train.epochs=30",
        "train search_space=tiny train.optimiser=adamw train.lr=0.002 train.ema=0.999",
        "train train.tensorboard=true    # then: tensorboard --logdir runs/train",
        "train search_space=ofa_mobilenet_v3 dataset=imagenet1k train.init_from=ofa.pth"
        " train.epochs=0",
        "train genotype=largest                           # one network from scratch",
        "train genotype=largest train.from_supernet=true  # fine-tuned supernet weights",
    ],
    "profile": [
        "profile +target=cpu",
        "profile +target=cpu genotype=largest",
        "profile +target=raspi4 rpc.tracker=HOST:PORT rpc.key=raspi4",
        "profile +target=raspi4 rpc.tracker=HOST:PORT rpc.key=raspi4 transfer_from=cpu",
    ],
    "audit": [
        "audit run=runs/search/<time>",
        "audit run=runs/search/<time> k=8 n_repeated=2 epochs=8",
    ],
    "why": [
        "why run=runs/search/<time> id=front      # the ids of the front",
        "why run=runs/search/<time> id=3f2a       # an id, or how it begins",
    ],
    "compare": [
        "compare runs='[runs/search/a,runs/search/b]'",
        "compare runs='runs/search/*' group_by=sampler        # many seeds a group: tests",
        "compare runs='[a.csv,b.csv]' 'objectives={accuracy: max, latency_ms: min}'",
        "compare runs='[c,d]' reference=runs/compare/<time>/comparison.json",
        "compare runs='[runs/search/npu,runs/search/cpu]' recost=true",
    ],
}


def verb_help(verb: str, schema: type) -> str:
    """Return targets, budgets, spaces, data sets and options of a verb, a line each."""
    known, chosen = [name for name, _ in options(schema)], defaults.chosen(verb)
    lines = [f"python -m hwnas {verb} {_FIRST[verb]}[option=value ...]", "", *_ABOUT[verb]]
    for option, title in _GROUPS.items():
        group = option.strip("+=")
        if any(f"{name}.".startswith((f"{group}.", f"dataset.{group}.")) for name in known):
            entries = content.entries(content.ROOT / "conf" / group)
            if taken := chosen.get(group):
                entries[taken] += " (default)"
            lines += ["", f"{title}:", *_lines(option, entries)]
    if "search_space" in known:
        lines += _spaces(by_target="target.spaces" in known)
    if "objectives" in known and "cost" in known:
        lines += ["", *_metrics()]
        lines += ["", "target.runtime, with the cost=... that each takes, the default first:"]
        lines += _backends()
    files = ", ".join(f"{group}={name}" for group, name in chosen.items())
    by = f", by {files}; other files set others" if files else ""
    lines += ["", f"options with their defaults{by}:"]
    lines += _options(verb, schema)
    if "target.spaces" in known:
        lines += ["  target.NAME=VALUE: what the file of a target says; --cfg job prints it"]
    lines += ["", "examples:", *(f"  python -m hwnas {example}" for example in _examples(verb))]
    lines += ["", *_WRITING]
    lines += ["The configuration is Hydra's: --cfg job prints it, --hydra-help tells more."]
    return "\n".join(lines)


def _backends() -> list[str]:
    """Return the backends, a line each."""
    entries = {f"{d.name} ({', '.join(d.costs)})": d.about for d in backends.known()}
    return _lines("target.runtime=", entries)


def _examples(verb: str) -> list[str]:
    return [*_EXAMPLES[verb], *(e for d in backends.known() for e in d.examples.get(verb, ()))]


def _metrics() -> list[str]:
    """Return what can be an objective, or limited by a budget."""
    lines = [
        "metrics: 'objectives=[accuracy,latency_ms]'; but for accuracy and mae, budget.NAME=LIMIT,",
        "too: an upper limit, or a lower one of what is to be maximised:",
    ]
    entries = {}
    for name, metric in metrics.known().items():
        words = metric.label + f", {metric.unit}" * bool(metric.unit)
        words += "; to be maximised" * metric.maximise
        words += "".join(f"; needs target.facts.{fact}=NUMBER" for fact in metric.facts)
        entries[name] = words
    return [*lines, *_lines("", entries)]


def _spaces(*, by_target: bool) -> list[str]:
    """Return the search spaces, folders of them, and what suits which target."""
    root = content.ROOT / "search_spaces"
    several = ", or a list: search_space='[A,B]'" if by_target else ""
    lines = ["", f"search spaces (a path to a YAML file works too{several}):"]
    lines += _lines("search_space=", content.entries(root))
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        inner = {f"{folder.name}/{n}": text for n, text in content.entries(folder).items()}
        lines += [f"  search_space={folder.name}  all of:"] if inner and by_target else []
        lines += _lines("search_space=", inner) if inner else []
    if by_target:
        lines += ["  by default those that suit the target:"]
        targets: dict[str, list[str]] = {}
        for path in sorted((content.ROOT / "conf" / "target").glob("*.yaml")):
            named = yaml.safe_load(path.read_text(encoding="utf-8")).get("spaces") or [
                "mbconv_small"
            ]
            targets.setdefault(", ".join(named), []).append(path.stem)
        lines += [f"    {names}: {', '.join(own)}" for names, own in targets.items()]
    return lines


def _options(verb: str, schema: type) -> list[str]:
    """Return the options of a verb with what it starts from, a line each."""
    values, hidden = defaults.values(verb), _HIDDEN.get(verb, ())
    shown = [(n, values.get(n, v)) for n, v in _shown(schema) if not n.startswith(hidden)]
    return [f"  {name}={'' if value is None else value}" for name, value in shown]


def _shown(schema: type) -> list[tuple[str, Any]]:
    """Return options with their defaults; a budget as the limits that it may have."""
    limits = [("budget.name", Budget.name), *((f"budget.{n}", None) for n in metrics.costs())]
    return [
        shown
        for name, value in options(schema)
        for shown in (limits if name == "budget" else [(name, value)])
    ]


def _lines(option: str, entries: Mapping[str, str]) -> list[str]:
    width = max(len(name) for name in entries) + len(option) + 2
    return [f"  {option + name:<{width}}{text}" for name, text in entries.items()]
