"""Trains a supernet or a single network, and evaluates it."""

import contextlib
import copy
import csv
import importlib.util
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
from torch import nn

from hwnas.core import files
from hwnas.core.errors import CompileError, ConfigError
from hwnas.core.options import digest, fingerprint_options
from hwnas.core.progress import NullProgress, Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import (
    Row,
    RunFolder,
    check_resumed,
    initial_manifest,
    open_run_folder,
    resume_hint,
)
from hwnas.models.families import annotations
from hwnas.models.int8.simulation import with_graph_precision
from hwnas.models.onnx.writer import check_int8
from hwnas.models.spaces import Genotype
from hwnas.models.spaces.union import space_names
from hwnas.tasks.metrics import format_interval, format_value, quality_names
from hwnas.training import inference, parallel
from hwnas.training import supernet as supernets
from hwnas.training.data import DataSplit
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.training.inference import per_sample
from hwnas.training.jobs import TrainingJob
from hwnas.training.loop import LogRow, TrainingLog, TrainingSummary
from hwnas.training.supernet import TrainingSetup
from hwnas.workflows.config import TrainConfig
from hwnas.workflows.profile_layers import find_genotype
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.result_folders import Line, TrainResult

# TensorBoard logs.


def check_tensorboard() -> None:
    """Check that the package ``tensorboard`` is installed.

    Raises:
        ConfigError: the package is missing.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "train.tensorboard=true needs the package 'tensorboard': pip install tensorboard"
        )


@final
class TensorBoard:
    """Writes all numbers of a training log by step, for ``tensorboard --logdir``."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter  # needs the package tensorboard

        self._writer = SummaryWriter(str(folder))

    def __call__(self, row: LogRow) -> None:
        """Write one row; ``loss_largest`` becomes ``loss/largest``, next to the other losses."""
        for name, value in row.items():
            if name != "step":
                tag = name.replace("_", "/", 1) if name != "gradient_norm" else name
                self._writer.add_scalar(tag, value, int(row["step"]))

    def flush(self) -> None:
        """Write buffered rows."""
        self._writer.flush()

    def close(self) -> None:
        """Write buffered rows and close the file."""
        self._writer.close()


_FORMAT = 1  #: format version of summaries
_N_RANDOM = 10  # subnets of the final table
_EVERY = 50  # rows of the log between writes to its file
_IN_FLOAT, _IN_INT8 = ", in float32", ", in int8 as calibrated"
_SUFFIX = {_IN_INT8: "_int8"}  #: of figures in the summary


def train(config: TrainConfig, arguments: Sequence[str], reporter: Reporter) -> TrainResult | None:
    """Train a supernet or a network, write all results into the run folder, and return them.

    Args:
        config: The options.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.

    Returns:
        The result; ``None`` in worker processes of ``torchrun``.

    Raises:
        ConfigError: an option is invalid, there is no such network, or a package is missing.
        RunError: the run cannot be resumed with these options.
        TrainingError: the training diverged or collapsed, or a batch does not fit into memory.
    """
    files.check_folder_path(Path(config.run.supernets), "run.supernets")
    if config.train.tensorboard:
        check_tensorboard()
    with parallel.joined() as processes:
        if not processes.leads:  # only the first process writes and prints
            _follow(_setup(config, NullProgress()), config)
            return None
        with (
            open_run_folder("train", config.run.dir, config.run.resume) as (folder, earlier),
            resume_hint(folder.path),
        ):
            with reporter.timed("Load data"):
                setup = _setup(config, reporter)
            reporter.say(setup.data.notes)
            if config.genotype is not None:
                _genotype(config, setup)  # reject an invalid genotype before anything is written
                if config.train.init_from is not None and not config.train.from_supernet:
                    raise ConfigError(
                        f"train.init_from={config.train.init_from} has weights of a supernet, but "
                        "genotype=... trains one network from scratch. Set "
                        "train.from_supernet=true, or remove train.init_from."
                    )
            if config.genotype is None or config.train.from_supernet:
                setup.check()
            manifest = _manifest(config, setup, arguments, folder, earlier)
            folder.write_json("manifest.json", manifest)
            reporter.say([f"Run folder: {folder.path}"])
            train_it = _train_supernet if config.genotype is None else _train_alone
            with _open_log(folder, config) as log:
                title, rows, summary = train_it(config, setup, reporter, log)
            reporter.say(summary["notes"], alarming=True)
            folder.write_json("summary.json", {"format": _FORMAT} | summary)
            folder.write_json("manifest.json", manifest | {"status": "finished"})
        return TrainResult(folder.path, title, setup.data.task.metric, rows, summary)


