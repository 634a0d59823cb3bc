"""Help texts and examples of each verb."""

ABOUT = {
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
        "Trains networks of a finished search from scratch, and measures how well the supernet",
        "ranks them: rank correlations with intervals, noise between seeds, and members that would",
        "leave the front. Writes DIR/audit/ and the report. Run the command again to resume.",
        "It trains n_networks + n_repeated times; fewer epochs take less time.",
    ],
    "why": [
        "Explains one candidate of a search, finished or not: when and why it was proposed, its",
        "predicted and measured figures, the limits that it meets and exceeds, the candidates that",
        "it dominated when it was scored, and those that dominate it now. Writes nothing.",
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
    "split": [
        "Splits the network of an export in two at each place that a single tensor crosses, unless",
        "a shorter head sends as little. Head and tail may run on different devices. Compares the",
        "outputs with the whole network's, and times them on +target='[A,B]' (default: that of the",
        "export) for each batch size of batches. In int8, the tensor is sent as bytes.",
        "Writes runs/split/<time>/: the parts as ONNX and compiled, cuts.csv, and profile.csv, for",
        "plans with splits: [DIR] in service.yaml.",
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
        "moves count move_cost, and at most max_moved_fraction of an hour's replicas are stopped,",
        "unless demand could not be served otherwise. telemetry is a CSV file with a column time",
        "(dates, or seconds since 1970) or hour (of the plan), and class, requests_per_s, late,",
        "p99_ms, or device, machines_down; or the URL of a Prometheus server, which query.* ask.",
        "Writes runs/replan/<time>/: a plan as any; where something moved, decisions.csv says why.",
    ],
    "serve-check": [
        "Serves pools of a plan by Triton on this machine's loopback, measures how",
        "long batches take there, simulates a replica with that, and sends it requests at random",
        "times. Latencies count from when requests were due. Prints simulated and measured p50,",
        "p95 and p99 by load, with 95 % intervals over repeats, and says where the server is",
        "slower under load than in its profile. A machine whose speed drifts is refused: end",
        "other programs. Writes runs/serve-check/<time>/. Triton is a Python package: pip install",
        "--no-deps nvidia-pytriton; python=PATH names an interpreter that has it.",
    ],
}
EXAMPLES = {
    "compress": [
        "compress run=runs/search/<time> id=3f2a budget.flash_kib=20",
        "compress run=runs/search/<time> id=most_accurate budget.latency_ms=0.1 prune=[0]",
    ],
    "export": [
        "export run=runs/search/<time> pick=knee      # or most_accurate, fastest, smallest, all",
        "export run=runs/search/<time> pick=3f2a      # an id, or how it begins",
        "export run=runs/search/<time> pick='accuracy max where latency_ms <= 0.8 and flash_kib"
        " <= 300'",
        "export run=runs/search/<time> pick='where energy_mj < 0.1 and sram_kib <= 64'",
    ],
    "verify": [
        "verify runs/export/<time>/<id>",
        "verify runs/export/<time>/<id> data=DIR                 # the data set is in DIR",
        "verify runs/export/<time>/<id> +target=npu",
    ],
    "split": [
        "split runs/export/<time>/<id>",
        "split runs/export/<time>/<id> '+target=[npu,ethos_u65_256]' cuts=8",
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
        "replan plan=runs/plan/<time> telemetry=seen.csv move_cost=0.5 max_moved_fraction=0.1",
        "replan plan=runs/plan/<time> telemetry=http://localhost:9090 query.window_h=6"
        " 'query.rate=sum by (class) (rate(requests_total[5m]))'",
    ],
    "serve-check": [
        "serve-check plan=runs/plan/<time>",
        "serve-check plan=runs/plan/<time> loads=[0.5,0.9] seconds=30 repeats=5",
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
        "search accuracy=table cost=table benchmark.path=FILE.parquet 'benchmark.genotype=[e0,e1]'"
        " benchmark.accuracy=COLUMN 'benchmark.costs={latency_ms: COLUMN}' sampler=pareto",
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
        "audit run=runs/search/<time> n_networks=8 n_repeated=2 epochs=8",
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
    ],
}
