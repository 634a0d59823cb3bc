import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hwnas.core.errors import CollapseError, CompileError, DeviceCrashError, DeviceError, HwnasError
from hwnas.core.progress import NullProgress
from hwnas.core.run_folder import Row, RunFolder
from hwnas.hardware.target import Target
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.spaces import Genotype
from hwnas.nas import loop
from hwnas.nas.candidates import Candidate
from hwnas.nas.verification import Verifier, verify
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.data import DatasetConfig
from hwnas.training.evaluation.shared_weights import TrainedOnDemand
from hwnas.training.options import FinishConfig
from hwnas.workflows import components
from hwnas.workflows.components import accuracies
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.finisher import Finetuner, verifier

OBJECTIVES = ("accuracy", "latency_ms")


@pytest.fixture(scope="module")
def parts(npu: Target) -> components.SearchComponents:
    config = SearchConfig(
        target=npu,
        dataset=DatasetConfig("digits", validation=0.25),
        search_space="tiny",
        accuracy="supernet",
        finish=FinishConfig(epochs=0),
    )
    return components.parts(config, NullProgress())


@pytest.fixture(scope="module")
def bench(parts: components.SearchComponents) -> Verifier:
    torch.manual_seed(0)
    (setup,) = parts.setups.values()
    supernet = setup.untrained()
    supernet.module.eval()
    evaluator = setup.evaluator(supernet, parts.config.scoring)
    weights = TrainedOnDemand({parts.space.name: lambda: evaluator})
    return verifier(parts, Finetuner(parts, weights), None)


@pytest.fixture(scope="module")
def members(parts: components.SearchComponents) -> list[Candidate]:
    model = components.cost_model(parts, None)
    genotypes = [parts.space.smallest(), parts.space.largest()]
    return [
        Candidate(n, genotype, dict(model.cost(genotype).figures))
        for n, genotype in enumerate(genotypes)
    ]


