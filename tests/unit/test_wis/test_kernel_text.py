"""Text of kernels and modules: whatever is printed reads back as the same, also what breaks rules; errors name the line."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wis.kernel.model import (
    Bar,
    Block,
    Br,
    BufferParam,
    Call,
    Cbr,
    Function,
    Kernel,
    Op,
    Ret,
    ScalarParam,
    Shared,
    Switch,
    Sync,
    decode_kernel,
    encode_kernel,
)
from wis.kernel.module import Argument, Entry, Field, Module, Variable, decode_module, encode_module
from wis.kernel.ops import KERNEL_OPS, KernelOp
from wis.kernel.text import parse_kernel, parse_module, print_kernel, print_module

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
INT = st.integers(0, 6) | st.integers(-(1 << 63), (1 << 64) - 1)
REGS = st.lists(INT, max_size=3).map(tuple)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True) | st.text(st.characters(codec="utf-8"), max_size=6)


@st.composite
def _ops(draw: st.DrawFn) -> Op:
    """Any op, often with as many attributes as it has and values that some op gives a name."""
    row: KernelOp = draw(st.sampled_from(KERNEL_OPS))
    attrs = tuple(draw(INT) for _ in row.attrs) if draw(st.booleans()) else draw(REGS)
    return Op(row.code if draw(st.integers(0, 9)) else draw(INT), draw(REGS), draw(REGS), attrs)


ENDS = (
    st.builds(Br, INT)
    | st.builds(Bar, INT)
    | st.builds(Ret)
    | st.builds(Cbr, INT, INT, INT)
    | st.builds(Sync, INT, INT, INT, INT)
    | st.builds(Sync, INT, INT, st.just(-1), st.integers(0, 1))
    | st.builds(Switch, INT, REGS, INT)
    | st.builds(Call, INT, REGS, REGS, INT)
)
BLOCKS = st.lists(st.builds(Block, st.lists(_ops(), max_size=3).map(tuple), ENDS), max_size=3).map(tuple)
REG_TYPES = st.lists(st.integers(0, 7) | INT, max_size=4).map(tuple)
KERNELS = st.builds(
    Kernel,
    st.just(2),
    NAMES,
    INT,
    INT,
    st.lists(st.builds(BufferParam, INT, INT) | st.builds(ScalarParam, INT), max_size=3).map(tuple),
    st.lists(st.builds(Shared, INT, INT), max_size=2).map(tuple),
    REG_TYPES,
    BLOCKS,
    INT,
    INT,
    st.binary(max_size=150),
    st.lists(st.builds(Function, NAMES, REGS, REGS, REG_TYPES, BLOCKS), max_size=2).map(tuple),
    NAMES,
    st.lists(INT, max_size=5).map(tuple),
)
ARGUMENTS = st.builds(Argument, INT, NAMES, INT, INT, INT, st.lists(st.builds(Field, INT, INT, INT), max_size=2).map(tuple), INT)
MODULES = st.builds(
    Module,
    st.just(1),
    st.lists(st.builds(Entry, NAMES, KERNELS, st.lists(ARGUMENTS, max_size=3).map(tuple)), max_size=2).map(tuple),
    st.lists(st.builds(Variable, NAMES, INT, INT, st.binary(max_size=70)), max_size=2).map(tuple),
)


@QUICK
@given(KERNELS)
def test_every_kernel_reads_back(kernel: Kernel) -> None:
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert decode_kernel(encode_kernel(kernel)) == kernel


@QUICK
@given(KERNELS, st.data())
def test_source_lines_read_back(kernel: Kernel, data: st.DataObject) -> None:
    """As many lines as ops stand beside them."""
    n = sum(len(b.code) for blocks in (kernel.blocks, *(f.blocks for f in kernel.functions)) for b in blocks)
    kernel = msgspec.structs.replace(kernel, lines=tuple(data.draw(st.integers(0, 9)) for _ in range(n)))
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert not any(kernel.lines) or "\nlines" not in text


@QUICK
@given(MODULES)
def test_every_module_reads_back(module: Module) -> None:
    assert parse_module(print_module(module)) == module
    assert decode_module(encode_module(module)) == module
