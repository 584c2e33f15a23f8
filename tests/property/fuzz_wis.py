"""Fuzzing of WIS without Hypothesis: faster, for long runs. ``python -m tests.property.fuzz_wis --seconds N [--seed S]``.

Every round makes a valid program, changes its bytes, dims or text, and demands: refusal by our own errors only, or a run without any
exception that leaves the bytes around every buffer untouched. A failure prints its seed; the same seed repeats it.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections import Counter

import numpy as np

from tests.support.wis_programs import LIMITS, Pick, buffers_for, mutate_bytes, mutate_dims, random_program, scalars_for
from wis.encoding import decode_program, encode_program
from wis.errors import DecodeError, ParseError, VerifyError
from wis.program import Program
from wis.reference import run
from wis.text import parse_program, print_program
from wis.verify import Verified, verify

_GUARD = 64  # bytes on both sides of every buffer that a run must not touch


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=30)
    arguments.add_argument("--seed", type=int, default=None)
    options = arguments.parse_args()
    if options.seed is not None:
        print(one_round(options.seed))
        return
    tally: Counter[str] = Counter()
    first = seed = time.time_ns() % (1 << 40)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        try:
            tally[one_round(seed)] += 1
        except Exception:  # anything but our own refusals is what the fuzzer looks for
            traceback.print_exc()
            raise SystemExit(f"FAILED: repeat with --seed {seed}") from None
        seed += 1
    print(f"{seed - first} rounds from seed {first}: " + ", ".join(f"{n} {what}" for what, n in sorted(tally.items())))


def one_round(seed: int) -> str:
    """What became of the program of this seed."""
    rng = random.Random(seed)
    pick: Pick = rng.randint
    program, dims, _ = random_program(pick)
    what = seed % 5
    if what == 1:
        dims = mutate_dims(pick, dims)
    elif what == 2:
        try:
            program = decode_program(mutate_bytes(pick, encode_program(program)))
        except DecodeError:
            return "not decoded"
    elif what == 3:
        text = mutate_bytes(pick, print_program(program, dims).encode()).decode("utf-8", "replace")
        try:
            program, parsed = parse_program(text)
        except ParseError:
            return "not parsed"
        dims = parsed if parsed is not None else b""
    elif what == 4:
        return "random bytes decoded" if _decodes(rng.randbytes(rng.randint(0, 80))) else "random bytes refused"
    verified = _accepted(program, dims)
    if verified is None:
        assert what, "a program made to be valid was refused"
        return "refused"
    _run_guarded(verified, seed)
    return "ran changed" if what else "ran"


def _decodes(data: bytes) -> bool:
    try:
        return encode_program(decode_program(data)) == data
    except DecodeError:
        return False


def _accepted(program: Program, dims: bytes) -> Verified | None:
    try:
        return verify(program, dims, LIMITS)
    except VerifyError as error:
        print_program(program, dims, error.findings)
        return None


def _run_guarded(verified: Verified, seed: int) -> None:
    guarded, buffers = [], []
    for number, buffer in enumerate(buffers_for(verified, seed % (1 << 32))):
        if buffer is None:
            buffer = np.zeros(verified.bound.nbytes[number], np.uint8)
        whole = np.full(len(buffer) + 2 * _GUARD, 0xA5, np.uint8)
        whole[_GUARD : _GUARD + len(buffer)] = buffer
        guarded.append(whole)
        buffers.append(whole[_GUARD : _GUARD + len(buffer)])
    run(verified, scalars_for(verified.bound.program.n_scalars, seed % (1 << 32)), buffers)
    for whole in guarded:
        assert (whole[:_GUARD] == 0xA5).all() and (whole[-_GUARD:] == 0xA5).all(), "a run wrote outside of a buffer"


if __name__ == "__main__":
    main()