def _setup(config: TrainConfig, progress: Progress) -> TrainingSetup:
    space_and_data = supernets.read_space_and_data(
        space_names(config.search_space), config.dataset, progress
    )
    folder = Path(config.run.supernets)
    training = supernets.SupernetTraining(config.dataset, config.train, config.seed, folder)
    space, by_name, data = space_and_data
    if config.train.class_weights == "balanced":  # plain accuracy would reward the majority class
        data = data.with_metric("balanced_accuracy")
    (only,) = training.setups(space, by_name, data).values()
    return only


def _follow(setup: TrainingSetup, config: TrainConfig) -> None:
    """Train as a worker process."""
    if config.genotype is None:
        setup.trained(NullProgress())
    else:
        _job(config, setup, NullProgress()).trained(NullProgress())


def _manifest(
    config: TrainConfig,
    setup: TrainingSetup,
    arguments: Sequence[str],
    folder: RunFolder,
    earlier: Row,
) -> Row:
    digests = {name: str(value) for name, value in setup.identity.items()}
    digests |= {"genotype": str(config.genotype), **_summary_settings(config)}
    check_resumed(earlier, folder, digests)
    return {
        **initial_manifest("train", arguments, earlier, config),
        "seed": config.seed,
        "digests": digests,
        "processes": parallel.current().n,
        "images": {
            name: len(getattr(setup.data, name)) for name in ("train", "validation", "test")
        },
    }


def _summary_settings(config: TrainConfig) -> dict[str, str]:
    """Return settings that determine the summary but not a supernet's weights."""
    if config.genotype is None:
        return {"scoring": digest(fingerprint_options(config.scoring))}
    options = {"train.from_supernet": str(config.train.from_supernet)}
    if config.train.from_supernet:
        options["train.fine_tuning_epochs"] = str(config.train.fine_tuning_epochs)
    return options


def _train_supernet(
    config: TrainConfig, setup: TrainingSetup, phases: Reporter, log: TrainingLog
) -> tuple[str, list[Line], Row]:
    supernet, summary = setup.trained(phases, log)
    evaluator = setup.evaluator(supernet, config.scoring)
    rng, space = random.Random(f"report {config.seed}"), setup.space
    genotypes = [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(_N_RANDOM))]
    with phases.phase("Score subnets", len(genotypes)) as advance:
        figures = []
        for genotype in genotypes:
            figures.append(evaluator.score(genotype).figure)
            advance(1)
    smallest, largest, *random_figures = figures
    n, metric = len(setup.data.validation), setup.data.task.metric
    table: list[Line] = []
    table.append(("smallest subnet", *_cells(metric, smallest)))
    middle = statistics.median(figure.value for figure in random_figures)
    ends = [figure.value for figure in random_figures]
    spread = (
        f"{format_value(metric, min(ends))} to {format_value(metric, max(ends))} (lowest, highest)"
    )
    table.append(
        (f"median of {len(random_figures)} random subnets", format_value(metric, middle), spread)
    )
    table.append(("largest subnet", *_cells(metric, largest)))
    path = setup.checkpoint().path
    figures_by_name = {
        f"{metric}_smallest": smallest.to_json(),
        f"{metric}_largest": largest.to_json(),
        f"{metric}_random": [figure.to_json() for figure in random_figures],
        f"{metric}_random_median": middle,
        "genotypes": [genotype.to_dict() for genotype in genotypes],
    }
    results = {
        **figures_by_name,
        **_facts(summary),
        "checkpoint": str(path) if path.exists() else None,
    }
    results["notes"] = inference.chance_level_messages(
        setup.data, "validation", {"largest subnet": largest}, "train.epochs"
    )
    return f"On the validation split ({n} images)", table, results


