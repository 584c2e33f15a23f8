"""What uniformity says, against threads that run: random kernels with loops, breaks, early returns and barriers."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from wis.kernel.model import Bar, Block, Br, Cbr, Kernel, Op, RegType, Ret, Special, Terminator
from wis.kernel.ops import BY_NAME
from wis.kernel.text import parse_kernel
from wis.kernel.uniformity import warp_uniformity
from wis.kernel.verify import Barriers, VerifiedKernel, verify_kernel

N, ONE, TESTED, PRED = 4, 3, 4, 5  # registers 0 to 2 are computed with, 3 is 1, 4 is compared with
CODE = {name: BY_NAME[name].code for name in ("const", "special", "add", "lt_s", "and", "mov")}
STEPS = 300


class Maker:
    """Random structured code, numbered as front ends do: loops together, edges forward but for those to a loop's head."""

    def __init__(self, random: Random, barriers: bool) -> None:
        self.random, self.barriers = random, barriers
        self.blocks: list[tuple[list[Op], Terminator | None]] = [([], None)]
        self.budget = 14

    def ops(self) -> None:
        """Mostly counting up by register ONE, so that loops end and registers differ by how often threads came by."""
        for _ in range(self.random.randint(0, 2)):
            out = self.random.randrange(ONE)
            kind = self.random.randrange(8)
            if kind == 0:
                op = Op(CODE["const"], (out,), (), (self.random.randrange(4),))
            elif kind == 1:
                op = Op(CODE["special"], (out,), (), (self.random.choice([Special.TID_X, Special.NTID_X, Special.CTAID_X]),))
            else:
                op = Op(CODE["add"], (out,), (self.random.choice([out, self.random.randrange(N)]), ONE))
            self.blocks[-1][0].append(op)

    def test(self) -> None:
        """A predicate, of a small number or the thread's."""
        code, r = self.blocks[-1][0], self.random.randrange(ONE)
        if self.random.random() < 0.4:
            code.append(Op(CODE["special"], (TESTED,), (), (Special.TID_X,)))
        else:
            code.append(Op(CODE["const"], (TESTED,), (), (self.random.choice([1, 2, 3, 5, 9]),)))
        code.append(Op(CODE["lt_s"], (PRED,), (r, TESTED) if self.random.random() < 0.8 else (TESTED, r)))

    def open(self) -> int:
        self.blocks.append(([], None))
        return len(self.blocks) - 1

    def close(self, b: int, end: Terminator) -> None:
        self.blocks[b] = (self.blocks[b][0], end)

    def sequence(self, leave: list[int], again: list[int]) -> None:
        """Statements; ``leave`` and ``again`` collect blocks that break out of and continue the loop around (patched by it)."""
        for _ in range(self.random.randint(1, 3)):
            self.statement(leave, again)

    def statement(self, leave: list[int], again: list[int]) -> None:
        self.ops()
        self.budget -= 1
        kind = self.random.randrange(9)
        if self.budget <= 0 or kind <= 1:
            return
        at = len(self.blocks) - 1
        if kind == 2 and self.barriers:
            self.close(at, Bar(self.open()))
        elif kind in (3, 4, 5):
            self.branch(at, leave, again, with_else=kind == 5)
        elif kind in (6, 7):
            self.loop(at)
        elif kind == 8:
            self.test()
            yes = self.open()
            self.ops()
            where = self.random.randrange(3)
            if where == 0 or leave is NOWHERE:
                self.close(yes, Ret())
            else:
                (leave if where == 1 else again).append(yes)
            self.close(at, Cbr(PRED, yes, self.open()))

    def branch(self, at: int, leave: list[int], again: list[int], with_else: bool) -> None:
        self.test()
        yes = self.open()
        self.sequence(leave, again)
        yes_end = len(self.blocks) - 1
        no = self.open()
        if with_else:
            self.sequence(leave, again)
            no_end = len(self.blocks) - 1
            join = self.open()
            self.close(no_end, Br(join))
        else:
            join = no
        self.close(yes_end, Br(join))
        self.close(at, Cbr(PRED, yes, no))

    def loop(self, at: int) -> None:
        head = self.open()
        self.close(at, Br(head))
        leave: list[int] = []
        again: list[int] = []
        first = self.random.random() < 0.5  # tested at its head, not at its end
        count = Op(CODE["add"], (0,), (0, ONE))
        if first:
            self.blocks[-1][0].append(count)
            self.test()
            self.close(head, Cbr(PRED, self.open(), head))
        self.sequence(leave, again)
        latch = len(self.blocks) - 1
        if not first:
            self.blocks[-1][0].append(count)
            self.test()
        after = self.open()
        if first:
            self.close(head, Cbr(PRED, head + 1, after))
        self.close(latch, Br(head) if first else Cbr(PRED, head, after))
        for b in leave:
            self.close(b, Br(after))
        for b in again:  # some straight to the head: such a loop is ragged
            self.close(b, Br(head if self.random.random() < 0.5 else latch))

    def kernel(self) -> Kernel:
        self.blocks[0][0].extend(Op(CODE["const"], (r,), (), (int(r == ONE),)) for r in range(N))
        self.sequence(NOWHERE, NOWHERE)
        self.blocks[-1] = (self.blocks[-1][0], Ret())
        types = (RegType.I32,) * (N + 1) + (RegType.PRED,)
        blocks = tuple(Block(tuple(code), end) for code, end in self.blocks if end is not None)
        return Kernel(2, "k", 0, 64, (), (), types, blocks)


