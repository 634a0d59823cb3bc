"""Alternative plans: each has the least cost within its limit, and none dominates another."""

from pathlib import Path

import pytest
import yaml

import hwnas
from hwnas.core.run_folder import Row
from hwnas.fleet import alternatives
from hwnas.fleet.plan import read_plan
from tests.fleet import examples

AXES = {"cost_per_day": 1, "carbon_kg_per_day": 1, "accuracy": -1, "p99_of_limit": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a service and a fleet whose cheapest machines emit most carbon."""
    path = tmp_path_factory.mktemp("fronts")
    fleet = examples.fleet(carbon={"site": 0.4})
    fleet["devices"]["cpu"] |= {"quota": 12, "price": 0.04}
    fleet["devices"]["box"] |= {"quota": 9, "buy": "on_demand", "price": 0.1}
    examples.write(path, examples.service(), fleet)
    return path


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, object]]:
    planned = hwnas.plan(folder / "service.yaml", folder / "fleet.yaml", run__dir=folder / "plan")
    listed: list[dict[str, object]] = planned.table("plans").to_pylist()
    return listed


def test_front_varies_each_limit_without_dominated_plans(rows: list[dict[str, object]]) -> None:
    assert {row["varied"] for row in rows} == {"the plan", "carbon", "accuracy", "latency"}
    points = [[float(str(row[name])) * sign for name, sign in AXES.items()] for row in rows]
    for i, a in enumerate(points):
        for j, b in enumerate(points):
            assert i == j or any(x > y + 1e-9 for x, y in zip(b, a, strict=True)), (i, j)
    for row in rows:
        cost, least = float(str(row["cost_per_day"])), float(str(row["cost_per_day_bound"]))
        assert least <= cost * (1 + 1e-9)
        assert float(str(row["gap"])) == pytest.approx(1 - least / cost, abs=1e-9)
        assert 0 <= float(str(row["late"])) <= 0.01


def test_dominated_plan_names_dominating_plan() -> None:
    def row(varied: str, asks: str, cost: float, carbon: float, accuracy: float) -> Row:
        return {
            "varied": varied, "asks": asks, "cost_per_day": cost, "carbon_kg_per_day": carbon,
            "accuracy": accuracy, "p99_of_limit": 1.0, "gap": 0.0, "late": 0.0,
        }  # fmt: skip

    plan = row("the plan", "", 4.0, 2.0, 0.91)
    other = row("carbon", "carbon of 1.8 kg", 4.2, 1.8, 0.91)
    better = row("accuracy", "accuracy_min +0.01", 4.0, 2.0, 0.92)
    front, sentences = alternatives._select_front([plan, other, better], (2, 2), 60.0)
    assert front == [plan, other, better]
    assert sentences[0].startswith("With accuracy_min +0.01 another plan dominates this one")
    _, sentences = alternatives._select_front([plan, other], (1, 1), 60.0)
    assert not any("another plan" in line for line in sentences)


def test_free_plan_compares_costs_without_percentage() -> None:
    plan = {"varied": "the plan", "asks": "", "cost_per_day": 0.0, "carbon_kg_per_day": 0.0,
            "accuracy": 0.91, "p99_of_limit": 1.0, "gap": 0.0, "late": 0.0}  # fmt: skip
    dearer = {**plan, "varied": "accuracy", "asks": "more", "cost_per_day": 2.0, "accuracy": 0.92}
    _, sentences = alternatives._select_front([plan, dearer], (1, 1), 60.0)
    assert sentences[0].startswith("With more: +2 $ a day, accuracy +0.0100")


@pytest.mark.slow
def test_front_point_equals_plan_with_same_limit(
    folder: Path, rows: list[dict[str, object]], tmp_path: Path
) -> None:
    for varied, section in (("accuracy", "classes"), ("carbon", "budgets")):
        row = next(row for row in rows if row["varied"] == varied)
        content = yaml.safe_load((folder / "service.yaml").read_text())
        if section == "classes":
            content["classes"]["web"]["accuracy_min"] += float(str(row["asks"]).split()[1])
        else:
            limit = float(str(row["carbon_kg_per_day"])) * (1 + 1e-4)
            content["budgets"] = {"carbon_kg_per_day": limit}
        content["fronts"] = [str(folder / "front.csv")]
        (tmp_path / f"{varied}.yaml").write_text(yaml.safe_dump(content))
        planned = hwnas.plan(
            tmp_path / f"{varied}.yaml", folder / "fleet.yaml", front=0,
            run__dir=tmp_path / varied,
        )  # fmt: skip
        days = 2 / 24
        assert read_plan(planned.path).value / days == pytest.approx(row["cost_per_day"], rel=1e-3)


def test_page_shows_front_and_first_bottleneck(folder: Path, rows: object) -> None:
    page = (folder / "plan" / "report.html").read_text()
    for expected in ("With accuracy_min", "With budgets.carbon", "First bottleneck if demand grows",
                  "Cost of less carbon, higher accuracy or shorter latencies"):  # fmt: skip
        assert expected in page
    assert (folder / "plan" / "front.png").stat().st_size > 5_000


def test_front_without_time_counts_missing_points(folder: Path, tmp_path: Path) -> None:
    from hwnas.core.progress import NullProgress
    from hwnas.fleet import planner
    from hwnas.fleet.problem import read_problem

    problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    outcome = planner.make_plan(problem, "cost", 20, [0], NullProgress())
    front = alternatives.plan_front(outcome, 9, 1e-6, 0, NullProgress())
    assert len(front.rows) == 1
    assert "0 of " in front.sentences[-1]
    assert "increase front_s for the others" in front.sentences[-1]
