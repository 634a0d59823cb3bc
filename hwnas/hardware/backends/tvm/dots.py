"""Int8 dot products: one instruction multiplies groups of bytes and adds to 32-bit integers.

Each is a tensor intrinsic ``C[lanes] += A[group] * B[lanes, group]`` with exact sums: x86
instructions that saturate (``pmaddubsw``) are not used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T


@dataclass(frozen=True)
class Dot:
    """A dot product instruction, and the CPU feature that provides it."""

    feature: str  #: as LLVM names it
    instruction: str  #: as LLVM names it
    lanes: int  #: number of sums
    group: int  #: products per sum
    activation: str  #: dtype of activations in memory
    weight: str  #: dtype of weights in memory
    adds: bool = True  #: whether it adds to the previous sums

    @property
    def name(self) -> str:
        """Name of the intrinsic in TVM."""
        return f"hwnas_{self.feature.replace('-', '')}_{self.lanes}x{self.group}"


#: Supported instructions, the fastest first. Activations are unsigned if the instruction needs one
#: unsigned operand.
DOTS = (
    Dot("avx512vnni", "llvm.x86.avx512.vpdpbusd.512", 16, 4, "uint8", "int8"),
    Dot("avx512bw", "llvm.x86.avx512.pmaddw.d.512", 16, 2, "uint8", "int16", False),
    Dot("avxvnni", "llvm.x86.avx512.vpdpbusd.256", 8, 4, "uint8", "int8"),
    Dot("avx2", "llvm.x86.avx2.pmadd.wd", 8, 2, "uint8", "int16", False),
    Dot("dotprod", "llvm.aarch64.neon.sdot.v4i32.v16i8", 4, 4, "int8", "int8"),
)


def best(features: Iterable[str], lanes: int) -> Dot | None:
    """Return the fastest dot product instruction of a CPU; ``None`` if it has none.

    Args:
        features: CPU features as LLVM names them.
        lanes: Float32 values in a vector; the instruction must have as many sums.
    """
    there = {*features}
    found = (dot for dot in DOTS if dot.feature in there and dot.lanes == lanes)
    return next(found, None)


def register(dot: Dot) -> str:
    """Register an instruction in TVM as a tensor intrinsic; return its name there."""
    if TensorIntrin.get(dot.name, allow_missing=True) is None:
        description, implementation = _intrinsic(dot)
        TensorIntrin.register(dot.name, description, implementation)
    return dot.name


def _intrinsic(dot: Dot) -> tuple[Any, Any]:
    """Return the description of an instruction, and its implementation."""
    lanes, group, size = dot.lanes, dot.group, dot.lanes * dot.group
    activation, weight = dot.activation, dot.weight
    read, spread, sums = f"{activation}x{group}", f"{weight}x{size}", f"int32x{lanes}"
    loaded = f"{weight}x{group}"

    def added(old: Any, left: Any, right: Any) -> Any:
        number = T.llvm_lookup_intrinsic_id(dot.instruction)
        if dot.adds:
            return T.call_llvm_pure_intrin(number, old, left, right, dtype=sums)
        return old + T.call_llvm_pure_intrin(number, left, right, dtype=sums)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (group,), activation, offset_factor=1)
        B = T.match_buffer(b, (lanes, group), weight, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, group):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (group,), activation, offset_factor=1)
        B = T.match_buffer(b, (lanes, group), weight, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            one = T.cast(A.vload([0], dtype=read), loaded)
            # A group of activations is as wide as a sum.
            each = T.reinterpret(
                T.broadcast(T.reinterpret(one, dtype="int32"), lanes), dtype=spread
            )
            C[T.ramp(T.int32(0), 1, lanes)] = added(
                C.vload([0], dtype=sums), each, B.vload([0, 0], dtype=spread)
            )

    return description, implementation