def _train_alone(
    config: TrainConfig, setup: TrainingSetup, phases: Reporter, log: TrainingLog
) -> tuple[str, list[Line], Row]:
    job = _job(config, setup, phases)
    network, summary = job.trained(phases, log)
    scores, task = {}, setup.data.task
    table: list[Line] = []
    forms = _forms(config, job, network, phases)
    for name in ("validation", "test"):
        split: DataSplit = getattr(setup.data, name)
        for dtype, form in forms.items():
            with phases.timed(f"Read {name}"):
                batches = setup.data.batches(split, setup.resolution(job.genotype))
                values = np.concatenate([per_sample(task, form, *batch) for batch in batches])
            figure = scores[f"{name}{_SUFFIX.get(dtype, '')}"] = task.score(values)
            table.append(
                (f"{name} split ({len(values)} images){dtype}", *_cells(task.metric, figure))
            )
    longer = "train.epochs" if job.supernet is None else "train.fine_tuning_epochs"
    return (
        f"Network {job.genotype.id}",
        table,
        {
            "genotype": job.genotype.to_dict(),
            "id": job.genotype.id,
            "start": "supernet" if job.supernet is not None else "scratch",
            "epochs": job.options.epochs,
            **{f"{task.metric}_{name}": figure.to_json() for name, figure in scores.items()},
            **_facts(summary),
            "checkpoint": str(job.checkpoint().path),
            "notes": inference.chance_level_messages(
                setup.data, "validation", {job.genotype.id: scores["validation"]}, longer
            ),
        },
    )


def _forms(
    config: TrainConfig, job: TrainingJob, network: nn.Module, reporter: Reporter
) -> dict[str, nn.Module]:
    """Return a trained network and, if its space is in int8, its int8 version, by figure label."""
    setup, genotype = job.setup, job.genotype
    lowered = setup.graph(genotype)
    if lowered.dtype != annotations.INT8:
        return {"": network}
    try:
        check_int8(lowered)
    except CompileError as error:
        reporter.say([f"Only evaluated in float32, as it cannot run in int8: {error}"])
        return {_IN_FLOAT: network}
    evaluator = TrainedEvaluator({setup.space.name: setup}, config.trained)
    images = partial(evaluator.calibration_images, genotype)
    return {
        _IN_FLOAT: network,
        _IN_INT8: with_graph_precision(copy.deepcopy(network), lowered, images),
    }


def _job(config: TrainConfig, setup: TrainingSetup, progress: Progress) -> TrainingJob:
    assert config.genotype is not None
    genotype = _genotype(config, setup)
    if not config.train.from_supernet:
        return TrainingJob(setup, genotype)
    return TrainingJob(setup, genotype, setup.trained(progress)[0])


def _genotype(config: TrainConfig, setup: TrainingSetup) -> Genotype:
    ignored = annotations.BATCH_KEYS  # they do not affect the weights
    return find_genotype(setup.space, str(config.genotype), config.seed, ignored)


def _facts(summary: TrainingSummary) -> Row:
    """Return the facts of a training; empty if it was finished before."""
    rate = summary.n_images / summary.seconds if summary.n_steps else None
    return {
        "steps": summary.n_steps,
        "seconds": summary.seconds if summary.n_steps else None,
        "images_x_subnets_per_second": rate,
    }


def _cells(metric: str, figure: Quantity) -> tuple[str, str]:
    return format_value(metric, figure.value), format_interval(metric, figure)


@contextlib.contextmanager
def _open_log(folder: RunFolder, config: TrainConfig) -> Iterator[TrainingLog]:
    """Yield a writer for ``log.csv`` and, on request, TensorBoard logs."""
    logs: list[TrainingLog] = [CsvLog(folder)]
    with contextlib.ExitStack() as stack:
        stack.callback(logs[0].flush)
        if config.train.tensorboard:
            board = TensorBoard(folder.path / "tensorboard")
            stack.callback(board.close)
            logs.append(board)
        yield _Logs(logs)


@final
@dataclass(frozen=True)
class _Logs:
    """Several logs as one."""

    logs: Sequence[TrainingLog]

    def __call__(self, row: LogRow) -> None:
        """Write a row to each."""
        for log in self.logs:
            log(row)

    def flush(self) -> None:
        """Write buffered rows."""
        for log in self.logs:
            log.flush()


@final
class CsvLog:
    """Writer of ``log.csv``; a resumed run keeps the rows before the resumed step."""

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self._rows: list[Row] = []
        self._earlier: list[Row] = []
        if (path := folder.path / "log.csv").is_file():
            with path.open(newline="", encoding="utf-8") as file:
                self._earlier = [dict(row) for row in csv.DictReader(file)]

    def __call__(self, row: LogRow) -> None:
        """Add a row; write the file every 50 rows, and after a row with a metric."""
        self._rows.append(dict(row))
        measured = any(name.partition("_")[0] in quality_names() for name in row)
        if len(self._rows) % _EVERY == 1 or measured:
            self.flush()

    def flush(self) -> None:
        """Write buffered rows."""
        first = int(self._rows[0]["step"]) if self._rows else None
        earlier = [row for row in self._earlier if first is None or int(row["step"]) < first]
        if rows := [*earlier, *self._rows]:
            self._folder.write_csv("log.csv", rows)
