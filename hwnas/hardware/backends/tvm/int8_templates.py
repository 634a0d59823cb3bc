"""Schedules of int8 operators: those of float32, except tiles around int8 dot products."""

from hwnas.hardware.backends.tvm import templates
from hwnas.hardware.backends.tvm.dots import Dot
from hwnas.hardware.backends.tvm.templates import (
    Cpu,
    Plan,
    Schedule,
    _finish_output,
    _parallel,
    _place_border,
    _vectorise,
)
from hwnas.models.graph import OpSpec

_MANY = 10_000  # plans that an operator may have


def plans(op: OpSpec, channels: int, cpu: Cpu, limit: int) -> list[Plan]:
    """Return at most ``limit`` plans, the most promising first; see ``templates.plans``.

    A dot product reads bytes from memory: padding must exist in memory.
    """
    found = templates.plans(op, channels, cpu, _MANY)
    tiled = op.base in ("conv2d", "linear") and not op.depthwise
    return [
        plan
        for plan in found
        if not (tiled and plan.tile is not None and plan.tile.border == "inline")
    ][:limit]


def apply(sch: Schedule, op: OpSpec, cpu: Cpu, plan: Plan, dot: Dot) -> None:
    """Apply a plan to an operator.

    Args:
        sch: Schedule of the operator, which is changed.
        op: The operator.
        cpu: The CPU.
        plan: Plan from ``templates.plans``.
        dot: Registered dot product.
    """
    if plan.tile is None or op.depthwise:
        templates.apply(sch, op, cpu, plan)
    else:
        _tile(sch, op, cpu, plan, dot)


def apply_edge(sch: Schedule, cpu: Cpu) -> None:
    """Schedule the conversion of images to int8, or of outputs to float32."""
    _vectorise(sch, sch.get_loops(sch.get_sblock("out"))[-1], cpu)


def _tile(sch: Schedule, op: OpSpec, cpu: Cpu, plan: Plan, dot: Dot) -> None:
    """Tile a convolution or a linear layer; its blocks are ``pad``, ``acc`` and ``out``."""
    tile = plan.tile
    assert tile is not None
    acc, out = sch.get_sblock("acc"), sch.get_sblock("out")
    n, y, x, f, ry, rx, rc = sch.get_loops(acc)
    vector = min(int(sch.get(f).extent), cpu.lanes)
    fo, fm, fi = sch.split(f, [None, tile.vectors, vector])
    xo, xi = sch.split(x, [None, tile.columns])
    yo, yi = sch.split(y, [None, tile.rows])
    ro, ri = sch.split(rc, [None, dot.group])
    outer = [fo, yo, xo] if tile.order == "weights" else [yo, xo, fo]
    sch.reorder(n, *outer, ry, rx, ro, yi, xi, fm, fi, ri)
    sch.reverse_compute_at(out, outer[-1], preserve_unit_loops=True)
    _finish_output(sch, out, vector)
    if op.padding:
        _place_border(sch, sch.get_sblock("pad"), tile.border, yo)
    for loop in (yi, xi, fm):
        sch.unroll(loop)
    if plan.parallel:
        _parallel(sch, [n, *outer])
    start = sch.decompose_reduction(acc, ry)
    if vector < cpu.lanes:
        return  # fewer channels than the instruction has lanes
    sch.vectorize(sch.get_loops(start)[-1])
    sch.tensorize(fi, dot.name)
