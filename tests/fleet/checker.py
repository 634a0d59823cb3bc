"""Checks plans by their files alone; it shares no code with what makes them."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Content = dict[str, Any]
_NEAR = 1e-5


def broken(folder: Path, plan_folder: Path) -> list[str]:
    """Return in words which promises of ``service.yaml`` and ``fleet.yaml`` a plan breaks."""
    loaded = [yaml.safe_load((where / name).read_text()) for where, name in (
        (folder, "service.yaml"), (folder, "fleet.yaml"), (plan_folder, "plan.yaml"))]  # fmt: skip
    return _Checker(folder, *loaded).broken()


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
        self.found: list[str] = []

    def broken(self) -> list[str]:
        hours = sorted(h for each in self.plan["hours"] for h in each["hours"])
        first = next(iter(self.service["classes"].values()))["demand"]["hours"]
        self._hold(hours == [*range(len(first))], "hours are missing or given twice")
        usd = kg = 0.0
        for each in self.plan["hours"]:
            for hour in each["hours"]:
                self._hour(each, hour)
                usd += self._usd(each)
                kg += self._kg(each, hour)
        for name, d in self.fleet["devices"].items():
            if d["buy"] in ("bought", "reserved"):
                most = max(each["machines"].get(name, 0) for each in self.plan["hours"])
                owned = self.plan["devices"].get(name, {}).get("bought", 0)
                self._hold(most <= owned <= d["quota"], f"{name}: {most} run, {owned} are bought")
                usd += owned * d["price"] * len(hours)
        days, budgets = len(hours) / 24, self.service.get("budgets", {})
        if "cost_per_day" in budgets:
            limit = budgets["cost_per_day"] * days
            self._hold(usd <= limit * (1 + _NEAR), f"it costs {usd} of {limit}")
        if "carbon_kg_per_day" in budgets:
            limit = budgets["carbon_kg_per_day"] * days
            self._hold(kg <= limit * (1 + _NEAR), f"it emits {kg} of {limit}")
        if self.plan["objective"] == "cost":
            said = self.plan["value"]
            self._hold(math.isclose(usd, said, rel_tol=1e-4, abs_tol=1e-6), f"{said} is not {usd}")
        return self.found

    def _hold(self, holds: bool, words: str) -> None:
        if not holds:
            self.found.append(words)

    def _hour(self, each: Content, hour: int) -> None:
        for name, n in each["machines"].items():
            d = self.fleet["devices"][name]
            self._hold(n <= d["quota"], f"hour {hour}: {n} of {name}, quota {d['quota']}")
            own = [p for p in each["pools"] if self.plan["kinds"][p["kind"]]["device"] == name]
            replicas = sum(p["replicas"] for p in own)
            self._hold(replicas <= n * d["slots"], f"hour {hour}: {replicas} replicas on {name}")
            for p in own:
                fits = p["spread"] == 0 or math.ceil(p["replicas"] / max(n, 1)) <= p["spread"]
                self._hold(fits, f"hour {hour}: {p['kind']} is not spread")
        for region, watts in self.service.get("budgets", {}).get("power_w", {}).items():
            used = sum(n * self.fleet["devices"][m]["busy_w"] for m, n in each["machines"].items()
                       if self.fleet["devices"][m]["region"] == region)  # fmt: skip
            self._hold(used <= watts * (1 + _NEAR), f"hour {hour}: {used} W in {region}")
        self._served(each, hour, "routes")
        if self.survive.get("all_of"):
            self._served(each, hour, "degraded")

    def _served(self, each: Content, hour: int, which: str) -> None:
        sent: dict[str, float] = {}
        links: dict[str, float] = {}
        for name, asked in self.service["classes"].items():
            wanted = asked["demand"]["hours"][hour] * asked["demand"].get("spike", 1.0)
            routes = [r for r in each[which] if r["klass"] == name]
            rate = sum(r["rate"] for r in routes)
            near = math.isclose(rate, wanted, rel_tol=1e-4, abs_tol=1e-3)
            self._hold(near, f"hour {hour}: {name} has {rate} of {wanted}")
            total = sum(r["rate"] * self._route(r, asked, which, links) for r in routes)
            low = which == "degraded"
            floor = asked.get("degraded_accuracy", asked["accuracy_min"]) if low else (
                asked["accuracy_min"])  # fmt: skip
            fine = total >= (floor - 1e-4) * rate
            self._hold(fine, f"hour {hour}: accuracy of {name} is {total / max(rate, 1e-9)}")
            for r in routes:
                sent[r["first"]] = sent.get(r["first"], 0.0) + r["rate"]
                if r["second"]:
                    sent[r["second"]] = sent.get(r["second"], 0.0) + r["rate"] * r["share"]
        pools = {p["kind"]: p for p in each["pools"]}
        for kind, rate in sent.items():
            p = pools[kind]
            spare = p["spread"] if self.survive.get("any_one") and which == "routes" else 0
            room = p["goodput"] * (p["replicas"] - spare)
            self._hold(
                rate <= room * (1 + 1e-4) + 1e-3, f"hour {hour}: {kind} has {rate} of {room}"
            )
        for link, mbit in links.items():
            most = self.fleet["links"][link].get("mbit_s", math.inf)
            self._hold(mbit <= most * (1 + _NEAR), f"hour {hour}: {mbit} Mbit/s on {link}")

    def _route(self, r: Content, asked: Content, which: str, links: dict[str, float]) -> float:
        """Check a route; return its accuracy."""
        kinds = [self.plan["kinds"][k] for k in (r["first"], r["second"]) if k]
        at, left = asked.get("origin", asked["regions"][0]), asked["p99_ms"]
        payload = asked.get("payload_kib", 0)
        for i, kind in enumerate(kinds):
            d = self.fleet["devices"][kind["device"]]
            self._hold(d["region"] in asked["regions"], f"{r['klass']} goes to {d['region']}")
            self._hold(which == "routes" or d["buy"] != "spot", f"{r['klass']} needs spot")
            rtt, along = self._way(at, d["region"])
            rate = r["rate"] * (r["share"] if i else 1.0)
            narrow = min((self.fleet["links"][n].get("mbit_s", math.inf) for n in along),
                         default=math.inf)  # fmt: skip
            left -= rtt + payload * 8192 / narrow / 1e3 + kind["limit_ms"]
            for name in along:
                links[name] = links.get(name, 0.0) + rate * payload * 8192 / 1e6
            at = d["region"]
            alone = self.times[kind["model"], kind["device"], 1] / d.get("derate", 1.0)
            self._hold(alone <= kind["limit_ms"], f"{kind['model']} takes {alone} ms alone")
        self._hold(left >= -1e-3, f"{r['klass']}: limits are {-left} ms above p99_ms")
        if len(kinds) == 1:
            return self.accuracy[kinds[0]["model"]]
        return self._cascade(kinds[0]["model"], kinds[1]["model"], r["share"])

    def _cascade(self, a: str, b: str, share: float) -> float:
        """Return the lower end (Wilson) of the accuracy of a cascade."""
        (right_a, sure), (right_b, _) = self.answers[a], self.answers[b]
        order, n = np.argsort(sure, kind="stable"), len(sure)
        cut = round(share * n)
        p = (right_b[order[:cut]].sum() + right_a[order[cut:]].sum()) / n
        z = 1.959963984540054
        return float((p + z * z / 2 / n - z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n))
                     / (1 + z * z / n))  # fmt: skip

    def _way(self, source: str, goal: str) -> tuple[float, list[str]]:
        """Return the fastest way between regions, by trying all without circles."""
        best: tuple[float, list[str]] = (math.inf, [])
        stack: list[tuple[str, float, list[str], set[str]]] = [(source, 0.0, [], {source})]
        while stack:
            at, rtt, along, seen = stack.pop()
            if at == goal and rtt < best[0]:
                best = (rtt, along)
            for name, link in self.fleet.get("links", {}).items():
                a, b = name.split("-")
                other = b if at == a else a if at == b else None
                if other and other not in seen:
                    stack.append((other, rtt + link["rtt_ms"], [*along, name], {*seen, other}))
        return best

    def _usd(self, each: Content) -> float:
        usd = 0.0
        for name, n in each["machines"].items():
            d = self.fleet["devices"][name]
            if d["buy"] in ("on_demand", "spot"):
                usd += n * d["price"] * (1 + d.get("start_s", 0) / 3600)
        for r in each["routes"]:
            asked = self.service["classes"][r["klass"]]
            at, part = asked.get("origin", asked["regions"][0]), 1.0
            spike = asked["demand"].get("spike", 1.0)
            for kind in (r["first"], r["second"]):
                if kind:
                    d = self.fleet["devices"][self.plan["kinds"][kind]["device"]]
                    for link in self._way(at, d["region"])[1]:
                        per_gb = self.fleet["links"][link].get("usd_per_gb", 0.0)
                        gb = asked.get("payload_kib", 0) / 1024 / 1024
                        usd += r["rate"] / spike * part * 3600 * gb * per_gb
                    at, part = d["region"], r["share"]
        return usd

    def _kg(self, each: Content, hour: int) -> float:
        kg = 0.0
        for name, n in each["machines"].items():
            d = self.fleet["devices"][name]
            carbon = self.fleet.get("carbon", {}).get(d["region"], 0.0)
            per = carbon[hour % len(carbon)] if isinstance(carbon, list) else carbon
            kg += n * d["busy_w"] / 1e3 * per
        return kg
