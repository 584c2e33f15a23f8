"""Walks over graphs and products with sparse matrices, by compressed rows."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, f32, f64
from tests.golden.cuda.cases.reductions import halved


def random_graph(rng: Rng, n: int, edges: int) -> Array:
    """Adjacency matrix of an undirected graph without loops."""
    a = np.zeros((n, n), bool)
    i, j = rng.integers(0, n, edges), rng.integers(0, n, edges)
    a[i, j] = a[j, i] = True
    np.fill_diagonal(a, False)
    return a


def compressed(a: Array) -> tuple[Array, Array]:
    """Row starts and columns of the nonzero places."""
    return np.concatenate([[0], np.cumsum((a != 0).sum(1))]).astype(np.int32), np.nonzero(a)[1].astype(np.int32)


def levels(a: Array, source: int) -> Array:
    level = np.full(len(a), -1, np.int32)
    level[source], now = 0, 0
    while (level == now).any():
        reached = a[level == now].any(0) & (level < 0)
        now += 1
        level[reached] = now
    return level


@case("graphs/bfs_step", grid=3, block=64)
def bfs_step(rng: Rng) -> Given:
    a = random_graph(rng, 150, 200)
    final = levels(a, 3)
    before, after = np.where(final <= 2, final, -1).astype(np.int32), np.where(final <= 3, final, -1).astype(np.int32)
    row, column = compressed(a)
    args = (row, column, before, np.int32(2), np.zeros(1, np.int32), np.int32(150))
    return Given(args, {2: after, 4: np.array([(final == 3).sum()], np.int32)})


@case("graphs/bfs_block", grid=1, block=64, racy=True)
def bfs_block(rng: Rng) -> Given:
    a = random_graph(rng, 150, 170)
    row, column = compressed(a)
    return Given((row, column, np.zeros(150, np.int32), np.int32(7), np.int32(150)), {2: levels(a, 7)})


@case("graphs/spmv_scalar", grid=2, block=64)
def spmv_scalar(rng: Rng) -> Given:
    a = np.where(rng.random((100, 70)) < 0.1, f32(rng, 100, 70), np.float32(0))
    a[11] = 0
    x, y = f32(rng, 70), np.zeros(100, np.float32)
    row, column = compressed(a)
    for r in range(100):
        for c in column[row[r] : row[r + 1]]:
            y[r] = y[r] + a[r, c] * x[c]
    return Given((row, column, a[a != 0], x, np.zeros(100, np.float32), np.int32(100)), {4: y})


@case("graphs/spmv_warp", grid=8, block=(32, 4))
def spmv_warp(rng: Rng) -> Given:
    a = np.where(rng.random((30, 150)) < 0.4, f64(rng, 30, 150), 0.0)
    x = f64(rng, 150)
    row, column = compressed(a)
    answer = np.zeros(30)
    for r in range(30):
        c = column[row[r] : row[r + 1]]
        products = np.zeros(-(-len(c) // 32) * 32)
        products[: len(c)] = a[r, c] * x[c]
        lanes = np.zeros(32)
        for part in products.reshape(-1, 32):
            lanes = lanes + part
        answer[r] = halved(lanes)
    return Given((row, column, a[a != 0], x, np.zeros(30), np.int32(30)), {4: answer})


@case("graphs/pointer_jumping", grid=1, block=512)
def pointer_jumping(rng: Rng) -> Given:
    n = 400
    parent = np.array([v if v < 5 else int(rng.integers(max(0, v - 9), v)) for v in range(n)], np.int32)
    root, depth = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
    for v in range(5, n):
        root[v], depth[v] = root[parent[v]], depth[parent[v]] + 1
    return Given((parent, np.zeros(n, np.int32), np.zeros(n, np.int32), np.int32(n)), {1: root, 2: depth})


@case("graphs/components", grid=1, block=128, racy=True)
def components(rng: Rng) -> Given:
    n, a = 200, random_graph(rng, 200, 130)
    label = np.full(n, -1, np.int32)
    for v in range(n):
        if label[v] < 0:
            label[levels(a, v) >= 0] = v
    edges = np.argwhere(np.triu(a)).astype(np.int32)
    return Given((edges, np.int32(len(edges)), np.zeros(n, np.int32), np.int32(n)), {2: label})


@case("graphs/pagerank", grid=2, block=64)
def pagerank(rng: Rng) -> Given:
    n, f = 100, np.float32
    a = rng.random((n, n)) < 0.05  # a[v, u]: u links to v
    links = a.sum(0).astype(np.int32)
    rank = rng.random(n).astype(f)
    lost = rank[links == 0].sum(dtype=f)
    row, source = compressed(a)
    answer = np.zeros(n, f)
    for v in range(n):
        total = f(0)
        for u in source[row[v] : row[v + 1]]:
            total = total + rank[u] / f(links[u])
        answer[v] = f(0.15) / f(n) + f(0.85) * (total + lost / f(n))
    return Given((row, source, links, rank, np.zeros(n, f), lost, np.int32(n)), {4: answer})


@case("graphs/triangles", grid=4, block=96)
def triangles(rng: Rng) -> Given:
    a = random_graph(rng, 60, 350)
    row, column = compressed(a)
    edges = np.argwhere(np.triu(a)).astype(np.int32)
    common = (a.astype(int) @ a.astype(int))[edges[:, 0], edges[:, 1]]
    args = (row, column, edges, np.zeros(1, np.uint64), np.zeros(len(edges), np.int32), np.int32(len(edges)))
    assert len(edges) <= 4 * 96
    return Given(args, {3: np.array([common.sum()], np.uint64), 4: common.astype(np.int32)})
