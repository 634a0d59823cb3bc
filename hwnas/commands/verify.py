"""``python -m hwnas verify``: repeats the proof of an export with the runtimes at hand.

Imports nothing that needs torch; where torch is installed, ``model.py`` and the whole test split
are read, too.
"""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hwnas.errors import ConfigError, HwnasError, ProofError
from hwnas.export import folder as folders
from hwnas.export import measuring, proof, running
from hwnas.export.options import VerifyConfig
from hwnas.figure import proportion
from hwnas.runtimes.base import Session
from hwnas.runtimes.pool import Retrying

Row = dict[str, Any]


def run(config: VerifyConfig) -> None:
    """Repeat the proof of an export.

    Raises:
        ProofError: a file is not what it was, or an artefact does not do what it did.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    folder = Path(config.export)
    recorded = proof.read(folder)
    if differing := folders.differences(recorded["files"], folders.digests(folder)):
        raise ProofError(f"{folder}: {'; '.join(differing)}.")
    console.print(f"{len(recorded['files'])} files are as they were.")
    failed = [c["name"] for c in recorded["checks"] if not c["holds"]]
    with _sessions(folder, recorded, config, console) as sessions:
        failed += _agreements(folder, recorded, sessions, console)
        failed += _accuracies(recorded, sessions, config, console)
    if config.target is not None:
        measured = measuring.measure(folder, recorded, config.target, config)
        for line in measured.lines():
            console.print(line)
        if config.target.name == recorded["target"]["name"]:
            failed += measured.over(recorded)
    if failed:
        raise ProofError(f"{folder} is not as it should be: {', '.join(dict.fromkeys(failed))}.")
    console.print("Everything that was repeated holds.")


@contextlib.contextmanager
def _sessions(
    folder: Path, recorded: Row, config: VerifyConfig, console: Console
) -> Iterator[Mapping[str, Session]]:
    """Give the artefacts that run on this machine; say of the others why they do not."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Session] = {}
        worker: Retrying | None = None
        for name in recorded["artefacts"]:
            if name not in running.KINDS:
                raise ConfigError(f"{folder}: this version knows no artefact '{name}'.")
            if why := running.hindrance(name):
                console.print(f"{name}: not run, {why}.")
                continue
            if running.KINDS[name].runtime == "tvm":
                target = measuring.target_of(recorded)
                if why := measuring.elsewhere(name, target, config.rpc):
                    console.print(f"{name}: not run, {why}.")
                    continue
                worker = worker or stack.enter_context(measuring.worker(target, config))
            try:
                found[name] = running.session(folder, name, worker)
            except Exception as error:  # each runtime, and Python itself, raises its own
                raise ProofError(f"{folder / name}: {error or type(error).__name__}") from None
        yield found


def _agreements(
    folder: Path, recorded: Row, sessions: Mapping[str, Session], console: Console
) -> list[str]:
    """Compare outputs with torch's that the export holds; return the checks that fail."""
    kept, said = proof.read_kept(folder), recorded["dataset"]["normalisation"]
    images, failed = proof.prepared(kept.pixels, said["mean"], said["std"]), []
    for name, session in sessions.items():
        outputs = session.run(images)
        dtype = running.KINDS[name].dtype
        near = kept.agreement(outputs, dtype)
        check = near.check(name, dtype)
        share = proportion(int((outputs.argmax(axis=1) == kept.labels).sum()), len(outputs))
        console.print(
            f"{name}: largest error {near.max_error:.2g}, mean {near.mean_error:.2g}, same class "
            f"as torch on {near.top1:.1%} of {near.n_images} images (right on {share.value:.1%})."
        )
        failed += [] if check.holds else [check.name]
    return failed


def _accuracies(
    recorded: Row, sessions: Mapping[str, Session], config: VerifyConfig, console: Console
) -> list[str]:
    """Read the whole test split, where it is; return the artefacts that do not as they did."""
    if importlib.util.find_spec("torch") is None:
        console.print("The test split was not read: that needs torch.")
        return []
    from hwnas.export.split import batches

    try:
        found = batches(recorded, config.data)
    except HwnasError as error:
        console.print(f"The test split was not read: {error} Say where it is with data=PATH.")
        return []
    right = dict.fromkeys(sessions, 0)
    n = 0
    for images, labels in found:
        n += len(labels)
        for name, session in sessions.items():
            right[name] += int(np.sum(session.run(images).argmax(axis=1) == labels))
    failed = []
    for name, count in right.items():
        figure, before = proportion(count, n), recorded["artefacts"][name].get("accuracy")
        assert figure.low is not None
        assert figure.high is not None
        console.print(
            f"{name}: {figure.value:.4f} of {n:,} test images ({figure.low:.4f} to "
            f"{figure.high:.4f})" + (f"; the proof says {before[0]:.4f}." if before else ".")
        )
        # Rounding differs from machine to machine, and turns an image in a thousand at most.
        if before and abs(figure.value - before[0]) > max(1e-3, 1.5 / n):
            failed.append(f"{name}.accuracy")
    return failed
