"""A compact builder of LLVM IR text: typed values with operators, and loops and branches as ``with`` blocks.

A kernel body reads like the loop nest it is::

    n, x, y = f.i64("n"), f.ptr("x"), f.ptr("y")
    with f.loop(f.r0, f.r1) as row:
        total = f.var(f.const(F32, 0.0))
        with f.loop(0, n) as i:
            total.set(total.get() + x.at(row * n + i, F32).load(F32))
        y.at(row, F32).store(total.get())

Every function has the signature ``void (i64* args, i64 r0, i64 r1, i8* scratch)`` and works on the units [r0, r1). Arguments are
declared by name in the order in which the body asks for them; ``Fn.params`` holds that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jit.host.emit.code import Code, Lanes
from jit.host.emit.maths import DOUBLE, SINGLE
from jit.host.library.value import (
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    I128,
    PTR,
    U8,
    U16,
    U32,
    U64,
    Type,
    Value,
    Var,
    literal,
)  # fmt: skip

__all__ = [
    "BOOL", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "I128", "PTR", "U8", "U16", "U32", "U64", "Fn", "Helper", "Type",
    "Value", "Var",
]  # fmt: skip


class Fn:
    """One function under construction, with its helpers; ``requires``: modules whose shared helpers it calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.params: list[str] = []
        self.code = Code()
        self.code.block = "body"
        self._entry: list[str] = []
        self._globals: dict[str, str] = {}
        self._helpers: dict[str, Helper] = {}
        self.requires: list[str] = []
        self.r0 = Value(self, I64, "%r0")
        self.r1 = Value(self, I64, "%r1")
        self.scratch = Value(self, PTR, "%scratch")

    def text(self) -> str:
        """The module that defines this function, with what it needs inside."""
        head = f'define void @"{self.name}"(ptr noalias %args, i64 %r0, i64 %r1, ptr noalias %scratch) nounwind {{'
        parts = [self, *self._helpers.values()]
        declared = {name: text for part in parts for name, text in part.code.declared.items()}
        constants = [text for part in parts for text in part._globals.values()]
        functions = [line for helper in self._helpers.values() for line in helper.definition()]
        return "\n".join([*constants, *declared.values(), *functions, *self._body(head), ""])

    def _body(self, head: str) -> list[str]:
        return [head, "entry:", *self._entry, "  br label %body", "body:", *self.code.lines, "  ret void", "}"]

    def helper(self, name: str, params: Sequence[Type], emit: Callable[[Fn, list[Value]], None], *, shared: bool = False) -> Helper:
        """The function called ``name`` in this module, whose body ``emit`` writes when it is first asked for; ``shared``: others see it."""
        home = self._home()
        if name not in home._helpers:
            made = Helper(home, name, params, shared)
            home._helpers[name] = made
            emit(made, made.arguments)
        return home._helpers[name]

    def known(self, name: str) -> Helper:
        """A helper of this module that has been asked for before."""
        return self._home()._helpers[name]

    def _home(self) -> Fn:
        """The function whose module this is."""
        return self

    def invoke(self, helper: Helper, *args: Value) -> None:
        """Call a helper."""
        self._call(helper.name, args)

    def invoke_shared(self, module: str, name: str, *args: Value) -> None:
        """Call a shared helper of the module ``module``, which has to be loaded before this one."""
        if module not in self._home().requires:
            self._home().requires.append(module)
        self.code.declared[name] = f'declare void @"{name}"({", ".join(a.type.text for a in args)})'
        self._call(name, args)

    def _call(self, name: str, args: Sequence[Value]) -> None:
        self.line(f'call void @"{name}"({", ".join(f"{a.type.text} {a.text}" for a in args)})')

    # --- plumbing
    def line(self, text: str) -> None:
        """An instruction without a value."""
        self.code.do(text)

    def op(self, type: Type, text: str) -> Value:
        """An instruction with a value of ``type``."""
        return Value(self, type, self.code.value(text))

    def const(self, type: Type, value: int | float | bool) -> Value:
        return Value(self, type, literal(type, value))

    def iota(self, type: Type, lanes: int) -> Value:
        """The vector 0, 1, .., lanes - 1 of an integer type."""
        vector = type.vec(lanes)
        return Value(self, vector, "<" + ", ".join(f"{type.scalar} {lane}" for lane in range(lanes)) + ">")

    def null(self) -> Value:
        return Value(self, PTR, "null")

    def var(self, initial: Value) -> Var:
        """A new variable (storage made once, at function entry; set here)."""
        name = "%" + self.code.fresh("var")
        self._entry.append(f"  {name} = alloca {initial.type.text}")
        variable = Var(Value(self, PTR, name), initial.type)
        variable.set(initial)
        return variable

    # --- arguments
    def _param(self, name: str, type: Type) -> Value:
        place, value = self.code.fresh("p"), self.code.fresh("a")
        self._entry.append(f"  %{place} = getelementptr i64, ptr %args, i64 {len(self.params)}")
        self._entry.append(f"  %{value} = load {type.text}, ptr %{place}")
        self.params.append(name)
        return Value(self, type, "%" + value)

    def i64(self, name: str) -> Value:
        return self._param(name, I64)

    def ptr(self, name: str) -> Value:
        return self._param(name, PTR)

    def real(self, name: str, type: Type) -> Value:
        """A float argument: the bits of an f32 in the low half of its slot, or those of an f64."""
        return self._param(name, type)

    def i64s(self, prefix: str, count: int) -> list[Value]:
        """The arguments prefix0, prefix1, .. prefix{count-1}."""
        return [self.i64(f"{prefix}{i}") for i in range(count)]

    # --- calls
    def intrinsic(self, name: str, *args: Value, result: Type | None = None, flags: str = "") -> Value:
        """Call ``llvm.<name>`` overloaded on the type of the first argument; ``flags``: trailing ``i1`` immediates as text."""
        type = result or args[0].type
        full = f"llvm.{name}.{args[0].type.suffix}"
        extra = f", {flags}" if flags else ""
        kinds = ", ".join([a.type.text for a in args] + (["i1"] if flags else []))
        self.code.declared[full] = f"declare {type.text} @{full}({kinds})"
        return self.op(type, f"call {type.text} @{full}({', '.join(f'{a.type.text} {a.text}' for a in args)}{extra})")

    def maths(self, name: str, x: Value) -> Value:
        """A named function (``exp``, ``log``, ``cos`` ...) of f32 or f64, by the same code as fused kernels."""
        table = SINGLE if x.type.bits == 32 else DOUBLE
        return Value(self, x.type, table[name](Lanes(self.code, x.type.lanes), x.text))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c rounded once."""
        return self.intrinsic("fma", a, b, c)

    def masked_load(self, place: Value, mask: Value, type: Type) -> Value:
        """A vector whose lanes outside ``mask`` are 0 and are not read."""
        full = f"llvm.masked.load.{type.suffix}.p0"
        self.code.declared[full] = f"declare {type.text} @{full}(ptr, i32, {mask.type.text}, {type.text})"
        args = f"ptr {place.text}, i32 {type.nbytes}, {mask.type.text} {mask.text}, {type.text} zeroinitializer"
        return self.op(type, f"call {type.text} @{full}({args})")

    def masked_store(self, place: Value, mask: Value, value: Value) -> None:
        """Write the lanes in ``mask``."""
        type = value.type
        full = f"llvm.masked.store.{type.suffix}.p0"
        self.code.declared[full] = f"declare void @{full}({type.text}, ptr, i32, {mask.type.text})"
        args = f"{type.text} {value.text}, ptr {place.text}, i32 {type.nbytes}, {mask.type.text} {mask.text}"
        self.line(f"call void @{full}({args})")

    def gather(self, base: Value, index: Value, mask: Value, type: Type) -> Value:
        """Lanes read from ``base`` + their own index (elements of ``type``); lanes outside ``mask`` are 0 and are not read."""
        points = f"<{type.lanes} x ptr>"
        places = self.code.value(f"getelementptr {type.scalar}, ptr {base.text}, {index.type.text} {index.text}")
        full = f"llvm.masked.gather.{type.suffix}.v{type.lanes}p0"
        self.code.declared[full] = f"declare {type.text} @{full}({points}, i32, {mask.type.text}, {type.text})"
        args = f"{points} {places}, i32 {type.nbytes}, {mask.type.text} {mask.text}, {type.text} zeroinitializer"
        return self.op(type, f"call {type.text} @{full}({args})")

    def call(self, function: Value, *args: Value) -> None:
        """Call a C function that returns nothing through its address."""
        self.line(f"call void {function.text}({', '.join(f'{a.type.text} {a.text}' for a in args)})")

    def copy(self, target: Value, source: Value, nbytes: Value) -> None:
        """memcpy of regions that do not overlap."""
        self.code.declared["memcpy"] = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        self.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target.text}, ptr {source.text}, i64 {nbytes.text}, i1 false)")

    def zero(self, target: Value, nbytes: Value) -> None:
        """Fill with zero bytes."""
        self.code.declared["memset"] = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
        self.line(f"call void @llvm.memset.p0.i64(ptr {target.text}, i8 0, i64 {nbytes.text}, i1 false)")

    def constants(self, type: Type, values: list[float]) -> Value:
        """The address of a constant array."""
        name = f'@"{self.name}.{self.code.fresh("c")}"'
        items = ", ".join(f"{type.scalar} {literal(type, value)}" for value in values)
        self._globals[name] = f"{name} = private constant [{len(values)} x {type.scalar}] [{items}]"
        return Value(self, PTR, name)

    # --- control flow
    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1, *, type: Type = I64) -> Iterator[Value]:
        """``for i in range(start, stop, step)`` with step > 0; yields i."""
        first, last, by = (x if isinstance(x, Value) else self.const(type, x) for x in (start, stop, step))
        index = Value(self, type, "%" + self.code.fresh("i"))
        head, body, end = self.code.fresh("head"), self.code.fresh("loop"), self.code.fresh("end")
        before = self.code.block
        self.line(f"br label %{head}")
        self.code.label(head)
        phi = len(self.code.lines)
        self.code.lines.append("")  # written below, when the block that loops back is known
        more = index < last
        self.line(f"br i1 {more.text}, label %{body}, label %{end}")
        self.code.label(body)
        yield index
        self.line(f"{index.text}.next = add nsw {type.text} {index.text}, {by.text}")
        self.code.lines[phi] = f"  {index.text} = phi {type.text} [ {first.text}, %{before} ], [ {index.text}.next, %{self.code.block} ]"
        self.line(f"br label %{head}")
        self.code.label(end)

    @contextmanager
    def loop_while(self, condition: Callable[[], Value]) -> Iterator[None]:
        """``while condition():``; the condition is emitted once, at the head."""
        head, body, end = self.code.fresh("while"), self.code.fresh("loop"), self.code.fresh("end")
        self.line(f"br label %{head}")
        self.code.label(head)
        holds = condition()
        self.line(f"br i1 {holds.text}, label %{body}, label %{end}")
        self.code.label(body)
        yield
        self.line(f"br label %{head}")
        self.code.label(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """``if condition:``; an ``otherwise`` may follow at once."""
        then, other, end = self.code.fresh("then"), self.code.fresh("else"), self.code.fresh("end")
        self.line(f"br i1 {condition.text}, label %{then}, label %{other}")
        self.code.label(then)
        yield
        self.line(f"br label %{end}")
        self.code.label(other)
        self.line(f"br label %{end}")
        self.code.label(end)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """``else:`` of the ``when`` block that has just ended."""
        end = self.code.lines.pop()[:-1]
        self.code.lines.pop()
        other = self.code.lines[-1][:-1]
        assert other.startswith("else") and end.startswith("end"), "otherwise() must follow when() at once"
        self.code.block = other
        yield
        self.line(f"br label %{end}")
        self.code.label(end)


class Helper(Fn):
    """A function with parameters of its own, never inlined: a tight loop gets all registers."""

    def __init__(self, home: Fn, name: str, params: Sequence[Type], shared: bool) -> None:
        super().__init__(name)
        self._module = home
        self._linkage = "" if shared else "internal "
        self._types = tuple(params)
        self.arguments = [Value(self, type, f"%x{i}") for i, type in enumerate(params)]

    def _home(self) -> Fn:
        return self._module

    def definition(self) -> list[str]:
        params = ", ".join(f"{type.text} %x{i}" for i, type in enumerate(self._types))
        return self._body(f'define {self._linkage}void @"{self.name}"({params}) noinline nounwind {{')
