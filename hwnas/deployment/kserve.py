"""Cascades as an InferenceGraph of KServe, over the Services of the pools.

The first pool answers; where it is less sure than the threshold, the request goes on to the second.
Source: https://kserve.github.io/website/docs/concepts/resources/inferencegraph.
"""

from collections.abc import Mapping, Sequence

from hwnas.deployment import triton
from hwnas.deployment.kubernetes import Manifest, dumped
from hwnas.deployment.pools import Deployed, by_hour, label
from hwnas.planning.plan import Plan, Route
from hwnas.runtimes.onnx_served import CONFIDENCE


def graphs(plan: Plan, pools: Sequence[Deployed]) -> dict[str, bytes]:
    """Return a graph for each class that has cascades, as in the hour in which it asks for most.

    What no server runs is left out, and so are classes that are left with nothing.
    """
    names = {pool.of: pool.name for pool in pools}
    found, taken = {}, set[str]()
    for klass in plan.classes:
        routes = _peak_routes(plan, klass, names)
        if any(route.second is not None for route in routes):
            name = label(f"class-{klass}", klass, taken)
            found[f"kserve/{name}.yaml"] = dumped(_graph(name, routes, names))
    return found


def _peak_routes(plan: Plan, klass: str, names: Mapping[str, str]) -> list[Route]:
    """Return the ways of a class that servers run, in the hour in which it asks for most."""
    every = [
        [r for r in hour.routes
         if r.klass == klass and r.first in names and (r.second is None or r.second in names)]
        for hour in by_hour(plan)
    ]  # fmt: skip
    return max(every, key=lambda routes: sum(r.rate for r in routes), default=[])


def _graph(name: str, routes: Sequence[Route], names: Mapping[str, str]) -> Manifest:
    weights = _per_cent([route.rate for route in routes])
    if weights.count(0) == len(weights) - 1:  # nothing is split
        only = routes[weights.index(100)]
        return _manifest(name, {"root": {"routerType": "Sequence", "steps": _steps(only, names)}})
    nodes: dict[str, Manifest] = {"root": {"routerType": "Splitter", "steps": [
        {"nodeName": f"route-{i}", "name": f"route-{i}", "weight": weight}
        for i, weight in enumerate(weights) if weight
    ]}}  # fmt: skip
    for i, (route, weight) in enumerate(zip(routes, weights, strict=True)):
        if weight:
            nodes[f"route-{i}"] = {"routerType": "Sequence", "steps": _steps(route, names)}
    return _manifest(name, nodes)


def _manifest(name: str, nodes: Mapping[str, Manifest]) -> Manifest:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1", "kind": "InferenceGraph",
        "metadata": {"name": name}, "spec": {"nodes": nodes},
    }  # fmt: skip


def _steps(route: Route, names: Mapping[str, str]) -> list[Manifest]:
    first: Manifest = {"name": "first", "serviceUrl": _url(names[route.first])}
    if route.second is None:
        return [first]
    # What a condition finds in the answer is what lets the next step run.
    unsure = f'outputs.#(name=="{CONFIDENCE}").data.#(<{route.threshold:.9g})'
    second = {"name": "second", "serviceUrl": _url(names[route.second]),
              "data": "$request", "condition": unsure}  # fmt: skip
    return [first, second]


def _url(name: str) -> str:
    return f"http://{name}:{triton.HTTP}/v2/models/{name}/infer"


def _per_cent(rates: Sequence[float]) -> list[int]:
    """Return shares in whole per cent that add up to 100, by largest remainders."""
    exact = [100 * rate / sum(rates) for rate in rates]
    found = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    for i in order[: 100 - sum(found)]:
        found[i] += 1
    return found
