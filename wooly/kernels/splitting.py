"""Splits a CUDA source of an extension into what a C++ compiler makes of it and what the CUDA compiler does, as nvcc would.

Both texts keep the lines of the source. The host's text has no device functions; each kernel there is a stub that hands its arguments to
``wooly_extension.h``, and ``kernel<<<grid, block>>>(x)`` becomes a call of the stub. The device's text has no host functions and no headers
of the C++ library or of torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wooly.errors import CompileError

_TOKEN: Final = re.compile(
    r"(?P<blank>(?:\s|\\\n)+|//(?:\\\n|[^\n])*|/\*.*?\*/)"
    r'|(?P<text>(?:u8|[uUL])?R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|(?:[uUL])?\'(?:\\.|[^\'\\\n])+\')'
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)"
    r"|(?P<mark2>::|->|[^\s])",
    re.DOTALL,
)
_DIRECTIVE: Final = re.compile(r"[ \t]*#(?:\\\n|//[^\n]*|/\*(?s:.*?)\*/|[^\n])*")
_INCLUDE: Final = re.compile(r'\s*#\s*include\s*(?:"(?P<near>[^"]+)"|<(?P<far>[^>]+)>)')
_LINE: Final = re.compile(r'#line (?P<number>\d+) "(?P<file>[^"]*)"\n')
_DEFINE: Final = re.compile(r"\s*#\s*define\s+(?P<name>\w+)(?:\((?P<params>[^)]*)\))?(?:\s|\\\n)+(?P<body>.*)", re.DOTALL)

_ATTRIBUTES: Final = frozenset({"__global__", "__device__", "__host__", "__constant__", "__shared__", "__managed__"})
_ATTRIBUTE_MACROS: Final = {
    "C10_HOST_DEVICE": frozenset({"__host__", "__device__"}),
    "C10_DEVICE": frozenset({"__device__"}),
    "C10_HOST": frozenset({"__host__"}),
}
_WITH_PARENTHESES: Final = frozenset(
    "__launch_bounds__ __cluster_dims__ __align__ alignas __attribute__ decltype noexcept __declspec sizeof explicit C10_LAUNCH_BOUNDS_0"
    " C10_LAUNCH_BOUNDS_1 C10_LAUNCH_BOUNDS_2".split()
)
_AGGREGATES: Final = frozenset({"struct", "class", "union", "enum"})
_ACCESS: Final = frozenset({"public", "private", "protected"})
_NO_VARIABLE: Final = _AGGREGATES | set("const constexpr using typedef static_assert template extern friend namespace".split())
_HOST_NAMESPACES: Final = frozenset({"torch", "at", "c10", "pybind11", "py", "std", "cooperative_groups"})
_HOST_NAME: Final = re.compile(
    r"cuda(?!TextureObject)[A-Z]|CU(?:stream|device|context)\b|(?:TORCH|AT)_|(?:Tensor|FILE|stdout|stderr|throw)$"
)
"""What only the host's code names."""
STD: Final = {
    "wooly_limits.h": "numeric_limits",
    "cuda/std/type_traits": "is_same, is_same_v, conditional, conditional_t, enable_if, enable_if_t, integral_constant, true_type,"
    " false_type, bool_constant, is_integral, is_integral_v, is_floating_point, is_floating_point_v, is_arithmetic, is_arithmetic_v,"
    " is_signed, is_signed_v, is_unsigned, is_unsigned_v, is_pointer, is_pointer_v, is_const, is_const_v, is_void, is_void_v, is_enum,"
    " remove_cv, remove_cv_t, remove_const, remove_const_t, remove_reference, remove_reference_t, remove_pointer, remove_pointer_t, decay,"
    " decay_t, make_signed, make_signed_t, make_unsigned, make_unsigned_t, underlying_type, underlying_type_t, void_t, common_type,"
    " common_type_t, is_base_of, is_base_of_v, is_convertible, is_convertible_v, invoke_result, invoke_result_t, aligned_storage,"
    " alignment_of, conjunction, disjunction, negation, is_trivially_copyable, is_trivially_copyable_v, is_constant_evaluated",
    "cuda/std/utility": "pair, make_pair, declval, integer_sequence, index_sequence, make_index_sequence, make_integer_sequence",
    "cuda/std/array": "array",
    "cuda/std/tuple": "tuple, make_tuple, tie, get, tuple_size, tuple_element",
    "cuda/std/initializer_list": "initializer_list",
}
"""Headers of CUDA's C++ library, and what device code uses of them as names in std."""
_STD_BUILT_IN: Final = (
    "abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin fmod"
    " frexp hypot isfinite isinf isnan ldexp lgamma log log10 log1p log2 modf nearbyint pow remainder rint round signbit sin sinh sqrt tan"
    " tanh tgamma trunc max min swap clamp size_t ptrdiff_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t"
    " uintptr_t move forward"
)
"""Names in std that the device has from our headers and from the compiler."""
_DEVICE_NAMES: Final = {
    "torch": frozenset(
        {"PackedTensorAccessor", "PackedTensorAccessor32", "PackedTensorAccessor64", "RestrictPtrTraits", "DefaultPtrTraits"}
    ),
    "std": frozenset(re.findall(r"\w+", f"{_STD_BUILT_IN} {' '.join(STD.values())}")),
}
_DEVICE_NAMES["at"] = _DEVICE_NAMES["torch"] | {"Half", "BFloat16", "opmath_type", "acc_type", "ceil_div", "numeric_limits", "cuda"}
_DEVICE_NAMES["c10"] = frozenset({"Half", "BFloat16"})
_DEVICE_HEADERS: Final = ("cuda_fp16", "cuda_bf16", "cuda_fp8", "mma.h", "cooperative_groups", "cub/", "cuda/", "curand", "math_constants")
_CUDA_HEADERS: Final = ("ATen/cuda/", "ATen/native/cuda/", "c10/cuda/", "THC/", "cub/", "cuda/", "cooperative_groups")
"""Of which ``wooly_extension.h`` has the host's part."""
_OF_TORCH: Final = ("ATen/cuda/detail/IndexUtils.cuh", "ATen/cuda/detail/TensorInfo.cuh")
"""Headers that the host takes as torch has them."""
_DEVICE_WIDE: Final = ("thrust/", "cub/device/")
"""Headers whose functions launch kernels of their own."""
_OTHER_LAUNCHES: Final = "launches on a GPU of this machine; use torch's operations in its place"
_ACCESSOR: Final = re.compile(r"\bPackedTensorAccessor(?:32|64)?\b")
_LOCAL: Final = "wooly_local"
"""What a namespace without a name is called in the device's text."""
_HEADER_BYTES_MAX: Final = 4 << 20
"""Of a source with its own headers."""


