"""Repeats the proof of an export with the installed runtimes.

Works without torch. If torch is installed, ``model.py`` and the whole test split are checked,
too.
"""

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from hwnas import tasks
from hwnas.core.errors import ConfigError, DataError, DeviceError, HwnasError, ProofError, RunError
from hwnas.export import early_exits, measure, recomputation, runtimes
from hwnas.export import folder as folders
from hwnas.export import proof_file as proofs
from hwnas.export.checks import Floats
from hwnas.export.early_exits import LoadedSegments
from hwnas.export.options import VerifyConfig
from hwnas.export.proof_file import EarlyExitsRecord, Proof, target_of
from hwnas.export.reference_images import prepared, read_reference_images
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.tasks.base import PerImageResults, Targets, Task
from hwnas.tasks.metrics import format_interval, format_value, metric_of
from hwnas.workflows.reporter import Reporter

# Repeats the proof of early exits, without torch.


@final
class RepeatedExits:
    """Repeats the checks of early exits on this machine; ``failed`` has the names of failed ones.

    Args:
        folder: The export.
        recorded: Its ``proof.json``.
        leaving: Entry ``exits`` of the proof.
        task: The task.
    """

    def __init__(self, folder: Path, recorded: Proof, leaving: EarlyExitsRecord, task: Task):
        self._folder, self._leaving, self._task = folder, leaving, task
        self._target = target_of(recorded)
        self._segments: LoadedSegments | None = None
        self._found: list[PerImageResults] = []
        self._at: list[PerImageResults] = []
        self.failed: list[str] = []

    def bits(self, images: Floats) -> list[str]:
        """Load the segments and compare their outputs with the stored ones; return a message.

        If a package is missing, the message says so, and nothing is compared.

        Args:
            images: Normalised images ``(N, C, H, W)`` with stored outputs.
        """
        needs = backends.get(self._target.runtime).needs
        if why := backends.lacking(needs):
            return [f"Segments: not run, {why}."]
        n = len(self._leaving["segments"])
        self._segments = early_exits.open_segments(self._folder, self._target, self._task, n)
        expected = early_exits.read_answers(self._folder)
        checks = self._segments.checks(images, expected, self._leaving["trained"])
        self.failed += [check.name for check in checks if not check.holds]
        errors = ", ".join(f"{check.name} {check.found:.2g}" for check in checks)
        return [f"{n} segments one after another on {len(images)} images: {errors}."]

    def read(self, images: Floats, targets: Targets) -> None:
        """Run normalised test images through the segments, if any, and keep the results."""
        if self._segments is not None:
            result = self._segments.left(images, self._leaving["thresholds"])
            self._found.append(self._task.per_sample(result.outputs, targets))
            self._at.append(result.at)

    def ended(self) -> list[str]:
        """Compare the exits taken and the accuracy with the proof; return a message.

        Empty if ``read`` has run no images.
        """
        if not self._found:
            return []
        figure, indices = (
            self._task.score(np.concatenate(self._found)),
            np.concatenate(self._at),
        )
        proven = self._leaving["found"]
        shares = [float((indices == i).mean()) for i in range(len(proven["left"]))]
        # Rounding differs between machines and changes at most one prediction in a thousand.
        allowed = max(0.001, 1.5 / len(indices))
        off = [abs(share - row[0]) for share, row in zip(shares, proven["left"], strict=True)]
        if max(*off, abs(figure.value - proven["accuracy"][0])) > allowed:
            self.failed.append("exits.left")
        leaving = ", ".join(f"{share:.1%}" for share in shares)
        expected = ", ".join(f"{row[0]:.1%}" for row in proven["left"])
        return [
            f"Leaving early: {leaving} leave at the exits, accuracy {figure.value:.4f} on "
            f"{len(indices):,} test images; the proof says {expected} and "
            f"{proven['accuracy'][0]:.4f}."
        ]


