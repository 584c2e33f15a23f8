"""What is said of integer registers, against threads that run; and what follows: accesses that are safe, grids that may be cut."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.test_wis.test_kernel_uniformity import PRED, TESTED, Maker
from wis.kernel.certificate import ROW_THREADS_MAX, statically_safe
from wis.kernel.model import Block, Br, Cbr, Kernel, Op, RegType, Special
from wis.kernel.ops import BY_CODE, BY_NAME
from wis.kernel.text import parse_kernel
from wis.kernel.values import Effort, Facts, Value, Values, known_values
from wis.kernel.verify import VerifiedKernel, verify_kernel

WIDE = (6, 7)  # i64 registers; 0 to 3 are i32
CONSTANTS = [0, 1, 2, 3, 4, 7, 8, 15, 31, 32, 255, -1, -2, -8, 2**31 - 1, -(2**31), 2**30]
BINARY = "add sub mul and or xor shl shr_s shr_u rem_u rem_s div_s div_u min_s max_s min_u max_u".split()


class Integers(Maker):
    """The same random code, with all integer operations."""

    def ops(self) -> None:
        for _ in range(self.random.randint(0, 4)):
            code = self.blocks[-1][0]
            pick, wide = self.random.choice, self.random.random() < 0.25
            out = pick(WIDE) if wide else self.random.randrange(4)
            same = WIDE if wide else range(4)
            kind = self.random.randrange(8)
            if kind == 0:
                code.append(Op(BY_NAME["const"].code, (out,), (), (pick(CONSTANTS),)))
            elif kind == 1 and not wide:
                which = pick([Special.TID_X, Special.NTID_X, Special.CTAID_X, Special.TID_Y])
                code.append(Op(BY_NAME["special"].code, (out,), (), (which,)))
            elif kind == 2:
                code.append(Op(BY_NAME[pick(["sext", "zext"])].code, (pick(WIDE),), (self.random.randrange(4),)))
            elif kind == 3:
                code.append(Op(BY_NAME["narrow"].code, (self.random.randrange(4),), (pick(WIDE),)))
            elif kind == 4:
                code.append(Op(BY_NAME[pick(["mov", "neg"])].code, (out,), (pick(same),)))
            else:
                code.append(Op(BY_NAME[pick(BINARY)].code, (out,), (pick(same), pick(same))))

    def test(self) -> None:
        code = self.blocks[-1][0]
        code.append(Op(BY_NAME["const"].code, (TESTED,), (), (self.random.choice(CONSTANTS),)))
        for name in self.random.choices(["lt_s", "le_s", "lt_u", "le_u", "eq", "ne"], k=self.random.randint(1, 2)):
            r = self.random.randrange(4)
            code.append(Op(BY_NAME[name].code, (PRED,), (r, TESTED) if self.random.random() < 0.7 else (TESTED, r)))
        if self.random.random() < 0.3:
            code.append(Op(BY_NAME["not"].code, (PRED,), (PRED,)))

    def kernel(self) -> Kernel:
        self.blocks[0][0].extend(Op(BY_NAME["const"].code, (r,), (), (self.random.choice(CONSTANTS),)) for r in WIDE)
        made = super().kernel()
        types = (RegType.I32,) * 5 + (RegType.PRED, RegType.I64, RegType.I64)
        return Kernel(2, "k", 0, 64, (), (), types, made.blocks)


def signed(value: int, bits: int) -> int:
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def compute(name: str, bits: int, a: int, b: int) -> int:
    """One operation as the table says, on numbers of ``bits`` bits in the signed reading."""
    mask = (1 << bits) - 1
    ua, ub = a & mask, b & mask
    match name:
        case "add" | "sub" | "mul":
            return {"add": a + b, "sub": a - b, "mul": a * b}[name]
        case "and" | "or" | "xor":
            return {"and": a & b, "or": a | b, "xor": a ^ b}[name]
        case "shl":
            return a << ub if ub < bits else 0
        case "shr_s":
            return a >> min(ub, bits - 1)
        case "shr_u":
            return ua >> ub if ub < bits else 0
        case "div_u" | "rem_u":
            return 0 if ub == 0 else ua // ub if name == "div_u" else ua % ub
        case "div_s":
            return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        case "rem_s":
            return 0 if b == 0 else abs(a) % abs(b) * (1 if a >= 0 else -1)
        case "min_s" | "max_s":
            return min(a, b) if name == "min_s" else max(a, b)
        case "min_u" | "max_u":
            return min(ua, ub) if name == "min_u" else max(ua, ub)
        case "lt_s" | "le_s":
            return int(a < b or (name == "le_s" and a == b))
        case "lt_u" | "le_u":
            return int(ua < ub or (name == "le_u" and ua == ub))
        case _:
            return int((a == b) == (name == "eq"))


def run(kernel: Kernel, block: Block, regs: list[int], specials: dict[int, int]) -> int | None:
    for op in block.code:
        name, bits = BY_CODE[op.op].name, RegType(kernel.regs[op.outs[0]]).bits
        ins = [regs[r] for r in op.ins]
        width = RegType(kernel.regs[op.ins[0]]).bits if op.ins else 0
        if name in ("const", "special"):
            value = op.attrs[0] if name == "const" else specials[op.attrs[0]]
        elif name in ("mov", "sext", "narrow"):
            value = ins[0]
        elif name in ("zext", "neg", "not"):
            value = {"zext": ins[0] & (1 << width) - 1, "neg": -ins[0], "not": 1 - ins[0]}[name]
        else:
            value = compute(name, width, ins[0], ins[1])
        regs[op.outs[0]] = value if bits == 1 else signed(value, bits)
    end = block.end
    if isinstance(end, Cbr):
        return end.yes if regs[end.pred] else end.no
    return end.target if isinstance(end, Br) else None


def check(values: Values, kernel: Kernel, specials: dict[int, int]) -> int:
    """A thread's registers are as was said, wherever it comes. Returns how much was said."""
    regs, at, said = [0] * len(kernel.regs), 0, 0
    for _ in range(200):
        for r, known in values.before[at].items():
            if not isinstance(known, Value):
                continue
            x = regs[r]
            assert known.low <= x <= known.high, f"register {r} is {x} at block {at}: {known}"
            assert x % (1 << known.zeros) == 0
            if known.form is not None:
                starts = {("start", d): specials[Special.CTAID_X + d] * specials[Special.NTID_X + d] for d in range(3)}
                symbols = starts | {("special", which): value for which, value in specials.items()}
                assert x == known.form.constant + sum(c * symbols[s] for s, c in known.form.terms)
            said += known.form is not None or known.high - known.low < 1 << 30
        there = run(kernel, kernel.blocks[at], regs, specials)
        if there is None:
            break
        at = there
    return said


