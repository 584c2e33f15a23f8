"""The block form: a work-item runs all threads of a block, in loops over threads.

See ``regions`` for the order in which threads run and ``runs`` for what becomes a loop. Labels: B<n> block n for all threads, E<n> all
threads come to the divergent block n, S<n> the unit that starts at block n for the threads that are there, T<run>_<n> inside of a loop.
``pc[t]`` is the block where a divergent thread is, ``ended``, or beyond that the barrier it waits at; ``rc`` the block where divergent
threads reconverge.
"""

from __future__ import annotations

from typing import ClassVar, Final

from jit.kernels.cfamily.abi import Form, Source, table_words
from jit.kernels.cfamily.block_schedule import barrier_arrays, counts, park, schedule
from jit.kernels.cfamily.frame import POLL_BITS, Frame
from jit.kernels.cfamily.helpers import matrix_helper
from jit.kernels.cfamily.language import REGISTER, Language
from jit.kernels.cfamily.regions import Regions
from jit.kernels.cfamily.runs import Ask, Homes, Once, Place, Run, Steps
from jit.kernels.cfamily.warp import MATRIX_SIGS, matrix_loop, warp_loop
from jit.kernels.launch import Dim3, KernelOptions
from wis.kernel.model import WARP, Bar, Br, Cbr, RegType, Ret, Switch, Sync, Terminator
from wis.kernel.ops import BY_CODE
from wis.kernel.verify import VerifiedKernel

_SIZE: Final = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f32": 4, "f64": 8}


