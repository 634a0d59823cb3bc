"""The page of columns: names in files of runs, with meaning, unit and source."""

from text import page, table

from hwnas.tasks import metrics

#: Columns of ``candidates.parquet`` and ``front.csv``, besides choices and metrics.
CANDIDATE = {
    "trial": "Number of the trial, from 0 in order of proposal.",
    "id": "Id of the network: 12 hexadecimal digits of a digest of its choices.",
    "state": "`complete`; `stopped` (validation or training stopped early); `infeasible`.",
    "reason": "Why the candidate is infeasible; else empty.",
    "n_images": "Validation images that were evaluated (`accuracy=supernet`).",
    "METRIC_after_N_epochs": "Validation accuracy or error after N epochs (`accuracy=trained`).",
    "METRIC_read": "Accuracy or error as evaluated in the search, before any model of it.",
    "METRIC_finished": "Accuracy or error after fine-tuning, on the validation split.",
    "front_probability": "Probability of being on the Pareto front, before verification.",
    "energy_macs_mj": "Modelled energy of arithmetic, in mJ.",
    "energy_sram_mj": "Modelled energy of SRAM accesses, in mJ.",
    "energy_off_chip_mj": "Modelled energy of off-chip accesses, in mJ.",
    "power_active_w": "Power above idle, in W, if energy is power times latency, or measured.",
    "power_idle_w": "Power of the idle device in W, with a meter.",
    "mac_utilisation": "Fraction of the peak multiply-accumulate rate that is used.",
    "dram_kib": "Off-chip memory for data besides the weights, in KiB (Vela).",
    "cycles": "Clock cycles of an inference (Vela).",
    "compute_bound_ms": "Latency of operators that are limited by arithmetic, in ms (roofline).",
    "memory_bound_ms": "Latency of operators that are limited by memory, in ms (roofline).",
    "launch_bound_ms": "Latency of operators that are limited by their start, in ms (roofline).",
    "int8_over_float32": "Latency in int8 divided by latency in float32, on CPUs.",
    "float32_latency_ms": "Latency of the same network in float32, in ms.",
}
FRONT = {
    "verified_METRIC_fp32": "Accuracy or error of the float32 network on the test split.",
    "verified_METRIC_int8": "Accuracy or error of the compiled int8 file on the test split.",
    "verified_COST": "Cost of the compiled network with its final weights.",
    "verified_fits_budget": "Whether the network meets every limit after verification.",
    "verified_on_front": "Whether the network is on the Pareto front after verification.",
    "verified_near_front": "Whether no member of the front dominates it significantly (95 %).",
    "tflite": "Path of the int8 TFLite file in the run; `tflite_sha256` is its digest.",
    "tflite_vela": "Path of the file compiled by Vela; `tflite_vela_sha256` is its digest.",
    "onnx": "Path of the ONNX file; `onnx_sha256` is its digest.",
    "so": "Path of the library compiled by TVM; `so_sha256` is its digest.",
    "weights": "Path of its packed weights; `weights_sha256` is their digest.",
}
CASCADES = {
    "first": "Id of the network that answers first.",
    "second": "Id of the network that answers when the first one is not confident.",
    "threshold": "Smallest softmax probability with which the first answer is accepted.",
    "share": "Fraction of images that go on to the second network.",
    "expected_latency_ms": "Mean latency of an image, in ms.",
    "expected_energy_mj": "Mean energy of an image, in mJ.",
    "latency_ms": "Worst case: both networks run, in ms.",
}
EXITS = {
    "thresholds": "Smallest softmax probability with which each exit is taken, in order, "
    "separated by blanks.",
    "left_I": "Fraction of images that leave at exit I.",
    "expected_latency_ms": "Mean latency of an image, in ms.",
    "latency_ms": "Latency of an image that runs to the end, in ms.",
}


def text() -> str:
    """Return the page."""
    costs = [
        (f"`{name}`", f"{metric.label[0].upper()}{metric.label[1:]}.", metric.unit)
        for name, metric in metrics.all_metrics().items()
    ]
    return page(
        "Columns of files",
        "All files use the same names. `front.csv` has a row for each verified network; "
        "`verified_on_front` marks those on the front. `candidates.parquet` has one for each "
        "candidate in order of evaluation. Every choice of the search space is a column of its own "
        "(`stages.0.width`), empty where it has no effect.",
        "## Suffixes and prefixes",
        table(
            ("Part of a name", "Meaning"),
            [
                ("`NAME_low`, `NAME_high`", "Ends of the 95 % interval; empty if unknown."),
                ("`NAME_source`", "Source of the value, see below."),
                ("`verified_NAME`", "The value after verification."),
                ("`expected_NAME`", "Mean over images, with early exits or cascades."),
                ("`TARGET.NAME`", "The value on one of several targets."),
            ],
        ),
        "## Sources",
        table(
            ("Source", "Meaning"),
            [
                ("`measured`", "Run and counted, or timed."),
                ("`compiler-estimate`", "From the target's compiler: Vela for Ethos-U."),
                ("`table`", "Predicted from a latency table, interval from held-out networks."),
                ("`modelled`", "Computed by a model, for example energy or a Gaussian process."),
            ],
        ),
        "## Metrics",
        table(("Column", "Meaning", "Unit"), costs),
        "## Candidates",
        "`METRIC` is `accuracy` or `mae`. `accuracy` itself is the accuracy that the search "
        "believes: a reading, or the estimate of a Gaussian process where fine-tuned networks "
        "allow one (source `modelled`).",
        table(("Column", "Meaning"), _rows(CANDIDATE)),
        "## Front",
        "The front has the columns of candidates, and:",
        table(("Column", "Meaning"), _rows(FRONT)),
        "## Cascades",
        "`cascades.csv`: figures without prefix come from the validation split, those with "
        "`verified_` from the test split.",
        table(("Column", "Meaning"), _rows(CASCADES)),
        "## Early exits",
        "`exits.csv`: prefixes as for cascades.",
        table(("Column", "Meaning"), _rows(EXITS)),
    )


def _rows(columns: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", text) for name, text in columns.items()]