def specials(block: tuple[int, int, int], tid: int, cta: int) -> dict[int, int]:
    x, y = tid % block[0], tid // block[0]
    return {Special.TID_X: x, Special.TID_Y: y, Special.TID_Z: 0, Special.NTID_X: block[0], Special.NTID_Y: block[1],
            Special.NTID_Z: 1, Special.CTAID_X: cta, Special.CTAID_Y: 0, Special.CTAID_Z: 0}  # fmt: skip


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_registers_are_what_was_said_of_them(first: int) -> None:
    said = 0
    for seed in range(first, first + 100):
        verified = verify_kernel(Integers(Random(seed), False).kernel())
        for facts in (Facts(), Facts((8, 4, 1)), Facts(row_threads_max=ROW_THREADS_MAX)):
            values = known_values(verified.flat, verified.flow, facts)
            assert values is not None
            for tid, cta in ((0, 0), (1, 0), (17, 5), (31, 2**31 - 2 if facts.row_threads_max > ROW_THREADS_MAX else 2**28 - 1)):
                said += check(values, verified.flat, specials((8, 4, 1), tid, cta))
    assert said > 4_000


def kernel(head: str, code: str) -> VerifiedKernel:
    """A kernel of i32 registers r0 to r7, i64 r8 and r9, f32 r10, pred r11."""
    regs = "regs " + " ".join(["i32"] * 8 + ["i64"] * 2 + ["f32", "pred"])
    return verify_kernel(parse_kernel(f"kernel 2 k\nmath strict\nthreads 1024\n{head}{regs}\n{code}"))


