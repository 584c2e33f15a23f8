"""Counted loops in LLVM IR with carried values and coordinates kept by an odometer instead of divisions."""

from __future__ import annotations

from collections.abc import Sequence

from jit.host.emit.code import Code

__all__ = ["Loop", "coordinates"]


def coordinates(code: Code, index: str, sizes: Sequence[str]) -> list[str]:
    """Coordinates of a row-major ``index`` in a box of ``sizes``."""
    result: list[str] = []
    rest = index
    for size in reversed(sizes[1:]):
        result.append(code.value(f"urem i64 {rest}, {size}"))
        rest = code.value(f"udiv i64 {rest}, {size}")
    if sizes:
        result.append(rest)
    return result[::-1]


class Loop:
    """``for index in range(start, stop, step)``. The body is what is emitted between construction and ``end``.

    ``coords`` are the coordinates of index in a box of ``sizes`` (step must be 1 then), starting at ``origin``; ``carried`` values have a
    type and an initial value, and ``end`` is given their next ones. After ``end``, ``carried`` holds their values behind the loop.
    """

    def __init__(
        self,
        code: Code,
        start: str,
        stop: str,
        step: int = 1,
        sizes: Sequence[str] = (),
        origin: Sequence[str] = (),
        carried: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._code = code
        self._step = step
        self._sizes = list(sizes)
        self._head, body, self._exit = code.fresh("head"), code.fresh("body"), code.fresh("exit")
        before = code.block
        code.branch(self._head)
        code.label(self._head)
        first = list(origin) if origin else ["0"] * len(self._sizes)
        kinds = ["i64"] * (1 + len(self._sizes)) + [kind for kind, _ in carried]
        initial = [start, *first, *(value for _, value in carried)]
        self._phis: list[tuple[int, str, str, str]] = []
        names: list[str] = []
        for kind, value in zip(kinds, initial, strict=True):
            name = "%" + code.fresh("p")
            self._phis.append((len(code.lines), name, kind, f"[ {value}, %{before} ]"))
            code.lines.append("")
            names.append(name)
        self.index = names[0]
        self.coords = names[1 : 1 + len(self._sizes)]
        self.carried = names[1 + len(self._sizes) :]
        code.fork(code.value(f"icmp slt i64 {self.index}, {stop}"), body, self._exit)
        code.label(body)

    def end(self, carried: Sequence[str] = ()) -> None:
        """Close the loop; what follows comes after it."""
        code = self._code
        after = [code.value(f"add i64 {self.index}, {self._step}"), *self._advance(), *carried]
        latch = code.block
        code.branch(self._head)
        for (line, name, kind, entry), value in zip(self._phis, after, strict=True):
            code.lines[line] = f"  {name} = phi {kind} {entry}, [ {value}, %{latch} ]"
        code.label(self._exit)

    def _advance(self) -> list[str]:
        code = self._code
        result: list[str] = []
        carry = ""
        for at in range(len(self.coords) - 1, -1, -1):
            up = code.value(f"add i64 {self.coords[at]}, 1")
            if at == 0:
                result.append(up if not carry else code.value(f"select i1 {carry}, i64 {up}, i64 {self.coords[at]}"))
                break
            wrap = code.value(f"icmp eq i64 {up}, {self._sizes[at]}")
            turned = code.value(f"select i1 {wrap}, i64 0, i64 {up}")
            if carry:
                turned = code.value(f"select i1 {carry}, i64 {turned}, i64 {self.coords[at]}")
                carry = code.value(f"and i1 {carry}, {wrap}")
            else:
                carry = wrap
            result.append(turned)
        return result[::-1]
