"""Fixtures and helpers that tests share."""

import functools
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra

from hwnas.cli import help
from hwnas.core import package, processes
from hwnas.core.options import option_defaults
from hwnas.core.progress import NullProgress
from hwnas.hardware.backends.tvm import TvmSettings
from hwnas.hardware.backends.vela import backend as vela_backend
from hwnas.hardware.backends.vela import compiler as vela_compiler
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.target import Target, from_facts
from hwnas.models import spaces
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import SearchSpace
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.data import DatasetConfig, DataSplit, ImageData, load_data
from hwnas.workflows.config import SCHEMAS
from tests.nas.postgresql import Server, binaries, running

pytest.register_assert_rewrite("hwnas.testing")
processes.tune_process()  # tests run alongside other work
if workers := os.environ.get(
    "PYTEST_XDIST_WORKER_COUNT"
):  # together the workers use each core once
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
# Processes that a shell starts in the background ignore SIGINT, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Folders and modules whose tests are marked ``smoke``: the basics, in less than two minutes.
_SMOKE = ("core/", "models/spaces/", "tasks/", "cli/test_main.py", "cli/test_main_export.py")


def _names_tests(config: pytest.Config) -> bool:
    """Return whether the command line names files or tests."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run in one process if the command line names files or tests; else use all cores."""
    return 0 if _names_tests(config) else len(os.sched_getaffinity(0))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark smoke tests, and leave out slow and timed tests unless they are requested."""
    timed_or_slow = {
        i for i in items if i.get_closest_marker("slow") or i.get_closest_marker("alone")
    }
    for item in {*items} - timed_or_slow:
        if item.path.relative_to(Path(__file__).parent).as_posix().startswith(_SMOKE):
            item.add_marker("smoke")
    if not config.option.markexpr and not any("::" in argument for argument in config.args):
        config.hook.pytest_deselected(items=[item for item in items if item in timed_or_slow])
        items[:] = [item for item in items if item not in timed_or_slow]


SHARED = Path(__file__).parents[2] / "shared" / "data"

needs_fashion_mnist = pytest.mark.skipif(
    not (SHARED / "fashion_mnist").is_dir(), reason=f"no Fashion-MNIST in {SHARED}"
)

#: Options of the fastest search: networks share weights and are not fine-tuned.
SHARED_WEIGHTS = ("accuracy=supernet", "finish.epochs=0")

#: Section of targets with the runtime TVM.
TVM: dict[str, Any] = {"tvm": TvmSettings()}


#: Prefixes of options without effect in a verb: facts of devices, and options set by data sets.
HIDDEN = {
    "search": ("target.",),
    "profile": ("target.", "train.", "trained."),
    "train": ("trained.",),
    "verify": ("target.",),
    "split": ("target.",),
}


def options_with_defaults(verb: str) -> list[tuple[str, Any]]:
    """Return the options of a verb with their defaults; a budget as its possible limits."""
    limits = [("budget.name", Budget.name), *((f"budget.{n}", None) for n in metrics.cost_names())]
    listed = [
        entry
        for name, value in option_defaults(SCHEMAS[verb])
        for entry in (limits if name == "budget" else [(name, value)])
    ]
    defaults, hidden = help.values(verb), HIDDEN.get(verb, ())
    return [(n, defaults.get(n, v)) for n, v in listed if not n.startswith(hidden)]


def last_of(*arguments: str) -> list[str]:
    """Return the arguments of a command, with only the last value of each option."""
    return [*{argument.partition("=")[0].lstrip("+"): argument for argument in arguments}.values()]


def few_of(values: Iterable[object], n: int) -> list[Any]:
    """Return test parameters; all but the first ``n`` are marked slow."""
    first, others = (parameters := [*values])[:n], parameters[n:]
    return [*first, *(pytest.param(value, marks=pytest.mark.slow) for value in others)]


def target(name: str) -> Target:
    return from_facts(
        yaml.safe_load((package.ROOT / "conf" / "target" / f"{name}.yaml").read_text())
    )


def with_settings(base: Target, settings: object) -> Target:
    """Return a target with other settings of its backend."""
    section: dict[str, Any] = {base.runtime: settings}
    return replace(base, **section)


def images_of(split: DataSplit) -> torch.Tensor:
    """Return all images of a small split."""
    return split.take(torch.arange(len(split))).images


@pytest.fixture(scope="session")
def npu() -> Target:
    return target("npu")


@pytest.fixture(scope="session")
def tiny() -> SearchSpace:
    return spaces.load_space(spaces.find("tiny"))


@pytest.fixture(scope="session")
def small() -> SearchSpace:
    return spaces.load_space(spaces.find("mbconv_small"))


@pytest.fixture(scope="session")
def task() -> Signature:
    return Signature(in_channels=1, n_outputs=10)


@pytest.fixture(scope="session")
def digits() -> ImageData:
    return load_data(DatasetConfig("digits", validation=0.25), 28, NullProgress())


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    with running(programs) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _cache_vela_estimates() -> Iterator[None]:
    """Cache estimates of Vela: most searches start with the same networks of a small space."""
    estimates: dict[tuple[Graph, str], Cost] = {}
    estimate_once = vela_compiler.estimate

    @functools.wraps(estimate_once)
    def estimate(lowered: Graph, target: Target) -> Cost:
        key = (lowered, repr(target))
        if key not in estimates:
            estimates[key] = estimate_once(lowered, target)
        return estimates[key]

    with pytest.MonkeyPatch.context() as patch:
        for module in (vela_compiler, vela_backend):
            patch.setattr(module, "estimate", estimate)
        yield


@pytest.fixture(autouse=True)
def _clear_hydra() -> Iterator[None]:
    yield
    GlobalHydra.instance().clear()


def space_yaml(space: SearchSpace) -> dict[str, Any]:
    """Return the content of a space's file, for a test to modify."""
    raw = asdict(space)
    return {
        "family": raw["family"],
        "choices": {name: list(options) for name, options in raw["choices"].items()},
        "fixed": dict(raw["fixed"]),
    }
