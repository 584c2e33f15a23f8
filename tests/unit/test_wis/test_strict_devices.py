"""Strict functions on every kernel device that this machine has: the bits are those of the form run by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from jit.kernels.launch import KernelLaunch
from tests.support.kernel_devices import KernelDevice
from tests.support.strict_forms import evaluate
from tests.unit.test_wis.test_strict import arguments, form_of, same_bits
from wis.dtypes import DType
from wis.kernel.model import Bar, Block, BufferParam, Kernel, Math, Op, RegType, Ret, Shared, Special
from wis.kernel.ops import BY_NAME
from wis.kernel.strict import STRICT_FORMS
from wis.kernel.verify import verify_kernel

_THREADS = 128
_TYPES = {RegType.F32: DType.F32, RegType.F64: DType.F64}
_NAMES = {type_: sorted(name for name, other in STRICT_FORMS if other is type_) for type_ in _TYPES}
# sin(sin(x)) and the like: the temporaries of one form and the next share registers.
_CHAIN = ("sin", "exp", "log1p", "tanh")


def kernel_of(type_: RegType, calls: list[tuple[str, ...]], barrier: bool = False) -> Kernel:
    """Out buffer k of a thread's number is calls[k] one after the other on the first argument; the second argument stays.

    Parameters: both arguments, then the out buffers. ``barrier``: the threads wait for each other, which some back ends compile otherwise.
    """
    dtype = int(_TYPES[type_])
    regs: list[int] = []
    code: list[Op] = []

    def put(name: str, out: RegType, *ins: int, attrs: tuple[int, ...] = ()) -> int:
        regs.append(int(out))
        code.append(Op(BY_NAME[name].code, (len(regs) - 1,), ins, attrs))
        return len(regs) - 1

    block, size, thread = (put("special", RegType.I32, attrs=(int(s),)) for s in (Special.CTAID_X, Special.NTID_X, Special.TID_X))
    product = put("mul", RegType.I32, block, size)
    index = put("zext", RegType.I64, put("add", RegType.I32, product, thread))
    x, y = (put("ld", type_, index, attrs=(0, number, dtype)) for number in (0, 1))
    for number, names in enumerate(calls):
        value = x
        for name in names:
            value = put(name, type_, *((value, y) if BY_NAME[name].n_ins == 2 else (value,)))
        code.append(Op(BY_NAME["st"].code, (), (index, value), (0, 2 + number, dtype)))
    params = (BufferParam(dtype, 1), BufferParam(dtype, 1), *(BufferParam(dtype, 2) for _ in calls))
    if not barrier:
        return Kernel(2, "strict", int(Math.STRICT), _THREADS, params, (), tuple(regs), (Block(tuple(code), Ret()),))
    shared = (Shared(int(DType.F32), 1),)
    return Kernel(
        2,
        "strict",
        int(Math.STRICT),
        _THREADS,
        params,
        shared,
        tuple(regs),
        (Block(tuple(code[:7]), Bar(1)), Block(tuple(code[7:]), Ret())),
    )


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("type_", list(_TYPES))
def test_bits_are_the_same_on_every_device(device: KernelDevice, type_: RegType, barrier: bool) -> None:
    names = _NAMES[type_]
    calls = [(name,) for name in names] + [tuple(n for n in _CHAIN if n in names)]
    verified = verify_kernel(kernel_of(type_, calls, barrier))
    two = arguments(form_of("atan2"), 4000, seed=11)
    count = len(two[0]) // _THREADS * _THREADS
    with np.errstate(invalid="ignore"):  # signalling NaN
        x, y = (np.ascontiguousarray(a[-count:].astype(_TYPES[type_].numpy)) for a in two)
    if type_ is RegType.F64:
        rng = np.random.default_rng(12)
        x[: count // 4] = rng.integers(0, 1 << 64, count // 4, np.uint64).view(np.float64)
    outs = [np.zeros_like(x) for _ in calls]
    prepared = device.prepare(verified, (_THREADS, 1, 1))
    launch = KernelLaunch((count // _THREADS, 1, 1), (_THREADS, 1, 1))
    outcome = device.run(prepared, launch, [a.view(np.uint8) for a in (x, y, *outs)])
    assert outcome.trap is None and not outcome.out_of_fuel
    assert outcome.instructions == sum(verified.costs) * count
    for names_of_one, got in zip(calls, outs, strict=True):
        wanted = x
        for name in names_of_one:
            form = form_of(name, type_)
            wanted = evaluate(form, *((wanted, y) if len(form.ins) == 2 else (wanted,)))
        assert same_bits(got, wanted), names_of_one