def test_figures_are_those_of_verified_files(
    members: list[Candidate], bench: Verifier, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    verified = verify(members, bench, Budget(), OBJECTIVES, folder, NullProgress()).members
    for member in verified:
        assert len(member.files) == 2
        for suffix, digest in member.files.items():
            content = (tmp_path / "models" / f"{member.candidate.id}{suffix}").read_bytes()
            assert hashlib.sha256(content).hexdigest() == digest
            assert content[4:8] == b"TFL3"
        int8, fp32 = member.figures["accuracy_int8"], member.figures["accuracy_fp32"]
        assert abs(int8.value - fp32.value) < 0.1
        assert int8.source == "measured"
        assert member.figures["latency_ms"].source == "compiler-estimate"
        searched = member.candidate.figures["latency_ms"].value
        assert member.figures["latency_ms"].value == pytest.approx(searched, rel=0.25)


def test_verified_members_are_not_verified_again(
    members: list[Candidate], bench: Verifier, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    first = verify(members, bench, Budget(), OBJECTIVES, folder, NullProgress()).members

    def fail(genotype: object) -> DeployableNetwork:
        raise AssertionError("verified twice")

    import dataclasses

    idle = dataclasses.replace(bench, finetuned=fail)
    assert verify(members, idle, Budget(), OBJECTIVES, folder, NullProgress()).members == first


@pytest.mark.parametrize("kind", [CompileError, CollapseError, DeviceCrashError, DeviceError])
def test_failed_verification_does_not_stop_others(
    members: list[Candidate], bench: Verifier, tmp_path: Path, kind: type[HwnasError]
) -> None:
    """Except without a device, where no member can be verified."""
    folder, (bad, good) = RunFolder(tmp_path), members
    folder.write_json(f"models/{bad.id}.json", _earlier_record("others"))

    def finished(genotype: Genotype) -> DeployableNetwork:
        if genotype == bad.genotype:
            raise kind("timeout after 120 s (export)")
        return bench.finetuned(genotype)

    failing = replace(bench, finetuned=finished, weights=lambda genotype: "these")
    if kind is DeviceError:
        with pytest.raises(DeviceError):
            verify(members, failing, Budget(), OBJECTIVES, folder, NullProgress())
        return
    result = verify(members, failing, Budget(), OBJECTIVES, folder, NullProgress())
    assert [member.candidate.id for member in result.members] == [good.id]
    assert result.members[0].on_front
    assert result.failed == {bad.id: "timeout after 120 s (export)"}
    assert [path.name for path in (tmp_path / "models").glob("*.json")] == [f"{good.id}.json"]


def _earlier_record(weights: str) -> Row:
    """Return the record of a member from an earlier run with other weights."""
    return {"genotype": {}, "figures": {}, "details": {}, "files": {}, "weights": weights}


def test_members_over_budget_or_off_front_are_marked(
    members: list[Candidate], bench: Verifier, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    budget = Budget({"sram_kib": 3.0})  # between the smallest and the largest
    small, large = verify(members, bench, budget, OBJECTIVES, folder, NullProgress()).members
    assert small.over_budget == ()
    assert large.over_budget == ("sram_kib",)
    assert large.label.startswith("over budget.sram_kib")
    assert not large.on_front
    twice = [members[0], members[0]]
    marks = [
        m.on_front for m in verify(twice, bench, budget, OBJECTIVES, folder, NullProgress()).members
    ]
    assert marks == [True, False]


def test_member_over_budget_does_not_displace_feasible_one() -> None:
    from hwnas.core.quantity import Quantity
    from hwnas.models.spaces import Genotype
    from hwnas.nas.front import Front
    from hwnas.nas.member import Member

    def member(accuracy: float, sram: float) -> Member:
        names = ("accuracy_int8", "latency_ms", "sram_kib")
        values = zip(names, (accuracy, 1.0, sram), strict=True)
        figures = {name: Quantity(value, "measured") for name, value in values}
        over = ("sram_kib",) * (sram > 128)
        return Member(Candidate(0, Genotype("s", ()), {}), figures, {}, {}, over)

    front = Front(OBJECTIVES, [member(0.9, 131.0), member(0.8, 100.0)]).with_on_front()
    assert [m.label for m in front.members] == ["over budget.sram_kib", ""]


@pytest.mark.parametrize(
    ("right", "label"), [(349, "not significantly off the front"), (338, "left the front")]
)
def test_members_not_significantly_off_front_are_labelled(right: int, label: str) -> None:
    from hwnas.core.quantity import Quantity
    from hwnas.models.spaces import Genotype
    from hwnas.nas.front import Front
    from hwnas.nas.member import Member
    from hwnas.tasks.classification import ClassificationTask

    def member(right: int, latency: float) -> Member:
        figures = {"accuracy_int8": ClassificationTask(("a", "b")).score(np.arange(360) < right)}
        figures |= {name: Quantity(latency, "measured") for name in ("latency_ms", "sram_kib")}
        return Member(Candidate(0, Genotype("s", ()), {}), figures, {}, {})

    # Newcombe's interval of the difference of 355 and 349 of 360 is -0.006 to 0.041; of 355 and
    # 338, 0.020 to 0.078. Both are outside the other's own interval.
    front = Front(OBJECTIVES, [member(355, 1.0), member(right, 2.0)]).with_on_front()
    faster, slower = front.members
    assert (faster.label, slower.label) == ("", label)


def test_search_does_not_read_test_split(
    parts: components.SearchComponents, tmp_path: Path
) -> None:
    """Training, scoring and search work with an unreadable test split."""
    import dataclasses

    class Unreadable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError("the test split was read")

        def __len__(self) -> int:
            raise AssertionError("the test split was read")

    data = dataclasses.replace(parts.data, test=Unreadable())  # type: ignore[arg-type]
    config = dataclasses.replace(
        parts.config,
        train=dataclasses.replace(parts.config.train, epochs=1),
        run=dataclasses.replace(parts.config.run, supernets=str(tmp_path)),
    )
    blind = dataclasses.replace(parts, data=data, config=config)
    evaluator = accuracies(blind, NullProgress())
    problem = loop.SearchProblem(
        blind.space, Budget(), components.cost_model(blind, None), evaluator
    )
    from hwnas.nas.options import SamplerConfig
    from hwnas.nas.study import LocalStudy

    study = LocalStudy(tmp_path / "study.db", blind.space, OBJECTIVES)
    random = SamplerConfig("random")
    candidates = loop.run_trials(problem, study, random, 0, 4, NullProgress())
    study.close()
    assert all("accuracy" in candidate.figures for candidate in candidates)
    with pytest.raises(AssertionError, match="test split was read"):
        _ = blind.data.digest
