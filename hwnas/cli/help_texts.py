"""Help texts of each verb: summary, usage, description, common options and examples."""

#: One line for each verb, in the order of a first project.
VERBS = {
    "search": "find and verify a Pareto front of networks for a target",
    "resume": "continue an interrupted search or training",
    "export": "write networks of a front as files for the device, with a proof",
    "verify": "repeat the proof of an export",
    "why": "explain a candidate: its proposal, its figures, what dominates it",
    "compare": "compare the fronts of several searches",
    "train": "train the supernet of a search space, or one network",
    "audit": "check the ranking of a supernet against separate trainings",
    "profile": "measure the latency table of a target, and its error",
    "compress": "fit a network of a search into a smaller budget",
    "split": "cut an exported network in two, for two devices",
    "plan": "choose models, devices and replicas for a service",
    "simulate": "simulate a plan: latencies, failures, cost and energy",
    "replan": "update a plan from telemetry",
    "serve-check": "compare the simulation of a plan with a real server",
    "list": "list targets, budgets, data sets, spaces, metrics, ...",
    "completion": "print the completion script of a shell: bash, zsh or fish",
}
USAGE = {
    "resume": "RUN [OPTION=VALUE ...]",
    "list": "KIND [NAME]",
    "completion": "bash|zsh|fish",
    "search": "+target=NAME [OPTION=VALUE ...]",
    "train": "[OPTION=VALUE ...]",
    "profile": "+target=NAME [OPTION=VALUE ...]",
    "why": "RUN [ID]",
    "audit": "RUN [OPTION=VALUE ...]",
    "compare": "RUN RUN ... [OPTION=VALUE ...]",
    "export": "RUN [OPTION=VALUE ...]",
    "compress": "RUN id=ID budget.METRIC=LIMIT [OPTION=VALUE ...]",
    "verify": "EXPORT [OPTION=VALUE ...]",
    "split": "EXPORT [OPTION=VALUE ...]",
    "plan": "service=FILE fleet=FILE [OPTION=VALUE ...]",
    "simulate": "PLAN [OPTION=VALUE ...]",
    "replan": "PLAN telemetry=FILE|URL [OPTION=VALUE ...]",
    "serve-check": "PLAN [OPTION=VALUE ...]",
}
ABOUT = {
    "resume": "Continue a search or training that was interrupted, or extend a finished search. "
    "The options are those of the run; options given here replace them, such as n_trials (the "
    "total), minutes and finish.max_candidates. hwnas search run.resume=RUN does the same. All "
    "options: hwnas search --help all.",
    "list": "List names with their descriptions. Kinds: targets, budgets, datasets, spaces, "
    "metrics, samplers, backends. With a name, print its details; those of spaces, targets, "
    "budgets, data sets and samplers are YAML files to start from.",
    "completion": "Print the script that completes verbs, options and names of hwnas in a shell.",
    "search": "Search for networks that fit a target's budget. Candidates are compiled or "
    "measured for the target, trained, and those that may be on the Pareto front are fine-tuned "
    "and verified from their compiled files. Writes runs/search/TIME/.",
    "train": "Train the supernet of a search space; searches with the same options use it. With "
    "genotype=..., train one network. The same command continues an interrupted training. Several "
    "GPUs: torchrun ... -m hwnas train ... Writes runs/train/TIME/.",
    "profile": "Compile, tune and time the operators of a search space on a target, measure whole "
    "networks, and report the prediction error on other networks. Writes latency_tables/TARGET/. "
    "Operators in the table are not measured again, so the same command continues.",
    "audit": "Train networks of a finished search from scratch and measure how well its supernet "
    "ranks them: rank correlations with intervals, noise between seeds, and members that would "
    "leave the front. Writes RUN/audit/. The same command continues.",
    "why": "Explain one candidate of a search: when and why it was proposed, its predicted and "
    "measured figures, the limits it meets or exceeds, and the candidates that it dominates or "
    "that dominate it. Without an id, list the front. Writes nothing.",
    "export": "Write networks of a finished search as files for the device: model files of each "
    "runtime, runner scripts, a stand-alone model.py, a model card, and proof.json with accuracy, "
    "costs and errors against torch. A network that fails its proof is kept as ID.failed (exit "
    "code 1). Writes runs/export/TIME/ID/.",
    "compress": "Reduce a network of a finished search until it fits a smaller budget, without a "
    "new search: its weights get fewer bits if the target's compiler supports that, and then "
    "channels are removed. The network is trained again. Writes runs/compress/TIME/ID/.",
    "verify": "Repeat the proof of an export with the installed runtimes: digests of files, "
    "outputs, the accuracy on the test split where torch and the data are available, and with "
    "+target=NAME the costs. Runs code of the export only with key or target. Exit code 1 if "
    "a check fails. Writes nothing.",
    "split": "Split an exported network into two parts, head and tail, that may run on different "
    "devices, at each place where a single tensor passes. Compares outputs with the whole network "
    "and times both parts. Writes runs/split/TIME/: the parts, cuts.csv, profile.csv (for plans).",
    "compare": "Compare the fronts of searches, which may be unfinished, and of other tools. Those "
    "are CSV files with a column per objective (optional: NAME_low, NAME_high, id, run, group). "
    "Writes indicators with intervals, tests over seeds, tables, figures and report.html to "
    "runs/compare/TIME/.",
    "plan": "Choose models, devices, batch sizes, numbers of replicas and routes of requests for "
    "each hour. The plan meets the limits of latency, accuracy, quotas and budgets, also after "
    "failures if required. It is simulated and corrected until at most 1 % of the requests of each "
    "class are late. Writes "
    "runs/plan/TIME/: plan.yaml, report.html, deploy/. pip install 'hwnas[plan]'.",
    "simulate": "Simulate the hours of a plan by discrete events: random or recorded arrivals, "
    "batches, escalations, failures, retries, throttling. Reports p50, p99, late requests, cost "
    "and energy with intervals over seeds. Writes runs/simulate/TIME/.",
    "replan": "Update a plan from telemetry: demand, late requests, failed machines. Hours without "
    "a change are kept; the others are solved again with few changes. Telemetry is a CSV "
    "file with the columns time or hour, and class, requests_per_s, late, p99_ms, or device, "
    "machines_down; or the URL of a Prometheus server (query.*). Writes runs/replan/TIME/.",
    "serve-check": "Serve the models of a plan with Triton on this machine and measure latencies "
    "of batches. Simulate one replica with them, and send random requests to the server. Prints "
    "simulated and measured p50, p95 and p99 by load, with intervals. Triton: pip install "
    "--no-deps nvidia-pytriton. Writes runs/serve-check/TIME/.",
}
#: The options in the short help; of other verbs, all.
COMMON = {
    "search": (
        "target", "dataset", "dataset.path", "budget", "budget.METRIC", "objectives",
        "search_space", "n_trials", "minutes", "sampler", "accuracy", "cost", "seed",
        "study.workers", "trained.fidelities", "train.epochs", "run.dir", "baseline",
    ),
    "train": (
        "search_space", "dataset", "dataset.path", "genotype", "train.epochs", "train.batch_size",
        "train.lr", "train.device", "train.init_from", "seed", "run.dir",
    ),
    "profile": (
        "target", "search_space", "genotype", "tolerance", "coverage", "transfer_from", "kit", "n",
        "measured", "rpc.tracker", "rpc.key", "seed",
    ),
    "verify": ("export", "target", "data", "key", "limit_s"),
    "split": ("export", "target", "cuts", "batches", "dir", "limit_s"),
    "compress": (
        "run", "id", "budget.METRIC", "weight_bits", "prune", "epochs", "alpha", "max_int8_drop",
        "target_name", "dir",
    ),
    "replan": (
        "plan", "telemetry", "move_cost", "max_moved_fraction", "tolerance", "extrapolate",
        "begin", "query.rate", "in_place", "limit_s", "n_seeds", "seed", "run.dir",
    ),
}  # fmt: skip
#: Options that name a file in ``conf/``, and limits: value and sentence.
GROUPS = {
    "target": ("NAME", "the device: hwnas list targets"),
    "dataset": ("NAME", "the data: hwnas list datasets; own images: images"),
    "budget": ("NAME", "limits of costs: hwnas list budgets"),
    "sampler": ("NAME", "the sampler of candidates: hwnas list samplers"),
    "task": ("NAME", "classification or regression"),
    "budget.METRIC": (
        "LIMIT",
        "limit of one cost with its unit: budget.latency=0.5ms budget.flash=100KB; null: none; "
        "the other limits stay. Names: hwnas list metrics",
    ),
}
#: Placeholders of values by the last part of an option's name.
VALUES = {
    **dict.fromkeys(("run", "dir", "path", "resume", "supernets", "plan", "export"), "DIR"),
    **dict.fromkeys(
        ("reference", "true_front", "trace", "sign", "key", "service", "fleet"), "FILE"
    ),
    **dict.fromkeys(("baseline", "start_from", "front_of"), "RUN"),
    **dict.fromkeys(("search_space", "target_name", "transfer_from", "name"), "NAME"),
    "runs": "[RUN,RUN]",
    "telemetry": "FILE|URL",
    "tracker": "HOST:PORT",
    "rpc.key": "NAME",
    "benchmark.path": "FILE",
    "data": "DIR",
    "kit": "DIR",
    "measured": "CSV",
    "id": "ID",
}
EXAMPLES = {
    "resume": [
        "resume runs/search/TIME",
        "resume runs/search/TIME n_trials=400",
        "resume runs/search/TIME minutes=120",
        "resume runs/search/TIME --all                    # list all networks",
    ],
    "list": [
        "list targets",
        "list metrics flash_kib",
        "list spaces",
        "list spaces tiny > my_space.yaml",
    ],
    "completion": [
        "completion bash >> ~/.bashrc",
        "completion zsh >> ~/.zshrc",
        "completion fish > ~/.config/fish/completions/hwnas.fish",
    ],
    "search": [
        "search +target=npu",
        "search +target=npu dataset=images dataset.path=photos budget.flash=100KB",
        "search +target=cpu cost=measured budget=none minutes=30",
        "search '+target=[npu,cpu]' npu.budget.latency=0.3ms",
    ],
    "train": [
        "train dataset=fashion_mnist train.epochs=30",
        "train search_space=tiny train.optimiser=adamw train.lr=0.002",
        "train genotype=largest                           # one network",
        "train genotype=largest train.from_supernet=true  # fine-tuned",
    ],
    "profile": [
        "profile +target=cpu",
        "profile +target=cpu genotype=largest             # time by operator",
        "profile +target=raspi4 rpc.tracker=HOST:PORT rpc.key=raspi4",
        "profile +target=nvidia_t4 kit=DIR n=20           # not connected",
    ],
    "audit": [
        "audit runs/search/TIME",
        "audit runs/search/TIME n_networks=8 n_repeated=2",
        "audit runs/search/TIME epochs=8                  # faster",
        "audit runs/search/TIME workers=2",
    ],
    "why": [
        "why runs/search/TIME                             # the front",
        "why runs/search/TIME 3f2a                        # an id or its prefix",
        "why runs/search/TIME knee",
        "why runs/search/TIME 3f2a json=true",
    ],
    "compare": [
        "compare runs/search/a runs/search/b",
        "compare 'runs/search/*' group_by=sampler         # tests over seeds",
        "compare a.csv b.csv 'objectives={accuracy: max, latency_ms: min}'",
        "compare c d reference=runs/compare/TIME/comparison.json",
    ],
    "export": [
        "export runs/search/TIME",
        "export runs/search/TIME pick=3f2a                # an id or its prefix",
        "export runs/search/TIME pick='accuracy max where latency_ms <= 0.8'",
        "export runs/search/TIME pick='where flash_kib < 100'",
    ],
    "compress": [
        "compress runs/search/TIME id=3f2a budget.flash=20KB",
        "compress runs/search/TIME id=knee budget.latency=0.1ms",
        "compress runs/search/TIME id=most_accurate budget.sram=32KiB prune=[0]",
        "compress runs/search/TIME id=knee budget.flash=20KB weight_bits=[4]",
    ],
    "verify": [
        "verify runs/export/TIME/ID",
        "verify runs/export/TIME/ID data=DIR              # where the data set is",
        "verify runs/export/TIME/ID +target=npu           # the costs, too",
        "verify runs/export/TIME/ID key=public.pem        # the signature, too",
    ],
    "split": [
        "split runs/export/TIME/ID",
        "split runs/export/TIME/ID '+target=[npu,ethos_u65_256]' cuts=8",
        "split runs/export/TIME/ID batches=[1]",
        "split runs/export/TIME/ID limit_s=600",
    ],
    "plan": [
        "plan service=service.yaml fleet=fleet.yaml",
        "plan service.yaml fleet.yaml objective=carbon",
        "plan service.yaml fleet.yaml limit_s=60 front=0",
        "plan service.yaml fleet.yaml begin=2026-03-01",
    ],
    "simulate": [
        "simulate runs/plan/TIME",
        "simulate runs/plan/TIME trace=arrivals.csv n_seeds=10",
        "simulate runs/plan/TIME kill=spot",
        "simulate runs/plan/TIME 'kill=[cpu,gpu]' hours=[12,20] throttle=cpu:0.7",
    ],
    "replan": [
        "replan runs/plan/TIME telemetry=seen.csv",
        "replan runs/plan/TIME telemetry=seen.csv move_cost=0.5",
        "replan runs/plan/TIME telemetry=seen.csv in_place=true",
        "replan runs/plan/TIME telemetry=http://localhost:9090 query.window_h=6",
    ],
    "serve-check": [
        "serve-check runs/plan/TIME",
        "serve-check runs/plan/TIME loads=[0.5,0.9] seconds=30 repeats=5",
        "serve-check runs/plan/TIME python=servers/bin/python",
        "serve-check runs/plan/TIME drift=0.1",
    ],
}
