"""Classes with several ways as InferenceGraphs of KServe, over the Services of the pools.

Of a cascade, the first pool answers; where it is less sure than the threshold, the request goes on
to the second. What a class has of several ways is split by their rates.
Source: https://kserve.github.io/website/docs/concepts/resources/inferencegraph.
"""

from collections.abc import Mapping, Sequence

from hwnas.deployment import triton
from hwnas.deployment.kubernetes import Manifest, dumped
from hwnas.deployment.pools import Deployed, busiest, by_hour, label
from hwnas.deployment.schedule import allowed, schedule
from hwnas.deployment.ways import way, ways
from hwnas.planning.plan import Plan, Route
from hwnas.runtimes.onnx_served import CONFIDENCE


def graphs(plan: Plan, pools: Sequence[Deployed]) -> dict[str, bytes]:
    """Return the graphs of ``named``, as in the hour that is deployed first.

    Where they are others in other hours, ``schedule.yaml`` applies them then.
    """
    names = {pool.of: pool.name for pool in pools}
    start, hours = busiest(plan), range(len(by_hour(plan)))
    by_class = {
        name: [dumped(_graph(name, of, names)) for of in _routes(plan, klass, names)]
        for klass, name in named(plan, pools).items()
    }
    found = {f"kserve/{name}.yaml": of[start] for name, of in by_class.items()}
    every = [b"---\n".join(of[hour] for of in by_class.values()) for hour in hours]
    rules = [allowed("serving.kserve.io", "inferencegraphs", [*by_class])]
    scheduled = schedule("hwnas-routes", every, rules, plan.begin_min)
    return found | ({"kserve/schedule.yaml": scheduled} if scheduled else {})


def named(plan: Plan, pools: Sequence[Deployed]) -> dict[str, str]:
    """Return the names of graphs by class: of all with a cascade, or more than one way.

    What no server runs is left out, and so are classes that are left with nothing; and those with
    a network that was cut: what one step answers is not what the next one reads, to KServe.
    """
    names, taken = {pool.of: pool.name for pool in pools}, set[str]()
    found = {}
    for klass in plan.classes:
        own = {way(route) for of in ways(plan, klass, names) for route in of}
        if any(plan.is_split(first, second) for first, second, _ in own):
            continue
        if len(own) > 1 or any(second is not None for _, second, _ in own):
            found[klass] = label(f"class-{klass}", klass, taken)
    return found


def _routes(plan: Plan, klass: str, names: Mapping[str, str]) -> list[list[Route]]:
    """Return the ways of a class that servers run, by hour; where it rests, those of its peak."""
    every = ways(plan, klass, names)
    peak = max(every, key=lambda routes: sum(r.rate for r in routes))
    return [routes or peak for routes in every]


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
