"""Unions of search spaces."""

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from hwnas.core import package
from hwnas.core.errors import SpaceError
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models import spaces
from hwnas.models.spaces import Genotype, SearchSpace, Space, union
from hwnas.nas import loop
from hwnas.nas.candidates import Candidate, read_candidates
from hwnas.nas.front import pareto_front
from hwnas.nas.options import SAMPLERS, SamplerConfig
from hwnas.nas.study import LocalStudy, study_in_file
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics.budget import Budget
from tests.conftest import space_yaml

OBJECTIVES = ("accuracy", "latency_ms")


@pytest.fixture(scope="module")
def other(tiny: SearchSpace) -> SearchSpace:
    """Return a smaller space that shares names of choices with ``tiny``."""
    choices = {
        "resolution": (8,),
        "stages.0.depth": (1, 2),
        "stages.0.blocks.0.kernel": (3, 5, 7),
        "stages.0.blocks.1.kernel": (3, 5),
    }
    fixed = {n: o for n, o in tiny.fixed.items() if n != "head.width"}
    return SearchSpace("other", "mbconv", choices, {**fixed, "head.width": 8})


@pytest.fixture(scope="module")
def both(tiny: SearchSpace, other: SearchSpace) -> Space:
    return union.join_spaces([tiny, other])


def test_single_space_is_unchanged(tiny: SearchSpace) -> None:
    assert union.join_spaces([tiny]) is tiny
    assert union.to_json(tiny).keys() == {"name", "family", "choices", "fixed", "when"}
    genotype = tiny.sample(random.Random(0))
    assert tiny.assignment(genotype) == genotype.to_dict()
    assert (tiny.members, tiny.root, tiny.member(genotype)) == ((tiny,), "", tiny)
    assert [*tiny.scope({})] == [*tiny.choices]


def test_number_of_genotypes_matches_enumeration(
    both: Space, tiny: SearchSpace, other: SearchSpace
) -> None:
    genotypes: dict[str, Genotype] = {}
    for space in (tiny, other):  # the union has 92,160 assignments
        names = both.scope({union.ROOT: space.name})
        rows = itertools.product(*(both.choices[n] for n in names if n != union.ROOT))
        for row in rows:
            genotype = both.genotype(
                {union.ROOT: space.name, **dict(zip(names[1:], row, strict=True))}
            )
            genotypes[genotype.id] = genotype
    assert both.n_genotypes() == len(genotypes) == tiny.n_genotypes() + other.n_genotypes()
    assert other.n_genotypes() == 9


def test_ids_equal_those_of_single_space(both: Space) -> None:
    rng = random.Random(0)
    for member in both.members:
        for _ in range(20):
            alone = member.sample(rng)
            assignment = both.assignment(alone)
            assert assignment[union.ROOT] == member.name
            assert both.genotype(assignment) == alone
            assert both.member(alone) is member
            assert both.values(alone) == member.values(alone)


def test_choices_of_other_spaces_are_inactive(both: Space, tiny: SearchSpace) -> None:
    every = {name: options[-1] for name, options in both.choices.items()}
    of_tiny = {**every, union.ROOT: "tiny"}
    assert both.genotype(of_tiny) == tiny.largest()
    changed = {**of_tiny, "other.stages.0.depth": 1}
    assert both.genotype(changed).id == both.genotype(of_tiny).id
    assert all(n == union.ROOT or n.startswith("tiny.") for n in both.scope(of_tiny))
    assert {*both.optional()} == {*both.choices} - {union.ROOT}


def test_samples_cover_all_spaces(both: Space) -> None:
    rng = random.Random(0)
    n = sum(both.sample(rng).space == "tiny" for _ in range(400))
    assert 150 < n < 250
    assert both.smallest().space == "tiny"
    assert both.largest().space == "other"


