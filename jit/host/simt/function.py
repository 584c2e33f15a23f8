"""From a verified kernel to the text of one LLVM module: ``void name(i64 *args, i64 first, i64 end, char *scratch)``, which runs blocks
``first <= b < end`` of a grid, and ``i64 name_scratch()``, the bytes of scratch that a thread needs for it.

``args``: the launch's state (see runtime), the grid's x, y and z, then four words a parameter: of a buffer its first byte, bytes, address
and rights, of a scalar its bits. A record for every gang holds what threads need behind a barrier; a block runs all its gangs from barrier
to barrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from jit.host.emit.code import Code
from jit.host.simt.analysis import Analysis, analyse, bits_of, insert_barriers, judged, split_registers, waits
from jit.host.simt.body import Body, special_name
from jit.host.simt.control import Control
from jit.host.simt.memory import Memory, Region
from jit.host.simt.registers import LLVM, Registers
from jit.host.simt.runtime import DECLARATIONS, ENVIRONMENT_WORDS, JUDGE_WORDS, LIMIT, SPENT
from jit.host.simt.shape import Gang, Vector, gang_of
from jit.kernels.launch import Dim3, KernelOptions
from wis.dtypes import DType
from wis.kernel.model import (
    BufferParam,
    Kernel,
    RegType,
    Space,
    Special,
    Sync,
    TrapKind,
    shared_bytes,
    shared_offsets,
    successors,
    terminator_reads,
)
from wis.kernel.ops import BY_CODE, Sig
from wis.kernel.verify import VerifiedKernel

ARGS_FIXED: Final = 4
ARGS_PARAM: Final = 4
_STARTING: Final = 1
_FIRST_SITE: Final = 2
"""What a gang's record says it does next: 0 nothing, 1 start, 2 go on behind several barriers, 3 + s: behind the barrier of block s."""
_HEADER: Final = 64


def kernel_text(verified: VerifiedKernel, name: str, block: Dim3, dynamic_bytes: int, options: KernelOptions) -> str:
    """Raises KernelRefused for what this back end cannot run."""
    return _Function(verified, name, block, dynamic_bytes, options).write()


@dataclass(frozen=True, slots=True)
class _Saved:
    """A variable in a gang's record: the LLVM type it has, the one it is stored as, byte offset."""

    name: str
    kind: str
    stored: str
    offset: int


