"""Attention in an ONNX graph: the operator, or the products and the softmax that it is made of."""

import math
from dataclasses import replace

import numpy as np

from hwnas.op import OpSpec
from hwnas.runtimes.onnx_reader import values
from hwnas.runtimes.onnx_reader.graph import OnnxNode
from hwnas.runtimes.onnx_reader.network import Network
from hwnas.runtimes.onnx_reader.values import Places, Scores, Value

_SCORES, _SHARES = "scores", "softmax"  # of which attention is made; not operators of their own
_OPTIONS = {"is_causal": 0, "qk_matmul_output_mode": 0, "softcap": 0.0}


def attention(network: Network, node: OnnxNode) -> Value:
    """Append an ``Attention`` of queries, keys and values of three or four axes."""
    options = {name: node.attributes.get(name, value) for name, value in _OPTIONS.items()}
    if options != _OPTIONS or any(node.inputs[3:]):
        raise node.refused(f"{options}, {len(node.inputs)} inputs; allowed: {_OPTIONS}, 3 inputs")
    queries, keys, mixed = (network.value(node, i) for i in range(3))
    shape = queries.places.shape
    heads = shape[1] if len(shape) == 4 else node.attributes.get("q_num_heads", 1)
    same = heads == node.attributes.get("kv_num_heads", heads) and not shape[-1] % heads
    if not same or not shape == keys.places.shape == mixed.places.shape:
        raise node.refused("queries, keys and values of several shapes; allowed: of one shape")
    if len(shape) == 4:  # heads are an axis
        split = [value.places for value in (queries, keys, mixed)]
    else:
        split = [
            value.places.reshape(*shape[:2], heads, -1).swapaxes(1, 2)
            for value in (queries, keys, mixed)
        ]
    scale = node.attributes.get("scale", split[0].shape[-1] ** -0.5)
    sources = {queries.source, keys.source}
    out = _mixed(network, node, Scores(sources, split[0], split[1], scale), mixed, split[2])
    return out if len(shape) == 4 else replace(out, places=out.places.swapaxes(1, 2).reshape(shape))


def product(network: Network, node: OnnxNode) -> Value:
    """Append the product of queries and keys, or that of their softmax and values."""
    a, b = (network.values[name] for name in node.inputs)
    scores = _scored(network, a, _SHARES)
    if scores is not None and a.curve is None:
        mixed = network.value(node, 1)
        if mixed.places.shape[:-1] != a.places.shape[:-1]:
            raise node.refused("values of another shape than queries and keys; allowed: of one")
        places = mixed.places.reshape(*scores.queries.shape[:3], -1)
        out = _mixed(network, node, scores, mixed, places)
        return replace(out, places=out.places.reshape(mixed.places.shape))
    lines = (values.line(a.curve), values.line(b.curve))
    scale = math.prod(line[0] if line and not line[1] else 0.0 for line in lines)
    (n, *_), shape = a.shape, a.places.shape
    if not scale or len(shape) < 3 or b.places.swapaxes(-1, -2).shape != shape or shape[0] % n:
        raise node.refused(
            f"of {shape} and {b.places.shape}. Allowed: a constant weight, or queries and keys of "
            "all heads as in attention"
        )
    queries, keys = (
        places.reshape(n, -1, *shape[-2:]) for places in (a.places, b.places.swapaxes(-1, -2))
    )
    found = Scores({a.source, b.source}, queries, keys, scale)
    return _part(network, node, _SCORES, found, shape[:-1])


def softmax(network: Network, node: OnnxNode) -> Value:
    """Append the softmax of scores."""
    x = network.values[node.inputs[0]]
    axis = node.attributes.get("axis", -1 if node.opset >= 13 else 1)
    scores, line = _scored(network, x, _SCORES), values.line(x.curve)
    if scores is None or not line or line[1] or axis not in (-1, x.places.ndim - 1):
        raise node.refused(
            "allowed: over the last axis of products of queries and keys, without a mask. Leave "
            "out a softmax after the classifier"
        )
    scaled = replace(scores, scale=scores.scale * line[0])
    return _part(network, node, _SHARES, scaled, x.places.shape[:-1])


def _part(
    network: Network, node: OnnxNode, kind: str, scores: Scores, rows: tuple[int, ...]
) -> Value:
    """Append a part of attention, which is left out once all of it is found."""
    n, heads, tokens, _ = scores.queries.shape
    shape = (heads, tokens, tokens)
    name = network.append(node, OpSpec(kind, shape, shape), tuple(sorted(scores.sources)))
    network.scores[name] = scores
    out = values.computed(name, (n, *shape))
    return replace(out, places=out.places.reshape(*rows, tokens))


def _scored(network: Network, value: Value, kind: str) -> Scores | None:
    """Return the scores that a value is, row by row, if it is such a part of attention."""
    tokens = value.shape[2:]
    if network.kinds[value.source] != kind or value.places.shape[-2:] != tokens:
        return None
    return network.scores[value.source] if value.in_order else None


def _mixed(network: Network, node: OnnxNode, scores: Scores, mixed: Value, places: Places) -> Value:
    """Append attention; its output is ``(N, heads, tokens, d)``."""
    parts = (scores.queries, scores.keys, places)
    ordered = all(values.in_heads(mixed, i, part) for i, part in enumerate(parts))
    n, heads, tokens, d = places.shape
    scaled = math.isclose(scores.scale, d**-0.5, rel_tol=1e-5)
    if scores.sources != {mixed.source} or not ordered or not scaled:
        raise node.refused(
            f"queries, keys and values {places.shape} of {', '.join(sorted(scores.sources))} and "
            f"{mixed.source}, scaled by {scores.scale:g}. Allowed: all three computed by one "
            "layer, in this order and head by head, scaled by d ** -0.5"
        )
    _, c, h, w = mixed.shape
    op = OpSpec("attention", mixed.image, (c // 3, h, w), groups=heads)
    name = network.append(node, op, (mixed.source,))
    whole = np.arange(places.size).reshape(n, heads, d, tokens).swapaxes(2, 3)
    return Value(name, (n, c // 3, h, w), whole)
