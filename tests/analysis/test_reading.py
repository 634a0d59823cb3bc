"""Reading of CSV files and runs, and errors for invalid ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwnas.analysis import comparability, reading
from hwnas.analysis.fronts import ComparedRun, FrontPoint, Objective, front, objectives
from hwnas.analysis.summary import chosen_kind
from hwnas.core.errors import ConfigError, HwnasError, RunError
from hwnas.core.quantity import Quantity
from tests.analysis.synthetic import PAIR, run_of

DIRECTIONS = {"accuracy": "max", "latency_ms": "min"}


def write_csv(folder: Path, text: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_csv_with_intervals_runs_and_groups(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path,
        "id,run,group,accuracy,accuracy_low,accuracy_high,latency_ms,colour\n"
        "x,0,ours,0.9,0.88,0.91,2.5,red\n"
        "y,0,ours,0.8,,,1,red\n"
        "z,1,theirs,0.7,0.6,0.8,1.5,blue\n",
    )
    first, second = reading.read_foreign_csv(path, PAIR)
    assert (first.name, first.group, first.block) == ("a/ours/0", "ours", "0")
    assert (second.name, second.group, second.block) == ("a/theirs/1", "theirs", "1")
    assert first.scored[0].figures["accuracy"] == Quantity(0.9, "measured", 0.88, 0.91)
    assert first.scored[1].figures["accuracy"] == Quantity(0.8, "measured", None, None)
    assert [point.id for point in first.scored] == ["x", "y"]


def test_id_may_repeat_with_equal_values(tmp_path: Path) -> None:
    text = "id,run,accuracy,latency_ms\nx,0,0.9,1\nx,1,0.9,8\nx,1,0.9,8\n"
    runs = reading.read_foreign_csv(write_csv(tmp_path, text), PAIR)
    assert [[p.figures["latency_ms"].value for p in run.scored] for run in runs] == [[1.0], [8.0]]


def test_verified_rows_use_their_dtype(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path,
        "id,verified_accuracy_fp32,verified_accuracy_int8,verified_latency_ms,verified_fits_budget\n"
        "mixed,0.9,0.8,1,True\n"
        "float,0.7,,2,True\n"
        "over,0.6,0.6,9,False\n",
    )
    points = reading.verified_front(path, PAIR)
    assert points is not None
    assert {p.id: p.figures["accuracy"].value for p in points} == {"mixed": 0.8, "float": 0.7}
    plain = write_csv(tmp_path, "accuracy,latency_ms\n0.9,1\n", "plain.csv")
    assert reading.verified_front(plain, PAIR) is None


def test_int8_members_slower_than_float32_are_skipped(tmp_path: Path) -> None:
    columns = ("accuracy_int8", "latency_ms", "fits_budget", "int8_over_float32_high")
    path = write_csv(
        tmp_path,
        f"id,{','.join(f'verified_{name}' for name in columns)}\n"
        "fast,0.9,1,True,0.9\nno_faster,0.95,2,True,1.1\nalone,0.97,3,True,\n",
    )
    points = reading.verified_front(path, PAIR)
    assert [point.id for point in points or ()] == ["fast", "alone"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "accuracy,latency\n0.9,1\n",
            "no column 'latency_ms', which is an objective. Its columns: accuracy, lat",
        ),
        ("accuracy,latency_ms\n", "has no rows"),
        ("accuracy;latency_ms\n0,9;1\n", "columns: accuracy;latency_ms. Separate values by commas"),
        ("", "no column 'accuracy'"),
        ("accuracy,latency_ms\n0.9,nan\n", "line 2: latency_ms must be a finite number, got 'nan'"),
        ("accuracy,latency_ms\n0.9,1\n0.8,fast\n", "line 3: latency_ms must be a number"),
        ("accuracy,latency_ms\n0.9,1\n0.8,\n", "line 3: latency_ms must be a number, got ''"),
        ("accuracy,latency_ms\n0.9,inf\n", "latency_ms must be a finite number, got 'inf'"),
        ("accuracy,latency_ms\n0.9\n", "the row must have 2 values"),
        ("accuracy,latency_ms\n0.9,1,2\n", "the row must have 2 values"),
        ("accuracy,accuracy,latency_ms\n0.9,1,2\n", "has two columns 'accuracy'"),
        ("accuracy,accuracy_low,latency_ms\n0.9,0.95,2\n", "accuracy=0.9 is not between"),
        (
            "id,accuracy,latency_ms\nx,0.9,1\nx,0.9,8\n",
            "line 3: id 'x' is already in an earlier row",
        ),
    ],
)
def test_invalid_csv_raises_one_line_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RunError) as error:
        reading.read_foreign_csv(write_csv(tmp_path, text), PAIR)
    assert message in str(error.value)
    assert str(tmp_path / "a.csv") in str(error.value)


@pytest.mark.parametrize(
    ("names", "directions", "group_by", "message"),
    [
        (["none"], DIRECTIONS, None, "runs=none: no such folder or file"),
        (["*.txt"], DIRECTIONS, None, "no run folder or CSV file matches"),
        (["a.csv", "./a.csv"], DIRECTIONS, None, "is named twice"),
        (["a.csv"], {}, None, "is a CSV file, which does not say what to compare"),
        (["a.csv"], {"accuracy": "max"}, None, "2 to 4 objectives, got 1"),
        (["a.csv"], {"accuracy": "max", "latency_ms": "less"}, None, "must be max or min"),
        (["a.csv"], {"accuracy": "min", "latency_ms": "min"}, None, "write accuracy: max"),
        (["a.csv"], DIRECTIONS, "sampler", "name its group in a column 'group'"),
        (["folder"], DIRECTIONS, None, "it has no manifest.json"),
    ],
)
def test_unreadable_runs_raise_one_line_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    directions: dict[str, str],
    group_by: str | None,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path, "accuracy,latency_ms\n0.9,1\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(HwnasError) as error:
        reading.read_runs(names, directions, group_by)
    assert message in str(error.value)


def test_patterns_give_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_csv(tmp_path / folder, "accuracy,latency_ms\n0.9,1\n")
    write_csv(tmp_path, "accuracy,latency_ms\n0.9,1\n", "[odd].csv")
    runs, objective_list = reading.read_runs(["?/*.csv", "[odd].csv"], DIRECTIONS, None)
    assert [run.name for run in runs] == ["x/a", "y/a", "[odd]"]
    assert [run.group for run in runs] == ["x/a", "y/a", "[odd]"]
    assert objective_list == PAIR


def test_labels_name_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.csv", "y.csv"):
        write_csv(tmp_path, "accuracy,latency_ms\n0.9,1\n", name)
    runs, _ = reading.read_runs(["?.csv"], DIRECTIONS, None, ["small", "large net"])
    assert [(run.name, run.group) for run in runs] == [("small",) * 2, ("large net",) * 2]
    for labels in (["small"], ["small", "small"], ["small", " "]):
        with pytest.raises(ConfigError, match=f"^label .*got \\[{', '.join(labels)}\\]"):
            reading.read_runs(["?.csv"], DIRECTIONS, None, labels)


def test_custom_objectives_are_supported(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "throughput,f1\n10,0.5\n20,0.4\n")
    (run,), names = reading.read_runs([str(path)], {"throughput": "max", "f1": "max"}, None)
    assert [o.title for o in names] == ["throughput", "f1"]
    assert front(run, names, "searched").mask.tolist() == [True, True]


def test_front_excludes_dominated_and_duplicate_points() -> None:
    run = run_of("a", [[0.9, 2.0], [0.8, 3.0], [0.7, 1.0]])
    twice = replace(run, scored=[*run.scored, *run.scored])
    assert [point.id for point in front(twice, PAIR, "searched").points] == ["line 0", "line 2"]
    verified = replace(run, verified=run.scored)
    assert front(verified, PAIR, "verified").mask.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "the front is empty"),
        ([FrontPoint("x", {"accuracy": Quantity(0.9, "measured")})], "x has no latency_ms"),
        (
            [
                FrontPoint(
                    "x", {n: Quantity(float("nan"), "measured") for n in ("accuracy", "latency_ms")}
                )
            ],
            "accuracy of network x is nan",
        ),
    ],
)
def test_incomplete_front_raises(points: list[FrontPoint], message: str) -> None:
    run = replace(run_of("a", [[0.9, 1.0]]), scored=points)
    with pytest.raises(RunError, match=message):
        front(run, PAIR, "searched")


def test_mixed_data_require_allow_mixed() -> None:
    first, second = run_of("a", [[0.9, 1.0]]), run_of("b", [[0.8, 1.0]])
    runs = [replace(first, data="x"), replace(second, data="y")]
    with pytest.raises(RunError, match=r"a and b were .* \(other data, splits or image size\)"):
        comparability.check_data(runs, allow_mixed=False)
    (note,) = comparability.check_data(runs, allow_mixed=True)
    assert "mixed" in note
    (note,) = comparability.check_data([runs[0], second], allow_mixed=False)
    assert "Data unknown, may differ: b" in note
    targets = [replace(run, data="x", target=t) for run, t in zip(runs, "pq", strict=True)]
    (note,) = comparability.check_data(targets, allow_mixed=False)
    assert "different targets: p, q" in note


def test_further_differences_between_groups_are_noted() -> None:
    def grouped_run(group: str, seed: int, n_trials: int, space: str) -> ComparedRun:
        sampler = {"name": group, "population_size": 50 if group == "nsga2" else 1}
        config = {"sampler": sampler, "seed": seed, "n_trials": n_trials, "search_space": space}
        return replace(run_of(f"{group}{seed}", [[0.9, 1.0]], group=group), config=config)

    equal_runs = [
        grouped_run("nsga2", 0, 9, "x"),
        grouped_run("tpe", 0, 9, "x"),
        grouped_run("tpe", 1, 9, "x"),
    ]
    assert comparability.check_groups(equal_runs, "sampler") == []
    assert comparability.check_groups(equal_runs, None) == []
    different_runs = [
        *equal_runs[1:],
        grouped_run("nsga2", 1, 9, "y"),
        grouped_run("tpe", 2, 8, "x"),
    ]
    assert comparability.check_groups(different_runs, "sampler") == [
        "Runs of one group differ in more than the seed: n_trials.",
        "Groups differ in more than sampler: search_space.",
    ]


def test_differences_within_grouping_option_are_noted() -> None:
    def grouped_run(seed: int, latency_ms: float, name: str = "edge") -> ComparedRun:
        budget = {"name": name, "latency_ms": latency_ms}
        config = {"seed": seed, "budget": budget}
        return replace(run_of(f"{seed}", [[0.9, 1.0]], group=name), config=config)

    merged = [grouped_run(seed, limit) for seed in (0, 1) for limit in (0.1, 0.3)]
    assert comparability.check_groups(merged, "budget") == [
        "Runs of one group differ in more than the seed: budget.latency_ms."
    ]
    assert (
        comparability.check_groups([grouped_run(0, 0.1), grouped_run(1, 0.3, "wide")], "budget")
        == []
    )


def test_percent_and_fractions_are_not_mixed() -> None:
    runs = [run_of("a", [[0.9, 1.0]]), run_of("b", [[91.0, 1.0]])]
    accuracy = [Objective("accuracy", maximise=True)]
    with pytest.raises(RunError, match="per cent in b, a fraction in a"):
        comparability.check_units(runs, accuracy, None)
    with pytest.raises(RunError, match="per cent in true_front, a fraction in a"):
        comparability.check_units(runs[:1], accuracy, np.array([[91.0]]))
    f1 = [replace(run, scored=[FrontPoint("x", {"macro_f1": Quantity(v, "measured")})])
          for run, v in zip(runs, (0.9, 91.0), strict=True)]  # fmt: skip
    with pytest.raises(RunError, match="units of macro_f1 differ"):
        comparability.check_units(f1, [Objective("macro_f1", maximise=True)], None)


def test_verified_figures_are_used_if_all_runs_have_them() -> None:
    def searched(name: str, *, finished: bool) -> ComparedRun:
        run = run_of(name, [[0.9, 1.0]])
        return replace(run, directions=DIRECTIONS, verified=run.scored if finished else None)

    finished, running = searched("a", finished=True), searched("b", finished=False)
    table = run_of("c", [[0.9, 1.0]])
    assert chosen_kind([finished, table], None) == "verified"
    assert chosen_kind([finished, running], None) == "searched"
    assert chosen_kind([finished], "searched") == "searched"
    assert chosen_kind([table], None) == "searched"
    with pytest.raises(RunError, match="b has no verified figures"):
        chosen_kind([finished, running], "verified")


def test_target_objectives_have_titles() -> None:
    names = objectives({"accuracy": "max", "npu.latency_ms": "min"})
    assert [o.title for o in names] == ["accuracy", "npu latency [ms]"]
    with pytest.raises(ConfigError, match=r"2 to 4 .* got 5: .*{f0: min, f1: min}"):
        objectives({f"f{i}": "min" for i in range(5)})


def test_front_of_a_search_is_compared_by_verified_figures(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path,
        "id,accuracy,latency_ms,verified_accuracy_int8,verified_latency_ms,verified_fits_budget\n"
        "a,0.95,1,0.9,1.5,True\n"
        "over,0.99,9,0.98,9,False\n",
    )
    (run,) = reading.read_foreign_csv(path, PAIR)
    assert [(p.id, p.figures["accuracy"].value) for p in run.scored] == [("a", 0.9)]
    assert run.scored[0].figures["latency_ms"].value == 1.5
    columns = "id,accuracy,latency_ms,verified_npu.accuracy_int8\na,0.95,1,0.9\n"
    with pytest.raises(RunError, match=r"joint front of several targets\. Name the folder"):
        reading.read_foreign_csv(write_csv(tmp_path, columns, "joint.csv"), PAIR)
