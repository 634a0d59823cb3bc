"""Numbers in a page: columns as compact typed arrays, which a browser reads without parsing."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Packed = dict[str, Any]


def floats(values: NDArray[np.float64]) -> Packed | None:
    """Return values as 32-bit floats; ``None`` if none is known (NaN), one where all are equal."""
    if np.isnan(values).all():
        return None
    if np.isfinite(values[0]) and (values == values[0]).all():
        return {"constant": float(values[0])}
    return _packed("f4", values.astype("<f4"))


def counts(values: NDArray[np.intp]) -> Packed:
    """Return whole numbers from 0 in as few bytes as hold the largest."""
    most = int(values.max(initial=0))
    kind = "u1" if most < 1 << 8 else "u2" if most < 1 << 16 else "u4"
    return _packed(kind, values.astype(f"<{kind}"))


def ids(texts: Sequence[str]) -> Packed | list[str]:
    """Return ids in 6 bytes each, if all are 12 hex digits, as those of genotypes are."""
    joined = "".join(texts)
    if set(map(len, texts)) == {12} and set(joined) <= set("0123456789abcdef"):
        return _packed("u1", np.frombuffer(bytes.fromhex(joined), np.uint8))
    return list(texts)


def _packed(kind: str, values: NDArray[Any]) -> Packed:
    return {"type": kind, "data": base64.b64encode(values.tobytes()).decode()}
