"""Sliding windows of convolution and pooling: one definition of their arithmetic for verifier, reference and planners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from wis.ops import Kind
from wis.program import BoundInstr, Operand


@dataclass(frozen=True, slots=True)
class Window:
    """How a kernel slides: one entry a spatial dimension. Window i starts at input position ``i * stride - pad``."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def n_positions(self) -> int:
        """How many positions the kernel has."""
        return prod(self.kernel)

    def reach(self, d: int) -> int:
        """How far a window extends along spatial dimension ``d``."""
        return (self.kernel[d] - 1) * self.dilation[d] + 1

    def count(self, d: int, size: int) -> int:
        """How many windows lie wholly inside of the padded input."""
        return max((size + 2 * self.pad[d] - self.reach(d)) // self.stride[d] + 1, 0)

    def count_ceil(self, d: int, size: int) -> int:
        """As ``count``, plus a last partial window when it still starts inside of the input or its left padding."""
        count = max(-((size + 2 * self.pad[d] - self.reach(d)) // -self.stride[d]) + 1, 0)
        if count and (count - 1) * self.stride[d] >= size + self.pad[d]:
            count -= 1
        return count

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Every position inside the kernel, row-major."""
        return product(*(range(k) for k in self.kernel))

    def tap(
        self, at: tuple[int, ...], size: tuple[int, ...], counts: tuple[int, ...]
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """For kernel position ``at``: the windows for which it lies inside of the input, and where; None when for none."""
        windows, inputs = [], []
        for d, a in enumerate(at):
            shift, step = a * self.dilation[d] - self.pad[d], self.stride[d]
            first = max(0, -(shift // step))  # least i with i * step + shift >= 0
            last = min(counts[d] - 1, (size[d] - 1 - shift) // step)
            if first > last:
                return None
            windows.append(slice(first, last + 1))
            inputs.append(slice(first * step + shift, last * step + shift + 1, step))
        return tuple(windows), tuple(inputs)


def window_of(instr: BoundInstr) -> Window:
    """The window that the operands and attributes of a CONV or POOL instruction describe (its attribute count must fit)."""
    op, attrs = instr.op, instr.attrs
    if op.kind is Kind.CONV:
        n = (len(attrs) - 1) // 3
        weights = instr.outs[0] if op.name == "conv_dw" else instr.ins[1]
        assert isinstance(weights, Operand), "convolutions take buffers only"
        return Window(weights.shape[2:], attrs[1 : 1 + n], attrs[1 + n : 1 + 2 * n], attrs[1 + 2 * n :])
    fixed = op.attrs.index("*kernel")
    n = (len(attrs) - fixed) // (len(op.attrs) - fixed)
    parts = [attrs[fixed + i * n : fixed + (i + 1) * n] for i in range(len(op.attrs) - fixed)]
    return Window(parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else (1,) * n)