def verify(config: VerifyConfig, reporter: Reporter) -> None:
    """Repeat the checks of an export, and report the results as messages.

    Raises:
        ProofError: a file has changed, the signature does not match ``key``, a check already failed
            at export, or results differ from the proof.
        RunError: the folder is not an export, or none of its artefacts runs here.
        ConfigError: the public key cannot be read, or ``target`` cannot run the export.
        DataError: the data set at ``data`` is missing, is not that of the export, or torch is not
            installed to read it.
        DeviceError: the devices of ``rpc.tracker`` do not respond.
    """
    folder = Path(config.export)
    signature = folders.check_signature(folder, config.key)
    recorded = proofs.read_proof(folder)
    folders.check_unchanged(folder, recorded["files"])
    reporter.say([f"{folder}: {len(recorded['files'])} files are unchanged.", signature])
    with contextlib.ExitStack() as stack:
        repeating = _RepeatedProof(folder, recorded, config, reporter)
        repeating.load(stack)
        repeating.agreements()
        repeating.whole_split()
    if not config.key:
        reporter.say([recomputation.unproven(folder, recorded)])
    failed = [c["name"] for c in recorded["checks"] if not c["holds"]] + repeating.all_failed
    if config.target is not None:
        try:
            costs = measure.measure(folder, recorded, config.target, config)
        except ConfigError:
            if not failed:
                raise
            costs = []  # failed checks are more important
        for measured in costs:
            reporter.say(measured.lines())
            failed += measured.failed
    if failed:
        raise ProofError(
            f"{folder}: these checks failed: {', '.join(dict.fromkeys(failed))}. Do not deploy it; "
            "export the network again."
        )
    reporter.say(["All repeated checks passed."])


