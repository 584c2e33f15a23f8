"""Many threads on one word. Results that depend on the order of arrival are compared by values that do not."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, f32, integers
from tests.golden.cuda.cases.reductions import halved


@case("atomics/integer_all", grid=3, block=128)
def integer_all(rng: Rng) -> Given:
    n, x = 365, integers(rng, np.int32, 365)
    u = x.view(np.uint32)
    start, ustart = np.array([5, 5, 2**31 - 1, -(2**31), -1, 0, 9], np.int32), np.array([2**32 - 1, 0, 2, 4, 1], np.uint32)
    total = int(x.astype(np.int64).sum())

    def wrap(v: int) -> int:
        return (v + 2**31) % 2**32 - 2**31

    signed = [
        wrap(5 + total),
        wrap(5 - total),
        x.min(),
        x.max(),
        np.bitwise_and.reduce(x | 0x00FF0FF0),
        np.bitwise_or.reduce(x & 0x0FF00F0F),
        9 ^ np.bitwise_xor.reduce(x),
    ]
    unsigned = [u.min(), u.max(), (2 + n) % 7, (4 - n) % 11, 77]
    return Given((x, start, ustart, np.int32(n)), {1: np.array(signed, np.int32), 2: np.array(unsigned, np.uint32)})


@case("atomics/integer_64", grid=3, block=96)
def integer_64(rng: Rng) -> Given:
    x = integers(rng, np.int64, 280)
    u = x.view(np.uint64)
    answer = np.array([u.sum(), u.max(), np.bitwise_xor.reduce(u)], np.uint64)
    return Given((x, np.array([2**63 - 1]), np.zeros(3, np.uint64), np.int32(280)), {1: x.min(keepdims=True), 2: answer})


@case("atomics/float_max_cas", grid=3, block=128, racy=True)
def float_max_cas(rng: Rng) -> Given:
    x = f32(rng, 350)
    return Given((x, np.full(7, -np.inf, np.float32), np.int32(7), np.int32(350)), {1: x.reshape(50, 7).max(0)})


@case("atomics/double_add_cas", grid=2, block=64, racy=True)
def double_add_cas(rng: Rng) -> Given:
    x = rng.integers(-(10**9), 10**9, 120).astype(np.float64)
    return Given((x, np.zeros(2), np.int32(120)), {1: np.full(2, x.sum())})


@case("atomics/tickets", grid=4, block=64)
def tickets(rng: Rng) -> Given:
    n = 230
    numbers = np.arange(n, dtype=np.uint32)
    args = (np.zeros(1, np.uint32), np.zeros(n, np.uint32), np.zeros(n, np.uint32), np.int32(n))
    return Given(args, {0: np.array([n], np.uint32), 1: numbers * numbers, 2: numbers}, {2: np.sort})


def _links(links: Array, stacks: int) -> Array:
    """The ends of the stacks, then for every other link the number of stacks, when it leads to a node of its own stack and alone does."""
    nodes = np.arange(len(links))
    inner = links >= 0
    alone = np.bincount(links[inner], minlength=len(links))[links[inner]] == 1
    own = links[inner] % stacks == nodes[inner] % stacks
    return np.concatenate([links[~inner], np.where(alone & own, stacks, 0)]).astype(np.int32)


@case("atomics/lock_free_stack", grid=2, block=96, racy=True)
def lock_free_stack(rng: Rng) -> Given:
    n, stacks = 180, 5
    args = (np.full(stacks, -1, np.int32), np.full(n, -7, np.int32), np.zeros(1, np.int32), np.int32(stacks), np.int32(n))
    # Every stack's top is one of its own nodes; every node but the tops is the next one of exactly one node of its stack.
    last_of_each, every = np.arange(stacks, dtype=np.int32), np.full(n - stacks, stacks, np.int32)
    expect = {0: last_of_each, 1: np.concatenate([np.full(stacks, -1, np.int32), every])}
    return Given(args, expect, {0: lambda heads: heads % stacks, 1: lambda links: _links(links, stacks)})


@case("atomics/spin_lock", grid=3, block=64, racy=True)
def spin_lock(rng: Rng) -> Given:
    n, buckets = 170, 6
    i = np.arange(n)
    sums = np.bincount(i * 7 % buckets, weights=i, minlength=buckets).astype(np.int32)
    args = (np.zeros(buckets, np.int32), np.zeros((buckets, 2), np.int32), np.int32(buckets), np.int32(n))
    return Given(args, {1: np.stack([sums, sums], 1)})


@case("atomics/last_block", grid=6, block=128)
def last_block(rng: Rng) -> Given:
    x = f32(rng, 700)
    partial = halved(np.concatenate([x, np.zeros(68, np.float32)]).reshape(6, 128))
    total = np.float32(0)
    for p in partial:
        total = total + p
    args = (x, np.zeros(6, np.float32), np.zeros(1, np.float32), np.int32(700))
    return Given(args, {1: partial, 2: np.array([total]), "finished": np.zeros(1, np.uint32)})


@case("atomics/hash_table", grid=2, block=128, racy=True)
def hash_table(rng: Rng) -> Given:
    keys = integers(rng, np.uint32, 40, low=1)[rng.integers(0, 40, 250)]
    names, counts = np.unique(keys, return_counts=True)
    slots, tally = np.zeros(64, np.uint32), np.zeros(64, np.int32)
    slots[: len(names)], tally[: len(names)] = names, counts
    args = (keys, np.zeros(64, np.uint32), np.zeros(64, np.int32), np.int32(64), np.int32(250))
    return Given(args, {1: np.sort(slots), 2: np.sort(tally)}, {1: np.sort, 2: np.sort})
