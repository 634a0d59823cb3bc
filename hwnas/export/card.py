"""Writes ``MODEL_CARD.md``, a model card in the format of Hugging Face, from a proof.

Source of the format: https://huggingface.co/docs/hub/model-cards; Mitchell et al., "Model cards for
model reporting", 2019, https://arxiv.org/abs/1810.03993.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hwnas import tasks
from hwnas.core.errors import counted
from hwnas.core.quantity import Quantity
from hwnas.export import c_source, early_exits
from hwnas.export.runtimes import kinds
from hwnas.export.standalone import RUNNER
from hwnas.hardware import backends
from hwnas.nas.member import artefact_metric
from hwnas.tasks.base import Task
from hwnas.tasks.intervals import describe_classes
from hwnas.tasks.metrics import format_interval, format_value, is_better, metric_of

Row = dict[str, Any]


def card(proof: Row) -> str:
    """Return the Markdown text of ``MODEL_CARD.md`` for the content of ``proof.json``."""
    escaped = {
        name: _without_backticks(proof[name]) for name in ("model", "dataset", "target", "task")
    }
    escaped["dataset"]["name"] = _data_name(escaped["dataset"])
    proof = {**proof, **escaped}
    parts = [
        f"---\n{yaml.safe_dump(_front_matter(proof), sort_keys=False, allow_unicode=True)}---",
        f"# {proof['model']['name']}",
        *_failure(proof),
        _summary(proof),
        f"## Use\n\n{_use(proof)}",
        f"## Intended use and limits\n\n{_limits(proof)}",
        f"## Data\n\n{_data(proof)}",
        f"## Training\n\n{_training(proof)}",
        f"## Evaluation\n\n{_evaluation(proof)}",
        f"## Costs on {proof['target']['name']}\n\n{_costs(proof)}",
        *([f"## Early exits\n\n{early_exits.section(proof['exits'])}"] if "exits" in proof else []),
        f"## Checks\n\n{_checks(proof)}",
        f"## Files\n\n{_files(proof)}",
        f"## Provenance\n\n{_provenance(proof)}",
    ]
    return "\n\n".join(parts) + "\n"


def _without_backticks(content: Any) -> Any:
    """Return names and texts of a user that do not begin or end code in Markdown."""
    if isinstance(content, dict):
        return {name: _without_backticks(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_without_backticks(value) for value in content]
    return content.replace("`", "'") if isinstance(content, str) else content


def _data_name(data: Row) -> str:
    """Return the name of a data set; of images in a folder or file, the name of that."""
    path = Path(data["path"] or "")
    is_named = data["name"] != "images" or path.suffix == ".npz"  # arrays in Python have no name
    return str(data["name"]) if is_named else path.name or data["hub_id"] or str(data["name"])


def _front_matter(proof: Row) -> Row:
    data, model = proof["dataset"], proof["model"]
    kind = data["hub_id"] or data["name"]
    task = _task(proof)
    metric, kind_of_task = task.metric, task.description.kind
    metrics = [
        {"type": metric, "value": float(f"{row[metric][0]:.6g}"), "name": f"{metric}, {name}"}
        for name, row in proof["artefacts"].items()
        if row.get(metric)
    ]
    result = {
        "task": {"type": kind_of_task, "name": f"image {task.name}"},
        "dataset": {"type": kind, "name": data["name"], "split": "test"},
        "metrics": metrics,
    }
    tags = ["hwnas", "neural-architecture-search", model["family"], proof["target"]["name"]]
    return {
        "license": proof["license"],
        "library_name": "hwnas",
        "pipeline_tag": kind_of_task,
        "tags": [*tags, *sorted({kinds()[name].runtime for name in proof["artefacts"]})],
        **({"datasets": [data["hub_id"]]} if data["hub_id"] else {}),
        "metrics": [metric],
        "model-index": [{"name": model["name"], "results": [result]}],
    }


def _summary(proof: Row) -> str:
    model, data = proof["model"], proof["dataset"]
    c, h, w = model["input"]
    texts = _task(proof).description
    return (
        f"{texts.network} for {data['name']} ({texts.outputs}, images of {h}x{w} pixels, "
        f"{'grey' if c == 1 else f'{c} channels'}), found by hwnas for the target "
        f"`{proof['target']['name']}` ({proof['target']['description']}): "
        f"{round(model['params_m'] * 1e6):,} parameters, {round(model['macs_m'] * 1e6):,} "
        "multiply-accumulates. All figures are of the files in this folder (`proof.json`); "
        "`hwnas verify` repeats them."
    )


def _task(proof: Row) -> Task:
    return tasks.from_json({**proof["task"]})


def _failure(proof: Row) -> list[str]:
    failed = [f"`{check['name']}`" for check in proof["checks"] if not check["holds"]]
    return [f"**Failed checks: {', '.join(failed)}.**"] if failed else []


def _checks(proof: Row) -> str:
    rows = [
        [
            f"`{check['name']}`",
            check["words"],
            f"{check['found']:.3g}",
            f"{'at least ' * check.get('is_least', False)}{check['allowed']:.3g}",
            "yes" if check["holds"] else "**no**",
        ]
        for check in proof["checks"]
    ]
    return _table(["check", "value", "result", "at most", "passed"], rows)


def _use(proof: Row) -> str:
    texts = _task(proof).description
    run = {name: kind.command for name, kind in kinds().items()}
    commands = [run[name] for name in proof["artefacts"] if run[name]]
    c, h, w = proof["model"]["input"]
    photo = f"    python {RUNNER} photo.png\n\nprints {texts.answer} of a photo. "
    return (photo if RUNNER in proof["files"] else "") + (
        f"Each of these prints {texts.answer} of every image of a `.npy` file of uint8 images "
        f"`(N, {h}, {w}, {c})`:\n\n" + "\n".join(f"    {command}" for command in commands)
    )


def _limits(proof: Row) -> str:
    data, task = proof["dataset"], _task(proof)
    label = metric_of(task.metric).label
    lines = [
        f"For images like those of {data['name']}: {label} on others is not known.",
        *task.description.limits,
        f"`images.npz` has {proof['n_images']} test images, under the licence of the data set.",
        "Differences between groups of people or conditions were not measured.",
        f"Costs: {proof['target']['caveat']}.",
    ]
    return _list(lines)


def _data(proof: Row) -> str:
    data = proof["dataset"]
    n = data["images"]
    return (
        f"{data['name']}{_of_hub(data)}: {n['train']:,} training, {n['validation']:,} validation "
        f"and {n['test']:,} test images (used by verification only). Digest of images, targets and "
        f"splits: `{data['digest']}`."
        + (
            f"\n\n{_markdown_text(describe_classes(classes))}"
            if (classes := data.get("classes"))
            else ""
        )
    )


def _markdown_text(text: str) -> str:
    """Return text without characters that have a meaning in Markdown."""
    return re.sub(r"([\\`*_<>|#\[\]])", r"\\\1", text)


def _of_hub(data: Row) -> str:
    hub_id = data["hub_id"]
    return f" ([{hub_id}](https://huggingface.co/datasets/{hub_id}))" if hub_id else ""


def _training(proof: Row) -> str:
    train, finishing = proof["training"], proof["finishing"]
    teacher, share = finishing["teacher"], finishing["alpha"]
    lines = [
        _origin(proof, train),
        f"Weights: {finishing['weights']}.",
        *(
            [f"Teacher: {_teacher(teacher)}; {share:g} of the loss is distillation."]
            if teacher
            else []
        ),
        f"Quantisation: {finishing['int8']}."
        if finishing["int8"]
        else f"Not quantised: {finishing['no_int8']}",
        *(
            ["Class weights: balanced. Outputs are not calibrated to the frequencies of classes."]
            if train.get("class_weights") == "balanced"
            else []
        ),
    ]
    metric = _task(proof).metric
    steps = [
        [step["step"], str(step["epochs"] or ""), _interval_text(metric, step[metric])]
        for step in finishing["steps"]
    ]
    table = _table(["step", "epochs", f"{metric_of(metric).label}, validation split"], steps)
    return f"{_list(lines)}\n\n{table}"


def _origin(proof: Row, train: Row) -> str:
    """Return the origin of the weights before fine-tuning."""
    batches = f"in batches of {train['batch_size']} (seed {proof['seed']})"
    space, alone = proof["model"]["search_space"], proof["source"].get("trained_epochs")
    if alone is None:
        return (
            f"A subnet of a supernet of the space `{space}`, trained for "
            f"{counted(train['epochs'], 'epoch')} {batches}."
        )
    return (
        f"A network of the space `{space}`, trained from scratch {batches}: "
        f"{' + '.join(map(str, alone))} epoch{'s' * (sum(alone) != 1)} in the search, then as "
        "follows."
    )


def _teacher(name: str) -> str:
    return name if " " in name else f"`{name}`, another network of the search"


def _evaluation(proof: Row) -> str:
    rows = [("torch", proof["reference"]), *proof["artefacts"].items()]
    n, n_images = proof["dataset"]["images"]["test"], proof["n_images"]
    task = _task(proof)
    metric, label = task.metric, metric_of(task.metric).label
    table = []
    for name, row in rows:
        near = row.get("agreement")
        table.append(
            [
                f"`{name}`" if near or name in kinds() else name,
                _interval_text(metric, row[metric]) if row.get(metric) else row["not_run"],
                f"{near['max_error']:.2g}" if near else "",
                f"{near['mean_error']:.2g}" if near else "",
                f"{near['same']:.1%}" if near else "",
            ]
        )
    head = ["", f"{label} (95 %)", "largest error", "mean error", task.description.same]
    tolerances = [
        [dtype, *(f"{name.replace('_', ' ')} {value:g}" for name, value in limit.items()
                  if name != "reason"), str(limit.get("reason", ""))]
        for dtype, limit in proof["tolerances"].items()
        if dtype in {*_references(proof), "int8"}
    ]  # fmt: skip
    largest = ", ".join(f"{value:.3g} ({name})" for name, value in _references(proof).items())
    return (
        f"{_table(head, table)}\n\n{label.capitalize()}: of each file on all {n:,} test images, "
        f"resized to uint8; measured; {task.description.interval}. Errors: against torch's outputs "
        f"on {n_images} test images (`images.npz`), the largest of which is {largest}."
        f"{_constant(proof)}"
        f"\n\n{_table(['tolerance', 'allowed', 'reason'], tolerances)}{_search_figures(proof)}"
    )


def _constant(proof: Row) -> str:
    """Return the metric of the best constant answer, if the proof has it."""
    if (values := proof["dataset"].get("constant")) is None:
        return ""
    task, constant = _task(proof), Quantity(*values)
    metric, answer = metric_of(task.metric), _markdown_text(task.description.constant)
    bound = metric.binding(Quantity(*proof["reference"][task.metric]))
    verdict = "" if is_better(task.metric, bound, constant.value) else " **not**"
    value = format_value(task.metric, constant.value)
    return (
        f" The best constant answer, {answer}, has {metric.label} {value}; the network is{verdict} "
        "significantly better."
    )


def _references(proof: Row) -> dict[str, float]:
    """Return the largest output of each reference of torch: float32, and simulated int8."""
    near = [row["agreement"] for row in proof["artefacts"].values() if "agreement" in row]
    return {agreement["reference"]: agreement["largest_output"] for agreement in near}


def _search_figures(proof: Row) -> str:
    """Return the figures of the search, if it verified the network."""
    if (reported := proof["source"]["reported"]) is None:
        return ""
    figures = reported["figures"]
    metric = _task(proof).metric
    name = artefact_metric(metric, figures)
    same = ", ".join(f"`{name}`" for name in reported["same_files"])
    return (
        f"\n\nThe search reported for {reported['of']}: {metric_of(metric).label} "
        f"{format_value(metric, figures[name][0])} and {figures['latency_ms'][0]:.4g} ms."
        + f" Identical to the verified files: {same}."
        * bool(same)
    )


def _costs(proof: Row) -> str:
    limits = proof["budget"]
    rows = []
    for name, values in proof["figures"].items():
        figure = Quantity(*values)
        interval = "" if figure.low is None else f"{figure.low:.4g} to {figure.high:.4g}"
        margin = ""
        if name in limits:
            share = limits[name]["margin"]
            side = "above" if metric_of(name).maximise == (share >= 0) else "below"
            margin = f"{abs(share):.1%} {side} {limits[name]['limit']:g}"
        title = metric_of(name).title
        rows.append([title, f"{figure.value:.4g}", interval, figure.source, margin])
    head = ["", "value", "interval", "source", "budget"]
    target, machine = proof["target"], proof["made"]["machine"]
    sentences = [
        f"Figures are of `{proof['own_artefact']}`; {target['caveat']}; "
        f"target.batch={target['batch']}, target.threads={target['threads']}."
    ]
    if Quantity(*proof["figures"]["latency_ms"]).source == "measured":
        sentences.append(f"Measured from {machine['system']} ({machine['cpu']}).")
    if proof["details"].get("drifted"):
        sentences.append(
            "The speed of the machine drifted while it was measured: intervals are wide."
        )
    sentences.append(f"Energy: {proof['energy_source']}.")
    sentences.append("" if limits else "The search had no budget.")
    return f"{_table(head, rows)}\n\n{' '.join(sentences).rstrip()}"


def _files(proof: Row) -> str:
    runners = {r.name: r.about for backend in backends.known() for r in backend.runners}
    about = {
        "images.npz": "test images, their targets and torch's outputs; for `verify`",
        "preprocessing.json": "resizing and normalisation of images",
        **{name: text for kind in kinds().values() for name, text in kind.about.items()},
        **runners,
        RUNNER: "runner of the target's own artefact, or of the first that runs",
        **c_source.ABOUT,
        **_task(proof).description.files,
    }
    about |= early_exits.file_descriptions(proof["exits"]) if "exits" in proof else {}
    rows = [
        [f"`{name}`", about.get(name, ""), f"`{digest[:16]}`"]
        for name, digest in proof["files"].items()
    ]
    table = _table(["file", "content", "sha256 begins"], rows)
    return f"{table}\n\nONNX: opset {proof['opset']}, passes `onnx.checker`."


def _provenance(proof: Row) -> str:
    source, creation = proof["source"], proof["made"]
    versions = ", ".join(f"{name} {version}" for name, version in creation["versions"].items())
    lines = [
        f"Genotype `{proof['model']['id']}` of the search `{source['run']}`, "
        f"picked by `{source['pick']}`.",
        f"Searched by: `{source['command']}`",
        f"Supernet: {_supernet(source)}; search space `{source['search_space_digest']}`.",
        f"Exported by: `{creation['command']}` ({creation['date']})",
        f"Versions: {versions}.",
        *(f"{title}: `{command}`" for title, command in proof["commands"].items()),
    ]
    return _list(lines)


def _supernet(source: Row) -> str:
    name = source["supernet"]
    return "none, candidates were trained separately" if name is None else f"`{name}`"


def _interval_text(metric: str, values: Sequence[Any]) -> str:
    figure = Quantity(*values)
    value, interval = format_value(metric, figure.value), format_interval(metric, figure)
    return f"{value} ({interval})" if interval else value


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
