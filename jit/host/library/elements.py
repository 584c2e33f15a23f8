"""Element types as kernels see them: how one lies in memory, and the type in which it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from jit.host.library.emit import F16, F32, F64, I8, I16, I32, I64, I128, U8, U16, U32, U64, Type, Value


@dataclass(frozen=True, slots=True)
class Element:
    """``storage``: the type in memory; ``compute``: the type of loaded values (f32 for f16 and bf16, one rounding on the way out)."""

    name: str
    storage: Type
    compute: Type

    def decode(self, raw: Value) -> Value:
        """What lies in memory as a value to compute with."""
        if self.name == "bf16":
            return (raw.to(U32) << 16).bits(F32)
        if self.name == "bool":
            return raw.ne(0).to(U8)
        return raw.to(self.compute)

    def encode(self, value: Value) -> Value:
        """A computed value as it lies in memory."""
        if self.name != "bf16":
            return value.to(self.storage)
        bits = value.bits(U32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = (bits >> 16) | 0x40  # rounding up could carry a NaN's payload into infinity
        return value.is_nan().select(quiet, rounded).to(U16)

    def load(self, place: Value, lanes: int = 1) -> Value:
        return self.decode(place.load(self.storage.vec(lanes)))

    def store(self, place: Value, value: Value) -> None:
        place.store(self.encode(value))


ELEMENTS: Final[dict[str, Element]] = {
    element.name: element
    for element in (
        Element("bool", U8, U8),
        Element("u8", U8, U8),
        Element("i8", I8, I8),
        Element("i16", I16, I16),
        Element("i32", I32, I32),
        Element("i64", I64, I64),
        Element("f16", F16, F32),
        Element("bf16", U16, F32),
        Element("f32", F32, F32),
        Element("f64", F64, F64),
        Element("u16", U16, U16),
        Element("u32", U32, U32),
        Element("u64", U64, U64),
    )
}
"""By the text name of the DType."""

MOVERS: Final[dict[int, Type]] = {1: I8, 2: I16, 4: I32, 8: I64, 16: I128}
"""By element size in bytes: the type under which data is only carried from place to place."""