@dataclass(frozen=True, slots=True)
class Split:
    """``host`` for a C++ compiler, ``device`` for the CUDA compiler; ``names``: expressions that name the kernels that are no
    templates (``ops::scale``), and the variables (``&ops::weights``)."""

    host: str
    device: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    end: int


def inline_headers(path: Path, folders: Sequence[Path]) -> str:
    """The source at ``path`` with the headers that are beside it or in ``folders``, each once. Raises CompileError, OSError."""
    seen: set[Path] = set()

    def read(file: Path) -> str:
        seen.add(file.resolve())
        out = [f'#line 1 "{file.name}"']
        text = file.read_text("utf-8", "replace")
        for number, line in enumerate(text.split("\n"), 1):
            found = _INCLUDE.match(line)
            name = found and (found["near"] or found["far"])
            header = next((f for f in (folder / name for folder in (file.parent, *folders)) if f.is_file()), None) if name else None
            if header is not None and header.resolve() not in seen:
                out += [read(header), f'#line {number + 1} "{file.name}"']
            else:
                out.append("" if header is not None or re.match(r"\s*#\s*pragma\s+once", line) else line)
        if sum(map(len, out)) > _HEADER_BYTES_MAX:
            raise CompileError(f"{path.name} and its own headers have more than {_HEADER_BYTES_MAX} bytes")
        return "\n".join(out)

    return read(path)


def split(source: str, on_device: Callable[[str], bool]) -> Split:
    """``on_device``: whether the CUDA compiler has the header of this name. Raises CompileError naming a kernel that has no stub."""
    return _Splitter(source, on_device).split()


