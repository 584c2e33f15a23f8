"""Faults that mutmut's own operators do not plant: dropped rules, dropped statements, and faults inside emitted code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

__all__ = ["Operators", "emitted_operators", "python_operators"]

Operators = Sequence[tuple[type[cst.CSTNode], Callable[[Any], Iterator[cst.CSTNode]]]]

_SWAPS: Final = {
    "ult": "ule", "ule": "ult", "ugt": "uge", "uge": "ugt", "slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt", "icmp eq": "icmp ne",
    "icmp ne": "icmp eq", "add i": "sub i", "sub i": "add i", "umin": "umax", "umax": "umin", "and i": "or i", "or i": "and i",
    "lshr": "shl", "shl": "lshr", "sext": "zext", "zext": "sext", "<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "!=", "!=": "==",
    "&&": "||", "||": "&&", "+": "-", "-": "+", "&": "|", "|": "&", "<<": ">>", ">>": "<<", "!": "",
}  # fmt: skip
"""Tokens of emitted LLVM text and C, and what stands instead. Operators of C count where blanks surround them."""
_WORDS: Final = "|".join(rf"\b{word}" + ("" if word.endswith("i") else r"\b") for word in _SWAPS if word[0].isalpha())
_SIGNS: Final = "|".join(re.escape(sign) for sign in sorted(_SWAPS, key=len, reverse=True) if not sign[0].isalpha())
_TOKEN: Final = re.compile(rf"(?P<word>{_WORDS})|(?<=\s)(?P<sign>{_SIGNS})(?=\s)|(?<![\w.%$#\"])(?P<number>\d+)(?![\w.\"])")


def _text_faults(text: str) -> Iterator[str]:
    """``text`` with one token replaced, for every token that has a replacement."""
    for match in _TOKEN.finditer(text):
        found = match.group()
        swapped = str(int(found) + 1) if match["number"] else _SWAPS[found]
        yield text[: match.start()] + swapped + text[match.end() :]


def _emitted(node: cst.FormattedStringText | cst.SimpleString) -> Iterator[cst.CSTNode]:
    for value in _text_faults(node.value):
        yield node.with_changes(value=value)


def _dropped_condition(node: cst.If) -> Iterator[cst.CSTNode]:
    """The branch is never taken: a rule of a verifier, a special case, a bound."""
    yield node.with_changes(test=cst.Name("False"), whitespace_before_test=cst.SimpleWhitespace(" "))


def _dropped_statement(node: cst.Expr) -> Iterator[cst.CSTNode]:
    if isinstance(node.value, cst.Call | cst.Await | cst.Yield):
        yield cst.Pass() if not isinstance(node.value, cst.Yield) else node.with_changes(value=cst.Name("None"))


def _is_message(node: cst.CSTNode) -> bool:
    """Text for people: its wording is not behaviour."""
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.FormattedString | cst.ConcatenatedString):
        return True
    return False


def _name_faults(node: cst.SimpleString) -> Iterator[cst.CSTNode]:
    """Names, keys and reasons, in one form; sentences and documentation stay."""
    if not _is_message(node) and node.value[-1:] == node.value[:1] and len(node.value) > 2 and not node.value.startswith(('"""', "'''")):
        yield node.with_changes(value=f"{node.value[0]}XX{node.value[1:-1]}XX{node.value[-1]}")


def _arguments(original: Callable[[cst.Call], Iterator[cst.Call]]) -> Callable[[cst.Call], Iterator[cst.CSTNode]]:
    """mutmut's operator for arguments without faults in messages."""

    def operator(node: cst.Call) -> Iterator[cst.CSTNode]:
        for changed in original(node):
            if len(changed.args) < len(node.args):
                at = next((i for i, arg in enumerate(changed.args) if arg is not node.args[i]), len(changed.args))
            else:
                at = next(i for i, arg in enumerate(changed.args) if arg is not node.args[i])
            if not _is_message(node.args[at].value):
                yield changed

    return operator


def python_operators() -> Operators:
    """mutmut's operators and the two above."""
    kept: list[Any] = []
    for kind, operator in mutation_operators:
        match operator.__name__:
            case "operator_string":
                kept.append((cst.SimpleString, _name_faults))
            case "operator_arg_removal":
                kept.append((kind, _arguments(operator)))
            case _:
                kept.append((kind, operator))
    return [*kept, (cst.If, _dropped_condition), (cst.Expr, _dropped_statement)]


def emitted_operators() -> Operators:
    """For modules that emit code: faults inside of the text."""
    return [(cst.FormattedStringText, _emitted), (cst.SimpleString, _emitted)]