class _Function:
    def __init__(self, verified: VerifiedKernel, name: str, block: Dim3, dynamic_bytes: int, options: KernelOptions) -> None:
        self.verified, self.name, self.options = verified, name, options
        self.judged = judged(verified.core)
        self.gang: Gang = gang_of(block, verified.uses.warp, self.judged)
        core, costs = (verified.core, verified.costs) if self.gang.n_gangs == 1 else insert_barriers(verified.core, verified.costs)
        self.kernel: Kernel = split_registers(core)
        kernel = self.kernel
        self.analysis: Analysis = analyse(kernel, self.gang)
        self.code = Code()
        self.regs = Registers(self.code, kernel, self.gang, self.analysis)
        self.control = Control(self.code, kernel, self.regs, self.analysis, options.meter and options.fuel)
        self.has_barriers = any(waits(b.end) for b in kernel.blocks)
        self.shared_bytes = shared_bytes(kernel, dynamic_bytes if kernel.dynamic else 0)
        self.dynamic_bytes = dynamic_bytes if kernel.dynamic else 0
        self.local_gangs = self.gang.n_gangs if self.has_barriers else 1
        self.local_bytes = self.local_gangs * self.gang.lanes * kernel.local_bytes
        self.local_at = -(-self.shared_bytes // 64) * 64
        self.records_at = self.local_at + -(-self.local_bytes // 64) * 64
        self.saved: dict[tuple[int, int], _Saved] = {}
        self.record_bytes = _HEADER
        self.memory = Memory(self.code, self.regs, self._regions(), options.check)
        self.body = Body(costs, self.regs, self.control, self.memory, options, self.dynamic_bytes)
        self.touched = self._touched()
        self._site_places: dict[int, int] = {}
        self._count_places: dict[int, int] = {}

    # --- what stands at the start
    def _regions(self) -> dict[tuple[Space, int], Region]:
        kernel, result = self.kernel, {}
        for number, param in enumerate(kernel.params):
            if isinstance(param, BufferParam):
                result[Space.GLOBAL, number] = Region(f"%base{number}", f"%nbytes{number}")
        sizes = [array.n * DType(array.dtype).itemsize for array in kernel.shared]
        if kernel.dynamic:
            sizes[-1] += self.dynamic_bytes
        for number, size in enumerate(sizes):
            result[Space.SHARED, number] = Region(f"%shared{number}", str(size), size)
        result[Space.LOCAL, 0] = Region(
            "%local", str(kernel.local_bytes), kernel.local_bytes, kernel.local_bytes if self.gang.lanes > 1 else 0
        )
        result[Space.CONST, 0] = Region(f"@{self.name}.constants", str(len(kernel.constants)), len(kernel.constants))
        return result

    def _arguments(self) -> list[str]:
        kernel = self.kernel
        lines = ["  %state = load ptr, ptr %args"]
        for d, axis in enumerate("xyz"):
            lines += [f"  %grid.{axis}p = getelementptr i64, ptr %args, i64 {1 + d}", f"  %grid.{axis} = load i64, ptr %grid.{axis}p"]
        for number, param in enumerate(kernel.params):
            at = ARGS_FIXED + ARGS_PARAM * number
            kind = "ptr" if isinstance(param, BufferParam) else LLVM[RegType(param.reg_type)]
            kind = "i8" if kind == "i1" else kind
            lines += [f"  %base{number}p = getelementptr i64, ptr %args, i64 {at}", f"  %base{number} = load {kind}, ptr %base{number}p"]
            for word, more in enumerate(("nbytes", "address"), start=1):
                lines.append(f"  %{more}{number}p = getelementptr i64, ptr %args, i64 {at + word}")
                lines.append(f"  %{more}{number} = load i64, ptr %{more}{number}p")
            if kind == "i8":
                lines.append(f"  %flag{number} = icmp ne i8 %base{number}, 0")
        for number, offset in enumerate(shared_offsets(kernel)):
            lines.append(f"  %shared{number} = getelementptr i8, ptr %scratch, i64 {offset}")
        lines.append(f"  %locals = getelementptr i8, ptr %scratch, i64 {self.local_at}")
        lines.append(f"  %records = getelementptr i8, ptr %scratch, i64 {self.records_at}")
        lines += ["  %count = alloca i64", "  store i64 0, ptr %count"]
        if self.judged:
            lines += ["  %arrivals = alloca [16 x i64]", "  %free = alloca i64", f"  %judge = alloca [{JUDGE_WORDS} x i64]"]
        if self.verified.uses.arena:
            lines += self._environment()
        return lines

    def _environment(self) -> list[str]:
        lines = [f"  %environment = alloca [{ENVIRONMENT_WORDS} x i64]"]
        lines += [f"  %table = getelementptr i64, ptr %args, i64 {ARGS_FIXED}"]
        values = [("ptr", "%table"), ("i64", str(len(self.kernel.params))), ("ptr", "%scratch"), ("i64", str(self.shared_bytes))]
        values += [("ptr", "%locals"), ("i64", str(self.kernel.local_bytes))]
        for at, (kind, value) in enumerate(values):
            lines.append(f"  %environment{at} = getelementptr i64, ptr %environment, i64 {at}")
            lines.append(f"  store {kind} {value}, ptr %environment{at}")
        return lines

    # --- the whole
    def write(self) -> str:
        code = self.code
        self._find_given()
        self._blocks_loop()
        body = [line.replace("RECORD_BYTES", str(self.record_bytes)) for line in code.lines]
        code.declared |= DECLARATIONS
        helpers = [write(name) for name, write in self.body.helpers.items()]
        if helpers:
            code.declared["llvm.memset.p0.i64"] = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
            code.declared["llvm.cttz.i64"] = "declare i64 @llvm.cttz.i64(i64, i1)"
            code.declared["llvm.usub.sat.i64"] = "declare i64 @llvm.usub.sat.i64(i64, i64)"
        constants = self.kernel.constants
        data = "".join(f"\\{byte:02X}" for byte in constants)
        need = self.records_at + (self.gang.n_gangs * self.record_bytes if self.has_barriers else 0)
        return "\n".join(
            [
                *code.declared.values(),
                f'@{self.name}.constants = private constant [{len(constants)} x i8] c"{data}", align 16',
                *([self._site_table()] if self.judged else []),
                f"define i64 @{self.name}_scratch() {{ ret i64 {need} }}",
                f"define void @{self.name}(ptr noalias %args, i64 %first, i64 %end, ptr noalias %scratch) nounwind {{",
                "entry:",
                *self._arguments(),
                *self.regs.entry,
                *body,
                "}",
                *helpers,
                '!0 = !{!"branch_weights", i32 2000, i32 1}',
                '!1 = !{!"branch_weights", i32 1, i32 2000}',
                "",
            ]
        )

    def _find_given(self) -> None:
        """Parameters and numbers of the thread are values, not variables, where that is all a register ever holds."""
        sources: dict[int, set[tuple[int, tuple[int, ...]]]] = {}
        for block in self.kernel.blocks:
            for op in block.code:
                for r in op.outs:
                    sources.setdefault(r, set()).add((op.op, op.attrs))
        for r, found in sources.items():
            code, attrs = next(iter(found))
            sig = BY_CODE[code].sig
            if len(found) > 1 or isinstance(self.regs.fact(r).shape, Vector) or sig not in (Sig.PARAM, Sig.SPECIAL):
                continue
            if sig is Sig.PARAM:
                pred = self.regs.kind(r) is RegType.PRED
                self.regs.given[r] = f"%flag{attrs[0]}" if pred else f"%base{attrs[0]}"
            else:
                self.regs.given[r] = special_name(self.gang, self.dynamic_bytes, Special(attrs[0]))

    # --- loops
    def _blocks_loop(self) -> None:
        """Over blocks of the grid."""
        code = self.code
        if self.options.meter and self.options.fuel:
            limit = code.value(f"load volatile i64, ptr {code.gep('i64', '%state', str(LIMIT))}")
            code.fork(code.value(f"icmp slt i64 {limit}, 0"), "exit", "begin")
            code.label("begin")
        code.do("%first.x = urem i64 %first, %grid.x")
        code.do("%first.row = udiv i64 %first, %grid.x")
        code.do("%first.y = urem i64 %first.row, %grid.y")
        code.do("%first.z = udiv i64 %first.row, %grid.y")
        code.do("br label %block.head")
        before = code.block
        code.label("block.head")
        code.do(f"%block = phi i64 [ %first, %{before} ], [ %block.next, %block.latch ]")
        for axis in "xyz":
            code.do(f"%block.{axis} = phi i64 [ %first.{axis}, %{before} ], [ %next.{axis}, %block.latch ]")
        code.do("%block.more = icmp slt i64 %block, %end")
        code.fork("%block.more", "block.body", "done")
        code.label("block.body")
        self._block_numbers()
        if self.shared_bytes and self.options.clear:
            self._clear("%scratch", self.shared_bytes)
        if self.has_barriers:
            self._phases()
        else:
            self._gangs("block.done", None)
        code.label("block.done")
        code.do("%block.next = add i64 %block, 1")
        if self.options.meter and self.options.fuel:
            self.control.check_limit()
        code.branch("block.latch")
        code.label("block.latch")
        self._next_block()
        code.branch("block.head")
        code.label("done")
        self._account()
        code.branch("exit")
        code.label("exit")
        code.do("ret void")
        code.label("stopped")
        code.do(f"store volatile i64 -1, ptr {code.gep('i64', '%state', str(LIMIT))}")
        code.branch("done")

    def _account(self) -> None:
        """Add this call's instructions to the launch's; stop everything when they are too many."""
        if not self.options.meter:
            return
        code = self.code
        spent = code.value("load i64, ptr %count")
        before = code.value(f"atomicrmw add ptr {code.gep('i64', '%state', str(SPENT))}, i64 {spent} monotonic")
        if self.options.fuel:
            total = code.add(before, spent)
            limit = code.value(f"load volatile i64, ptr {code.gep('i64', '%state', str(LIMIT))}")
            over, stop, fine = code.value(f"icmp sgt i64 {total}, {limit}"), code.fresh("stop"), code.fresh("fine")
            code.fork(over, stop, fine)
            code.label(stop)
            code.do(f"store volatile i64 -1, ptr {code.gep('i64', '%state', str(LIMIT))}")
            code.branch(fine)
            code.label(fine)

    def _next_block(self) -> None:
        """Count x, y and z up, as an odometer does: dividing in every block costs small blocks more than their work."""
        code = self.code
        code.do("%up.x = add i64 %block.x, 1")
        code.do("%wraps.x = icmp eq i64 %up.x, %grid.x")
        code.do("%next.x = select i1 %wraps.x, i64 0, i64 %up.x")
        code.do("%carry.x = zext i1 %wraps.x to i64")
        code.do("%up.y = add i64 %block.y, %carry.x")
        code.do("%wraps.y = icmp eq i64 %up.y, %grid.y")
        code.do("%next.y = select i1 %wraps.y, i64 0, i64 %up.y")
        code.do("%carry.y = zext i1 %wraps.y to i64")
        code.do("%next.z = add i64 %block.z, %carry.y")

    def _block_numbers(self) -> None:
        code = self.code
        for axis in "xyz":
            code.do(f"%ctaid_{axis} = trunc i64 %block.{axis} to i32")
            code.do(f"%nctaid_{axis} = trunc i64 %grid.{axis} to i32")
        code.do("%block.key = shl i64 %block, 10")

    def _clear(self, where: str, nbytes: int) -> None:
        self.code.call("void", "llvm.memset.p0.i64", ("ptr", where), ("i8", "0"), ("i64", str(nbytes)), ("i1", "false"))

    def _phases(self) -> None:
        """From barrier to barrier, until no gang waits."""
        code = self.code
        if self.local_bytes:
            self._clear("%locals", self.local_bytes)
        self._records_loop()
        if self.judged:
            self._clear("%arrivals", 16 * 8)
            code.do("store i64 0, ptr %free")
        code.branch("phase")
        code.label("phase")
        waiting = self.regs.variable("%waiting", "i1", "false")
        code.do(f"store i1 false, ptr {waiting}")
        self._gangs("phase.end", "resume")
        code.label("phase.end")
        if self.options.meter and self.options.fuel:
            self.control.check_limit()
        if self.judged:
            self._judge()
        else:
            code.fork(code.value(f"load i1, ptr {waiting}"), "phase", "block.done")

    def _judge(self) -> None:
        """Which barriers are complete; threads that can never go on trap, and the block ends."""
        code, sites = self.code, self._barrier_blocks(True)
        args = ("ptr", "%records"), ("i64", "RECORD_BYTES"), ("i64", str(self.gang.n_gangs)), ("i64", str(self.gang.lanes))
        table = (("ptr", f"@{self.name}.sites"), ("i64", str(len(sites))), ("ptr", "%arrivals"), ("ptr", "%judge"))
        verdict = code.call("i64", "simt_judge", *args, *table)
        code.do(f"store i64 {verdict}, ptr %free")
        code.do(f"switch i64 {verdict}, label %judged [ i64 0, label %block.done ]")
        code.label("judged")
        code.fork(code.value(f"icmp sgt i64 {verdict}, 0"), "phase", "deadlock")
        code.label("deadlock")
        thread = code.value(f"xor i64 {verdict}, -1")
        key = code.value(f"or i64 %block.key, {thread}")
        site, kind = str(len(self.verified.sites)), str(int(TrapKind.BARRIER))
        code.call("void", "simt_raise", ("ptr", "%state"), ("i64", key), ("i64", "1"), ("i64", site), ("i64", kind))
        code.branch("block.done")

    def _site_table(self) -> str:
        """The table of barriers for the runtime, in order of blocks."""
        words: list[int] = []
        for at, b in enumerate(self._barrier_blocks(True)):
            end = self.kernel.blocks[b].end
            number, counted = (end.barrier, end.count >= 0) if isinstance(end, Sync) else (0, False)
            words += [number, int(counted), self._site_at(at), self._counts_at(at) if counted else 0]
        return f"@{self.name}.sites = private constant [{len(words)} x i64] [{', '.join(f'i64 {w}' for w in words)}]"

    def _records_loop(self) -> None:
        code = self.code
        before = code.block
        code.branch("records.head")
        code.label("records.head")
        code.do(f"%records.g = phi i64 [ 0, %{before} ], [ %records.next, %records.head ]")
        at = code.gep("i8", "%records", code.mul("%records.g", "RECORD_BYTES"))
        code.do(f"store i64 {_STARTING}, ptr {at}")
        code.do("%records.next = add i64 %records.g, 1")
        code.do(f"%records.more = icmp ult i64 %records.next, {self.gang.n_gangs}")
        code.fork("%records.more", "records.head", "records.done")
        code.label("records.done")

    def _gangs(self, behind: str, resume: str | None) -> None:
        """All gangs of a block, one after the other."""
        code, gang = self.code, self.gang
        before = code.block
        code.branch("gang.head")
        code.label("gang.head")
        code.do(f"%gang = phi i64 [ 0, %{before} ], [ %gang.next, %gang.done ]")
        code.do(f"%thread = mul i64 %gang, {gang.lanes}")
        self.memory.key = "%gang.key"
        code.do("%gang.key = or i64 %block.key, %thread")
        self._thread_numbers()
        self._entry_lanes()
        self._local()
        self.control.reset()
        if resume is None:
            self._start()
        else:
            code.do(f"%record = getelementptr i8, ptr %records, i64 {code.mul('%gang', 'RECORD_BYTES')}")
            self._resume()
        for b in range(len(self.kernel.blocks)):
            self.body.block(b)
        self._waiting_exits()
        code.label("ended")
        if resume is not None:
            code.do("store i64 0, ptr %record")
        code.branch("gang.done")
        code.label("gang.done")
        code.do("%gang.next = add i64 %gang, 1")
        code.do(f"%gang.more = icmp ult i64 %gang.next, {gang.n_gangs}")
        code.fork("%gang.more", "gang.head", behind)

    def _start(self) -> None:
        """All lanes begin at block 0."""
        control = self.control
        if not self.analysis.entry[0]:
            self.code.do(f"store {control.word} {control.entry_bits}, ptr {control.variable(0)}")
        self.code.branch("b0")

    def _thread_numbers(self) -> None:
        """Lane 0's numbers, and in vectors those that differ in no simple way."""
        code, (x, y, z) = self.code, self.gang.block
        code.do("%thread32 = trunc i64 %thread to i32")
        code.do(f"%tid_x = urem i32 %thread32, {x}")
        code.do(f"%tid.row = udiv i32 %thread32, {x}")
        code.do(f"%tid_y = urem i32 %tid.row, {y}")
        code.do(f"%tid.plane = udiv i32 %thread32, {x * y}")
        code.do(f"%tid_z = urem i32 %tid.plane, {z}")
        code.do("%lane = urem i32 %thread32, 32")
        code.do("%warp = udiv i32 %thread32, 32")

    def _entry_lanes(self) -> None:
        """The lanes that have a thread."""
        gang, code, control = self.gang, self.code, self.control
        if not gang.ragged:
            return
        alive = gang.threads - (gang.n_gangs - 1) * gang.lanes
        word = f"i{gang.lanes}"
        last = code.value(f"icmp eq i64 %gang, {gang.n_gangs - 1}")
        control.entry_bits = code.value(f"select i1 {last}, {word} {(1 << alive) - 1}, {word} -1")
        control.entry_mask = code.value(f"bitcast {word} {control.entry_bits} to <{gang.lanes} x i1>")

    def _local(self) -> None:
        code, each = self.code, self.gang.lanes * self.kernel.local_bytes
        if self.has_barriers and each:
            code.do(f"%local = getelementptr i8, ptr %locals, i64 {code.mul('%gang', str(each))}")
        else:
            code.do("%local = getelementptr i8, ptr %locals, i64 0")
            if each:
                self._clear("%local", each)
        if self.verified.uses.arena:
            code.do("store ptr %local, ptr %environment4")

    # --- records
    def _saves(self, live: int) -> list[_Saved]:
        """Where the variables of these registers are kept."""
        result = []
        for r in bits_of(live):
            for part, (name, kind) in enumerate(self.regs.parts(r)):
                if (r, part) not in self.saved:
                    vector = isinstance(self.regs.fact(r).shape, Vector)
                    stored = kind
                    if kind == "i1":
                        stored = "i8"
                    elif kind.endswith("x i1>"):
                        stored = f"i{self.gang.lanes}"
                    size = 8 if not vector or "x i1>" in kind else self.gang.lanes * (self.regs.kind(r).bits // 8)
                    self.record_bytes = -(-self.record_bytes // min(64, size)) * min(64, size)
                    self.saved[r, part] = _Saved(name, kind, stored, self.record_bytes)
                    self.record_bytes += size
                result.append(self.saved[r, part])
        self.record_bytes = -(-self.record_bytes // 64) * 64
        return result

    def _touched(self) -> dict[int, int]:
        """By the number that says where a gang begins: the registers that it reads or writes until the next barrier. The others stay in its
        record. Empty where gangs may be at several barriers."""
        if self.analysis.mixed:
            return {}
        blocks = self.kernel.blocks
        found = {}
        for doing, start in ((_STARTING, 0), *((_FIRST_SITE + 1 + b, self._target(b)) for b in self._barrier_blocks(False))):
            reached, left, touched = 1 << start, [start], 0
            while left:
                block = blocks[left.pop()]
                for op in block.code:
                    for r in (*op.ins, *op.outs):
                        touched |= 1 << r
                for r in terminator_reads(block.end):
                    touched |= 1 << r
                for after in () if waits(block.end) else successors(block.end):
                    if not reached >> after & 1:
                        reached |= 1 << after
                        left.append(after)
            found[doing] = touched
        return found

    def _without(self, doing: int) -> None:
        """Registers that stay in the record: what their variables hold is of another gang, and does not matter."""
        kept = 0
        for b in self._barrier_blocks(False):
            kept |= self.analysis.live[self._target(b)]
        for r in bits_of(kept & ~self.touched.get(doing, -1)):
            for name, kind in self.regs.parts(r):
                self.code.do(f"store {kind} poison, ptr {name}")

    def _save_touched(self, live: int) -> None:
        """What gangs may have changed that are at a barrier; it depends on where they began."""
        groups: dict[tuple[int, ...], int] = {}
        for r in bits_of(live):
            owners = tuple(doing for doing, touched in self.touched.items() if touched >> r & 1)
            groups[owners] = groups.get(owners, 0) | 1 << r
        for owners, group in groups.items():
            if len(owners) == len(self.touched):
                self._save(group)
            elif owners:
                save, after = self.code.fresh("save"), self.code.fresh("saved")
                ways = " ".join(f"i64 {doing}, label %{save}" for doing in owners)
                self.code.do(f"switch i64 %doing, label %{after} [ {ways} ]")
                self.code.label(save)
                self._save(group)
                self.code.branch(after)
                self.code.label(after)

    def _save(self, live: int) -> None:
        code = self.code
        for item in self._saves(live):
            value = code.value(f"load {item.kind}, ptr {item.name}")
            if item.kind == "i1":
                value = code.value(f"zext i1 {value} to i8")
            elif item.stored != item.kind:
                value = code.value(f"bitcast {item.kind} {value} to {item.stored}")
            code.do(f"store {item.stored} {value}, ptr {code.gep('i8', '%record', str(item.offset))}, align 8")

    def _restore(self, live: int) -> None:
        code = self.code
        for item in self._saves(live):
            value = code.value(f"load {item.stored}, ptr {code.gep('i8', '%record', str(item.offset))}, align 8")
            if item.kind == "i1":
                value = code.value(f"icmp ne i8 {value}, 0")
            elif item.stored != item.kind:
                value = code.value(f"bitcast {item.stored} {value} to {item.kind}")
            code.do(f"store {item.kind} {value}, ptr {item.name}")

    def _barrier_blocks(self, mixed: bool) -> list[int]:
        blocks = self.kernel.blocks
        return [b for b in range(len(blocks)) if waits(blocks[b].end) and bool(self.analysis.mixed >> b & 1) is mixed]

    def _target(self, b: int) -> int:
        return successors(self.kernel.blocks[b].end)[0]

    def _mixed_live(self) -> int:
        live = 0
        for b in self._barrier_blocks(True):
            live |= self.analysis.live[self._target(b)]
        return live

    def _waiting_exits(self) -> None:
        """What gangs do that reached a barrier: keep what is needed behind it, and say where they are."""
        code, control = self.code, self.control
        for b in self._barrier_blocks(False):
            code.label(f"wait{b}")
            if not self.analysis.entry[b] or not self.analysis.entry[self._target(b)]:
                code.do(f"store {control.word} {self.body.actives[b]}, ptr {code.gep('i8', '%record', '8')}")
            self._save_touched(self.analysis.live[self._target(b)])
            code.do(f"store i64 {_FIRST_SITE + 1 + b}, ptr %record")
            code.do("store i1 true, ptr %waiting")
            code.branch("gang.done")
        sites = self._barrier_blocks(True)
        if not sites:
            return
        code.label("stuck")
        waiting = [code.value(f"load {control.word}, ptr {control.variable(control.n + b)}") for b in sites]
        some = waiting[0]
        for more in waiting[1:]:
            some = code.value(f"or {control.word} {some}, {more}")
        code.fork(code.value(f"icmp ne {control.word} {some}, 0"), "waits", "ended")
        code.label("waits")
        for at, (b, bits) in enumerate(zip(sites, waiting, strict=True)):
            wide = bits if self.gang.lanes == 64 else code.value(f"zext {control.word} {bits} to i64")
            code.do(f"store i64 {wide}, ptr {code.gep('i8', '%record', str(self._site_at(at)))}")
            end = self.kernel.blocks[b].end
            if isinstance(end, Sync) and end.count >= 0:
                self._store_counts(at, b)
        self._save(self._mixed_live())
        code.do(f"store i64 {_FIRST_SITE}, ptr %record")
        code.do("store i1 true, ptr %waiting")
        code.branch("gang.done")

    def _site_at(self, at: int) -> int:
        """Where the lanes that wait at the mixed barrier number ``at`` are kept."""
        if at not in self._site_places:
            self._site_places[at] = self.record_bytes
            self.record_bytes += 8
        return self._site_places[at]

    def _counts_at(self, at: int) -> int:
        """Where the counts are kept that lanes gave at the mixed barrier number ``at``."""
        if at not in self._count_places:
            self._count_places[at] = self.record_bytes
            self.record_bytes += 4 * self.gang.lanes
        return self._count_places[at]

    def _store_counts(self, at: int, b: int) -> None:
        code, kind = self.code, f"<{self.gang.lanes} x i32>"
        counts = code.value(f"load {kind}, ptr {self.control.counts(b)}")
        code.do(f"store {kind} {counts}, ptr {code.gep('i8', '%record', str(self._counts_at(at)))}, align 8")

    def _resume(self) -> None:
        """Start, or go on behind the barrier."""
        code, control = self.code, self.control
        pure, mixed = self._barrier_blocks(False), self._barrier_blocks(True)
        ways = [f"i64 {_STARTING}, label %start"] + [f"i64 {_FIRST_SITE + 1 + b}, label %resume{b}" for b in pure]
        if mixed:
            ways.append(f"i64 {_FIRST_SITE}, label %resume")
        code.do("%doing = load i64, ptr %record")
        code.do(f"switch i64 %doing, label %gang.done [ {' '.join(ways)} ]")
        code.label("start")
        self._without(_STARTING)
        self._start()
        for b in pure:
            target = self._target(b)
            code.label(f"resume{b}")
            self._without(_FIRST_SITE + 1 + b)
            self._restore(self.analysis.live[target] & self.touched.get(_FIRST_SITE + 1 + b, -1))
            if not self.analysis.entry[target]:
                bits = code.value(f"load {control.word}, ptr {code.gep('i8', '%record', '8')}")
                code.do(f"store {control.word} {bits}, ptr {control.variable(target)}")
            code.branch(f"b{target}")
        if not mixed:
            return
        code.label("resume")
        self._restore(self._mixed_live())
        lanes: dict[int, str] = {}
        free = code.value("load i64, ptr %free") if self.judged else ""
        for at, b in enumerate(mixed):
            bits = code.value(f"load {control.word}, ptr {code.gep('i8', '%record', str(self._site_at(at)))}")
            if self.judged:
                bits = self._released(b, at, bits, free)
            target = self._target(b)
            lanes[target] = code.value(f"or {control.word} {lanes[target]}, {bits}") if target in lanes else bits
        for target, bits in lanes.items():
            code.do(f"store {control.word} {bits}, ptr {control.variable(target)}")
        control.chain_released(sorted(lanes), lanes)

    def _released(self, b: int, at: int, bits: str, free: str) -> str:
        """The lanes of a barrier that go on; if it is not complete none do, and they wait on."""
        code, control, end = self.code, self.control, self.kernel.blocks[b].end
        number = end.barrier if isinstance(end, Sync) else 0
        complete = code.value(f"icmp ne i64 {code.value(f'and i64 {free}, {1 << number}')}, 0")
        kept = code.value(f"select i1 {complete}, {control.word} 0, {control.word} {bits}")
        code.do(f"store {control.word} {kept}, ptr {control.variable(control.n + b)}")
        if isinstance(end, Sync) and end.count >= 0:
            kind = f"<{self.gang.lanes} x i32>"
            counts = code.value(f"load {kind}, ptr {code.gep('i8', '%record', str(self._counts_at(at)))}, align 8")
            code.do(f"store {kind} {counts}, ptr {control.counts(b)}")
        return code.value(f"select i1 {complete}, {control.word} {bits}, {control.word} 0")
