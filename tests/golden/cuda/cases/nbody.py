"""Each body attracts each other one."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, f32


@case("nbody/all_pairs", grid=2, block=64, rtol=1e-4, atol=1e-4)
def all_pairs(rng: Rng) -> Given:
    bodies = f32(rng, 100, 4)
    place, mass = bodies[:, :3].astype(np.float64), bodies[:, 3].astype(np.float64)
    apart = place[None] - place[:, None]
    strength = mass / (np.square(apart).sum(-1) + np.float64(np.float32(0.05))) ** 1.5
    answer = (apart * strength[..., None]).sum(1).astype(np.float32)
    return Given((bodies, np.zeros((100, 3), np.float32), np.int32(100), np.float32(0.05)), {1: answer})


@case("nbody/integrate", grid=2, block=48)
def integrate(rng: Rng) -> Given:
    n, dt = 90, np.float32(0.01)
    bodies = f32(rng, n, 5)
    x, y, vx, vy, mass = bodies.T
    fx, fy = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for j in range(n):
        dx, dy = x[j] - x, y[j] - y
        r2 = dx * dx + dy * dy + np.float32(0.01)
        f = np.where(np.arange(n) == j, np.float32(0), mass[j] / (r2 * np.sqrt(r2)))
        fx, fy = fx + f * dx, fy + f * dy
    vx, vy = vx + dt * fx, vy + dt * fy
    answer = np.stack([x + dt * vx, y + dt * vy, vx, vy, mass], 1)
    return Given((bodies, np.zeros_like(bodies), np.int32(n), dt), {1: answer})


@case("nbody/lennard_jones", grid=2, block=32)
def lennard_jones(rng: Rng) -> Given:
    n, box, cutoff = 60, 4.0, 1.9
    p = rng.random((n, 3)) * 12 - 4
    answer = np.zeros(n)
    for j in range(n):
        d = p - p[j]
        d = d - box * np.rint(d / box)
        r2 = d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1] + d[:, 2] * d[:, 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            s = 1.0 / r2
            s3 = s * s * s
            term = 2.0 * (s3 * s3 - s3)
        answer = answer + np.where((np.arange(n) != j) & (r2 <= cutoff * cutoff), term, 0.0)
    return Given((p, np.zeros(n), np.int32(n), np.float64(box), np.float64(cutoff)), {1: answer})
