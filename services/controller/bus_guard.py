"""NATS auth callout: which clients may connect, with which permissions; it also ends connections whose rights were revoked.

The controllers answer as one queue group. Rights are a pure function of the log (``of_key`` of the principal's identity), and the bus
says when a connection began; so any controller, also one started later, finds the connections whose rights have changed and ends them: at
once on an event about access, and every few seconds. Then it also has the bus read its files again, if its own were replaced.

Attestation of nodes: a command of the operator's decides, beside the key, whether a node may connect to the bus. It reads one JSON object
(``node``, ``key``, ``address``) from its standard input, and accepts with exit code 0; else the first line of its output is the reason.
What it compares is its own: a list of machines, or the state of a verifier of TPM quotes.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import shlex
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from bus_schemas.access import WHO_ALL, WHO_CHANGED, Principal, WhoIs
from bus_schemas.events import Event, KeyIssued, KeyRevoked, TenantChanged, UserChanged
from bus_schemas.limits import MALFORMED
from services.controller.consumer_proxy import ConsumerProxy
from services.controller.log_projection import LogProjection
from services.kit import nats_jwt
from services.kit.access import AccessView, Identity
from services.kit.access.access import Access
from services.kit.access.errors import AccessError, Forbidden, Unauthenticated
from services.kit.access.tokens import TOKEN_PREFIX, is_key_id
from services.kit.bus import Bus, connect
from services.kit.bus_permissions import Permissions, of_key
from services.kit.credentials import Credentials
from services.kit.errors import BusRefused, BusUnavailable, QuotaReached, SettingError, reached
from services.kit.log import get_logger
from services.kit.streams import batch_stream_config
from services.kit.tls import CERT_VARIABLE
from services.kit.variables import integer
from wooly.shared.files import Reread, revision_of

__all__ = ["GUARD_VARIABLE", "BusGuard", "Attestation"]

ATTESTATION_VARIABLE: Final = "WOOLY_NODE_ATTESTATION"
_ANSWER_S: Final = 5.0
"""The bus ends a connection that is not admitted after ten seconds."""
_AT_ONCE: Final = 4
_REASON_CHARS_MAX: Final = 200
_OUTPUT_BYTES_MAX: Final = 4096


class Attestation:
    """``command``: as a shell would split it. Raises SettingError when it is no command."""

    def __init__(self, command: str) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise SettingError(f"{ATTESTATION_VARIABLE}={command}: {error}") from None
        if not self._command:
            raise SettingError(f"{ATTESTATION_VARIABLE} names no command")
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def check(self, node: str, key: str, address: str) -> None:
        """Raises Forbidden with the reason when the command refuses the node, cannot be run, or does not answer."""
        asked = json.dumps({"node": node, "key": key, "address": address}).encode()
        async with self._free:
            try:
                code, said = await self._run(asked)
            except TimeoutError:
                raise Forbidden(f"{ATTESTATION_VARIABLE}: no answer about node {node} within {_ANSWER_S:g} s") from None
            except OSError as error:
                raise Forbidden(f"{ATTESTATION_VARIABLE}: {error}") from None
        if code:
            reason = said.decode(errors="replace").strip().partition("\n")[0][:_REASON_CHARS_MAX]
            raise Forbidden(f"node {node} is not attested: {reason or f'exit code {code}'}")

    async def _run(self, asked: bytes) -> tuple[int, bytes]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(_ANSWER_S):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read
                    process.stdin.write(asked)
                    await process.stdin.drain()
                process.stdin.close()
                said = await process.stdout.read(_OUTPUT_BYTES_MAX)
                return await process.wait(), said
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


GUARD_VARIABLE: Final = "WOOLY_GUARD_DIR"
_CALLOUT: Final = "$SYS.REQ.USER.AUTH"
_ACCOUNT: Final = "WOOLY"
_QUEUE: Final = "wooly-controllers"
_LOOK_S: Final = 5.0
_PAGE: Final = 1024
_CONNECTIONS_S: Final = 2.0
_CLOCKS_NS: Final = 2 * 10**9
"""Clocks of machines differ by less. A connection made just after a change may be ended needlessly, once; it reconnects."""
_SUBSCRIPTIONS_MAX: Final = 1024
_ABOUT_ACCESS: Final = (KeyIssued, KeyRevoked, UserChanged, TenantChanged)


class BusGuard:
    """``async with BusGuard.from_environment(...)`` answers the callout. ``bus``: the controller's own connection."""

    def __init__(self, url: str, folder: Path, bus: Bus, access: Access, projection: LogProjection) -> None:
        self._url = url
        self._bus = bus
        self._access = access
        self._projection = projection
        self._look = asyncio.Event()
        self._nodes: set[str] = set()
        self.connections_max = integer(os.environ, "WOOLY_KEY_CONNECTIONS_MAX")
        attestation = os.environ.get(ATTESTATION_VARIABLE, "").strip()
        self._attestation = Attestation(attestation) if attestation else None
        #: by key: those that the bus listed last, and those admitted since
        self.connections: Counter[str] = Counter()
        self._consumer_proxy = ConsumerProxy(bus, projection)
        users, issuers = folder / "guard.nk", folder / "issuer.nk"
        self._watched: list[str | Path] = [os.environ.get(CERT_VARIABLE, ""), users]
        self._revision = revision_of(self._watched)
        try:
            self._seed = Reread([users], lambda: nats_jwt.read_seeds(users)[0])
            self._issuers = Reread([issuers], lambda: nats_jwt.read_keys(issuers))
        except (OSError, ValueError) as error:
            raise SettingError(f"{GUARD_VARIABLE}={folder}: {error}; it holds guard.nk and issuer.nk of the bus") from None

    @classmethod
    def from_environment(cls, url: str, bus: Bus, access: Access, projection: LogProjection) -> Self | contextlib.nullcontext[None]:
        """The guard, or nothing where the bus needs no authentication. Raises SettingError."""
        folder = os.environ.get(GUARD_VARIABLE, "").strip()
        return cls(url, Path(folder), bus, access, projection) if folder else contextlib.nullcontext()

    async def __aenter__(self) -> Self:
        shown = replace(Credentials.from_environment(os.environ, self._url), nkey_seed=self._seed, seal=None)
        self._system = await connect(self._url, name="guard", credentials=shown)
        self._projection.on_live_event(self._heard)
        await self._bus.serve(WHO_ALL, self._who, queue=_QUEUE)
        await self._consumer_proxy.serve(_QUEUE)
        await self._bus.nc.flush()
        await self._system.serve(_CALLOUT, self._asked, queue=_QUEUE)
        await self._system.nc.flush()
        self._task = asyncio.create_task(self._watch(), name="bus guard")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._system.close()

    # -- admission ---------------------------------------------------------------------------------------------------------------------

    async def _asked(self, subject: str, data: bytes) -> bytes | None:
        """The bus asks about a connection."""
        try:
            claims = nats_jwt.read_claims(data)
            asked, issuer = claims["nats"], self._issuers().get(claims["sub"])
            user, server = asked["user_nkey"], asked["server_id"]["id"]
            opts, host = asked.get("connect_opts", {}), asked.get("client_info", {}).get("host", "")
        except (ValueError, KeyError, TypeError) as error:
            get_logger().error("the bus asked something unreadable about a connection", error=str(error))
            return None
        if issuer is None:
            get_logger().error("a server of the bus asks for an issuer that issuer.nk does not hold; restart that server", server=server)
            return None
        now_s = int(time.time())
        answer: dict[str, Any] = {"type": "authorization_response", "version": 2}
        try:
            granted = await self._admit(user, str(opts.get("user", "")), str(opts.get("pass", "")), str(host), now_s)
            answer["jwt"] = nats_jwt.sign_claims(issuer, granted, now_s)
        except (AccessError, QuotaReached, BusUnavailable, BusRefused, ValueError) as error:
            answer["error"] = str(error)
            get_logger().warning("not let onto the bus", key=str(opts.get("user", ""))[:64], source=host, why=str(error))
        return nats_jwt.sign_claims(issuer, {"sub": user, "aud": server, "nats": answer}, now_s).encode()

    async def _admit(self, user: str, key: str, secret: str, source: str, now_s: int) -> dict[str, Any]:
        """The permissions of a key as claims for the bus. Raises AccessError, QuotaReached, BusUnavailable, BusRefused."""
        who, until_s = await self._identity(key, secret, source)
        await self._count_connection(who.key)
        granted = of_key(who)
        if granted is None:
            raise AccessError(f"a key with role {who.role} has no business on the bus")
        if who.node and self._attestation is not None:
            await self._attestation.check(who.node, who.key, source)
        if who.node and who.node not in self._nodes:
            await self._bus.ensure_stream(batch_stream_config(who.node))  # nodes may not make streams
            self._nodes.add(who.node)
        claims: dict[str, Any] = {"sub": user, "aud": _ACCOUNT, "name": who.key, "nats": _user(granted)}
        known = self._projection.fold(AccessView).keys.get(who.key)
        ends_s = [until_s, 0 if known is None else known.fact.expires_ns // 10**9]
        if any(ends_s):
            claims["exp"] = max(now_s + 1, min(filter(None, ends_s)))
        return claims

    async def _identity(self, key: str, secret: str, source: str) -> tuple[Identity, int]:
        """The identity of a key by its secret, or by one of its tokens, and when that expires (Unix seconds, 0: with the key). Raises
        AccessError, QuotaReached."""
        if not secret.startswith(TOKEN_PREFIX):
            return await self._access.identity_of_key(key, secret, source), 0
        found = self._access.read(secret, "access")
        if found is None or found[0].key != key:
            raise Unauthenticated("the token is not valid")
        return found[1], found[0].expires_s

    async def _count_connection(self, key: str) -> None:
        """Count one more connection of the key. The bus is asked only if the key seems to have as many as it may. Raises QuotaReached,
        BusUnavailable."""
        if self.connections[key] >= self.connections_max:
            question = {"auth": True, "user": key, "limit": self.connections_max}
            self.connections[key] = sum([len(await self._ask_connections(server, question)) for server in await self._servers()])
        refusal = reached("connections", self.connections[key], f"key {key}", limit=self.connections_max)
        if refusal is not None:
            raise refusal
        self.connections[key] += 1

    async def _ask_connections(self, server: str, question: dict[str, Any]) -> list[dict[str, Any]]:
        """Connections to a server of the bus. Raises BusUnavailable, ValueError, KeyError."""
        data = json.dumps({"acc": _ACCOUNT, **question}).encode()
        answer = json.loads(await self._system.request(f"$SYS.REQ.SERVER.{server}.CONNZ", data, _CONNECTIONS_S))
        return answer["data"]["connections"] or []

    async def _servers(self) -> list[str]:
        """The ids of the servers of the bus; without those that do not answer. Raises BusUnavailable when none does."""
        found: dict[str, int] = {}
        changed = asyncio.Event()

        async def on_answer(subject: str, data: bytes) -> None:
            answer = json.loads(data)
            found[answer["server"]["id"]] = answer["statsz"].get("active_servers", 1)
            changed.set()

        inbox = self._system.nc.new_inbox()
        subscription = await self._system.subscribe(inbox, on_answer)
        try:
            await self._system.nc.publish("$SYS.REQ.SERVER.PING.STATSZ", b"", reply=inbox)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CONNECTIONS_S):
                    while not found or len(found) < max(found.values()):
                        changed.clear()
                        await changed.wait()
        finally:
            await subscription.unsubscribe()
        if not found:
            raise BusUnavailable("no server of the bus says who is connected to it")
        return list(found)

    # -- revocation --------------------------------------------------------------------------------------------------------------------

    def _heard(self, position: int, event: Event) -> None:
        if isinstance(event, _ABOUT_ACCESS):
            self._look.set()

    async def _watch(self) -> None:
        while True:
            heard = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):  # wait_for forgets a cancellation that meets a wake-up (Python 3.11)
                    heard = await self._look.wait()
            self._look.clear()
            if not self._projection.connected or self._projection.failure is not None:
                continue
            try:
                if heard:
                    await self._bus.publish(WHO_CHANGED, b"")
                await self._reload()
                await self._end_connections()
                await self._consumer_proxy.delete_unauthorised()
            except (BusUnavailable, BusRefused, ValueError, KeyError) as error:
                get_logger().warning("connections to the bus cannot be looked through", error=str(error))

    async def _reload(self) -> None:
        """When this controller's certificate or user was replaced, the bus's files were before it (``services.kit.rotation``): have its
        servers read them again. They then end the connections of API keys, which return at once."""
        revision = revision_of(self._watched)
        if revision == self._revision:
            return
        for server in await self._servers():
            reloaded = json.loads(await self._system.request(f"$SYS.REQ.SERVER.{server}.RELOAD", b"", _CONNECTIONS_S))
            if "error" in reloaded:
                why = "restart it, if the issuer of its callout was replaced"
                get_logger().error(f"a server of the bus refuses its configuration; {why}", server=server, problem=str(reloaded["error"]))
        self._revision = revision

    async def _end_connections(self) -> None:
        """End every connection whose key is no longer valid, or has changed since the connection began."""
        connections: Counter[str] = Counter()
        for server in await self._servers():
            connections += await self._end_connections_to(server)
        self.connections = connections

    async def _end_connections_to(self, server: str) -> Counter[str]:
        """The same for one server of the bus; its connections by key."""
        view, now_ns, offset = self._projection.fold(AccessView), time.time_ns(), 0
        connections: Counter[str] = Counter()
        while True:
            found = await self._ask_connections(server, {"auth": True, "limit": _PAGE, "offset": offset})
            for connection in found:
                key = connection.get("authorized_user", "")
                connections[key] += is_key_id(key)
                if is_key_id(key) and (why := _why_end(view, key, connection["start"], now_ns)):
                    get_logger().info("ending a connection to the bus", key=key, why=why)
                    cid = json.dumps({"cid": connection["cid"]}).encode()
                    await self._system.request(f"$SYS.REQ.SERVER.{server}.KICK", cid, _CONNECTIONS_S)  # without a reply it does nothing
            offset += len(found)
            if len(found) < _PAGE:
                return connections

    # -- for nodes ---------------------------------------------------------------------------------------------------------------------

    async def _who(self, subject: str, data: bytes) -> bytes | None:
        """Resolve a principal for a node. No answer while the log is not followed: the node asks again, or another controller answers."""
        if not self._projection.connected or self._projection.failure is not None:
            return None
        try:
            asked = msgspec.msgpack.decode(data, type=WhoIs)
        except MALFORMED:
            return None
        who = self._projection.fold(AccessView).principal(asked.principal, time.time_ns())
        if who is None or not who.may("bus.client", who.tenant or None):
            return msgspec.msgpack.encode(Principal(asked.principal, False))
        node = subject.rsplit(".", 1)[1]
        task_good = not asked.task or self._task_good(asked.task, who.tenant, node)
        if not task_good:  # it may have been placed a moment ago, by another controller
            task_good = await self._projection.caught_up() and self._task_good(asked.task, who.tenant, node)
        return msgspec.msgpack.encode(Principal(asked.principal, True, who.tenant, who.role, who.name, task_good))

    def _task_good(self, name: str, tenant: str, node: str) -> bool:
        """Whether the task may have sessions on the node: it was placed there, and belongs to the tenant (empty: any)."""
        task = self._projection.view.tasks.get(name)
        return task is not None and node in task.hosts and tenant in ("", task.submitted.tenant)


def _user(granted: Permissions) -> dict[str, Any]:
    """The claims about a user that NATS understands. Clients authenticated by API key are never granted ``replies``."""
    return {
        "type": "user",
        "version": 2,
        "pub": {"allow": list(granted.publish), "deny": list(granted.forbidden)},
        "sub": {"allow": list(granted.subscribe)},
        "subs": _SUBSCRIPTIONS_MAX,
        "data": -1,
        "payload": -1,
    }


def _why_end(view: AccessView, key: str, began: str, now_ns: int) -> str:
    """Why a connection of ``key`` that began at ``began`` (RFC 3339) is to be ended; empty: it may stay."""
    why = view.why_not(key, now_ns)
    if why:
        return why
    fact = view.keys[key].fact
    owners = [view.users[fact.user].fact.at_ns] if fact.user else []
    owners += [view.tenants[fact.tenant].fact.at_ns] if fact.tenant in view.tenants else []
    began_ns = int(datetime.datetime.fromisoformat(began).timestamp() * 1e9)
    return "changed" if began_ns < max(owners, default=0) + _CLOCKS_NS else ""