NOWHERE: list[int] = []


def execute(block: Block, regs: list[int], tid: int) -> int | None:
    """Run one thread through a block; where it goes on (None: it ended)."""
    for op in block.code:
        out = op.outs[0]
        if op.op == CODE["const"]:
            regs[out] = op.attrs[0]
        elif op.op == CODE["special"]:
            regs[out] = {Special.TID_X: tid, Special.NTID_X: 7}.get(Special(op.attrs[0]), 3)
        elif op.op == CODE["add"]:
            regs[out] = regs[op.ins[0]] + regs[op.ins[1]]
        else:
            regs[out] = int(regs[op.ins[0]] < regs[op.ins[1]])
    end = block.end
    if isinstance(end, Cbr):
        return end.yes if regs[end.pred] else end.no
    return end.target if isinstance(end, Br | Bar) else None


def made(seed: int, barriers: bool) -> VerifiedKernel:
    return verify_kernel(Maker(Random(seed), barriers).kernel())


def check_warp(verified: VerifiedKernel) -> int:
    """Lanes that run a block together hold one value in every register that is not varying there. Returns how often that was looked at."""
    kernel, same = verified.flat, warp_uniformity(verified.flat, verified.flow)
    regs = [[0] * (N + 2) for _ in range(7)]
    at: list[int | None] = [0] * 7
    waiting: dict[int, int] = {}
    looked = 0
    for _ in range(STEPS):
        running = [b for t, b in enumerate(at) if b is not None and t not in waiting]
        if not running:
            if not waiting:
                break
            for t, target in waiting.items():
                at[t] = target
            waiting = {}
            continue
        b = min(running)
        here = [t for t in range(7) if at[t] == b and t not in waiting]
        for r in range(N + 2):
            if r not in same.varying[b]:
                looked += 1
                assert len({regs[t][r] for t in here}) == 1, f"register {r} at block {b}"
        goals = [execute(kernel.blocks[b], regs[t], t) for t in here]
        if b not in same.split:
            assert len(set(goals)) == 1, f"the branch of block {b}"
        for t, goal in zip(here, goals, strict=True):
            at[t] = goal
            if isinstance(kernel.blocks[b].end, Bar) and goal is not None:
                waiting[t] = goal
    return looked


@pytest.mark.parametrize("first", range(0, 1200, 200))
def test_lanes_that_run_together_agree(first: int) -> None:
    assert sum(check_warp(made(seed, seed % 3 == 0)) for seed in range(first, first + 200)) > 1000


def visits(kernel: Kernel, tid: int) -> tuple[list[int], bool]:
    """The barriers that a thread comes to, in order, and whether it ended in time."""
    regs = [0] * (N + 2)
    at = 0
    seen: list[int] = []
    for _ in range(STEPS):
        if isinstance(kernel.blocks[at].end, Bar):
            seen.append(at)
        there = execute(kernel.blocks[at], regs, tid)
        if there is None:
            return seen, True
        at = there
    return seen, False


@pytest.mark.parametrize("first", range(0, 1200, 200))
def test_barriers_that_all_threads_reach_together(first: int) -> None:
    found: dict[Barriers, int] = defaultdict(int)
    for seed in range(first, first + 200):
        verified = made(seed, True)
        ways, ended = zip(*(visits(verified.flat, tid) for tid in range(7)), strict=True)
        found[verified.barriers] += 1
        if verified.barriers is Barriers.UNIFORM and all(ended):
            assert len(set(map(tuple, ways))) == 1
        if verified.barriers in (Barriers.UNIFORM, Barriers.LIVE):
            for arrivals in zip(*ways, strict=False):
                assert len(set(arrivals)) == 1
            if all(ended):
                for k in range(max(map(len, ways))):
                    assert len({way[k] for way in ways if len(way) > k}) == 1
    assert all(found[kind] for kind in Barriers), found