class BlockForm(Frame):
    """One kernel."""

    form: ClassVar[Form] = Form.BLOCK

    def __init__(self, verified: VerifiedKernel, language: Language, block: Dim3, dynamic_bytes: int, options: KernelOptions) -> None:
        self.stride = -(-verified.core.local_bytes // 16) * 16
        self._local_space = "GLOBAL" if self.stride * block[0] * block[1] * block[2] > language.private_bytes else "PRIVATE"
        super().__init__(verified, language, block, dynamic_bytes, options)
        self.ended = len(self.kernel.blocks)
        self.warps = -(-self.threads // WARP)
        self.regions = Regions(self.kernel, self.flow)
        self.homes = Homes(self.kernel, self.regions)
        self.polls = options.meter and options.fuel and self.loops
        self.steps: dict[tuple[str, int], Steps] = {}
        self.units: dict[int, frozenset[int]] = {}
        self._plan()
        self.scheduled = bool(self.units)
        self.waits = self.scheduled and any(b in self.regions.waiting for b in (*self.units, *self.regions.split))
        self.traps = self.traps or self.waits

    # --- the plan
    def parting(self) -> list[int]:
        """Blocks behind which threads are scheduled: uniform ones with a branch, divergent ones that all threads reach."""
        split = [b for b in self.regions.split if ("B", b) in self.steps and not self._closed(b, self.regions.unit(b))]
        return split + [b for b in range(self.ended) if self._comes_together(b)]

    def _comes_together(self, b: int) -> bool:
        """Whether all threads come to the divergent block ``b``, and do not leave it together."""
        uniform = any(p not in self.regions.divergent and p not in self.regions.split for p in self.flow.pred[b])
        return b in self.regions.divergent and ("E", b) not in self.steps and uniform

    def _plan(self) -> None:
        """Steps of all uniform blocks ("B"), of divergent ones that all threads enter and leave together ("E"), of other units ("S")."""
        todo: list[int] = []
        for b in range(self.ended):
            if b in self.regions.divergent:
                continue
            unit = self.regions.unit(b) if b in self.regions.split else frozenset[int]()
            self.steps["B", b] = self.homes.uniform_steps(b, unit)
            if unit:
                todo += self._exits(unit, self.meet_of(b)) if not self._closed(b, unit) else []
            else:
                todo += [c for c in self.flow.succ[b] if c in self.regions.divergent and not self._entered(c)]
        while todo:
            b = todo.pop()
            if b not in self.units and b in self.regions.divergent:
                self.units[b] = self.regions.unit(b)
                self.steps["S", b] = self.homes.parted_steps(b, self.units[b])
                todo += self._exits(self.units[b], None)
        asks = (step for steps in self.steps.values() for step in steps if isinstance(step, Ask))
        self.homes.settle(asks)

    def meet_of(self, b: int) -> int | None:
        """Where threads that were all at ``b`` are all together again; None: at the end."""
        return self.regions.meeting(b) if b not in self.regions.waiting else None

    def _exits(self, unit: frozenset[int], stop: int | None) -> list[int]:
        return sorted({c for b in unit for c in self.flow.succ[b] if c not in unit and c != stop})

    def _closed(self, b: int, unit: frozenset[int]) -> bool:
        """Whether threads that are all at ``b`` are all at one place when they leave its unit."""
        if b in self.regions.waiting:
            return False
        meet = self.meet_of(b)
        ends = any(isinstance(self.kernel.blocks[x].end, Ret) for x in unit)
        return not self._exits(unit, meet) and not (ends and meet is not None)

    def _entered(self, b: int) -> bool:
        """Plan the divergent block ``b``, to which all threads come together; False when it must be scheduled."""
        unit = self.regions.unit(b)
        if b in self.regions.asking or not self._closed(b, unit):
            return False
        if ("E", b) not in self.steps:
            self.steps["E", b] = self.homes.parted_steps(b, unit)
        return True

    # --- what the frame asks
    def register(self, number: int) -> str:
        return f"r{number}[t]" if number in self.homes.arrays else f"r{number}"

    def local(self) -> tuple[str, str]:
        return self._local_space, f"(lo + t * {self.stride}u)"

    def trap(self) -> str:
        return "const u32 code_ = code; mine = code_ < mine ? code_ : mine;"

    # --- the program
    def source(self) -> Source:
        body = [line for b in range(self.ended) for line in self._block(b)]
        if self.scheduled:
            body += schedule(self)
        arrays, scratch_bytes = self._arrays()
        lines = [*self._numbers(), *arrays, *self._start(), *body, *self._finish()]
        if self.language.name == "c99":
            count = f"const u64 count = w[{table_words(self.kernel) - 1}];"
            lines = [count, "for (u64 cta = first; cta < first + count; cta++) {", *lines, "}"]
        lines = [line.replace("for (", self.language.loop) for line in lines]
        return self.program([*self.opening(), *lines], (1, 1, 1), scratch_bytes)

    def _numbers(self) -> list[str]:
        lines = [] if self.language.name == "c99" else ["const u64 cta = first + GROUP;"]
        lines += [self.block_numbers(), "const u32 t = 0, tx = 0, ty = 0, tz = 0;"]
        if self.options.meter:
            lines.append("u64 n = 0;")
        if self.polls:
            lines.append(f"const u64 fuel = state[2]; u64 next = {1 << POLL_BITS}u;")
        if self.traps:
            lines.append("u32 tr = ~0u, mine = ~0u;")
        return lines

    def _arrays(self) -> tuple[list[str], int]:
        """Declarations of everything that has a place for every thread, and how many bytes of it are in scratch memory."""
        wanted = [(REGISTER[RegType(self.kernel.regs[r])], f"r{r}", self.threads) for r in sorted(self.homes.arrays)]
        if self.scheduled:
            wanted.append(("u32", "pc", self.threads))
        if self.waits:
            wanted += barrier_arrays(self)
        lines = []
        if self.kernel.shared:
            lines.append(f"{self.language.shared} ALIGN16 u8 sh[{max(4, -(-self.memory.shared_total // 4) * 4)}];")
        if self.scheduled and self.regions.fair:
            lines.append(f"u32 lw[{self.warps}], last = 0;")
        at = 0
        if self._local_space == "GLOBAL":
            lines.append("GLOBAL u8 *const lo = scratch + GROUP * SCRATCH_BYTES;")
            at = self.stride * self.threads
        elif self.memory.uses_local:
            lines.append(f"ALIGN16 u8 lo[{max(16, self.stride * self.threads)}];")
        small = sum(_SIZE[kind] * n for kind, _, n in wanted) <= self.language.private_bytes
        for kind, name, n in wanted:
            if small:
                lines.append(f"ALIGN16 {kind} {name}[{n}];")
            else:
                lines.append(f"GLOBAL {kind} *const {name} = (GLOBAL {kind} *)(scratch + GROUP * SCRATCH_BYTES + {at}u);")
                at += -(-_SIZE[kind] * n // 16) * 16
        return [line.replace("SCRATCH_BYTES", f"{at}u") for line in lines], at

    def _start(self) -> list[str]:
        """Variables that all threads share, and zeros where the definition promises them."""
        shared: dict[str, list[str]] = {}
        for r, kind in enumerate(self.kernel.regs):
            if r not in self.homes.fixed and r not in self.regions.varying:
                shared.setdefault(REGISTER[RegType(kind)], []).append(f"r{r}")
        lines = [f"{kind} {', '.join(names[i : i + 24])};" for kind, names in shared.items() for i in range(0, len(names), 24)]
        lines += [f"{self._declared(place)}" for place in self.homes.fixed.values()]
        if self.scheduled:
            lines.append(f"u32 cur = 0, rc = {self.ended}u;")
        if total := self.memory.shared_total:
            lines.append(f"for (u32 i = 0; i < {-(-total // 4)}u; i++) ((SHARED u32_m *)sh)[i] = 0;")
        if self.stride:
            lines.append(f"for (u32 i = 0; i < {self.stride // 4 * self.threads}u; i++) (({self._local_space} u32_m *)lo)[i] = 0;")
        if self.waits and counts(self):
            lines.append("for (u32 i = 0; i < 16; i++) arrived[i] = 0;")
        if self.options.meter and self.options.fuel:
            lines.append(f"if (state[1] > state[2] || state[3] << {POLL_BITS} > state[2]) goto DONE;")
        return lines

    def _finish(self) -> list[str]:
        lines = ["DONE:;", *(["if (mine < tr) tr = mine;"] if self.traps else [])]
        lines += ["if (tr != ~0u) ATOM_MIN64((volatile GLOBAL u64 *)state, cta << 29 | tr);"] if self.traps else []
        return lines + (["ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), n);"] if self.options.meter else [])

    # --- code
    def _block(self, b: int) -> list[str]:
        lines = []
        if ("B", b) in self.steps:
            lines += [f"B{b}:;", *([f"n += {self.verified.costs[b] * self.threads}u;"] if self.options.meter else [])]
            split = b in self.regions.split
            unit = self.regions.unit(b) if split else frozenset[int]()
            parts = split and not self._closed(b, unit)
            for step in self.steps["B", b]:
                lines += self._step(step, masked=False, parts=parts)
            if split:
                lines.append(self._leave(self.meet_of(b), parts))
            else:
                lines += self._common_end(b, self.kernel.blocks[b].end)
        if ("E", b) in self.steps:
            lines += [f"E{b}:;", *(line for step in self.steps["E", b] for line in self._step(step, masked=False, parts=False))]
            lines.append(self._leave(self.meet_of(b), False))
        elif self._comes_together(b):
            lines += [f"E{b}:;", f"for (u32 t = 0; t < {self.threads}u; t++) pc[t] = {b}u;", self._leave(self.meet_of(b), True)]
        if ("S", b) in self.steps:
            lines.append(f"S{b}:;")
            for step in self.steps["S", b]:
                lines += self._step(step, masked=True, parts=True)
            lines.append("goto SCHED;")
        return lines

    def _leave(self, meet: int | None, parts: bool) -> str:
        """Behind a loop from which threads go different ways, or all to where they meet."""
        if parts:
            return f"rc = {self.ended if meet is None else meet}u; goto SCHED;"
        return "goto DONE;" if meet is None else f"goto B{meet};"

    def _common_end(self, b: int, end: Terminator) -> list[str]:
        match end:
            case Br(target) | Bar(target) | Sync(target):
                return [self._go(b, target)]
            case Cbr(pred, yes, no):
                return [f"if ({self.register(pred)}) {{ {self._go(b, yes)} }} else {{ {self._go(b, no)} }}"]
            case Switch(index, targets, default):
                cases = [f"case {i}u: {self._go(b, target)}" for i, target in enumerate(targets)]
                return [f"switch ({self.register(index)}) {{", *cases, f"default: {self._go(b, default)}", "}"]
            case Ret():
                return ["goto DONE;"]
        raise AssertionError("calls are inlined")

    def _go(self, b: int, target: int) -> str:
        return self._poll(b, target) + f"goto {'E' if target in self.regions.divergent else 'B'}{target};"

    def _poll(self, b: int, target: int) -> str:
        if not self.polls or self.place[target] > self.place[b]:
            return ""
        return self.ask() + " "

    def ask(self, count: str = "n") -> str:
        """Ends the block of threads when the launch is out of fuel. ``count``: what it executed so far."""
        self._note("wis_spent")
        stop = "goto DONE;" if count == "n" else f"{{ n = {count}; goto DONE; }}"
        return f"if ({count} >= next && wis_spent(state, fuel, {count}, &next)) {stop}"

    # --- steps
    def _step(self, step: Run | Once | Ask, *, masked: bool, parts: bool) -> list[str]:
        if isinstance(step, Run):
            return self._run(step, masked=masked, parts=parts)
        b, i = step.place
        if isinstance(step, Once):
            return [self.statement(b, i)]
        op = self.kernel.blocks[b].code[i]
        lane = [*self.thread_numbers(), *(self._declared(place) for place in self.homes.worked_out(list(op.ins)))]
        cost = [self._masked_cost(b)] if masked and self.options.meter and self._is_first(step) else []
        if BY_CODE[op.op].sig in MATRIX_SIGS:
            helper = matrix_helper(op)
            self._note(helper)
            return cost + matrix_loop(helper, op, self._value_of, self._there(b, masked), lane, self.warps)
        return cost + warp_loop(self.kernel, op, self._value_of, self._there(b, masked), lane, self.warps)

    def _is_first(self, step: Ask) -> bool:
        b = step.place[0]
        return self.steps["S", b][0] is step

    def _masked_cost(self, b: int) -> str:
        return f"for (u32 t = 0; t < {self.threads}u; t++) n += {self.here(b)} ? {self.verified.costs[b]}u : 0;"

    def _value_of(self, register: int, thread: str) -> str:
        return f"r{register}[{thread}]" if register in self.homes.arrays else f"r{register}"

    def here(self, b: int) -> str:
        """Whether thread ``t`` is to run the unit of block ``b`` now."""
        return f"(pc[t] == {b}u && lw[t >> 5] == {b}u)" if self.regions.fair else f"pc[t] == {b}u"

    def _there(self, b: int, masked: bool) -> list[str]:
        if masked:
            each = f"for (u32 t = base; t < base + 32 && t < {self.threads}u; t++) act |= (u32)({self.here(b)}) << (t & 31u);"
            return ["u32 act = 0;", each, "if (!act) continue;"]
        rest = self.threads % WARP
        last = f"wp == {self.threads // WARP}u ? {(1 << rest) - 1:#x}u : ~0u" if rest else "~0u"
        return [f"const u32 act = {last};"]

    def thread_numbers(self) -> list[str]:
        """Coordinates of thread ``t`` outside of a loop over threads."""
        x, y, _ = self.block
        return [f"const u32 tx = t % {x}u, ty = t / {x}u % {y}u, tz = t / {x * y}u; (void)tx; (void)ty; (void)tz;"]

    def _declared(self, place: Place) -> str:
        """A register that has one value for good, as a constant."""
        b, i = place
        out = self.kernel.blocks[b].code[i].outs[0]
        return f"const {REGISTER[RegType(self.kernel.regs[out])]} {self.statement(b, i)}"

    def _run(self, run: Run, *, masked: bool, parts: bool) -> list[str]:
        used = self.homes.used(run)
        counts = self.options.meter and (run.start in self.regions.divergent or len(run.unit) > 1)
        body = [f"if (!({self.here(run.start)})) goto N{run.number};"] if masked else []
        body += [self._declared(place) for place in self.homes.worked_out(used)]
        body += self._variables(used)
        if run.ends and run.first:
            body.append(f"T{run.number}_{run.start}:;")
        if counts and run.first and run.start in self.regions.divergent:
            body.append(f"spent += {self.verified.costs[run.start]}u;")
        body += [self.statement(run.start, i) for i in run.ops]
        if run.ends:
            body += self._end(run, run.start, parts)
            for b in sorted(run.unit - {run.start}):
                body += [f"T{run.number}_{b}:;", *([f"spent += {self.verified.costs[b]}u;"] if counts else [])]
                body += [self.statement(b, i) for i in self.homes.kept(b)]
                body += self._end(run, b, parts)
        return self._loop(run, body, counts)

    def _loop(self, run: Run, body: list[str], counts: bool) -> list[str]:
        """The loop over threads. What they add up they do once a thread: compilers know how to make vectors of that."""
        begin, end, before, after = [], [f"N{run.number}:;"], [], []
        if any("TRAP(" in line for line in body):
            begin.append("u32 mine = ~0u;")
            end.append("{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }")
        if counts and any("wis_spent" in line for line in body):
            begin.append("u64 spent = 0;")
            end.append("n += spent;")
        elif counts:  # no loop inside: 32 bits hold what all threads add up
            before, after = ["{ u32 all = 0;"], ["n += all; }"]
            begin.append("u32 spent = 0;")
            end.append("all += spent;")
        depth = 1 if self.block[1:] == (1, 1) else 3
        return [*before, *self._each_thread(), *begin, "{", *body, "}", *end, "}" * depth, *after]

    def _each_thread(self) -> list[str]:
        x, y, z = self.block
        if (y, z) == (1, 1):
            return [f"for (u32 t = 0; t < {x}u; t++) {{ const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;"]
        return [
            f"for (u32 tz = 0; tz < {z}u; tz++) {{ for (u32 ty = 0; ty < {y}u; ty++) {{ for (u32 tx = 0; tx < {x}u; tx++) {{",
            f"const u32 t = (tz * {y}u + ty) * {x}u + tx; (void)t;",
        ]

    def _variables(self, used: list[int]) -> list[str]:
        names: dict[str, list[str]] = {}
        for r in used:
            if r not in self.homes.arrays and r not in self.homes.cheap and not self.homes.uniform(r):
                names.setdefault(REGISTER[RegType(self.kernel.regs[r])], []).append(f"r{r}")
        return [f"{kind} {', '.join(found[i : i + 24])};" for kind, found in names.items() for i in range(0, len(found), 24)]

    # --- ends of blocks in a loop over threads
    def _end(self, run: Run, b: int, parts: bool) -> list[str]:
        end = self.kernel.blocks[b].end
        match end:
            case Br(target):
                return [self._thread_goes(run, b, target, parts)]
            case Cbr(pred, yes, no):
                go = [self._thread_goes(run, b, target, parts) for target in (yes, no)]
                return [f"if ({self.register(pred)}) {{ {go[0]} }} else {{ {go[1]} }}"]
            case Switch(index, targets, default):
                cases = [f"case {i}u: {self._thread_goes(run, b, target, parts)}" for i, target in enumerate(targets)]
                return [f"switch ({self.register(index)}) {{", *cases, f"default: {self._thread_goes(run, b, default, parts)}", "}"]
            case Ret():
                return [self._thread_at(run, self.ended, parts)]
            case Bar(target):
                return [park(self, 0, target, "", arrive=False) + f" goto N{run.number};"]
            case Sync(target, barrier, count, arrive):
                given = self.register(count) if count >= 0 else ""
                return [park(self, barrier, target, given, arrive=bool(arrive)) + f" goto N{run.number};"]
        raise AssertionError("calls are inlined")

    def _thread_at(self, run: Run, target: int, parts: bool) -> str:
        leave = f"goto N{run.number};"
        return f"pc[t] = {target}u; {leave}" if parts else leave

    def _thread_goes(self, run: Run, b: int, target: int, parts: bool) -> str:
        inside = target in run.unit and (target != run.start or run.first)
        if not inside:
            return self._thread_at(run, target, parts)
        back = self.polls and self.place[target] <= self.place[b]
        return (self.ask("n + spent") + " " if back else "") + f"goto T{run.number}_{target};"