def test_invalid_assignments_are_refused(both: Space, other: SearchSpace) -> None:
    with pytest.raises(SpaceError, match=r"Unknown space 'tinyy'. Did you mean 'tiny'\?"):
        both.genotype({union.ROOT: "tinyy"})
    with pytest.raises(SpaceError, match=r"'stages\.0\.depth' is missing; allowed: 1, 2"):
        both.genotype({union.ROOT: "other", "other.resolution": 8})
    with pytest.raises(SpaceError, match="two search spaces are named 'other'"):
        union.join_spaces([other, other])
    clash = replace(other, name="a", choices={"b.x": (1, 2)}), replace(other, name="a.b")
    with pytest.raises(SpaceError, match="have the same name"):
        union.join_spaces([clash[0], replace(clash[1], choices={"x": (1, 2)})])


def test_union_round_trips_through_json(both: Space, tiny: SearchSpace) -> None:
    parsed = union.from_json(json.loads(json.dumps(union.to_json(both))))
    assert parsed == both
    assert parsed.digest == both.digest != tiny.digest
    assert union.from_json(json.loads(json.dumps(union.to_json(tiny)))) == tiny


def test_space_names_accept_paths_lists_and_folders(
    tiny: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "content" / "search_spaces"
    (shipped / "baselines").mkdir(parents=True)
    (shipped / "empty").mkdir()
    for name in ("tiny", "baselines/b", "baselines/a"):
        (shipped / f"{name}.yaml").write_text(yaml.safe_dump(space_yaml(tiny)))
    monkeypatch.setattr(package, "ROOT", tmp_path / "content")
    assert union.space_names("tiny") == ["tiny"]
    assert union.space_names("baselines") == ["baselines/a", "baselines/b"]
    assert union.space_names(["tiny", "baselines/b"]) == ["tiny", "baselines/b"]
    assert [spaces.load_space(spaces.find(n)).name for n in union.space_names("baselines")] == [
        "a",
        "b",
    ]
    paths = [str(shipped / "baselines" / f"{name}.yaml") for name in "ab"]
    assert union.space_names(str(shipped / "baselines")) == paths
    assert [union.stem(name) for name in paths] == ["a", "b"]
    assert union.space_names("unknown") == ["unknown"]  # refused when it is loaded
    (shipped / "baselines" / "c.yml").write_text(yaml.safe_dump(space_yaml(tiny)))
    assert union.space_names(str(shipped / "baselines"))[-1].endswith("c.yml")
    (shipped / "baselines" / "c.yml").unlink()
    for value, message in (
        ([], "names no search space"),
        ("empty", "no search space"),
        (["tiny", "tiny"], "two spaces are named 'tiny'"),
        (["baselines", paths[0]], "two spaces are named 'a'"),
    ):
        with pytest.raises(SpaceError, match=message):
            union.space_names(value)


class SmallEvaluator:
    """Costs and accuracies computed from the options; ``other`` costs more."""

    max_cost_queries: int | None = None

    def __init__(self, both: Space):
        self._both = both

    def cost(self, genotype: Genotype) -> Cost:
        number = sum(o for o in genotype.to_dict().values() if not isinstance(o, str))
        cost = number + 1000 * (genotype.space == "other")
        return Cost({"latency_ms": Quantity(cost, "modelled")})

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        number = sum(o for o in genotype.to_dict().values() if not isinstance(o, str))
        return Score(Quantity(0.5 + number / 500 + 0.2 * (genotype.space == "other"), "measured"))


def _candidates(
    both: Space, path: Path, sampler: str, n: int, max_cost_queries: int | None = None
) -> list[Candidate]:
    small = SmallEvaluator(both)
    small.max_cost_queries = max_cost_queries
    opened = LocalStudy(path, both, OBJECTIVES)
    problem = loop.SearchProblem(both, Budget(), small, small)
    config = SamplerConfig(sampler, n_startup_trials=8)
    candidates = loop.run_trials(problem, opened, config, 0, n, NullProgress())
    opened.close()
    return candidates


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_initial_trials_cover_all_spaces(both: Space, tmp_path: Path, sampler: str) -> None:
    results = _candidates(both, tmp_path / "study.db", sampler, 8)
    n = sum(candidate.genotype.space == "other" for candidate in results)
    assert 3 <= n <= 5
    smallest = {candidate.id for candidate in results}
    if sampler != "pareto":
        assert {m.smallest().id for m in both.members} <= smallest


@pytest.mark.slow
@pytest.mark.parametrize("max_cost_queries", [None, 6])
def test_pareto_front_covers_both_spaces(
    both: Space, tmp_path: Path, max_cost_queries: int | None
) -> None:
    results = _candidates(both, tmp_path / "a.db", "pareto", 30, max_cost_queries)
    assert len({candidate.id for candidate in results}) == 30
    front = pareto_front(results, OBJECTIVES)
    assert {candidate.genotype.space for candidate in front} == {"tiny", "other"}
    _candidates(both, tmp_path / "b.db", "pareto", 17, max_cost_queries)
    repeated = _candidates(both, tmp_path / "b.db", "pareto", 30, max_cost_queries)
    assert [candidate.id for candidate in repeated] == [candidate.id for candidate in results]


def test_smallest_of_each_space_is_tried_if_none_fits(both: Space, tmp_path: Path) -> None:
    small = SmallEvaluator(both)
    opened = LocalStudy(tmp_path / "study.db", both, OBJECTIVES)
    problem = loop.SearchProblem(both, Budget({"latency_ms": 0.1}), small, small)
    result = loop.run_trials(problem, opened, SamplerConfig("pareto"), 0, 3, NullProgress())
    opened.close()
    assert [c.id for c in result[:2]] == [m.smallest().id for m in both.members]


def test_initial_assignments_alternate_between_spaces(both: Space, other: SearchSpace) -> None:
    genotypes = [both.genotype(rung) for rung in loop.initial_assignments(both)]
    assert len({genotype.id for genotype in genotypes}) == len(genotypes) == 8
    assert [genotype.space for genotype in genotypes[:4]] == ["tiny", "other"] * 2
    space = SearchSpace("a", "mbconv", {"x": (1,)}, {})
    ones = union.join_spaces([replace(space, name=name) for name in "abc"])
    assert [assignment["space"] for assignment in loop.initial_assignments(ones)] == ["a", "b", "c"]


def test_candidates_of_union_round_trip(both: Space, tmp_path: Path) -> None:
    results = _candidates(both, tmp_path / "study.db", "random", 12)
    record = study_in_file(tmp_path / "study.db").read()
    assert [c.genotype for c in record.candidates] == [c.genotype for c in results]
    assert study_in_file(tmp_path / "study.db").summary().space == both
    folder = RunFolder(tmp_path)
    rows = [candidate.row(both, "accuracy") for candidate in results]
    assert [*rows[0]][4:6] == ["space", "tiny.resolution"]
    for row, candidate in zip(rows, results, strict=True):
        assert row["space"] == candidate.genotype.space
        assert (row["other.stages.0.depth"] is None) == (row["space"] == "tiny")
    folder.write_parquet("candidates.parquet", rows)
    candidates = read_candidates(folder.path, [member.name for member in both.members])
    assert candidates is not None
    assert [c.genotype for c in candidates] == [c.genotype for c in results]


def test_option_labels_include_space(both: Space) -> None:
    genotypes = [member.smallest() for member in both.members]
    labels = union.option_labels(genotypes)
    assert labels(genotypes[1])[:2] == (("space", "other"), ("other.resolution", 8))
    assert union.option_labels(genotypes[:1])(genotypes[0]) == genotypes[0].options


def test_features_are_finite(both: Space) -> None:
    from hwnas.nas.pareto.features import ChoiceFeatures

    features = ChoiceFeatures(both.choices, both.optional())
    rows = features([both.assignment(member.largest()) for member in both.members])
    assert np.isfinite(rows).all()
    assert (rows[0] != rows[1]).any()
