"""The page that a run publishes: totals by type, how cases were compared, and a row for every operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from tests.conformance.compare import METHODS
from tests.conformance.harness import CLASSES, DIRECTIONS, DTYPES, Outcome

if TYPE_CHECKING:
    from tests.conformance.wire import Record

__all__ = ["document", "lines"]

_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint8": "u8", "bool": "bool", "complex64": "c64", "complex128": "c128", "": "errors",
}  # fmt: skip

_HOW = {
    "exact": "integers, booleans, sizes: equal",
    "tolerance": "floating point: within torch.testing's default tolerance of the CPU's result in the same type",
    "truth": "outside of it, but as near to the CPU's result in float64 or complex128 as the CPU's own (tests/conformance/compare.py)",
    "cast": "the CPU lacks the type: with its result in float64, cast down, within 4 units in the last place",
    "property": "random: repeatability, support, distribution, independence (tests/conformance/draws.py)",
    "metadata": "values are undefined (`empty`), or the CPU computes them in no type: shape, strides, type, device",
    "raised": "the call raises on the CPU (or, in torch's own list, on CUDA): it raises the same class",
}


def _ran(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if o.samples]


def lines(record: Record) -> list[str]:
    """The totals, one line a direction."""
    out = []
    for direction in DIRECTIONS:
        rows = _ran(o for o in record.outcomes if o.direction == direction)
        if rows:
            parts = ", ".join(f"{c} {sum(o.result == c for o in rows)} ({sum(o.counts[c] for o in rows)} cases)" for c in CLASSES)
            out.append(f"{direction}: {len(rows)} rows, {sum(o.samples for o in rows)} cases: {parts}")
    out.append(f"sessions {record.sessions}, sessions_lost {record.sessions_lost}, crashes {record.crashes}, {record.seconds:.0f} s")
    return out


def document(record: Record, plan: dict[str, Any], backend: str, *, wire: bool) -> str:
    """The page in Markdown."""
    where = "through the client, the bus and a node" if wire else f"in process by the {backend} backend"
    return (
        "\n".join(
            [
                "# Conformance" + ("" if backend == "host" else f" of the {backend} backend"),
                "",
                f"torch {torch.__version__.partition('+')[0]}'s operator database on the device, compared with the CPU, {where}.",
                f"Made by `make conformance{'' if backend == 'host' else '-' + backend}`: {_sampling(plan)}",
                "",
                "*native*: computed on the device. *fallback*: some operation of it was computed on the client's machine, visibly.",
                "*refused*: an error where CUDA raises none. *wrong*: another result than the CPU's: values, shape, strides, type,",
                "device, class of an error, or a changed argument.",
                "",
                *(f"- {line}" for line in lines(record)),
                "",
                "## By type",
                "",
                *_by_type(record),
                "",
                "## How cases were compared",
                "",
                "| method | cases | what |",
                "|---|---|---|",
                *(f"| {m} | {sum(o.methods[m] for o in record.outcomes)} | {_HOW[m]} |" for m in METHODS),
                "",
                "## By operator",
                "",
                "Types in one cell have the same result. Samples that torch cannot make for a type are not counted.",
                "",
                "| operator | forward | backward | errors | what falls back, is refused or wrong |",
                "|---|---|---|---|---|",
                *_by_operator(record),
            ]
        )
        + "\n"
    )


def _sampling(plan: dict[str, Any]) -> str:
    whole = f" (all of {', '.join(plan['whole'])})" if plan["whole"] else ""
    return (
        f"{plan['forward'] or 'all'} samples forward{whole}, {plan['backward']} backward, {plan['variants']} variants (other layouts, "
        f"vmap, in place, out=) an operator and type, seed {plan['seed']}."
    )


def _by_type(record: Record) -> list[str]:
    out = ["| type | direction | operators | cases | " + " | ".join(CLASSES) + " |", "|---|---|---|---|" + "---|" * len(CLASSES)]
    for dtype in (*DTYPES, ""):
        for direction in DIRECTIONS:
            rows = _ran(o for o in record.outcomes if (o.dtype, o.direction) == (dtype, direction))
            if rows:
                counts = " | ".join(str(sum(o.result == c for o in rows)) for c in CLASSES)
                out.append(f"| {dtype} | {direction} | {len(rows)} | {sum(o.samples for o in rows)} | {counts} |")
    return out


def _by_operator(record: Record) -> list[str]:
    by_name: dict[str, list[Outcome]] = {}
    for o in record.outcomes:
        by_name.setdefault(o.name, []).append(o)
    out = []
    for name, rows in by_name.items():
        cells = [_cell(o for o in rows if o.direction == direction) for direction in DIRECTIONS]
        notes = {f"`{used}`" for o in rows for used in o.fallbacks}
        failed = [o for o in rows if o.result in ("wrong", "refused")]
        reasons = [o.note.replace("|", "\\|")[:120] for o in failed]
        text = ", ".join(sorted(notes)) + (" " + reasons[0] if reasons else "")
        out.append(f"| {name} | {' | '.join(cells)} | {text.strip()} |")
    return out


def _cell(rows: Iterable[Outcome]) -> str:
    """``native`` where all types agree, else each result with its types."""
    types: dict[str, list[str]] = {}
    for o in _ran(rows):
        types.setdefault(o.result, []).append(_SHORT[o.dtype])
    if len(types) == 1:
        return next(iter(types))
    return ", ".join(f"{result}: {' '.join(names)}" for result, names in types.items())
