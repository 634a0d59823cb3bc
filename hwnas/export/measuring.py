"""Costs of an export on the machine at hand, or estimated again; needs no torch."""

import contextlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hwnas.cost.host import as_run, host_cost
from hwnas.errors import ConfigError
from hwnas.export import proof, running
from hwnas.export.options import VerifyConfig
from hwnas.figure import Figure, Figures
from hwnas.metrics.deriving import deriving
from hwnas.op import Lowered
from hwnas.runtimes.pool import Pool, Retrying
from hwnas.target import Remote, Target, facts

Row = dict[str, Any]


#: What finding costs takes: distributions by the package that they bring.
_NEEDS = {
    "vela": {"ethosu": "ethos-u-vela"},
    "tvm": running.NEEDS["tvm"],
    "onnxruntime": {**running.NEEDS["onnxruntime"], "onnx": "onnx"},
}


@dataclass(frozen=True)
class Measured:
    """What an artefact costs on a target."""

    target: Target
    name: str  #: the artefact
    figures: Figures
    before: Figures  #: that the proof says of the same target; of another, none
    #: What the same version of the compiler gave that it did not give before: figures and a file.
    other: Sequence[str] = ()
    #: Whether the compiler gave the same file again; ``None`` where it was not asked.
    same: bool | None = None

    def lines(self) -> list[str]:
        """Return what was found, in sentences."""
        found = [f"{self.name} on {self.target.name}, {self.target.caveat}:"]
        for name, figure in self.figures.items():
            before = self.before.get(name, figure)
            said = "" if before == figure else f"; the proof says {before.value:.4g}"
            found.append(f"  {name} {_words(figure)}{said}")
        if self.same is not None:
            found.append(f"  The compiler gave {'the same' if self.same else 'another'} file.")
        return found

    def failed(self, recorded: Row) -> list[str]:
        """Return what is not as the proof says, and the limits of the budget that are not met."""
        if self.target.name != recorded["target"]["name"]:
            return []
        limits = {name: entry["limit"] for name, entry in recorded["budget"].items()}
        checks = proof.within_budget(limits, self.figures)
        return [*self.other, *(check.name for check in checks if not check.holds)]


def elsewhere(name: str, target: Target, remote: Remote) -> str:
    """Return why what TVM compiled for a target does not run from here; empty if it does."""
    assert target.tvm is not None
    if name == "model.tar":
        from hwnas.runtimes.relax.linker import find_compiler

        try:
            find_compiler(target.tvm.cc)
        except ConfigError as error:
            return f"nothing links it: {str(error).rstrip('.')}"
    if target.tvm.mtriple and not remote.tracker:
        return f"it is for '{target.name}': give rpc.tracker=HOST:PORT and rpc.key=KEY"
    return ""


@contextlib.contextmanager
def worker(target: Target, config: VerifyConfig) -> Iterator[Retrying]:
    """Give what runs and times compiled networks, in a process of its own."""
    pool = Pool(target, config.timing, config.rpc, config.limit_s)
    try:
        yield Retrying(pool)
    finally:
        pool.close()


def measure(folder: Path, recorded: Row, target: Target, config: VerifyConfig) -> Measured:
    """Return what an export costs on a target: compiled again by Vela, or timed.

    Raises:
        ConfigError: the export has no artefact that the target runs, or a package is missing.
    """
    lowered = proof.operators_from_json(recorded["model"]["operators"])
    target = _with_facts(target, proof.target_of(recorded))
    if why := running.lacking(_NEEDS.get(target.runtime, {})):
        raise ConfigError(f"Costs on target '{target.name}': {why}.")
    if target.runtime == "vela":
        return _compiled(folder, recorded, lowered, target)
    if target.runtime not in ("tvm", "onnxruntime"):
        raise ConfigError(f"Target '{target.name}' does not exist: nothing can be measured on it.")
    onnx = "model.int8.onnx" if target.dtype == "int8" else "model.fp32.onnx"
    name = "model.so" if target.runtime == "tvm" else onnx
    _check_there(name, recorded, target)
    images = proof.read_kept(folder).pixels[: target.batch]
    said = recorded["dataset"]["normalisation"]
    with worker(target, config) as bench:
        judged = bench.judge(
            running.paths(folder, name), proof.prepared(images, said["mean"], said["std"])
        )
    fused = as_run(lowered, target)
    cost = host_cost(fused, target, judged.timing.figure, judged.energy)
    figures = _derived(cost.figures, recorded, target)
    return Measured(target, name, figures, _before(recorded, target))


def _with_facts(target: Target, before: Target) -> Target:
    """Return a target with the facts that the proof's has, if it is that and states none itself."""
    same = target.name == before.name and not target.facts
    return replace(target, facts=before.facts) if same else target


def _derived(figures: Figures, recorded: Row, target: Target) -> Figures:
    """Return figures with what is derived from them, of what the proof has, where facts allow."""
    return deriving(target, recorded["figures"])(figures)


def _before(recorded: Row, target: Target) -> Figures:
    """Return what the proof says of a target, if it was made for just that."""
    return proof.figures_from_json(recorded["figures"]) if _is_its(recorded, target) else {}


def _is_its(recorded: Row, target: Target) -> bool:
    return facts(target) == facts(proof.target_of(recorded))


def _compiled(folder: Path, recorded: Row, lowered: Lowered, target: Target) -> Measured:
    from hwnas.cost.vela import compile_tflite

    name = "model.int8.tflite"
    _check_there(name, recorded, target)
    compiled = compile_tflite((folder / name).read_bytes(), lowered, target)
    figures = _derived(compiled.cost.figures, recorded, target)
    before = _before(recorded, target)
    if not before:
        return Measured(target, name, figures, before)
    same = compiled.artefact == (folder / "model.vela.tflite").read_bytes()
    other = [n for n, figure in figures.items() if n not in before or figure != before[n]]
    other += ["model.vela.tflite"] * (not same)
    if importlib.metadata.version("ethos-u-vela") != recorded["made"]["versions"]["ethos-u-vela"]:
        other = []  # another version may find another way
    return Measured(target, name, figures, before, other, same)


def _check_there(name: str, recorded: Row, target: Target) -> None:
    there: Sequence[str] = list(recorded["artefacts"])
    if name not in there:
        cure = " Say target.runtime=onnxruntime." if name == "model.so" else ""
        raise ConfigError(
            f"Target '{target.name}' runs {name}, which this export does not hold "
            f"({', '.join(there)}).{cure}"
        )


def _words(figure: Figure) -> str:
    interval = "" if figure.low is None else f" ({figure.low:.4g} to {figure.high:.4g})"
    return f"{figure.value:.4g}{interval}, {figure.source}"