HEAD = "kernel 2 k\nmath strict\nthreads 64\nregs i32 i32 i32 i32 i32 pred\nblock 0\n r0 = const(0)\n r1 = const(0)\n r2 = const(2)\n"
HEAD += " r3 = const(1)\n r4 = const(4)\n br 1\n"
LEAVE_THE_LOOP_TWO_WAYS = (
    "block 1\n r1 = add r1, r3\n r5 = lt_s r1, r4\n cbr r5, 2, 4\nblock 2\n r2 = special(tid.x)\n r5 = lt_s r2, r1\n cbr r5, 5, 3\n"
    "block 3\n br 1\nblock 4\n r0 = const(10)\n br 6\nblock 5\n r0 = const(20)\n br 6\nblock 6\n ret\n"
)
TWO_WAYS_BACK = (
    "block 1\n r0 = add r0, r3\n r5 = lt_s r0, r4\n cbr r5, 2, 5\nblock 2\n r1 = special(tid.x)\n r1 = add r0, r1\n r2 = const(3)\n"
    " r5 = lt_s r1, r2\n cbr r5, 3, 4\nblock 3\n br 1\nblock 4\n br 1\nblock 5\n ret\n"
)
BACK_OUT_OF_AN_INNER_LOOP = (
    "block 1\n r0 = add r0, r3\n r1 = const(0)\n r5 = lt_s r0, r4\n cbr r5, 2, 3\n"
    "block 2\n r1 = add r1, r3\n r2 = special(tid.x)\n r5 = lt_s r1, r2\n cbr r5, 2, 1\nblock 3\n ret\n"
)


@pytest.mark.parametrize(
    ("code", "block", "register"), [(LEAVE_THE_LOOP_TWO_WAYS, 6, 0), (TWO_WAYS_BACK, 4, 0), (BACK_OUT_OF_AN_INNER_LOOP, 2, 0)]
)
def test_what_lanes_carry_round_and_out_of_loops(code: str, block: int, register: int) -> None:
    verified = verify_kernel(parse_kernel(HEAD + code))
    assert verified.ordered
    assert check_warp(verified) > 10
    assert register in warp_uniformity(verified.flat, verified.flow).varying[block]


GUARDED_LOOP = (
    "block 1\n r0 = special(tid.x)\n r5 = lt_s r0, r4\n cbr r5, 2, 4\nblock 2\n r1 = add r1, r3\n r5 = lt_s r1, r4\n cbr r5, 2, 3\n"
    "block 3\n br 4\nblock 4\n ret\n"
)


def test_a_counter_that_only_some_lanes_count_is_uniform_among_them() -> None:
    verified = verify_kernel(parse_kernel(HEAD + GUARDED_LOOP))
    same = warp_uniformity(verified.flat, verified.flow)
    assert 1 not in same.varying[2] and same.split == {1}
    assert 1 in same.varying[4], "here they meet those that did not count"
    assert 1 in verified.uniformity.varying[2], "at one time, other threads of the block may be anywhere"
    check_warp(verified)


@pytest.mark.parametrize(
    ("shape", "varies"), [(None, True), ((16, 16, 1), True), ((32, 8, 1), False), ((64, 1, 1), False), ((48, 1, 1), False)]
)
def test_rows_of_whole_warps(shape: tuple[int, int, int] | None, varies: bool) -> None:
    text = HEAD + "block 1\n r0 = special(tid.y)\n br 2\nblock 2\n ret\n"
    verified = verify_kernel(parse_kernel(text))
    assert (0 in warp_uniformity(verified.flat, verified.flow, shape).varying[2]) == varies


def test_switch_meets_where_all_its_targets_do() -> None:
    text = HEAD + "block 1\n r0 = special(tid.x)\n switch r0, [2, 3, 2], 4\nblock 2\n br 4\nblock 3\n r1 = const(7)\n br 4\nblock 4\n ret\n"
    verified = verify_kernel(parse_kernel(text))
    assert verified.flow.ipdom[1] == 4 and verified.uniformity.divergent == {2, 3} and verified.uniformity.split == {1}
    assert verified.uniformity.varying[4].isdisjoint({2, 3, 4}) and 1 in verified.uniformity.varying[4]


def test_an_early_return_leaves_the_others_together() -> None:
    text = HEAD + "block 1\n r0 = special(tid.x)\n r5 = lt_s r0, r4\n cbr r5, 3, 2\nblock 2\n bar 3\nblock 3\n ret\n"
    assert verify_kernel(parse_kernel(text)).barriers is Barriers.LIVE
    both = text.replace("block 3\n ret", "block 3\n bar 4\nblock 4\n ret")
    assert verify_kernel(parse_kernel(both)).barriers is Barriers.DIVERGENT


@pytest.mark.parametrize(
    ("code", "ordered"),
    [
        ("block 1\n br 2\nblock 2\n ret\n", True),
        ("block 1\n br 3\nblock 2\n ret\nblock 3\n br 2\n", False),
        ("block 1\n r5 = lt_s r0, r3\n cbr r5, 2, 3\nblock 2\n br 1\nblock 3\n ret\n", True),
        ("block 1\n r5 = lt_s r0, r3\n cbr r5, 3, 2\nblock 2\n ret\nblock 3\n br 1\n", False),  # the loop's blocks are not neighbours
    ],
)
def test_order_of_blocks(code: str, ordered: bool) -> None:
    assert verify_kernel(parse_kernel(HEAD + code)).ordered == ordered
