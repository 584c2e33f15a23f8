"""Writing kernels block by block: registers, ops, and control flow whose blocks come in the order in which warps stay together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wis.kernel.model import Block, Br, Cbr, Op, RegType, Ret, Switch, Terminator
from wis.kernel.ops import BY_NAME

__all__ = ["Writer"]


class Writer:
    """One body of code (a kernel's or a function's). ``scope``: by type, registers that every path to here has written."""

    def __init__(self) -> None:
        self.regs: list[int] = []
        self.scope: dict[RegType, list[int]] = {t: [] for t in RegType}
        self._blocks: list[tuple[list[Op], Terminator | None]] = []
        self._code: list[Op] = []
        self._to_end: list[int] = []  # blocks whose branch leads, when it is taken, to the end of the body
        self.loops: list[tuple[list[int], list[int]]] = []  # of every open loop, blocks that leave it or go on with its next turn

    def reg(self, type_: RegType) -> int:
        """A new register, in scope from now on; something must write it next."""
        self.regs.append(int(type_))
        self.scope[type_].append(len(self.regs) - 1)
        return len(self.regs) - 1

    def emit(self, name: str, outs: Sequence[int] = (), ins: Sequence[int] = (), attrs: Sequence[int] = ()) -> None:
        self._code.append(Op(BY_NAME[name].code, tuple(outs), tuple(ins), tuple(map(int, attrs))))

    def value(self, name: str, type_: RegType, *ins: int, attrs: Sequence[int] = ()) -> int:
        """The result of an op in a new register."""
        self.regs.append(int(type_))  # not in scope: the op may not read what it is about to write first
        out = len(self.regs) - 1
        self.emit(name, (out,), ins, attrs)
        self.scope[type_].append(out)
        return out

    def const(self, type_: RegType, bits: int) -> int:
        return self.value("const", type_, attrs=(bits,))

    @property
    def here(self) -> int:
        """The number of the block that is being written."""
        return len(self._blocks)

    def close(self, end: Terminator | None = None) -> int:
        """End the block; its number. Without ``end`` it must be patched."""
        self._blocks.append((self._code, end))
        self._code = []
        return self.here - 1

    def patch(self, number: int, end: Terminator) -> None:
        self._blocks[number] = (self._blocks[number][0], end)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """What is written first inside is out of scope afterwards."""
        outer = {t: list(regs) for t, regs in self.scope.items()}
        yield
        self.scope = outer

    @contextmanager
    def when(self, pred: int) -> Iterator[None]:
        """The inside runs where ``pred`` holds."""
        at = self.close()
        with self.nested():
            yield
        last = self.close()
        self.patch(last, Br(self.here))
        self.patch(at, Cbr(pred, at + 1, self.here))

    def cases(self, index: int | None, pred: int | None, count: int) -> Iterator[int]:
        """Write ``count`` alternatives: of a switch on ``index`` (the last is the default), or of a branch on ``pred`` (two)."""
        at, starts, ends = self.close(), [], []
        for k in range(count):
            starts.append(self.here)
            with self.nested():
                yield k
            ends.append(self.close())
        for last in ends:
            self.patch(last, Br(self.here))
        if index is None:
            assert pred is not None and count == 2
            self.patch(at, Cbr(pred, starts[0], starts[1]))
        else:
            self.patch(at, Switch(index, tuple(starts[:-1]), starts[-1]))

    @contextmanager
    def loop(self, bound: int) -> Iterator[int]:
        """The inside runs for a counter (i32, its register is given) from 0 up to below register ``bound``."""
        counter, one = self.const(RegType.I32, 0), self.const(RegType.I32, 1)
        for r in (counter, one):
            self.scope[RegType.I32].remove(r)
        head = self.close(Br(self.here + 1)) + 1
        again = self.value("lt_s", RegType.PRED, counter, bound)
        self.scope[RegType.PRED].remove(again)
        self.close()
        self.loops.append(([], []))
        with self.nested():
            yield counter
        leaves, continues = self.loops.pop()
        last = self.close()
        self.patch(last, Br(self.here))
        for at in continues:
            self._redirect(at, self.here)
        self.emit("add", (counter,), (counter, one))
        self.close(Br(head))
        self.patch(head, Cbr(again, head + 1, self.here))
        for at in leaves:
            self._redirect(at, self.here)

    def _redirect(self, at: int, target: int) -> None:
        end = self._blocks[at][1]
        assert isinstance(end, Cbr)
        self.patch(at, Cbr(end.pred, target, end.no))

    def leave(self, pred: int, turn_only: bool = False) -> None:
        """Out of the innermost loop, or (``turn_only``) on with its next turn, where ``pred`` holds."""
        at = self.close(Cbr(pred, 0, self.here + 1))
        self.loops[-1][1 if turn_only else 0].append(at)

    def finish_if(self, pred: int) -> None:
        """To the end of the body where ``pred`` holds."""
        self._to_end.append(self.close(Cbr(pred, 0, self.here + 1)))

    def finish(self) -> tuple[Block, ...]:
        """All blocks."""
        last = self.close(Br(self.here + 1))
        end = self.close(Ret())
        assert last + 1 == end
        for at in self._to_end:
            self._redirect(at, end)
        blocks = []
        for code, end_ in self._blocks:
            assert end_ is not None
            blocks.append(Block(tuple(code), end_))
        return tuple(blocks)
