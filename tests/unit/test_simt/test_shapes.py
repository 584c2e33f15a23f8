"""What is known of values before code runs: the lattice of shapes."""

from __future__ import annotations

from jit.host.simt.analysis import analyse, split_registers
from jit.host.simt.shape import SAME, VECTOR, Fact, Gang, Same, Steps, Vector, Wide, gang_of, join
from tests.unit.test_simt.running import kernel
from wis.kernel.model import Special

_INDEX = """
kernel 2 index
math native
threads 256
param buf f32 rw
param i32
regs i32 i32 i32 i32 i64 i64 f32 pred i32
block 0
  r0 = special(tid.x)
  r1 = special(ctaid.x)
  r2 = special(ntid.x)
  r1 = mul r1, r2
  r1 = add r1, r0
  r3 = param(p1)
  r7 = lt_s r1, r3
  cbr r7, 1, 2
block 1
  r4 = sext r1
  r5 = const(4)
  r4 = mul r4, r5
  r6 = load(p0 f32) r4
  r6 = add r6, r6
  store(p0 f32) r4, r6
  br 2
block 2
  ret
"""


def test_gangs_follow_rows_of_threads() -> None:
    assert gang_of((256, 1, 1), False).lanes == 32
    assert gang_of((16, 16, 1), False).lanes == 16
    assert gang_of((16, 16, 1), True).lanes == 32
    assert gang_of((1, 1, 1), False).lanes == 1
    assert gang_of((1, 1, 1), False, judged=True).lanes == 16
    assert gang_of((16, 16, 1), False).pattern(Special.TID_Y) == (0,) * 16
    assert gang_of((16, 16, 1), False).pattern(Special.TID_X) == tuple(range(16))
    assert Gang((33, 2, 1), 32).pattern(Special.TID_X) is None
    assert Gang((40, 1, 1), 32).pattern(Special.TID_X) == tuple(range(32))  # lanes without a thread may be given any number


def test_an_index_is_kept_as_a_widened_sum() -> None:
    core = split_registers(kernel(_INDEX).core)
    facts = analyse(core, gang_of((256, 1, 1), False)).facts
    load, store = core.blocks[1].code[3], core.blocks[1].code[5]
    shape = facts[load.ins[0]].shape
    assert shape == Wide(tuple(range(32)), 4, True, True)
    assert facts[store.ins[0]].shape == shape
    assert isinstance(facts[load.outs[0]].shape, Vector)


def test_registers_of_unrelated_values_are_split() -> None:
    core = kernel(_INDEX).core
    split = split_registers(core)
    assert len(split.regs) > len(core.regs)
    first = split.blocks[0].code
    assert len({op.outs[0] for op in first}) == len(first)


def test_join() -> None:
    steps = Fact(Steps((0, 1)), 3)
    assert join(None, steps) == steps
    assert join(steps, Fact(SAME, 5)).shape is VECTOR
    assert join(Fact(SAME, 2, 4), Fact(SAME, 3, 8)) == Fact(SAME, 2, None)
    plain, moved = Wide((0, 1), 4, True, True), Wide((0, 1), 4, True, False)
    assert join(Fact(plain, 2), Fact(moved, 3)) == Fact(moved, 2)
    assert isinstance(join(Fact(plain, 2), Fact(Wide((0, 1), 8, True, True), 3)).shape, Vector)


def test_a_value_lanes_still_need_is_a_vector() -> None:
    """A counter that lanes leave a loop with at different times."""
    verified = kernel(
        """
kernel 2 leave
math native
threads 64
param buf i32 w
regs i32 i32 i32 pred i64
block 0
  r0 = special(tid.x)
  r1 = const(0)
  r2 = const(1)
  br 1
block 1
  r1 = add r1, r2
  r3 = lt_s r1, r0
  cbr r3, 1, 2
block 2
  r4 = sext r0
  st(p0 i32) r4, r1
  ret
"""
    )
    core = split_registers(verified.core)
    analysis = analyse(core, gang_of((64, 1, 1), False))
    counter = core.blocks[2].code[1].ins[1]
    assert isinstance(analysis.facts[counter].shape, Vector)
    assert not isinstance(analysis.facts[core.blocks[0].code[2].outs[0]].shape, Vector)
    assert analysis.pending[1] == 1 << 2
    assert analysis.entry == [True, False, True]
    assert isinstance(Fact(SAME, 0).shape, Same)


def test_all_lanes_run_behind_a_branch_unless_some_have_ended() -> None:
    gang = gang_of((256, 1, 1), False)
    assert analyse(split_registers(kernel(_INDEX).core), gang).entry == [True, False, True]
    some_end = _INDEX.replace("  br 2\n", "  ret\n")
    assert analyse(split_registers(kernel(some_end).core), gang).entry == [True, False, False]
