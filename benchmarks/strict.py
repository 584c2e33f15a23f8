"""Measures strict functions beside a device's own: ``python -m benchmarks.strict [--devices host,opencl] [names]``.

A kernel adds f(x + k / 64) for k = 0 to 63 in every thread; the same loop without f is subtracted. Strict and native take turns; each time
is the least of some rounds.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

import numpy as np

from jit.errors import KernelRefused, ToolchainError
from jit.kernels.launch import KernelLaunch, KernelOptions
from tests.support.kernel_devices import KERNEL_DEVICES, KernelDevice, PreparedKernel
from wis.dtypes import DType
from wis.kernel.model import Block, Br, BufferParam, Cbr, Kernel, Math, Op, RegType, Ret, Special
from wis.kernel.ops import BY_NAME
from wis.kernel.strict import STRICT_FORMS
from wis.kernel.verify import verify_kernel

_TURNS: Final = 64
_STEP: Final = 1 / _TURNS
_THREADS: Final = 256
_BLOCKS: Final = 512
_ROUNDS: Final = 5
_DTYPES: Final = {RegType.F32: DType.F32, RegType.F64: DType.F64}
_FIRST: Final = {"acosh": 1.0, "atanh": -0.5, "asin": -0.5, "acos": -0.5}
"""Where x starts, by function (else 0.01): over the loop it goes up by 1."""


def kernel_of(name: str | None, type_: RegType, math: Math) -> Kernel:
    """The loop around one function, or around nothing. Parameters: x, sums."""
    regs: list[int] = []
    code: list[Op] = []

    def put(what: str, out: RegType, *ins: int, attrs: tuple[int, ...] = ()) -> int:
        regs.append(int(out))
        code.append(Op(BY_NAME[what].code, (len(regs) - 1,), ins, attrs))
        return len(regs) - 1

    def over(what: str, out: int, *ins: int) -> None:
        code.append(Op(BY_NAME[what].code, (out,), ins))

    def number(value: float) -> int:
        kind = np.float32 if type_ is RegType.F32 else np.float64
        return put("const", type_, attrs=(int(np.array(value, kind).view(f"i{kind().itemsize}")),))

    dtype = int(_DTYPES[type_])
    block, size, thread = (put("special", RegType.I32, attrs=(int(s),)) for s in (Special.CTAID_X, Special.NTID_X, Special.TID_X))
    index = put("zext", RegType.I64, put("add", RegType.I32, put("mul", RegType.I32, block, size), thread))
    x = put("ld", type_, index, attrs=(0, 0, dtype))
    total, step = number(0.0), number(_STEP)
    k, one, turns = (put("const", RegType.I32, attrs=(v,)) for v in (0, 1, _TURNS))
    start, code = code, []
    arguments = (x, x) if name is not None and BY_NAME[name].n_ins == 2 else (x,)
    over("add", total, total, x if name is None else put(name, type_, *arguments))
    over("add", x, x, step)
    over("add", k, k, one)
    more = put("lt_s", RegType.PRED, k, turns)
    end = (Op(BY_NAME["st"].code, (), (index, total), (0, 1, dtype)),)
    blocks = (Block(tuple(start), Br(1)), Block(tuple(code), Cbr(more, 1, 2)), Block(end, Ret()))
    return Kernel(2, "cost", int(math), _THREADS, (BufferParam(dtype, 1), BufferParam(dtype, 2)), (), tuple(regs), blocks)


class Timed:
    """A compiled kernel and its buffers."""

    def __init__(self, device: KernelDevice, name: str | None, type_: RegType, math: Math) -> None:
        self._device = device
        verified = verify_kernel(kernel_of(name, type_, math))
        self._prepared: PreparedKernel = device.prepare(verified, (_THREADS, 1, 1), 0, KernelOptions(check=False, meter=False, fuel=False))
        count = _THREADS * _BLOCKS
        first = _FIRST.get(name or "", 0.01)
        x = np.linspace(first, first + _STEP, count).astype(_DTYPES[type_].numpy)
        self._params = [x.view(np.uint8), np.zeros_like(x).view(np.uint8)]

    def seconds(self) -> float:
        """Of one launch."""
        start = time.perf_counter()
        self._device.run(self._prepared, KernelLaunch((_BLOCKS, 1, 1), (_THREADS, 1, 1)), self._params)
        return time.perf_counter() - start


def cost(device: KernelDevice, name: str, type_: RegType) -> tuple[float, float]:
    """Nanoseconds of one call of the function, strict and native, beside the empty loop."""
    timed = [Timed(device, n, type_, math) for n, math in ((None, Math.NATIVE), (name, Math.STRICT), (name, Math.NATIVE))]
    rounds = [[one.seconds() for one in timed] for _ in range(_ROUNDS)]
    empty, strict, native = (min(times) * 1e9 / (_THREADS * _BLOCKS * _TURNS) for times in zip(*rounds, strict=True))
    return strict - empty, native - empty


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--devices", default="host,opencl,cuda")
    options = arguments.parse_args()
    print("| device | function | type | strict ns | native ns | ratio |\n|---|---|---|---|---|---|")
    for which in options.devices.split(","):
        try:
            device = KERNEL_DEVICES[which]()
        except ToolchainError as error:
            print(f"no {which} here: {error}")
            continue
        for name, type_ in STRICT_FORMS:
            if options.names and name not in options.names:
                continue
            try:
                strict, native = cost(device, name, type_)
            except KernelRefused as error:
                print(f"| {which} | {name} | {type_.text} | {error} | | |")
                continue
            print(f"| {which} | {name} | {type_.text} | {strict:.2f} | {native:.2f} | {strict / native:.2f} |", flush=True)
        device.close()


if __name__ == "__main__":
    main()
