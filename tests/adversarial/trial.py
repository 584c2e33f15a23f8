"""Runs an attack on a device beside the canary, and reports the guarantees that did not hold."""

from __future__ import annotations

import time
from typing import Final

from jit.kernels.launch import KernelOutcome
from tests.adversarial.attack import Attack, Completes, Ends, OutOfFuel, Promise, Refused, Shot, Traps
from tests.adversarial.canary import Canary
from tests.support.kernel_devices import KernelDevice

__all__ = ["SECONDS_MAX", "trial"]

SECONDS_MAX: Final = 30.0
"""However bad, it is over after this processor time."""


def trial(attack: Attack, device: KernelDevice, canary: Canary) -> list[str]:
    """Sentences about what went wrong; none when the promise was kept and the canary is well."""
    faults: list[str] = []
    canary.sing()
    start = time.process_time()
    try:
        shot = attack.aim() if attack.at is None else attack.at(canary.pointers)
        if shot is not None:
            faults += _fired(attack.promise, shot, device, canary)
        elif isinstance(attack.promise, Refused):
            faults.append("it was not refused")
    except AssertionError:
        raise
    except Exception as error:  # the promise says which there may be
        faults += _raised(attack.promise, error)
    seconds = time.process_time() - start
    if seconds > SECONDS_MAX:
        faults.append(f"it took {seconds:.1f} s of processor time")
    canary.sing()
    return faults


def _raised(promise: Promise, error: Exception) -> list[str]:
    said = f"{type(error).__name__}: {str(error)[:300]}"
    if not isinstance(promise, Refused) or not isinstance(error, promise.error):
        return [f"promised was {promise}, and it raised {said}"]
    return [] if promise.text in str(error) else [f"the error does not say {promise.text!r}: {said}"]


def _fired(promise: Promise, shot: Shot, device: KernelDevice, canary: Canary) -> list[str]:
    prepared = device.prepare(shot.verified, shot.launch.block, shot.launch.dynamic_bytes)
    known = {key: canary.traces(memory.inside.tobytes()) for key, memory in shot.bound.memories.items()}
    outcome = device.run(prepared, shot.launch, shot.bound.params, shot.addresses)
    faults = _judged(promise, outcome)
    for key, memory in shot.bound.memories.items():
        if not memory.intact:
            faults.append(f"memory around {key!r} was written")
        if key in shot.constant and memory.inside.tobytes() != shot.bound.before[key]:
            faults.append(f"the buffer {key!r} was changed")
        if canary.traces(memory.inside.tobytes()) > known[key]:
            faults.append(f"the buffer {key!r} holds what the canary keeps")
    try:
        shot.after(shot.bound)
    except AssertionError as error:
        faults.append(f"its own memory is not as promised: {str(error)[:300]}")
    return faults


def _judged(promise: Promise, outcome: KernelOutcome) -> list[str]:
    trap = outcome.trap
    match promise:
        case Refused():
            return [f"it was not refused: {outcome}"]
        case OutOfFuel():
            return [] if outcome.out_of_fuel else [f"it did not run out of fuel: {outcome}"]
        case Ends():
            return []
        case Completes():
            return [] if trap is None and not outcome.out_of_fuel else [f"it did not complete: {outcome}"]
        case Traps(kind, cta, thread):
            right = trap is not None and trap.kind == kind and cta in (None, trap.cta) and thread in (None, trap.thread)
            return [] if right and not outcome.out_of_fuel else [f"promised was {promise}, it ended as {outcome}"]