def safe_sites(verified: VerifiedKernel, block: tuple[int, int, int]) -> frozenset[int]:
    return statically_safe(verified.flat, verified.flow, block)


TILE = (
    "block 0\n r0 = special(tid.x)\n r1 = special(tid.y)\n r2 = const(4)\n r3 = const(2)\n r10 = const(1.0)\n r4 = shl r1, r2\n"
    " r4 = add r4, r0\n r4 = shl r4, r3\n store(s0 f32) r4, r10\n r5 = const(0)\n r6 = const(1)\n r7 = const(16)\n bar 1\n"
    "block 1\n r4 = shl r5, r2\n r4 = add r4, r0\n r4 = shl r4, r3\n r10 = load(s0 f32) r4\n r5 = add r5, r6\n r11 = ne r5, r7\n"
    " cbr r11, 1, 2\nblock 2\n ret\n"
)


@pytest.mark.parametrize(("block", "safe"), [((16, 16, 1), {0, 1}), ((16, 8, 2), {0, 1}), ((32, 8, 1), {0}), ((16, 32, 1), {1})])
def test_tiles_of_shared_memory(block: tuple[int, int, int], safe: set[int]) -> None:
    """Rows of 16: the store is at (y, x), the load in a loop that ends by ``!=`` at (k, x)."""
    assert safe_sites(kernel("shared f32[256]\n", TILE), block) == safe


@pytest.mark.parametrize(
    ("access", "safe"),
    [
        ("r10 = load(s0 f32 +28) r1", True),
        ("r10 = load(s0 f32 +32) r1", False),
        ("r10 = load(s0 f32 -4) r1", False),
        ("r10 = load(s0 f32 +2) r1", False),  # misaligned
        ("r4 = load(local i32 +12) r1", True),
        ("r4 = load(local i32 +13) r1", False),
        ("r4 = load(const u8 +3) r1", True),
        ("r4 = load(const u8 +4) r1", False),
        ("r10 = load(arena f32) r1", False),
        ("r10 = load(p0 f32) r1", False),
        ("raise", False),
    ],
)
def test_which_accesses_are_safe(access: str, safe: bool) -> None:
    head = "param buf f32 r\nshared f32[8]\nlocal 16\nconstants 00010203\n"
    assert safe_sites(kernel(head, f"block 0\n r1 = const(0)\n {access}\n ret"), (1, 1, 1)) == ({0} if safe else set())


def test_offsets_in_32_bits_are_unsigned() -> None:
    code = "block 0\n r0 = special(tid.x)\n r1 = const(-4)\n r2 = const(1)\n r0 = shl r0, r2\n r0 = add r0, r1\n"
    code += " r10 = load(s0 f32 +4) r0\n ret"
    assert safe_sites(kernel("shared f32[8]\n", code), (1, 1, 1)) == set(), "4294967292 + 4 is no place, -4 + 4 would be"
    assert safe_sites(kernel("shared f32[8]\n", code.replace("const(-4)", "const(4)")), (1, 1, 1)) == {0}


