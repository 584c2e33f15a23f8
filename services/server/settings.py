"""Settings of a node: from the environment, checked once at start; and the trust domains of its tenants (WOOLY_DEDUP_TRUST), which may
share equal content.

A domain is a name. Sessions of one domain that opted in share one copy of equal weights, and may learn from how fast an upload went that
another session of their domain holds the same. So a tenant's domain is its own unless the operator declares tenants that trust each other:
``a,b;c,d`` puts a and b in one domain, c and d in another.
"""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from bus_schemas.limits import DOMAINS_MAX, GROUPS_MAX, NAME_CHARS_MAX
from bus_schemas.quotas import QUOTAS
from bus_schemas.registration import trusting
from bus_schemas.subjects import node_id as derived_id
from bus_schemas.subjects import token
from scheduler.dispatch import POLICY_NAMES, STRICT, DispatchConfig
from services.kit.at_rest import AT_REST_VARIABLE, read_key_wrap
from services.kit.errors import SettingError
from services.kit.tls import CERT_VARIABLE, KEY_VARIABLE, plain_allowed, server_context
from services.kit.variables import integer, optional_integer
from wooly_server.cgroup import Limits
from wooly_server.sandbox import EXECUTOR_UID

__all__ = ["EXECUTOR_VARIABLE", "ExecutorSettings", "MemorySettings", "Settings", "Trust", "read_trust"]

EXECUTOR_VARIABLE: Final = "WOOLY_EXECUTOR"
_EXECUTOR_USER: Final = "wooly-exec"
"""Used where there is one, if no other is configured."""

_SWAP_HOST_MB: Final = 8192
_MS: Final = 10**6


class MemorySettings(msgspec.Struct, frozen=True):
    """What a device does when its memory is short. ``reserve_bytes`` None: 2 GiB, or an eighth of a device of less than 16 GiB.
    ``swap_dir``: where swapped memory goes that finds no room in the host's. ``overcommit_percent`` None: what the controller says."""

    reserve_bytes: int | None = None
    swap_idle_ms: int = 300_000
    swap_host_bytes: int = 8 << 30
    swap_disk_bytes: int = 64 << 30
    swap_dir: str = ""
    overcommit_percent: int | None = None


class ExecutorSettings(msgspec.Struct, frozen=True):
    """What the server hands to an executor. Paths of sockets are short: the kernel allows 107 bytes. ``staged_bytes``: of one tenant,
    chunks that came through the data port and are in no buffer yet. ``user``: numbers of the user and group that it becomes, None: it
    stays the service's."""

    gpu: int
    backend: str
    threads: int
    vram_bytes: int
    cache_dir: str
    socket: str
    data_socket: str
    data_host: str
    data_host_advertised: str
    data_port: int = 0
    orphan_s: float = 60.0
    fuel: int | None = None
    compile_ms: int | None = None
    model_cache_dir: str = ""
    model_cache_bytes: int = 0
    tenant_model_cache_bytes: int = 0
    at_rest_key_file: str = ""
    memory: MemorySettings = MemorySettings()
    staged_bytes: int = QUOTAS["staged_bytes"].limit
    tls_files: tuple[str, str] | None = None
    sandbox: bool = True
    user: tuple[int, int] | None = None
    limits: Limits = Limits()

    @property
    def model_cache_state(self) -> str:
        """How the model cache is kept on disk: ``encrypted`` or ``not encrypted``; empty: there is none."""
        if not self.model_cache_dir:
            return ""
        return "encrypted" if self.at_rest_key_file else "not encrypted"