class _Splitter:
    def __init__(self, source: str, on_device: Callable[[str], bool]) -> None:
        self.source = source
        self.on_device = on_device
        self.tokens = _tokens(source)
        self.attributes = dict(_ATTRIBUTE_MACROS)
        #: Parameters and body of each macro that is called like a function.
        self.macros: dict[str, tuple[list[str], str]] = {}
        self.host: list[tuple[int, int, str]] = []
        self.device: list[tuple[int, int, str]] = []
        self.names: list[str] = []

    def split(self) -> Split:
        self._refuse()
        self._scope(0, len(self.tokens), ())
        host, device = (_edited(self.source, edits) for edits in (self.host, self.device))
        return Split(host, device, tuple(dict.fromkeys(self.names)))

    def _refuse(self) -> None:
        """Raise CompileError for what launches kernels in other ways than a remote device can be given."""
        texts = [token.text for token in self.tokens]
        for at, (text, mark, name) in enumerate(zip(texts, texts[1:], texts[2:], strict=False)):
            if mark == "::" and (text == "thrust" or (text == "cub" and name.startswith("Device"))):
                raise CompileError(f"{self._where(self.tokens[at])}: {text}::{name} {_OTHER_LAUNCHES}")
            if text == "]" and (mark == "__device__" or (mark, name) == ("__host__", "__device__")):
                raise CompileError(
                    f"{self._where(self.tokens[at])}: a lambda for the device has no name there: write a struct with operator()"
                )

    # -- scopes and items

    def _scope(self, at: int, end: int, path: tuple[str, ...]) -> None:
        """The items of a file or a namespace, ``path``."""
        while at < end:
            token = self.tokens[at]
            if token.text.lstrip().startswith("#"):
                self._directive(token)
                at += 1
                continue
            opened = self._opens_scope(at, end)
            if opened is not None:
                brace, names = opened
                if self.tokens[at].text == "namespace" and brace == at + 1:  # its kernels' names would differ from process to process
                    self.device.append((token.start, token.end, f"inline namespace {_LOCAL}"))
                close = self._match(brace, end)
                self._scope(brace + 1, close, (*path, *names))
                at = close + 1
                continue
            if token.text in self.macros and at + 1 < end and self.tokens[at + 1].text == "(":
                at = self._expand(at, end, path)
                continue
            stop, body = self._item(at, end)
            self._classify(at, stop, body, path)
            at = stop

    def _expand(self, at: int, end: int, path: tuple[str, ...]) -> int:
        """What a macro makes of declarations, ``DEFINE_KERNEL(add, +)``, as if the source had it."""
        close = self._match(at + 1, end)
        params, body = self.macros[self.tokens[at].text]
        given = [self.source[self.tokens[low].start : self.tokens[high - 1].end] for low, high in self._parts(at + 2, close)]
        named = dict(zip(params, given, strict=False)) | {"__VA_ARGS__": ", ".join(given[params.index("...") :] if "..." in params else [])}
        text = _substituted(body, named)
        inner = _Splitter(text, self.on_device)
        inner.attributes, inner.macros, inner.names = self.attributes, self.macros, self.names
        try:
            inner._scope(0, len(inner.tokens), path)
        except CompileError as error:
            raise CompileError(f"{self._where(self.tokens[at])}: macro {self.tokens[at].text}: {error}") from error
        stop = close + 2 if close + 1 < end and self.tokens[close + 1].text == ";" else close + 1
        span = self.tokens[at].start, self.tokens[stop - 1].end
        for edits, made in ((self.host, inner.host), (self.device, inner.device)):
            if made:
                edits.append((*span, _edited(text, made).replace("\n", " ")))
        return stop

    def _opens_scope(self, at: int, end: int) -> tuple[int, tuple[str, ...]] | None:
        """Of a namespace or ``extern "C" {``: its brace, and its names."""
        texts = [token.text for token in self.tokens[at : min(end, at + 16)]]
        if texts[:1] == ["extern"] and len(texts) > 2 and texts[1].startswith('"') and texts[2] == "{":
            return at + 2, ()
        first = 1 if texts[:1] == ["inline"] else 0
        if texts[first : first + 1] != ["namespace"] or "{" not in texts or "=" in texts[: texts.index("{")]:
            return None
        brace = texts.index("{")
        return at + brace, tuple(text for text in texts[first + 1 : brace] if text != "::")

    def _item(self, at: int, end: int) -> tuple[int, int]:
        """Where the declaration at ``at`` ends, and the brace of its function's body (-1: none)."""
        if self.tokens[at].text in _ACCESS and at + 1 < end and self.tokens[at + 1].text == ":":
            return at + 2, -1
        place = self._after_template(at, end)
        aggregate = assigned = parameters = False
        while place < end:
            text = self.tokens[place].text
            if text == ";":
                return place + 1, -1
            if text in _AGGREGATES and not parameters:
                aggregate = True
            elif text == "=":
                assigned = True
            elif text == "operator":
                place = self._after_operator(place, end)
                continue
            elif text == ":" and parameters and not assigned:
                place = self._after_initialisers(place + 1, end)
                continue
            elif text in "([":
                parameters |= text == "(" and self.tokens[place - 1].text not in _WITH_PARENTHESES
                place = self._match(place, end)
            elif text == "{":
                close = self._match(place, end)
                if parameters and not assigned:
                    return close + 1, place
                place = close
                if not aggregate and not assigned and not parameters:
                    return close + 1, -1  # a macro that opens a block
            place += 1
        return end, -1

    def _after_operator(self, at: int, end: int) -> int:
        """The parenthesis that opens the parameters of an operator."""
        place = at + 3 if self.tokens[at + 1].text == "(" else at + 1
        while place < end and self.tokens[place].text != "(":
            place += 1
        return place

    def _after_initialisers(self, at: int, end: int) -> int:
        """After a constructor's list of them, ``a(x), b{y}``."""
        place = at
        while place < end:
            while place < end and self.tokens[place].text not in ("(", "{", ";"):
                place += 1
            if place < end and self.tokens[place].text != ";":
                place = self._match(place, end) + 1
            if place >= end or self.tokens[place].text != ",":
                break
        return place

    def _after_template(self, at: int, end: int) -> int:
        while at + 1 < end and self.tokens[at].text == "template" and self.tokens[at + 1].text == "<":
            at = self._angle(at + 1, end) + 1
        return at

    def _match(self, at: int, end: int) -> int:
        """The token that closes the bracket at ``at``."""
        depth = 0
        for place in range(at, end):
            text = self.tokens[place].text
            if text in ("(", "[", "{"):
                depth += 1
            elif text in (")", "]", "}"):
                depth -= 1
                if not depth:
                    return place
        raise CompileError(f"{self._where(self.tokens[at])}: this bracket is not closed in the same file")

    def _angle(self, at: int, end: int) -> int:
        """The token that closes the angle bracket at ``at``."""
        depth, place = 0, at
        while place < end:
            text = self.tokens[place].text
            if text in ("(", "[", "{"):
                place = self._match(place, end)
            depth += (text == "<") - (text == ">")
            if not depth:
                return place
            place += 1
        raise CompileError(f"{self._where(self.tokens[at])}: this angle bracket is not closed in the same file")

    # -- what becomes of them

    def _directive(self, token: _Token) -> None:
        include, define = _INCLUDE.match(token.text), _DEFINE.match(token.text)
        if include:
            self._include(token, include["near"] or include["far"])
        if define:
            found = self._of_macro(define["body"])
            if define["params"] is not None and self._declares(define["body"]):
                self.macros[define["name"]] = [text.strip() for text in define["params"].split(",")], define["body"]
            elif found:
                self.attributes[define["name"]] = found
            if "<<<" in define["body"]:
                body = _Splitter(define["body"], self.on_device)
                body._launches(0, len(body.tokens))
                text = _edited(body.source, body.host).replace("\\\n", " ").replace("\n", " ")
                self.host.append((token.start + define.start("body"), token.end, text))

    def _has(self, name: str) -> bool:
        return (name.startswith(_DEVICE_HEADERS) and name not in ("cub/cub.cuh", "curand.h")) or self.on_device(name)

    def _include(self, token: _Token, name: str) -> None:
        if name.startswith(_DEVICE_WIDE):
            raise CompileError(f"{self._where(token)}: {name} {_OTHER_LAUNCHES}")
        if name.startswith(_CUDA_HEADERS) and name not in _OF_TORCH:
            self.host.append((token.start, token.end, ""))
        if not self._has(name):
            self.device.append((token.start, token.end, ""))

    def _declares(self, body: str) -> bool:
        """Is it more than a part of a declaration?"""
        return not {"{", ";"}.isdisjoint(body) or any(name in self.macros for name in re.findall(r"\w+", body))

    def _of_macro(self, body: str) -> frozenset[str]:
        names = re.findall(r"\w+", body)
        return frozenset(_ATTRIBUTES.intersection(names)).union(*(self.attributes.get(name, frozenset()) for name in names))

    def _attributes(self, at: int, stop: int) -> frozenset[str]:
        texts = [token.text for token in self.tokens[at:stop]]
        return frozenset(_ATTRIBUTES.intersection(texts)).union(*(self.attributes.get(text, frozenset()) for text in texts))

    def _classify(self, at: int, stop: int, body: int, path: tuple[str, ...]) -> None:
        header_end = body if body >= 0 else self._header_end(at, stop)
        found = self._attributes(at, header_end)
        whole = self.tokens[at].start, self.tokens[stop - 1].end
        if found & {"__global__", "__constant__", "__device__", "__managed__"}:
            self._no_static(at, header_end)
            if any(self._is_triple(place, "<") for place in range(header_end, stop - 2)):
                raise CompileError(
                    f"{self._where(self.tokens[at])}: a kernel that launches kernels is not portable: launch them from the host"
                )
        if "__global__" in found:
            if body >= 0:
                self._kernel(at, stop, body, path)
        elif "__device__" in found or "__constant__" in found or "__managed__" in found:
            if "__host__" not in found and self._is_function(at, stop, body):
                self.host.append((*whole, ""))
            elif not self._is_function(at, stop, body):
                self._variable(at, stop, path)
            self._launches(at, stop)
        elif self._is_aggregate(at, header_end) and body < 0:
            self._nested_directives(at, stop)
            if self._members(at, header_end, stop):
                self.device.append((*whole, ""))
        else:
            if self._is_hosts_alone(at, stop, body) or (body < 0 and self._is_hosts_variable(at, stop)):
                self.device.append((*whole, ""))
            self._launches(at, stop)

    def _is_hosts_alone(self, at: int, stop: int, body: int) -> bool:
        """Of a declaration without attributes: can the device's code not use it?"""
        texts = {token.text for token in self.tokens[at:stop]}
        alone = self._is_function(at, stop, body) and "constexpr" not in texts and not self._is_defaulted(stop)
        return alone or self._is_hosts(at, stop)

    def _is_hosts_variable(self, at: int, stop: int) -> bool:
        """Is it a variable without attributes that the host can change? Not of a struct."""
        return stop - at > 2 and not _NO_VARIABLE.intersection(token.text for token in self.tokens[at:stop])

    def _is_defaulted(self, stop: int) -> bool:
        """Does a declaration end in ``= default;`` or ``= delete;``?"""
        return self.tokens[stop - 2].text in ("default", "delete")

    def _no_static(self, at: int, stop: int) -> None:
        """As ``static`` the device's variables could not be written from outside, and kernels have other names in each process."""
        for token in self.tokens[at:stop]:
            if token.text == "static":
                self.device.append((token.start, token.end, ""))

    def _variable(self, at: int, stop: int, path: tuple[str, ...]) -> None:
        texts = [token.text for token in self.tokens[self._after_template(at, stop) : stop]]
        end = next((i for i, text in enumerate(texts) if text in ("[", "=", "{", ";")), len(texts))
        if "extern" not in texts and texts[0] not in ("using", "typedef") and self.tokens[at].text != "template":
            self.names.append("&" + "::".join([*path, texts[end - 1]]))

    def _nested_directives(self, at: int, stop: int) -> None:
        for token in self.tokens[at:stop]:
            if token.text.lstrip().startswith("#"):
                self._directive(token)

    def _header_end(self, at: int, stop: int) -> int:
        place = self._after_template(at, stop)
        return next((i for i in range(place, stop) if self.tokens[i].text in ("{", ";", "=")), stop)

    def _is_aggregate(self, at: int, header_end: int) -> bool:
        place = self._after_template(at, header_end)
        return (
            header_end < len(self.tokens)
            and self.tokens[header_end].text == "{"
            and any(token.text in _AGGREGATES for token in self.tokens[place:header_end])
        )

    def _is_function(self, at: int, stop: int, body: int) -> bool:
        if body >= 0:
            return True
        place = self._after_template(at, stop)
        texts = [token.text for token in self.tokens[place:stop]]
        if texts[0] in ("using", "typedef", "static_assert"):
            return False
        opening = next((i for i in range(1, len(texts)) if texts[i] == "(" and texts[i - 1] not in _WITH_PARENTHESES), -1)
        if "operator" in texts[:opening]:
            return True
        return opening > 0 and texts[opening + 1] != "*" and not {"=", "{"}.intersection(texts[:opening])

    def _is_hosts(self, at: int, stop: int) -> bool:
        """Does it name what only the host has?"""
        texts = [token.text for token in self.tokens[at:stop]]
        if any(_HOST_NAME.match(text) for text in texts):
            return True
        for before, space, mark, name in zip(["", *texts], texts, texts[1:], texts[2:], strict=False):
            if mark == "::" and space in _HOST_NAMESPACES and before != "::" and name not in _DEVICE_NAMES.get(space, ()):
                return space != "cooperative_groups"
        return texts[:2] == ["using", "namespace"] and texts[2] in _HOST_NAMESPACES - {"cooperative_groups"}

    def _members(self, start: int, brace: int, stop: int) -> bool:
        """Take the functions of the device out of a struct of the host's text, and those of the host out of the device's; whether its
        data are such as only the host has."""
        close = self._match(brace, stop)
        at, hosts = brace + 1, self._is_hosts(start, brace)
        if any(token.text == "enum" for token in self.tokens[start:brace]):
            return False
        while at < close:
            if self.tokens[at].text.lstrip().startswith("#"):
                at += 1
                continue
            end, body = self._item(at, close)
            header_end = body if body >= 0 else self._header_end(at, end)
            found = self._attributes(at, header_end)
            whole = self.tokens[at].start, self.tokens[end - 1].end
            if "__device__" in found:
                if "__host__" not in found and self._is_function(at, end, body):
                    self.host.append((*whole, ""))
            elif body < 0 and self._is_aggregate(at, header_end):
                hosts |= self._members(at, header_end, end)
            elif self._is_function(at, end, body):
                if self._is_hosts_alone(at, end, body):
                    self.device.append((*whole, ""))
                self._launches(at, end)
            else:
                hosts |= self._is_hosts(at, end)
            at = end
        return hosts

    # -- kernels

    def _kernel(self, at: int, stop: int, body: int, path: tuple[str, ...]) -> None:
        start = self._after_template(at, body)
        place = start
        opening = -1
        while place < body:
            if self.tokens[place].text == "(":
                if self.tokens[place - 1].text not in _WITH_PARENTHESES:
                    opening = place  # the last: macros may stand before
                place = self._match(place, body)
            place += 1
        if opening < 0:
            raise CompileError(f"{self._where(self.tokens[at])}: the parameters of this kernel are not found")
        name, specialised = self._name(start, opening)
        qualified = "::".join([*path, name])
        template = self._template_arguments(at, start, qualified)
        close = self._match(opening, body)
        arguments = []
        for number, (low, high) in enumerate(self._parts(opening + 1, close)):
            argument, accessor = self._parameter(low, high, number)
            pack = any(token.text == "." for token in self.tokens[low:high])
            arguments.append(f" (wooly_launch.add({argument}), ...);" if pack else f" wooly_launch.add({argument});")
            if accessor is not None:
                self.device.append(
                    (body_at := self.tokens[body].end, body_at, f" {accessor} {argument}({argument}__data, {argument}__dims);")
                )
        if template is None:
            self.names.append(qualified + specialised)
        names = "" if template is None else "".join(f", {text}" for text in template)
        text = f'{{ ::wooly::Launch wooly_launch(WOOLY_SOURCE, "{qualified}{specialised}", {{std::string(){names}}});'
        text += f" if (wooly_launch.named()) return;{''.join(arguments)} wooly_launch.run(); }}"
        self.host.append((self.tokens[body].start, self.tokens[stop - 1].end, text))

    def _name(self, start: int, opening: int) -> tuple[str, str]:
        """Of a kernel, and the arguments of an explicit specialisation."""
        last = opening - 1
        first = self._before_angle(last, start)
        return self.tokens[first].text, self.source[self.tokens[first].end : self.tokens[last].end].strip()

    def _before_angle(self, last: int, least: int) -> int:
        """The name before template arguments that end at ``last``; ``last`` where it is no angle bracket."""
        if self.tokens[last].text != ">":
            return last
        depth, place = 0, last
        while place > least:
            text = self.tokens[place].text
            if text in (")", "]", "}"):
                place = self._open(place, least)
            depth += (text == ">") - (text == "<")
            if not depth:
                break
            place -= 1
        return place - 1

    def _open(self, at: int, least: int) -> int:
        """The token that opens the bracket which is closed at ``at``."""
        depth, place = 0, at
        while place > least:
            depth += (self.tokens[place].text in (")", "]", "}")) - (self.tokens[place].text in ("(", "[", "{"))
            if not depth:
                break
            place -= 1
        return place

    def _template_arguments(self, at: int, start: int, kernel: str) -> list[str] | None:
        """C++ that gives the text of each template argument; None for a kernel that is no template."""
        if start == at or start == at + 3:  # template <>
            return None
        found = []
        for low, high in self._parts(at + 2, start - 1):
            texts = [token.text for token in self.tokens[low:high]]
            cut = texts.index("=") if "=" in texts else len(texts)
            texts = texts[:cut]
            if texts[0] == "template" or "(" in texts or len(texts) < 2:
                raise CompileError(
                    f"{self._where(self.tokens[at])}: kernel {kernel} has template parameters of a kind that only nvcc takes"
                )
            pack = "..." if "." in texts else ""
            if texts[0] in ("typename", "class"):
                found.append(f"::wooly::type_name<{texts[-1]}>(){pack}")
            else:
                found.append(f"::wooly::value_name({texts[-1]}){pack}")
        return found

    def _parts(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Between commas that are outside of all brackets."""
        start = place = at
        while place < end:
            text = self.tokens[place].text
            if text in ("(", "[", "{"):
                place = self._match(place, end)
            elif text == "<":
                place = self._angle(place, end)
            elif text == ",":
                yield start, place
                start = place + 1
            place += 1
        if start < end and not (end - start == 1 and self.tokens[start].text == "void"):
            yield start, end

    def _parameter(self, low: int, high: int, number: int) -> tuple[str, str | None]:
        """A parameter's name, and its type where that is an accessor of torch's."""
        texts = [token.text for token in self.tokens[low:high]]
        cut = next((i for i, text in enumerate(texts) if text in ("=", "[")), len(texts))
        name = texts[cut - 1]
        if not re.match(r"[A-Za-z_]", name) or cut < 2:
            raise CompileError(f"{self._where(self.tokens[low])}: parameter {number} of this kernel has no name")
        last = low + cut - 1
        written = self.source[self.tokens[low].start : self.tokens[last].start]
        if not _ACCESSOR.search(written):
            return name, None
        kind = re.sub(r"\bconst\b|&", "", written).strip()
        kind = kind.removeprefix("typename ").strip()
        text = f"typename {kind}::PtrType {name}__data, const typename {kind}::Dims {name}__dims"
        self.device.append((self.tokens[low].start, self.tokens[high - 1].end, text))
        return name, written.replace("&", "")

    # -- launches

    def _launches(self, at: int, stop: int) -> None:
        """``callee<<<configuration>>>(arguments)`` becomes ``(wooly::configure(configuration), callee(arguments))``."""
        place = at
        while place < stop - 2:
            if not self._is_triple(place, "<"):
                place += 1
                continue
            low = place + 3
            high = low
            while high < stop - 2 and not self._is_triple(high, ">"):
                high = self._match(high, stop) + 1 if self.tokens[high].text in ("(", "[", "{") else high + 1
            if high >= stop - 2 or high + 3 >= stop or self.tokens[high + 3].text != "(":
                raise CompileError(f"{self._where(self.tokens[place])}: this launch is not understood")
            close = self._match(high + 3, stop)
            callee = self._callee(place, at)
            first = self.tokens[callee]
            configuration = self.source[self.tokens[low].start : self.tokens[high - 1].end]
            called = self.source[first.start : self.tokens[place - 1].end]
            self.host.append((first.start, self.tokens[high + 2].end, f"(::wooly::configure({configuration}), {called}"))
            self.host.append((self.tokens[close].end, self.tokens[close].end, ")"))
            place = high + 3

    def _is_triple(self, at: int, text: str) -> bool:
        three = self.tokens[at : at + 3]
        return all(token.text == text for token in three) and three[2].start == three[0].start + 2

    def _callee(self, place: int, at: int) -> int:
        """Where the expression before ``<<<`` begins: a name with its namespaces and template arguments."""
        if self.tokens[place - 1].text == ")":
            return self._open(place - 1, at)
        first = self._before_angle(place - 1, at)
        while first - 1 >= at and self.tokens[first - 1].text == "::":
            first -= 2 if first - 2 >= at and re.match(r"\w", self.tokens[first - 2].text) else 1
        return first

    def _where(self, token: _Token) -> str:
        """The line of a token, and its file if the source has headers of its own in it."""
        before, newline = self.source[: token.start], "\n"
        directive = before.rfind("#line ")
        found = _LINE.match(before, max(directive, 0))
        if found is None:
            return f"line {before.count(newline) + 1}"
        return f"{found['file']}, line {int(found['number']) + before.count(newline, found.end())}"


def _tokens(source: str) -> list[_Token]:
    found: list[_Token] = []
    at, fresh = 0, True  # at the start of a line
    while at < len(source):
        directive = _DIRECTIVE.match(source, at) if fresh else None
        if directive and re.match(r"\s*#\s*if\s+0\b", directive[0]):
            at = _after_branch(source, directive.end())
            found.append(_Token(directive[0], directive.start(), directive.end()))
        elif directive:
            found.append(_Token(directive[0], directive.start(), directive.end()))
            at = directive.end()
        if directive:
            fresh = False
            continue
        token = _TOKEN.match(source, at)
        assert token is not None, "any character is a token"
        if token["blank"] is not None:
            fresh = "\n" in token[0] or (fresh and not token[0].startswith("/"))
        else:
            fresh = False
            found.append(_Token(token[0], at, token.end()))
        at = token.end()
    return found


def _after_branch(source: str, at: int) -> int:
    """The end of what ``#if 0`` leaves out: the line before its ``#else``, ``#elif`` or ``#endif``."""
    depth = 0
    for found in re.finditer(r"^[ \t]*#[ \t]*(if|else|elif|endif)", source[at:], re.MULTILINE):
        if not depth and found[1] != "if":
            return at + found.start() - 1
        depth += (found[1] == "if") - (found[1] == "endif")
    return len(source)


def _substituted(body: str, given: dict[str, str]) -> str:
    """A macro's body with what is given for its parameters, on one line."""
    body = re.sub(r"\\\n|/\*.*?\*/", " ", body, flags=re.DOTALL)
    body = re.sub(r"(?<!#)#\s*(\w+)", lambda found: '"' + given.get(found[1], found[1]).replace('"', '\\"') + '"', body)
    body = re.sub(r"\w+", lambda found: given.get(found[0], found[0]), body)
    return re.sub(r"\s*##\s*", "", body)


def _edited(source: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """``source`` with spans replaced, on the same lines. Of spans within another one the outer one holds."""
    out, at = [], 0
    for start, end, text in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if start < at:
            continue
        missing = source.count("\n", start, end) - text.count("\n")
        out += [source[at:start], text, "\n" * missing]
        at = end
    return "".join([*out, source[at:]])