NUMBER = "block 0\n r0 = special(ctaid.x)\n r1 = special(ntid.x)\n r2 = special(tid.x)\n r0 = mul r1, r0\n r0 = add r0, r2\n r8 = sext r0\n"
IN_OUT = "param buf f32 rw\nparam buf i32 rw\nparam buf f32 r\nparam i32\n"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("r10 = ld(p0 f32) r8 / st(p0 f32) r8, r10", ""),
        ("r3 = const(8) / r9 = sext r3 / r9 = mul r8, r9 / r10 = load(p0 f32) r9 / store(p0 f32 +4) r9, r10", ""),
        ("r3 = const(8) / r9 = sext r3 / r9 = mul r8, r9 / r10 = load(p0 f32) r9 / store(p0 f32 +8) r9, r10", "one thread a place"),
        ("r3 = const(1) / r9 = sext r3 / r9 = add r8, r9 / r10 = ld(p0 f32) r8 / st(p0 f32) r9, r10", "one thread a place"),
        ("r8 = sext r2 / r10 = ld(p0 f32) r8 / st(p0 f32) r8, r10", "one thread a place"),
        ("r3 = param(p3) / r9 = sext r3 / r8 = add r8, r9 / r10 = ld(p0 f32) r8 / st(p0 f32) r8, r10", "one thread a place"),
        ("r10 = ld(p2 f32) r8 / st(p0 f32) r8, r10", ""),
        ("red(add p1 i32) r8, r2", ""),
        ("red(add p1 i32) r8, r2 / red(add p1 i32 +4) r8, r2", ""),
        ("red(add p1 i32) r8, r2 / red(max p1 i32) r8, r2", "do not commute"),
        ("red(add p1 u32) r8, r2 / red(add p1 u64) r8, r8", "do not commute"),
        ("red(exch p1 i32) r8, r2", "do not commute"),
        ("red(inc p1 u32) r8, r2", "do not commute"),
        ("r3 = atom(add p1 i32) r8, r2", ""),
        ("r3 = atom(add p1 i32) r8, r2 / st(p0 i32) r8, r3", "is used"),
        ("red(add p0 f32) r8, r10", "floats"),
        ("red(add p1 i32) r8, r2 / r3 = ld(p1 i32) r8", "loaded from or stored to"),
        ("store(arena i32) r8, r2", "by address"),
        ("red(add arena i32) r8, r2", "by address"),
        ("r3 = load(arena i32) r8 / st(p1 i32) r8, r3", "by address"),
        ("r3 = load(arena i32) r8", ""),
        ("red(add s0 f32) r2, r10", ""),
        ("fence(device) / r3 = load(p1 i32 volatile) r8", ""),
    ],
)
def test_slice_certificates(code: str, says: str) -> None:
    body = NUMBER + " r10 = const(1.0)\n " + code.replace(" / ", "\n ") + "\n ret"
    certificate = kernel(IN_OUT + "shared f32[8]\n", body).certificate
    assert certificate.sliceable == (certificate.reason == "")
    assert (says in certificate.reason) if says else certificate.sliceable


def test_a_proof_about_one_row_allows_no_other_grid() -> None:
    certificate = kernel(IN_OUT, NUMBER + " r10 = ld(p0 f32) r8\n st(p0 f32) r8, r10\n ret").certificate
    assert certificate.one_row and certificate.in_out == (0,)
    assert certificate.allows((1 << 21, 1, 1), (1024, 1, 1))
    assert not certificate.allows(((1 << 21) + 1, 1, 1), (1024, 1, 1)), "numbers of threads would wrap"
    assert not certificate.allows((4, 2, 1), (32, 1, 1)) and not certificate.allows((4, 1, 2), (32, 1, 1))
    assert certificate.allows((4, 1, 1), (32, 2, 1)), "threads of one block are never cut apart"


def test_an_analysis_that_takes_too_long_says_nothing() -> None:
    verified = kernel("shared f32[256]\n", TILE)
    assert known_values(verified.flat, verified.flow, Facts()) is not None
    assert known_values(verified.flat, verified.flow, Facts(), Effort(2, 20)) is None