@dataclass(frozen=True, slots=True)
class Settings:
    """One node. ``node_id`` is stable: UUIDv5 of the name unless NODE_ID says otherwise. ``keep_sessions``: a server that stops leaves
    them to the next, after it has waited ``stop_grace_s`` for their tasks to continue elsewhere. ``tenant_sessions_max``: open at a time,
    of one tenant, on all devices together; ``tenant_messages_a_second``: batches of one tenant."""

    nats_url: str
    node_name: str
    node_id: str
    node_address: str
    groups: tuple[str, ...]
    backend: str
    threads: int
    vram_bytes: int
    devices: int
    data_dir: Path
    cache_dir: Path
    data_host: str
    data_port: int
    lease_ms: int
    orphan_s: float
    fuel: int | None
    compile_ms: int
    model_cache_bytes: int
    trust: Trust
    memory: MemorySettings
    dispatch: DispatchConfig
    keep_sessions: bool = True
    stop_grace_s: float = 0.0
    unlinked_lease_ms: int = 30_000
    tenant_sessions_max: int = QUOTAS["sessions"].limit
    tenant_messages_a_second: int = QUOTAS["messages"].regained
    tenant_model_cache_bytes: int = 0
    authentication: bool = False
    tls_files: tuple[str, str] | None = None
    at_rest_key_file: str = ""
    sandbox: bool = True
    executor_user: tuple[int, int] | None = None
    executor_per_domain: bool = False
    limits: Limits = field(default_factory=Limits)

    @staticmethod
    def from_environment(env: Mapping[str, str]) -> Settings:
        """Raises SettingError that names the variable and what is allowed."""
        nats_url = env.get("CONTROLLER_NATS_URL") or env.get("WOOLY_NATS_URL") or "nats://127.0.0.1:4222"
        name = env.get("NODE_NAME") or os.uname().nodename
        node_id = env.get("NODE_ID") or derived_id(name)
        try:
            token(node_id)
        except ValueError as error:
            raise SettingError(f"NODE_ID: {error}") from None
        groups = tuple(part.strip() for part in env.get("NODE_GROUPS", "").split(",") if part.strip())
        if len(groups) > GROUPS_MAX or any(len(group) > NAME_CHARS_MAX for group in groups):
            raise SettingError(f"NODE_GROUPS: at most {GROUPS_MAX} groups, of at most {NAME_CHARS_MAX} characters each")
        address = env.get("NODE_ADDRESS") or "127.0.0.1"
        backend = env.get("WOOLY_BACKEND") or "host"
        per_domain = bool(integer(env, "WOOLY_EXECUTOR_PER_DOMAIN"))
        trust = read_trust(env.get(TRUST_VARIABLE, ""))
        if per_domain and max(len(trust.domains), *map(len, trust.domains), 0) > DOMAINS_MAX:
            limit = f"at most {DOMAINS_MAX} groups, of at most {DOMAINS_MAX} tenants each"
            raise SettingError(f"{TRUST_VARIABLE}: {limit}, with WOOLY_EXECUTOR_PER_DOMAIN=1")
        model_cache_mb = 0 if per_domain else integer(env, "WOOLY_MODEL_CACHE_MB")
        authentication = bool(env.get("WOOLY_API_KEY") or env.get("WOOLY_API_KEY_FILE"))
        data_dir = Path(env.get("WOOLY_DATA_DIR") or "~/.local/share/wooly/server").expanduser()
        return Settings(
            nats_url=nats_url,
            node_name=name,
            node_id=node_id,
            node_address=address,
            groups=groups,
            backend=backend,
            threads=integer(env, "WOOLY_DEVICE_THREADS", len(os.sched_getaffinity(0))),
            vram_bytes=integer(env, "WOOLY_DEVICE_VRAM_MB", 0 if backend == "cuda" else None) << 20,
            devices=integer(env, "WOOLY_DEVICES"),
            data_dir=data_dir,
            cache_dir=Path(env.get("WOOLY_CACHE_DIR") or "~/.cache/wooly/jit").expanduser(),
            data_host=env.get("WOOLY_DATA_HOST") or "127.0.0.1",
            data_port=integer(env, "WOOLY_DATA_PORT"),
            lease_ms=integer(env, "WOOLY_LEASE_MS"),
            unlinked_lease_ms=integer(env, "WOOLY_UNLINKED_LEASE_MS"),
            orphan_s=integer(env, "WOOLY_ORPHAN_MS") / 1000,
            fuel=optional_integer(env, "WOOLY_KERNEL_FUEL") or None,
            compile_ms=integer(env, "WOOLY_COMPILE_MS"),
            trust=trust,
            memory=_memory(env, data_dir),
            dispatch=_dispatch(env),
            keep_sessions=_on_stop(env) == "keep",
            stop_grace_s=integer(env, "WOOLY_STOP_GRACE_MS") / 1000,
            model_cache_bytes=model_cache_mb << 20,
            tenant_model_cache_bytes=integer(env, "WOOLY_TENANT_MODEL_CACHE_MB", model_cache_mb >> authentication) << 20,
            tenant_sessions_max=integer(env, "WOOLY_TENANT_SESSIONS_MAX"),
            tenant_messages_a_second=integer(env, "WOOLY_TENANT_MESSAGES_A_SECOND"),
            authentication=authentication,
            tls_files=_tls_files(env),
            at_rest_key_file=_at_rest_key_file(env),
            sandbox=bool(integer(env, "WOOLY_SANDBOX")),
            executor_user=_executor_user(env),
            executor_per_domain=per_domain,
            limits=Limits(
                integer(env, "WOOLY_EXECUTOR_MEMORY_MB") << 20,
                integer(env, "WOOLY_EXECUTOR_PROCESSES"),
                integer(env, "WOOLY_EXECUTOR_CPU_PERCENT"),
            ),
        )

    def executor(self, gpu: int, run_dir: Path, domain: str = "") -> ExecutorSettings:
        """The settings of the executor of device ``gpu``, which serves all trust domains (empty) or one: then no other one's reads what it
        writes."""
        own = f"domain-{hashlib.sha256(domain.encode()).hexdigest()[:16]}" if domain else ""
        everywhere = self.data_host in ("0.0.0.0", "::")
        return ExecutorSettings(
            gpu=gpu,
            backend=self.backend,
            threads=max(1, self.threads // self.devices),
            vram_bytes=self.vram_bytes,
            cache_dir=str(self.cache_dir / ("" if self.executor_user is None else f"user-{self.executor_user[0]}") / own),
            socket=str(run_dir / f"x{gpu}"),
            data_socket=str(run_dir / f"d{gpu}"),
            data_host=self.data_host,
            data_host_advertised=self.node_address if everywhere else self.data_host,
            data_port=self.data_port + gpu if self.data_port else 0,
            orphan_s=self.orphan_s,
            fuel=self.fuel,
            compile_ms=self.compile_ms,
            model_cache_dir=str(self.data_dir / "model-cache") if self.model_cache_bytes else "",
            model_cache_bytes=self.model_cache_bytes,
            tenant_model_cache_bytes=self.tenant_model_cache_bytes,
            at_rest_key_file=self.at_rest_key_file,
            memory=msgspec.structs.replace(self.memory, swap_dir=str(Path(self.memory.swap_dir) / f"gpu{gpu}" / own)),
            staged_bytes=min(QUOTAS["staged_bytes"].limit, (_machine_mb() // 4) << 20),
            tls_files=self.tls_files,
            sandbox=self.sandbox,
            user=self.executor_user,
            limits=self.limits,
        )

    def run_dir(self) -> Path:
        """The private folder of this node's sockets: short, and the same for every start with this data folder."""
        digest = hashlib.sha256(f"{self.data_dir.resolve()}\0{self.node_id}".encode()).hexdigest()[:16]
        base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
        return Path(base) / f"wooly-{os.getuid()}-{digest}"


def _executor_user(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Numbers of the executor's user and group; None: the service's own, because that is not root or is what is configured. Raises
    SettingError."""
    text = env.get("WOOLY_EXECUTOR_USER", "").strip()
    if os.geteuid() != 0 or not integer(env, "WOOLY_SANDBOX"):
        return None
    if text.isascii() and text.isdigit():
        return (int(text), int(text)) if int(text) else None
    try:
        user = pwd.getpwnam(text or _EXECUTOR_USER)
    except KeyError:
        if not text:
            return EXECUTOR_UID, EXECUTOR_UID
        raise SettingError(f"WOOLY_EXECUTOR_USER={text}: there is no such user on this machine; name one, or a number") from None
    return (user.pw_uid, user.pw_gid) if user.pw_uid else None


def _tls_files(env: Mapping[str, str]) -> tuple[str, str] | None:
    """Certificate and key of the data port. Raises SettingError when there are none and it listens beyond loopback."""
    if server_context(env) is not None:
        return env[CERT_VARIABLE].strip(), env[KEY_VARIABLE].strip()
    plain_allowed(env, env.get("WOOLY_DATA_HOST") or "127.0.0.1", "the data port", f"set {CERT_VARIABLE} and {KEY_VARIABLE}")
    return None


def _on_stop(env: Mapping[str, str]) -> str:
    """What a server that stops does with open sessions. Raises SettingError."""
    choice = env.get("WOOLY_ON_STOP") or "keep"
    if choice not in ("keep", "end"):
        raise SettingError(f"WOOLY_ON_STOP={choice}: must be keep or end")
    return choice


def _at_rest_key_file(env: Mapping[str, str]) -> str:
    """The file of the key for data at rest, empty: none. Raises SettingError when it holds none."""
    path = env.get(AT_REST_VARIABLE, "").strip()
    read_key_wrap(path)
    return path


def _dispatch(env: Mapping[str, str]) -> DispatchConfig:
    """How the devices are shared."""
    policy = env.get("WOOLY_SCHED_POLICY") or STRICT
    if policy not in POLICY_NAMES:
        raise SettingError(f"WOOLY_SCHED_POLICY={policy}: must be one of {', '.join(POLICY_NAMES)}")
    return msgspec.structs.replace(
        DispatchConfig(),
        policy=policy,
        quantum_ns=integer(env, "WOOLY_SCHED_QUANTUM_MS") * _MS,
        low_slice_ns=integer(env, "WOOLY_SCHED_LOW_SLICE_MS") * _MS,
        aging_ns=integer(env, "WOOLY_SCHED_AGING_MS") * _MS,
        reserve_percent=integer(env, "WOOLY_SCHED_RESERVE_PERCENT"),
    )


def _memory(env: Mapping[str, str], data_dir: Path) -> MemorySettings:
    """What the devices do when memory is short."""
    reserve_mb = optional_integer(env, "WOOLY_VRAM_RESERVE_MB")
    return MemorySettings(
        None if reserve_mb is None else reserve_mb << 20,
        integer(env, "WOOLY_SWAP_IDLE_MS"),
        integer(env, "WOOLY_SWAP_HOST_MB", min(_SWAP_HOST_MB, _machine_mb() // 4)) << 20,
        integer(env, "WOOLY_SWAP_DISK_MB") << 20,
        str(Path(env.get("WOOLY_SWAP_DIR") or data_dir / "swap").expanduser()),
        optional_integer(env, "WOOLY_VRAM_OVERCOMMIT_PERCENT"),
    )


def _machine_mb() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


TRUST_VARIABLE = "WOOLY_DEDUP_TRUST"


@dataclass(frozen=True, slots=True)
class Trust:
    """``domains``: the tenants of each domain that has several."""

    domains: tuple[tuple[str, ...], ...] = ()

    def domain(self, tenant: str) -> str:
        """The domain of a tenant's sessions. Never empty. Its name is made of all its members: who joins or leaves makes another domain,
        which begins empty."""
        members = trusting(self.domains, tenant)
        return "group " + blake3(",".join(members).encode()).hexdigest()[:32] if len(members) > 1 else f"tenant {tenant}"

    def tenants(self, domain: str) -> tuple[str, ...]:
        """The tenants of a domain."""
        return next((members for members in self.domains if self.domain(members[0]) == domain), (domain.removeprefix("tenant "),))


def read_trust(text: str) -> Trust:
    """What ``a,b;c,d`` declares; empty: nothing. Raises SettingError."""
    domains: list[tuple[str, ...]] = []
    for part in text.split(";"):
        members = tuple(sorted({name.strip() for name in part.split(",") if name.strip()}))
        if not members:
            continue
        if len(members) < 2:
            raise SettingError(f"{TRUST_VARIABLE}={text}: the group {part.strip()!r} has one tenant; name at least two, such as a,b;c,d")
        for member in members:
            _check(text, member)
            if any(member in domain for domain in domains):
                raise SettingError(f"{TRUST_VARIABLE}={text}: tenant {member} is in two groups; join the groups, or leave it in one")
        domains.append(members)
    return Trust(tuple(sorted(domains, key=lambda members: Trust((members,)).domain(members[0]))))


def _check(text: str, member: str) -> None:
    try:
        token(member)
    except ValueError as error:
        raise SettingError(f"{TRUST_VARIABLE}={text}: {error}") from None
