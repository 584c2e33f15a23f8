"""The environment variables that the services read: the source of the configuration reference, of the limits of integers, and of the names
that the client does not warn of. Those of the client: ``wooly.config.KEYS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_EVERY: Final = ("node", "controller", "billing", "replay", "runner")
_ALL: Final = (*_EVERY, "operator")
_REST: Final = ("controller", "billing")
_MB_MAX: Final = 1 << 30
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable."""

    #: as it is set
    name: str
    #: ``integer``, or what the text is (URL, path, ...)
    kind: str
    #: what applies without it, as text; the number itself for an ``integer`` with a fixed default; empty: nothing
    default: str
    #: the services that read it
    readers: tuple[str, ...]
    #: what it does, in one sentence
    meaning: str
    #: limits of an ``integer``, both allowed
    low: int = 0
    high: int = 0


def _number(name: str, default: int | str, low: int, high: int, readers: tuple[str, ...], meaning: str) -> Variable:
    return Variable(name, "integer", str(default), readers, meaning, low, high)


_NODE: Final = ("node",)
_CONTROLLER: Final = ("controller",)
_RUNNER: Final = ("runner",)
_OPERATOR: Final = ("operator",)

VARIABLES: Final[tuple[Variable, ...]] = (
    # The bus, and how a service proves its identity there.
    Variable(
        "WOOLY_NATS_URL", "URLs, comma-separated", "nats://127.0.0.1:4222 (node); required elsewhere", (*_EVERY, "keyring"),
        "Addresses of the bus; all `nats://`, or all `tls://`.",
    ),
    Variable(
        "CONTROLLER_NATS_URL", "URLs, comma-separated", "", ("node", "controller"),
        "Addresses of the bus. On a node it overrides `WOOLY_NATS_URL`; a controller reads it only if `WOOLY_NATS_URL` is not set.",
    ),
    Variable(
        "WOOLY_BUS_REPLICAS", "1 or 3", "1", ("node", "controller", "billing"),
        "How many servers of the bus store facts, money and configuration; 3 needs a cluster of three. Existing streams follow.",
    ),
    Variable(
        "WOOLY_BUS_LEAF", "text without dots or spaces", "no leaf server", ("node",),
        "The JetStream domain of the leaf server of the bus beside the node, which then stores its batches.",
    ),
    Variable(
        "WOOLY_API_KEY", "API key", "", _ALL,
        "The key that the service authenticates with on the bus (used by nodes), or at the controller (the operator: an administrator's).",
    ),
    Variable("WOOLY_API_KEY_FILE", "path", "", _ALL, "A file that holds `WOOLY_API_KEY`."),
    Variable("WOOLY_NATS_NKEY", "path", "", _EVERY, "A file with the nkey seed of a service user that the bus configuration lists."),
    Variable("WOOLY_SEAL_KEY", "path", "", _EVERY, "A file with the hexadecimal keys that services sign events with; the same for all."),
    Variable("WOOLY_TLS_CA", "path", "the system's authorities", _ALL, "The CA certificates (PEM) that the service trusts."),
    Variable(
        "WOOLY_TLS_CERT", "path", "the operator makes its own", ("node", "controller", "billing", "operator"),
        "The service's own certificate (PEM); needs `WOOLY_TLS_KEY`.",
    ),
    Variable("WOOLY_TLS_KEY", "path", "", ("node", "controller", "billing", "operator"), "The private key of `WOOLY_TLS_CERT` (PEM)."),
    Variable(
        "WOOLY_INSECURE", "0 or 1", "0", ("node", "controller", "billing", "replay", "operator", "up"),
        "1 allows plain text beyond loopback, for a network that is private by other means.",
    ),
    # HTTP.
    Variable(
        "WOOLY_HTTP", "host:port", "127.0.0.1:8080 (controller), 127.0.0.1:8082 (billing), 0.0.0.0:8443 (operator)", (*_REST, "operator"),
        "Where REST (and the web pages) listen, and the webhook of the operator.",
    ),
    Variable(
        "WOOLY_NODE_HTTP", "host:port", "not served", _NODE, "Where the node serves `/health/live`, `/health/ready` and `/metrics`."
    ),
    Variable(
        "WOOLY_AUTH", "on or off", "off if everything listens on loopback, else on", _REST,
        "Whether requests need authentication; off is refused beyond loopback.",
    ),
    Variable(
        "WOOLY_TRUSTED_PROXIES", "networks, comma-separated", "none", _REST,
        "Reverse proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.",
    ),
    # Controller.
    Variable(
        "WOOLY_OIDC_ISSUER", "URL", "no login through a provider", _CONTROLLER,
        "The OpenID Connect provider that the login page offers, exactly as the provider names itself; `https://` beyond loopback.",
    ),
    Variable("WOOLY_OIDC_CLIENT_ID", "text", "", _CONTROLLER, "The client that is registered at the provider for the web pages."),
    Variable(
        "WOOLY_OIDC_CLIENT_SECRET_FILE", "path", "a public client", _CONTROLLER,
        "A file with the secret of `WOOLY_OIDC_CLIENT_ID` (sent as `client_secret_basic`).",
    ),
    Variable(
        "WOOLY_OIDC_CLAIM", "email or preferred_username", "email", _CONTROLLER,
        "The claim that is compared with a user's identity at the first login; `email` only if the provider has verified it.",
    ),
    Variable(
        "WOOLY_ETCD_URL", "URL", "JetStream key-value store", _CONTROLLER,
        "The etcd that stores the configuration, instead of a bucket on the bus; `https://` sends the certificate in WOOLY_TLS_CERT.",
    ),
    Variable(
        "WOOLY_BILLING_URL", "URL", "no credits on the pages", _CONTROLLER,
        "Where the web pages ask for credits, and where requests under `/api/v1/billing` are relayed to.",
    ),
    Variable(
        "WOOLY_METRICS_URL", "URL", "charts of the last hour", _CONTROLLER,
        "A Prometheus that scrapes the controllers, for charts of up to 30 days.",
    ),
    Variable(
        "WOOLY_TRACE_URL", "URL with {trace}", "no links", _CONTROLLER,
        "The address of one trace in a trace viewer, for links on the pages.",
    ),
    _number(
        "CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT", 0, 0, 1000, _CONTROLLER,
        "VRAM overcommit of nodes, in percent, unless a global or a node's own value is stored.",
    ),
    _number("CONTROLLER_NODE_LEASE_MS", 5_000, 500, 3_600_000, _CONTROLLER, "Silence after which a node is considered lost, in ms."),
    _number("CONTROLLER_START_LEASE_MS", 120_000, 1_000, _DAY_MS, _CONTROLLER, "Time that a placed task has to open its session, in ms."),
    _number(
        "WOOLY_KEY_CONNECTIONS_MAX", 1024, 1, 1 << 20, _CONTROLLER,
        "Connections to the bus that one API key may have, on a bus with authentication.",
    ),
    Variable("WOOLY_BOOTSTRAP_KEY", "API key", "", _CONTROLLER, "The first admin key; copied into the event log once."),
    Variable("WOOLY_BOOTSTRAP_KEY_FILE", "path", "", _CONTROLLER, "A file that holds `WOOLY_BOOTSTRAP_KEY`."),
    Variable("WOOLY_BOOTSTRAP_NODES", "path", "", _CONTROLLER, "A file with the first keys of nodes, as hashes; copied into the log once."),
    Variable(
        "WOOLY_GUARD_DIR", "path", "no auth callout", _CONTROLLER,
        "The folder with `guard.nk` and `issuer.nk`: the controller then answers the authentication callout of the bus.",
    ),
    Variable(
        "WOOLY_NODE_ATTESTATION", "command", "the key is enough", _CONTROLLER,
        "A command that decides whether a node may connect: it reads its id, key id and address as JSON, and accepts with exit code 0.",
    ),
    Variable("WOOLY_AUDIT_KEY", "path", "no exports", _CONTROLLER, "The Ed25519 key (PEM) that signs exports of audit records."),
    Variable(
        "WOOLY_AUDIT_SYSLOG", "path or host:port", "no syslog", _CONTROLLER,
        "The Unix socket of a syslog daemon (`/dev/log`), or a UDP address, that audit records are sent to (RFC 5424).",
    ),
    # Node: identity and devices.
    Variable(
        "NODE_NAME", "text", "the host name (`local` under `wooly up`)", ("node", "up"),
        "The node's name in lists; its id follows from it.",
    ),
    Variable("NODE_ID", "text without dots or spaces", "UUIDv5 of NODE_NAME", _NODE, "The node's id in subjects, events and bills."),
    Variable(
        "NODE_ADDRESS", "host", "127.0.0.1", ("node", "up"), "The host that clients connect to for the data port; part of certificates."
    ),
    Variable("NODE_GROUPS", "ids, comma-separated", "none", _NODE, "Groups that the node joins when it registers."),
    Variable("WOOLY_BACKEND", "host, opencl, cuda or reference", "host", ("node", "up"), "The back end that runs programs."),
    _number("WOOLY_DEVICES", 1, 1, 64, _NODE, "Devices that the node offers."),
    _number("WOOLY_DEVICE_THREADS", "the usable cores", 1, 1024, _NODE, "Threads of all devices together (back ends on the processor)."),
    _number(
        "WOOLY_DEVICE_VRAM_MB", 8192, 1, _MB_MAX, _NODE,
        "Memory that each device offers to sessions, in MB. With `WOOLY_BACKEND=cuda`, unless it is set: what the GPU has.",
    ),
    Variable("PYOPENCL_CTX", "PyOpenCL context", "the device by number", _NODE, "With `WOOLY_BACKEND=opencl`: the OpenCL device to use."),
    Variable("POCL_CACHE_DIR", "path", "`pocl` in WOOLY_CACHE_DIR", _NODE, "With `WOOLY_BACKEND=opencl`: where PoCL keeps machine code."),
    Variable(
        "WOOLY_DATA_DIR", "path", "~/.local/share/wooly/server (node), .wooly (else)", ("node", "billing", "runner", "operator"),
        "Where the service keeps its state: journals, swapped memory and the model cache of a node; the saved view of billing; the "
        "folders of scripts; the certificate of the operator.",
    ),
    Variable("WOOLY_CACHE_DIR", "path", "~/.cache/wooly/jit", _NODE, "Compiled programs; safe to delete."),
    Variable("XDG_RUNTIME_DIR", "path", "/tmp", _NODE, "Where the node's private folder of sockets is made."),
    Variable("WOOLY_DATA_HOST", "host", "127.0.0.1", _NODE, "Where the data port listens."),
    _number("WOOLY_DATA_PORT", 0, 0, 65535, _NODE, "The data port of the first device; the next devices follow. 0: any free port."),
    # Node: sessions and limits.
    _number("WOOLY_LEASE_MS", 120_000, 1_000, 3_600_000, _NODE, "Silence of a client after which its session ends, in ms."),
    _number(
        "WOOLY_UNLINKED_LEASE_MS", 30_000, 1_000, 3_600_000, _NODE,
        "The same of a client whose connection to the data port has ended, as it does when the client is killed.",
    ),
    _number("WOOLY_ORPHAN_MS", 60_000, 100, 600_000, _NODE, "Time that an executor lives on without its server, in ms."),
    Variable(
        "WOOLY_ON_STOP", "`keep` or `end`", "keep", _NODE,
        "What a node that is stopped does with open sessions. `keep`: they stay with the executor for the next server, which must start "
        "within `WOOLY_ORPHAN_MS`; `end`: they end.",
    ),
    _number(
        "WOOLY_STOP_GRACE_MS", 0, 0, 3_600_000, _NODE,
        "How long a node that is stopped waits for its tasks to continue on other nodes, in ms; to what is left `WOOLY_ON_STOP` applies.",
    ),
    _number(
        "WOOLY_TENANT_SESSIONS_MAX", 1024, 1, 1 << 20, _NODE,
        "Open sessions of one tenant on the node, and how many it may open at once; each of its keys half as many.",
    ),
    _number(
        "WOOLY_TENANT_MESSAGES_A_SECOND", 4096, 1, 1 << 20, _NODE,
        "Batches of one tenant that the node reads each second; four times as many at once.",
    ),
    _number(
        "WOOLY_EXECUTOR_PER_DOMAIN", 0, 0, 1, _NODE,
        "1: a device serves one trust domain at a time, in a process of its own with its own files, and there is no model cache.",
    ),
    _number(
        "WOOLY_SANDBOX", 1, 0, 1, _NODE,
        "0: what runs and compiles tenants' programs may use files and network like the node's user; not the compiler of `host`.",
    ),
    Variable(
        "WOOLY_EXECUTOR_USER", "name or number", "`wooly-exec`, or 61183 where there is no such user", _NODE,
        "Of a node that runs as root: the user that runs and compiles tenants' programs. `root` or 0: root.",
    ),
    _number(
        "WOOLY_EXECUTOR_MEMORY_MB", 0, 0, _MB_MAX, _NODE,
        "Memory of what runs and compiles programs on one device, where cgroup v2 can limit it, in MB. 0: no limit.",
    ),
    _number(
        "WOOLY_EXECUTOR_PROCESSES", 4096, 0, 1 << 22, _NODE,
        "Processes and threads of the same, by cgroup v2, and of its user where it has one of its own. 0: no limit.",
    ),
    _number(
        "WOOLY_EXECUTOR_CPU_PERCENT", 0, 0, 102_400, _NODE,
        "Processor time of the same, where cgroup v2 can limit it, in percent of one core. 0: no limit.",
    ),
    _number(
        "WOOLY_KERNEL_FUEL", "of the back end", 0, 1 << 62, _NODE,
        "Thread-instructions that a kernel launch may execute. 0: the default.",
    ),
    _number(
        "WOOLY_COMPILE_MS", 20_000, 1_000, 600_000, _NODE,
        "Processor time that compiling one kernel may take, in ms, and four times as much by the clock; other compilations of the device "
        "wait so long at most. Large Triton kernels need more with `WOOLY_BACKEND=opencl` on a processor.",
    ),
    # Node: scheduling.
    Variable("WOOLY_SCHED_POLICY", "strict, fifo or timeslice", "strict", _NODE, "How a device is shared between sessions."),
    _number("WOOLY_SCHED_QUANTUM_MS", 10, 1, 10_000, _NODE, "Longest slice of a session beside others of its priority, in ms."),
    _number("WOOLY_SCHED_LOW_SLICE_MS", 20, 1, 10_000, _NODE, "Limit on work below the highest priority that is in flight at once, in ms."),
    _number("WOOLY_SCHED_AGING_MS", 0, 0, 3_600_000, _NODE, "Waiting time after which a session rises one priority, in ms. 0: never."),
    _number("WOOLY_SCHED_RESERVE_PERCENT", 0, 0, 90, _NODE, "Core time that goes to the lowest priority with work, in percent."),
    # Node: memory.
    _number(
        "WOOLY_VRAM_RESERVE_MB", "2048, or an eighth of a device below 16 GiB", 0, _MB_MAX, _NODE,
        "Device memory that is never promised to tasks, in MB.",
    ),
    _number(
        "WOOLY_VRAM_OVERCOMMIT_PERCENT", "the controller's value", 0, 1000, _NODE,
        "Memory that may be promised beyond the physical memory, in percent.",
    ),
    _number("WOOLY_SWAP_IDLE_MS", 300_000, 0, _DAY_MS, _NODE, "Idle time after which a session's memory may be swapped out, in ms."),
    _number(
        "WOOLY_SWAP_HOST_MB", "8192, or a quarter of the machine's memory if less", 0, _MB_MAX, _NODE,
        "Host memory for swapped memory, in MB.",
    ),
    _number("WOOLY_SWAP_DISK_MB", 65_536, 0, _MB_MAX, _NODE, "Disk space for swapped memory, in MB."),
    Variable("WOOLY_SWAP_DIR", "path", "`swap` in WOOLY_DATA_DIR", _NODE, "The folder for memory that is swapped to disk."),
    Variable("WOOLY_DEDUP_TRUST", "a,b;c,d", "each tenant alone", _NODE, "Groups of tenants that share identical weights with each other."),
    _number("WOOLY_MODEL_CACHE_MB", 16_384, 0, _MB_MAX, _NODE, "Disk space of the model cache, in MB. 0: no cache."),
    _number(
        "WOOLY_TENANT_MODEL_CACHE_MB", "all of WOOLY_MODEL_CACHE_MB, or half of it on a bus with authentication", 1, _MB_MAX, _NODE,
        "Disk space of the model cache for one tenant, or for one group of WOOLY_DEDUP_TRUST, in MB.",
    ),
    Variable(
        "WOOLY_AT_REST_KEY_FILE", "path", "the model cache is not encrypted, keys are not wrapped", ("node", "controller"),
        "A file with the key (64 hexadecimal digits; further ones, a line each, only unwrap) that wraps the key of a node's model cache, "
        "or the controllers' keys of names.",
    ),
    Variable(
        "WOOLY_WEBHOOK_PRIVATE", "0 or 1", "0", _CONTROLLER,
        "1 permits webhooks at private, link-local and loopback addresses. Tenants choose the addresses.",
    ),
    # A runner.
    Variable(
        "CONTROLLER_URL", "URL", "required (runner); the WoolyCluster's (operator)", ("runner", "operator"),
        "The controller, as scripts reach it, or the operator.",
    ),
    Variable("RUNNER_NAME", "name", "the name of the machine", _RUNNER, "The name for `wooly submit --runner`; one runner a name."),
    _number("RUNNER_SLOTS", 2, 1, 256, _RUNNER, "Scripts that may run at a time."),
    Variable("RUNNER_TENANTS", "tenants, comma-separated", "all", _RUNNER, "The tenants whose scripts the runner executes."),
    Variable("RUNNER_PYTHONPATH", "paths", "none", _RUNNER, "Folders that scripts import from, in addition to the installed packages."),
    # Operator.
    Variable("OPERATOR_NAMESPACE", "name", "required", _OPERATOR, "The Kubernetes namespace of the operator and of the node servers."),
    Variable("OPERATOR_NAME", "text", "the host name", _OPERATOR, "The operator's name in the lease; one process a name."),
    Variable(
        "OPERATOR_SERVICE", "name", "wooly-operator", _OPERATOR,
        "The Kubernetes service through which the API server and pods reach the operators; its DNS name is that of their certificate.",
    ),
    Variable(
        "OPERATOR_WEBHOOK", "name", "wooly-operator", _OPERATOR,
        "The MutatingWebhookConfiguration into which the operator writes the authority of its certificate.",
    ),
    _number(
        "OPERATOR_START_LEASE_MS", 600_000, 1_000, 7 * _DAY_MS, _OPERATOR,
        "Time that the reservation of a pod is held without a session, in ms: until its first script starts, and between scripts.",
    ),
    # Every service.
    Variable("WOOLY_LOG", "debug, info, warning or error", "info", _ALL, "Level of the log (JSON lines on standard error)."),
    Variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT", "URL", "no traces", ("node", "controller", "billing"),
        "The OpenTelemetry collector that traces go to; further `OTEL_*` variables apply as the OpenTelemetry SDK defines them.",
    ),
    Variable(
        "WOOLY_OTLP_TOKEN_FILE", "path", "no token", _NODE,
        "A file with the bearer token that the collector requires.",
    ),
    # Set-up on one machine.
    Variable("NATS_SERVER_BIN", "path", "nats-server of the environment or PATH", ("up",), "The nats-server that `wooly up` starts."),
    Variable("WOOLY_HOSTS", "names, comma-separated", "none", ("keyring",), "Names and addresses of this machine, for the certificates."),
    # Between processes of one service; not for operators.
    Variable("WOOLY_EXECUTOR", "JSON", "", ("executor",), "Set by the node for its executor processes; not for users."),
    Variable(
        "WOOLY_DIE_WITH_PARENT", "process id", "", (*_ALL, "up"),
        "Set by the process that starts the service: end with it.",
    ),
)  # fmt: skip
BY_NAME: Final[Mapping[str, Variable]] = {variable.name: variable for variable in VARIABLES}
