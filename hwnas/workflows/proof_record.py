"""Writes the contents of ``proof.json``, the record of an export."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hwnas.core.database import redact_arguments
from hwnas.core.manifest import Manifest, accuracy_source
from hwnas.core.quantity import Quantities
from hwnas.core.run_folder import Row
from hwnas.export import proof_file
from hwnas.export.checks import TOLERANCES
from hwnas.export.prove import ProofEvidence
from hwnas.export.runtimes import kinds
from hwnas.hardware import backends
from hwnas.hardware.backends.estimated_backend import EstimatedBackend
from hwnas.hardware.latency_tables.provenance import device_facts
from hwnas.hardware.target import Target, facts
from hwnas.models.families import annotations
from hwnas.models.graph import n_macs, n_params
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.spaces import Genotype
from hwnas.nas.verified_files import VerifiedModelFile, read_model
from hwnas.tasks.metrics import metric_of
from hwnas.workflows.config import ExportConfig
from hwnas.workflows.config.arguments import of_target
from hwnas.workflows.search import finish_runs
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finisher import Finetuner
from hwnas.workflows.search.front import describe_energy

_RECORDED = ("hwnas", "torch", "numpy", "onnx")


@dataclass(frozen=True)
class ExportRequest:
    """A request to export networks of a search."""

    config: ExportConfig
    arguments: Sequence[str]  #: arguments of the command line
    root: Path  #: parent of the exports' folders
    verb: str = "export"  #: ``export`` or ``compress``

    @property
    def command(self) -> str:
        """The command line to repeat the export, without passwords in URLs."""
        return f"hwnas {self.verb} {shlex.join(redact_arguments(self.arguments))}"


@dataclass(frozen=True)
class PickedNetwork:
    """One network for one target."""

    context: TargetContext  #: the target with the settings of the network
    genotype: Genotype
    finisher: Finetuner  #: provides the final weights
    manifest: Manifest  #: manifest of the search


def title(context: TargetContext, genotype: Genotype) -> str:
    """Return a description of a network in one sentence."""
    space, data = genotype.space, context.parts.data.name
    return (
        f"Network {genotype.id} of search space {space}, trained on {data}, for {context.target}."
    )


def record(
    pick: PickedNetwork,
    ready: DeployableNetwork,
    evidence: ProofEvidence,
    order: ExportRequest,
    place: Path,
    means: Quantities,
) -> Row:
    """Return the content of ``proof.json``, except its files and the results of the search.

    Args:
        pick: The network and the search.
        ready: The network with final weights.
        evidence: Results of the checks.
        order: The request.
        place: Folder of the export.
        means: Expected costs with early exits, by name; empty without exits.
    """
    context, genotype, finisher = pick.context, pick.genotype, pick.finisher
    parts, config, lowered = context.parts, context.config, ready.graph
    space = parts.space.member(genotype)
    data, verify = parts.data, f"hwnas verify {shlex.quote(str(place))}"
    position = list(pick.manifest.get("targets", [context.target])).index(context.target)
    overrides = of_target(pick.manifest["arguments"], position)
    if lowered.dtype:  # a dtype chosen by the network overrides the target's
        others = (w for w in overrides if not w.startswith("target.dtype="))
        overrides = [*others, f"target.dtype={lowered.dtype}"]
    for key, n in ((annotations.BATCH, lowered.batch), (annotations.THREADS, lowered.threads)):
        if n:  # as for the dtype
            choice = f"target.{annotations.OF_TARGETS[key]}="
            overrides = [*(w for w in overrides if not w.startswith(choice)), f"target.{key}={n}"]
    costs = shlex.join(overrides)
    is_estimated = isinstance(parts.networks.backend, EstimatedBackend)  # measures nothing
    batch_size = config.train.for_images(len(data.train)).images_per_step
    figures = evidence.cost.figures
    held = {**figures, **means}
    return {
        "format": proof_file.FORMAT,
        "made": {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": order.command,
            "versions": _versions(config.target, evidence),
            "machine": _machine(config.target),
        },
        "model": {
            "id": genotype.id,
            "name": f"{space.name}-{data.name}-{context.target}-{genotype.id}",
            "genotype": genotype.to_dict(),
            "search_space": space.name,
            "family": space.family,
            "input": list(lowered[0].op.in_shape),
            "n_outputs": data.task.n_outputs,
            "macs_m": n_macs(lowered) / 1e6,
            "params_m": n_params(lowered) / 1e6,
            "operators": proof_file.operators_to_json(lowered),
        },
        "task": data.task.to_json(),
        "license": order.config.license,
        "source": {
            "run": str(order.config.run),
            "pick": ", ".join(order.config.wanted),
            "command": pick.manifest["command"],
            **_weights(pick, pick.manifest),
            "search_space_digest": space.digest,
        },
        "seed": config.seed,
        "training": {**asdict(config.train), "batch_size": batch_size},
        "finishing": {**ready.record, **finish_runs.facts(finisher, genotype)},
        "dataset": {
            **asdict(config.dataset),
            "digest": data.digest,
            "max_resolution": max(
                parts.networks.resolution(member.largest()) for member in parts.space.members
            ),
            "images": {n: len(getattr(data, n)) for n in ("train", "validation", "test")},
            "classes": data.class_counts,
            "constant": data.constant("test").to_json(),
            "normalisation": {"mean": list(data.mean), "std": list(data.std)},
        },
        "target": facts(config.target),
        "energy_source": describe_energy(config.target),
        "reference": {evidence.metric: evidence.reference.to_json()},
        "artefacts": evidence.artefacts(),
        "own_artefact": config.target.artefact,
        "figures": proof_file.figures_to_json(figures),
        "details": dict(evidence.cost.details),
        "budget": {
            name: {"limit": limit, "margin": -metric_of(name).violation(held[name], limit)}
            for name, limit in config.allowed.limits.items()
            if name in held
        },
        "max_int8_drop": finisher.config.max_int8_drop,
        "tolerances": TOLERANCES,
        "checks": [check.to_json() for check in evidence.checks],
        "commands": {
            "Errors, answers, files": verify,
            **({} if is_estimated else {"Costs": f"{verify} {costs}"}),
            "All, from the search": order.command,
        },
    }


def _versions(target: Target, evidence: ProofEvidence) -> dict[str, str]:
    """Return the versions of the packages that built and ran the artefacts."""
    build_packages = backends.fingerprint_packages(target.runtime, target.dtype)
    run_packages = [
        package for name in evidence.agreements for package in kinds()[name].needs.values()
    ]
    return {
        n: backends.version(n) for n in dict.fromkeys([*_RECORDED, *run_packages, *build_packages])
    }


def _machine(target: Target) -> Row:
    """Return the description of this machine, without CPU features."""
    described = device_facts(target)
    names = ("cpu", "cores", "governor", "system", "gpu", "driver")
    return {name: described[name] for name in names if name in described}


def _weights(pick: PickedNetwork, manifest: Manifest) -> Row:
    """Return the source of the weights with which the search scored the network."""
    parts, genotype = pick.context.parts, pick.genotype
    if accuracy_source(manifest) == "supernet":
        return {"supernet": parts.setup_of(genotype).checkpoint().path.parent.name}
    n = pick.finisher.left.get(genotype.id, 1)
    return {"supernet": None, "trained_epochs": parts.config.trained.fidelities[:n]}


def search_record(order: ExportRequest, target: str, genotype_id: str) -> VerifiedModelFile | None:
    """Return ``models/ID.json`` of the run for a target; ``None`` if the network is not verified.

    Raises:
        RunError: the file is damaged, or of a newer version of hwnas.
    """
    run = Path(order.config.run)
    return read_model(run / target if (run / target).is_dir() else run, genotype_id)


def reported(order: ExportRequest, pick: PickedNetwork, files: Mapping[str, str]) -> Row | None:
    """Return the metrics, costs and file digests that the search recorded in ``models/ID.json``.

    ``None`` without this file. The keys are ``figures``, ``files``, ``of`` (a text about the
    weights) and ``same_files`` (names of the given files that are equal).

    Args:
        order: The request.
        pick: The network.
        files: SHA-256 of the files of the export, by name.
    """
    if (known := search_record(order, pick.context.target, pick.genotype.id)) is None:
        return None
    weights, finishing = "these weights", pick.manifest.get("finishing")
    in_int8 = any(name.endswith("_int8") for name in known["figures"])
    if finishing is None:
        weights = "the weights in the supernet"
    elif in_int8 and pick.genotype.id in finishing.get("hurried", ()):  # an export trains it
        weights = "the weights calibrated to int8 without training"
    elif pick.finisher.other is not None:
        weights = "the weights as the search finished them"
    same = sorted(name for name, digest in files.items() if digest in known["files"].values())
    return {"figures": known["figures"], "files": known["files"], "of": weights, "same_files": same}