@final
class _RepeatedProof:
    """The artefacts of an export that run on this machine, and their failed checks."""

    def __init__(self, folder: Path, recorded: Proof, config: VerifyConfig, reporter: Reporter):
        self._folder, self._recorded, self._config = folder, recorded, config
        self._task, self._known = tasks.from_json({**recorded["task"]}), recorded["artefacts"]
        self._label = metric_of(self._task.metric).label
        self._reporter = reporter
        self._target = target = target_of(recorded)
        if config.target is not None and measure.is_same_target(recorded, config.target):
            target = config.target  # with its C compiler
        #: target on which files are run; their outputs need no meter
        self._running_target = replace(target, meter="none", meter_channel="")
        self._sessions: dict[str, Session] = {}
        self._not_run: list[str] = []
        self._exits = None
        if "exits" in recorded:
            self._exits = RepeatedExits(folder, recorded, recorded["exits"], self._task)
        self.failed: list[str] = []

    def _say(self, line: str) -> None:
        self._reporter.say([line])

    def load(self, stack: contextlib.ExitStack) -> None:
        """Load the artefacts that run on this machine; report why the others do not.

        Raises:
            RunError: none runs.
        """
        worker: RetryingPool | None = None
        for name in self._recorded["artefacts"]:
            if why := self._hindrance(name):
                self._leave_out(name, why)
                continue
            is_on_engine = name == self._recorded["own_artefact"] and self._has_engine
            if is_on_engine or runtimes.needs_worker(name):
                worker = worker or stack.enter_context(
                    measure.worker(self._running_target, self._config)
                )
            if name == self._recorded["own_artefact"] and not is_on_engine:
                self._reporter.say(self._engine_message())
            with self._catch_failures(name):
                self._sessions[name] = self._session(name, worker, is_on_engine=is_on_engine)
        self._check_any_runs()

    @property
    def _has_engine(self) -> bool:
        """Whether the target of the command has the engine with which the export was checked."""
        given, own = self._config.target, self._target
        return own.engine != own.runtime and given is not None and given.engine == own.engine

    def _engine_message(self) -> list[str]:
        """Return how the target runs its own artefact, if this machine runs it differently."""
        target = self._target
        if target.engine == target.runtime:
            return []
        return [
            f"{self._recorded['own_artefact']}: outputs are those of {target.runtime} on this CPU, "
            f"but the export was checked with {target.engine}. To repeat that, add "
            f"+target={target.name}."
        ]

    def _leave_out(self, name: str, why: str) -> None:
        """Report that an artefact is not run."""
        self._say(f"{name}: not run, {why}.")
        self._not_run.append(f"{name}: {why}")

    def _check_any_runs(self) -> None:
        """Raise ``RunError`` if no artefact runs on this machine, and none failed."""
        if not self._sessions and not self.failed:
            raise RunError(
                f"{self._folder}: none of its files can run on this machine. "
                f"{'; '.join(self._not_run)}."
            )

    def _session(self, name: str, worker: RetryingPool | None, *, is_on_engine: bool) -> Session:
        """Return a session of an artefact; ``model.py`` is written again instead of executed."""
        if is_on_engine and worker is not None:
            return runtimes.WorkerSession(runtimes.paths(self._folder, name), worker)
        if name != runtimes.TORCH:
            return runtimes.session(self._folder, name, worker)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / name
            path.write_text(recomputation.network_code(self._recorded), "utf-8")
            module = runtimes.load_module(path)
        (weights,) = runtimes.paths(self._folder, name).values()
        return runtimes.TorchSession(module.load(weights))

    def agreements(self) -> None:
        """Compare outputs with torch's outputs stored in the export."""
        references = read_reference_images(self._folder, self._recorded)
        self.failed += recomputation.contradictions(self._folder, self._recorded, references)
        normalisation = self._recorded["dataset"]["normalisation"]
        images = prepared(references.pixels, normalisation["mean"], normalisation["std"])
        for name, session in [*self._sessions.items()]:
            with self._catch_failures(name):
                outputs = session.run(images)
                dtype = runtimes.kinds()[name].dtype
                near = references.agreement(self._task, outputs, dtype)
                check = near.check(name, dtype)
                figure = self._task.score(self._task.per_sample(outputs, references.targets))
                self._say(
                    f"{name}: largest error {near.max_error:.2g}, mean {near.mean_error:.2g}, "
                    f"{self._task.description.same} as torch on {near.same:.1%} of {near.n_images} "
                    f"images ({self._label} {format_value(self._task.metric, figure.value)})."
                )
                self.failed += [] if check.holds else [check.name]
        self._check_any_runs()
        if self._exits is not None:
            with self._catch_failures("segments"):
                self._reporter.say(self._exits.bits(images))

    def whole_split(self) -> None:
        """Evaluate the whole test split, if it is available.

        Raises:
            DataError: the data set is not at the given path.
        """
        if (batches := self._test_split()) is None:
            return
        results: dict[str, list[PerImageResults]] = {name: [] for name in self._sessions}
        for images, targets in batches:
            for name, session in [*self._sessions.items()]:
                with self._catch_failures(name):
                    results[name].append(self._task.per_sample(session.run(images), targets))
            if self._exits is not None:
                with self._catch_failures("segments"):
                    self._exits.read(images, targets)
        metric = self._task.metric
        for name in self._sessions:
            n = sum(map(len, results[name]))
            figure = self._task.score(np.concatenate(results[name]))
            before = {**self._known[name]}.get(metric)
            proven = before[0] if isinstance(before, tuple | list) else None
            self._say(
                f"{name}: {self._label} {format_value(metric, figure.value)} on {n:,} test images "
                f"({format_interval(metric, figure)})"
                + ("." if proven is None else f"; the proof says {format_value(metric, proven)}.")
            )
            # Rounding differs between machines and changes at most one prediction in a thousand.
            points = max(0.1, 150 / n)
            if proven is not None and abs(self._task.points(proven, figure.value)) > points:
                self.failed.append(f"{name}.{metric}")
            reference = self._recorded["reference"][metric][0]
            if name == runtimes.TORCH and abs(self._task.points(reference, figure.value)) > points:
                self.failed.append(f"reference.{metric}")
        if self._exits is not None:
            self._reporter.say(self._exits.ended())

    @property
    def all_failed(self) -> list[str]:
        """The failed checks, including those of exits."""
        return self.failed + (self._exits.failed if self._exits is not None else [])

    def _hindrance(self, name: str) -> str:
        if (why := runtimes.unavailable_reason(name)) or not runtimes.needs_worker(name):
            return why
        target = self._running_target
        if not self._config.key and self._config.target is None:
            return (
                "it is native code of the export; to run it, check its signature with key=FILE, or "
                f"add +target={target.name} if you trust its origin"
            )
        return base.backend_of(target).unavailable_reason(name, self._config.rpc)

    def _test_split(self) -> Iterable[Any] | None:
        data = self._config.data
        if importlib.util.find_spec("torch") is None:
            if data is not None:
                raise DataError(f"data={data}: reading it needs torch: pip install torch")
            self._say("The test split was not read: that needs torch: pip install torch")
            return None
        from hwnas.export import proof_data

        try:
            loaded = proof_data.load(self._recorded, data)
        except HwnasError as error:
            if data is not None:
                raise
            self._say(f"The test split was not read: {error} Say where it is with data=PATH.")
            return None
        self.failed += proof_data.contradictions(self._recorded, loaded)
        return proof_data.batches(self._recorded, loaded)

    @contextlib.contextmanager
    def _catch_failures(self, name: str) -> Iterator[None]:
        """Continue without an artefact that fails; the failure is reported at the end."""
        try:
            yield
        except Exception as error:  # each runtime raises its own errors
            if isinstance(error, DeviceError) and self._config.rpc.tracker:
                raise
            reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
            self._sessions.pop(name, None)
            if isinstance(error, ConfigError):  # of this machine, not of the file
                self._leave_out(name, reason)
            else:
                self.failed.append(f"{name}: {reason}")
