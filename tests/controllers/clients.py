"""Clients of several controllers: each submits one task, and tries the next controller with the same id until one answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import httpx

__all__ = ["bodies", "submit_all"]

_TRY_AGAIN_S = 0.05
_GIVE_UP_S = 120.0


def bodies(draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Tasks of all sorts, among them some that fit nowhere once others are there."""
    return [_body(draw, number) for number in range(count)]


def _body(draw: random.Random, number: int) -> dict[str, Any]:
    exclusive = draw.random() < 0.03
    return {
        "id": f"task-{number:04}",
        "required_vram_mb": draw.choice((256, 512, 1024, 2048, 3072, 6144)),
        "priority": draw.randrange(5),
        "gpu_count": draw.choice((1, 1, 1, 1, 2)),
        "gpu_mode": "Exclusive" if exclusive else "Shared",
        "groups": ["special"] if draw.random() < 0.2 else [],
        "noswap": draw.random() < 0.2,
        "queue": not exclusive and draw.random() < 0.7,  # one that wants an empty device may wait for ever
        "tenant": draw.choice(("acme", "umbrella", "default")),
    }


async def submit_all(urls: Sequence[str], tasks: Sequence[dict[str, Any]], on_answer: Callable[[int], None]) -> dict[str, str | None]:
    """All at once; the last answer to each client: the node, None when the task waits or nothing fits. ``on_answer(count)`` is called
    after each."""
    told: dict[str, str | None] = {}
    limits = httpx.Limits(max_connections=len(tasks) * len(urls), max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=30.0) as client:

        async def one(number: int, body: dict[str, Any]) -> None:
            async with asyncio.timeout(_GIVE_UP_S):
                attempt = number
                while True:
                    answer = await _once(client, urls[attempt % len(urls)], body)
                    if answer is not None:
                        told[body["id"]] = answer.json().get("node")
                        on_answer(len(told))
                        return
                    attempt += 1
                    await asyncio.sleep(_TRY_AGAIN_S)

        await asyncio.gather(*(one(number, body) for number, body in enumerate(tasks)))
    return told


async def _once(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> httpx.Response | None:
    """The answer, None when there is none that says what became of the task."""
    try:
        answer = await client.post(f"{url}/api/v1/tasks", json=body)
    except httpx.TransportError:
        return None
    if answer.status_code in (502, 503, 504):
        return None
    if answer.status_code not in (200, 201, 202, 409):
        raise AssertionError(f"{body['id']}: {answer.status_code} {answer.text}")
    if answer.status_code == 409 and answer.json()["type"].rpartition(":")[2] not in ("no-placement", "nodes-lost"):
        raise AssertionError(f"{body['id']}: {answer.text}")
    return answer
