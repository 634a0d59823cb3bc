"""Independent checker of plans: reads only files and shares no code with the planner."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Content = dict[str, Any]
_NEAR = 1e-5


def find_violations(folder: Path, plan_folder: Path) -> list[str]:
    """Return the constraints in ``service.yaml`` and ``fleet.yaml`` that a plan violates."""
    contents = [yaml.safe_load((directory / name).read_text()) for directory, name in (
        (folder, "service.yaml"), (folder, "fleet.yaml"), (plan_folder, "plan.yaml"))]  # fmt: skip
    return _Checker(folder, *contents).find_violations()


class _Checker:
    def __init__(self, folder: Path, service: Content, fleet: Content, plan: Content):
        self.service, self.fleet, self.plan = service, fleet, plan
        with (folder / "front.csv").open() as file:
            rows = [*csv.DictReader(file)]
        self.accuracy = {f"{r['id']}-{r['precision']}": float(r["accuracy"]) for r in rows}
        self.times = {(f"{r['id']}-{r['precision']}", r["target"], int(r["batch"])):
                      float(r["latency_ms"]) for r in rows}  # fmt: skip
        self.answers = {}
        if service.get("answers"):
            with np.load(folder / "answers.npz") as file:
                for i, name in enumerate(file["models"]):
                    self.answers[str(name)] = (file["correct"][i], file["confidence"][i])
        self.survive = service.get("survive", {})
        self.violations: list[str] = []

    def find_violations(self) -> list[str]:
        hours = sorted(h for period in self.plan["hours"] for h in period["hours"])
        first = next(iter(self.service["classes"].values()))["demand"]["hours"]
        self._require(hours == [*range(len(first))], "hours are missing or duplicated")
        usd = kg = 0.0
        for period in self.plan["hours"]:
            for hour in period["hours"]:
                self._check_hour(period, hour)
                usd += self._cost_usd(period)
                kg += self._carbon_kg(period, hour)
        for name, d in self.fleet["devices"].items():
            if d["buy"] in ("bought", "reserved"):
                n_running = max(period["machines"].get(name, 0) for period in self.plan["hours"])
                owned = self.plan["devices"].get(name, {}).get("bought", 0)
                self._require(
                    n_running <= owned <= d["quota"], f"{name}: {n_running} run, {owned} are bought"
                )
                usd += owned * d["price"] * len(hours)
        days, budgets = len(hours) / 24, self.service.get("budgets", {})
        if "cost_per_day" in budgets:
            limit = budgets["cost_per_day"] * days
            self._require(usd <= limit * (1 + _NEAR), f"it costs {usd} of {limit}")
        if "carbon_kg_per_day" in budgets:
            limit = budgets["carbon_kg_per_day"] * days
            self._require(kg <= limit * (1 + _NEAR), f"it emits {kg} of {limit}")
        if self.plan["objective"] == "cost":
            value = self.plan["value"]
            self._require(
                math.isclose(usd, value, rel_tol=1e-4, abs_tol=1e-6), f"{value} is not {usd}"
            )
        return self.violations

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            self.violations.append(message)

    def _check_hour(self, period: Content, hour: int) -> None:
        for name, n in period["machines"].items():
            d = self.fleet["devices"][name]
            self._require(n <= d["quota"], f"hour {hour}: {n} of {name}, quota {d['quota']}")
            pools = [p for p in period["pools"] if self.plan["kinds"][p["kind"]]["device"] == name]
            replicas = sum(p["replicas"] for p in pools)
            self._require(replicas <= n * d["slots"], f"hour {hour}: {replicas} replicas on {name}")
            for p in pools:
                fits = p["spread"] == 0 or math.ceil(p["replicas"] / max(n, 1)) <= p["spread"]
                self._require(fits, f"hour {hour}: {p['kind']} is not spread")
        for region, watts in self.service.get("budgets", {}).get("power_w", {}).items():
            used = sum(n * self.fleet["devices"][m]["busy_w"] for m, n in period["machines"].items()
                       if self.fleet["devices"][m]["region"] == region)  # fmt: skip
            self._require(used <= watts * (1 + _NEAR), f"hour {hour}: {used} W in {region}")
        self._check_demand(period, hour, "routes")
        if self.survive.get("all_of"):
            self._check_demand(period, hour, "degraded")

    def _check_demand(self, period: Content, hour: int, which: str) -> None:
        sent: dict[str, float] = {}
        links: dict[str, float] = {}
        for name, requirements in self.service["classes"].items():
            demand = requirements["demand"]["hours"][hour] * requirements["demand"].get(
                "spike", 1.0
            )
            routes = [r for r in period[which] if r["klass"] == name]
            rate = sum(r["rate"] for r in routes)
            is_close = math.isclose(rate, demand, rel_tol=1e-4, abs_tol=1e-3)
            self._require(is_close, f"hour {hour}: {name} has {rate} of {demand}")
            total = sum(
                r["rate"] * self._check_route(r, requirements, which, links) for r in routes
            )
            is_degraded = which == "degraded"
            floor = requirements["accuracy_min"]
            if is_degraded:
                floor = requirements.get("degraded_accuracy", floor)
            is_accurate = total >= (floor - 1e-4) * rate
            self._require(
                is_accurate, f"hour {hour}: accuracy of {name} is {total / max(rate, 1e-9)}"
            )
            for r in routes:
                sent[r["first"]] = sent.get(r["first"], 0.0) + r["rate"]
                if r["second"]:
                    sent[r["second"]] = sent.get(r["second"], 0.0) + r["rate"] * r["share"]
        pools = {p["kind"]: p for p in period["pools"]}
        for kind, rate in sent.items():
            p = pools[kind]
            spare = p["spread"] if self.survive.get("any_one") and which == "routes" else 0
            capacity = p["goodput"] * (p["replicas"] - spare)
            self._require(
                rate <= capacity * (1 + 1e-4) + 1e-3,
                f"hour {hour}: {kind} has {rate} of {capacity}",
            )
        for link, mbit in links.items():
            limit = self.fleet["links"][link].get("mbit_s", math.inf)
            self._require(mbit <= limit * (1 + _NEAR), f"hour {hour}: {mbit} Mbit/s on {link}")

    def _check_route(
        self, r: Content, requirements: Content, which: str, links: dict[str, float]
    ) -> float:
        """Check a route and return its accuracy."""
        kinds = [self.plan["kinds"][k] for k in (r["first"], r["second"]) if k]
        region, remaining_ms = (
            requirements.get("origin", requirements["regions"][0]),
            requirements["p99_ms"],
        )
        payload = requirements.get("payload_kib", 0)
        for i, kind in enumerate(kinds):
            d = self.fleet["devices"][kind["device"]]
            self._require(
                d["region"] in requirements["regions"], f"{r['klass']} goes to {d['region']}"
            )
            self._require(which == "routes" or d["buy"] != "spot", f"{r['klass']} needs spot")
            rtt, links_on_path = self._fastest_path(region, d["region"])
            rate = r["rate"] * (r["share"] if i else 1.0)
            bandwidth = min((self.fleet["links"][n].get("mbit_s", math.inf) for n in links_on_path),
                         default=math.inf)  # fmt: skip
            remaining_ms -= rtt + payload * 8192 / bandwidth / 1e3 + kind["limit_ms"]
            for name in links_on_path:
                links[name] = links.get(name, 0.0) + rate * payload * 8192 / 1e6
            region = d["region"]
            batch_one_ms = self.times[kind["model"], kind["device"], 1] / d.get("derate", 1.0)
            self._require(
                batch_one_ms <= kind["limit_ms"], f"{kind['model']} takes {batch_one_ms} ms alone"
            )
        self._require(
            remaining_ms >= -1e-3, f"{r['klass']}: limits are {-remaining_ms} ms above p99_ms"
        )
        if len(kinds) == 1:
            return self.accuracy[kinds[0]["model"]]
        return self._cascade(kinds[0]["model"], kinds[1]["model"], r["share"])

    def _cascade(self, a: str, b: str, share: float) -> float:
        """Return the lower end of the Wilson interval of a cascade's accuracy."""
        (correct_a, confidence), (correct_b, _) = self.answers[a], self.answers[b]
        order, n = np.argsort(confidence, kind="stable"), len(confidence)
        cut = round(share * n)
        p = (correct_b[order[:cut]].sum() + correct_a[order[cut:]].sum()) / n
        z = 1.959963984540054
        return float((p + z * z / 2 / n - z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n))
                     / (1 + z * z / n))  # fmt: skip

    def _fastest_path(self, source: str, goal: str) -> tuple[float, list[str]]:
        """Return round-trip time and links of the fastest path, by trying all simple paths."""
        best: tuple[float, list[str]] = (math.inf, [])
        stack: list[tuple[str, float, list[str], set[str]]] = [(source, 0.0, [], {source})]
        while stack:
            region, rtt, path, visited = stack.pop()
            if region == goal and rtt < best[0]:
                best = (rtt, path)
            for name, link in self.fleet.get("links", {}).items():
                a, b = name.split("-")
                other = b if region == a else a if region == b else None
                if other and other not in visited:
                    stack.append((other, rtt + link["rtt_ms"], [*path, name], {*visited, other}))
        return best

    def _cost_usd(self, period: Content) -> float:
        usd = 0.0
        for name, n in period["machines"].items():
            d = self.fleet["devices"][name]
            if d["buy"] in ("on_demand", "spot"):
                usd += n * d["price"] * (1 + d.get("start_s", 0) / 3600)
        for r in period["routes"]:
            requirements = self.service["classes"][r["klass"]]
            region, share = requirements.get("origin", requirements["regions"][0]), 1.0
            spike = requirements["demand"].get("spike", 1.0)
            for kind in (r["first"], r["second"]):
                if kind:
                    d = self.fleet["devices"][self.plan["kinds"][kind]["device"]]
                    for link in self._fastest_path(region, d["region"])[1]:
                        per_gb = self.fleet["links"][link].get("usd_per_gb", 0.0)
                        gb = requirements.get("payload_kib", 0) / 1024 / 1024
                        usd += r["rate"] / spike * share * 3600 * gb * per_gb
                    region, share = d["region"], r["share"]
        return usd

    def _carbon_kg(self, period: Content, hour: int) -> float:
        kg = 0.0
        for name, n in period["machines"].items():
            d = self.fleet["devices"][name]
            carbon = self.fleet.get("carbon", {}).get(d["region"], 0.0)
            per = carbon[hour % len(carbon)] if isinstance(carbon, list) else carbon
            kg += n * d["busy_w"] / 1e3 * per
        return kg
