"""The client's configuration: every key, its type and limits, and the order in which sources override each other.

Lowest to highest: defaults, the config file, environment variables, command-line flags. The file is TOML, ``KEY = value`` a line,
``~/.config/wooly/config`` unless ``WOOLYAI_CLIENT_CONFIG`` names another. A bad value is an error that names the key, the value,
where it came from and what is allowed; nothing is guessed or ignored.

This module is read on every ``import torch``: keep it light.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wooly.errors import ConfigError

__all__ = [
    "Config", "Key", "KEYS", "FILE_VARIABLE", "load", "is_enabled", "unknown_variables", "goes_on_without", "HIDE_LOCAL", "config_file",
    "flag_name",
]  # fmt: skip

FILE_VARIABLE: Final = "WOOLYAI_CLIENT_CONFIG"
_PRIORITY_MIDDLE: Final = 2
_FILE_DEFAULT: Final = "~/.config/wooly/config"


START_WAIT_S_MAX: Final = 30.0
"""Longer than a restart takes, and short enough for a wrong address."""


@dataclass(frozen=True, slots=True)
class Config:
    """The merged configuration. ``origin`` says where each key that is not at its default came from."""

    prio: int | None = None
    gpu_count: int = 1
    controller_url: str = ""
    controller_node_group_ids: tuple[str, ...] = ()
    queue: bool = False
    task_id: str = ""
    required_vram_mb: int | None = None
    gpu_mode: str = "Shared"
    gpus: tuple[int, ...] = ()
    weights_dedup: bool = False
    swap_from_vram: bool = True
    nats_urls: tuple[str, ...] = ()
    debug: bool = False
    check: str = "off"
    triton_math: str = "strict"
    check_dir: str = ""
    profile: str = ""
    record: str = ""
    record_mb: int = 4096
    tenant: str = "default"
    cpu_fallback: bool = True
    local_gpu: bool = False
    on_failure: str = "fail"
    billing_url: str = ""
    weight: int = 100
    sla_ms_p99: int = 0
    pace_percent: int = 0
    vram_wait_ms: int = 60_000
    recovery_wait_s: int = 120
    recovery_mb: int = 1024
    recovery_target_s: int = 30
    api_key: str = field(default="", repr=False)
    key_url: str = ""
    token_file: str = ""
    tls_ca: str = ""
    insecure: bool = False
    origin: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def device_count(self) -> int:
        """GPUs the script sees: as many as ``GPUS`` lists, else ``GPU_COUNT``."""
        return len(self.gpus) or self.gpu_count

    @property
    def device_indices(self) -> tuple[int, ...]:
        """Indices in the server's device list, in the order of the script's ``cuda:0``, ``cuda:1``, ..."""
        return self.gpus or tuple(range(self.gpu_count))

    @property
    def priority(self) -> int:
        """Without a controller: what PRIO says, else the middle, or 0 with a latency target, which needs it."""
        return self.prio if self.prio is not None else 0 if self.sla_ms_p99 else _PRIORITY_MIDDLE

    @property
    def start_wait_s(self) -> float:
        """How long a script that starts waits for what does not answer."""
        return min(self.recovery_wait_s, START_WAIT_S_MAX)

    @property
    def vram_quota_bytes(self) -> int:
        """The quota to ask a node for; 0: none but the device's size."""
        return (self.required_vram_mb or 0) << 20


class _Bad(Exception):
    """A value its key does not allow; the caller knows the key and the source."""


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise _Bad
        try:
            number = int(value)
        except ValueError:
            raise _Bad from None
        if not low <= number <= high:
            raise _Bad
        return number

    return parse


_SWITCH: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True, "off": False, "on": True}


def _switch(value: Any) -> bool:
    try:
        return _SWITCH[str(value).strip().lower()]
    except KeyError:
        raise _Bad from None


def _choice(*allowed: str) -> Callable[[Any], str]:
    by_lower = {name.lower(): name for name in allowed}

    def parse(value: Any) -> str:
        try:
            return by_lower[str(value).strip().lower()]
        except KeyError:
            raise _Bad from None

    return parse


def _items(value: Any) -> list[str]:
    """A comma-separated string, or a TOML array."""
    parts = value if isinstance(value, list) else str(value).split(",")
    if any(isinstance(part, dict | list) for part in parts):
        raise _Bad
    return [text for text in (str(part).strip() for part in parts) if text]


def _indices(value: Any) -> tuple[int, ...]:
    index = _integer(0, 1023)
    numbers = tuple(index(text) for text in _items(value))
    if not numbers or len(set(numbers)) != len(numbers):
        raise _Bad
    return numbers


_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _name(value: Any) -> str:
    text = str(value).strip()
    if not _NAME.fullmatch(text):
        raise _Bad
    return text


def _api_key(value: Any) -> str:
    from wooly.shared.credentials import split_key

    text = str(value).strip()
    if split_key(text) is None:
        raise _Bad
    return text


def _path(value: Any) -> str:
    text = os.path.expanduser(str(value).strip())
    if not text or "\0" in text:
        raise _Bad
    return text


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(_items(value))
    if not names or any(len(name) > 128 for name in names):
        raise _Bad
    return names


_URL: Final = re.compile(r"(?P<scheme>[a-z]+)://(?:[^@/\s]+@)?(?:\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(?::(?P<port>\d{1,5}))?(?:/\S*)?")


def _url(*schemes: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = str(value).strip()
        match = _URL.fullmatch(text)
        if match is None or match["scheme"] not in schemes or not 0 < int(match["port"] or 1) < 65536:
            raise _Bad
        return text

    return parse


def _urls(*schemes: str) -> Callable[[Any], tuple[str, ...]]:
    one = _url(*schemes)

    def parse(value: Any) -> tuple[str, ...]:
        urls = tuple(one(text) for text in _items(value))
        if not urls:
            raise _Bad
        return urls

    return parse


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its name everywhere, the field of Config, how to read it, what is allowed (for errors) and what it means (for help).
    ``secret``: its value is in no message and on no command line. ``bare``: its flag is given without a value."""

    name: str
    field: str
    parse: Callable[[Any], Any]
    allowed: str
    help: str
    secret: bool = False
    bare: bool = False


_BOOL: Final = "0 or 1 (or false, true)"

KEYS: Final[tuple[Key, ...]] = (
    Key(
        "PRIO",
        "prio",
        _integer(0, 4),
        "an integer from 0 (highest) to 4",
        "priority for cores, VRAM and placement; 0 is highest; unset: the middle of what the tenant's tier allows",
    ),
    Key("GPU_COUNT", "gpu_count", _integer(1, 64), "an integer from 1 to 64", "GPUs for this task"),
    Key(
        "CONTROLLER_URL",
        "controller_url",
        _url("http", "https"),
        "a URL such as http://controller:8080",
        "the controller that places this task",
    ),
    Key(
        "CONTROLLER_NODE_GROUP_IDS",
        "controller_node_group_ids",
        _names,
        "group ids separated by commas",
        "only nodes of these groups (with CONTROLLER_URL)",
    ),
    Key(
        "WOOLY_QUEUE",
        "queue",
        _switch,
        _BOOL,
        "wait for a place when no device fits now, instead of failing (with CONTROLLER_URL)",
        bare=True,
    ),
    Key(
        "WOOLY_TASK_ID",
        "task_id",
        _name,
        "the id of a task: 1 to 64 letters, digits, - or _",
        "run as this task, which was submitted on the page or by REST: its place, priority, VRAM and GPUs apply (with CONTROLLER_URL)",
    ),
    Key(
        "REQUIRED_VRAM",
        "required_vram_mb",
        _integer(1, 1 << 26),
        "an integer number of megabytes, such as 8000",
        "VRAM this task needs, in MB; also its quota; unset: the default of the tier, else of the cluster, and it may grow",
    ),
    Key("GPU_MODE", "gpu_mode", _choice("Shared", "Exclusive"), "Shared or Exclusive", "whether other tasks may share the GPU"),
    Key("GPUS", "gpus", _indices, "different device numbers separated by commas, such as 0 or 0,1", "the node's devices to use, by number"),
    Key("WOOLYAI_WEIGHTS_DEDUP", "weights_dedup", _switch, _BOOL, "share identical read-only weights with other tasks"),
    Key("WOOLYAI_SWAP_FROM_VRAM", "swap_from_vram", _switch, _BOOL, "whether this task's unused VRAM may be swapped out"),
    Key("WOOLY_NATS_URL", "nats_urls", _urls("nats", "tls", "ws", "wss"), "URLs such as nats://bus:4222, separated by commas", "the bus"),
    Key("WOOLY_DEBUG", "debug", _switch, _BOOL, "verbose client log"),
    Key(
        "WOOLY_TRITON_MATH",
        "triton_math",
        _choice("strict", "native"),
        "strict or native",
        "whether Triton kernels give the same bits on every device, or use its own functions and tensor cores",
    ),
    Key(
        "WOOLY_CHECK",
        "check",
        _choice("off", "cpu", "nan"),
        "off, cpu or nan",
        "stop at the first operation that differs on this machine's CPU, or at the first that gives NaN",
    ),
    Key("WOOLY_CHECK_DIR", "check_dir", _path, "a folder", "where WOOLY_CHECK writes scripts; unset: the working directory"),
    Key("WOOLY_PROFILE", "profile", _path, "a file", "where to write a timeline of the script; it also says what bounds it"),
    Key("WOOLY_RECORD", "record", _path, "a folder", "where to record what is sent to the device, for `wooly debug`"),
    Key(
        "WOOLY_RECORD_MB",
        "record_mb",
        _integer(1, 1 << 26),
        "an integer number of MB from 1 to 67108864",
        "what a recording takes on disk; when it is reached, the oldest batches are removed",
    ),
    Key("WOOLY_TENANT", "tenant", _name, "1 to 64 letters, digits, - or _", "the tenant that is billed"),
    Key("WOOLY_CPU_FALLBACK", "cpu_fallback", _switch, _BOOL, "run an operation the device lacks on this machine's CPU"),
    Key("WOOLY_LOCAL_GPU", "local_gpu", _switch, _BOOL, "use the remote device although this machine has a GPU (which is hidden)"),
    Key(
        "WOOLY_ON_FAILURE",
        "on_failure",
        _choice("fail", "cpu"),
        "fail or cpu",
        "when the device cannot be switched on: let `import torch` fail (the default), or go on without it",
    ),
    Key(
        "WOOLY_BILLING_URL",
        "billing_url",
        _url("http", "https"),
        "a URL such as http://billing:8082",
        "where the command line asks for credits",
    ),
    Key(
        "WOOLY_WEIGHT",
        "weight",
        _integer(1, 10_000),
        "an integer from 1 to 10000",
        "share of core time relative to other tasks of the same priority; 200 gets twice as much as 100",
    ),
    Key(
        "WOOLY_SLA_MS_P99",
        "sla_ms_p99",
        _integer(1, 3_600_000),
        "an integer number of milliseconds from 1 to 3600000",
        "latency target for 99 of 100 batches on the device, PRIO 0 only; unset: none",
    ),
    Key(
        "WOOLY_PACE_PERCENT",
        "pace_percent",
        _integer(1, 100),
        "an integer from 1 to 100",
        "limit on this task's share of the device's core time, in percent; unset: no limit",
    ),
    Key(
        "WOOLY_VRAM_WAIT_MS",
        "vram_wait_ms",
        _integer(0, 3_600_000),
        "an integer number of milliseconds from 0 to 3600000",
        "how long to wait for memory that other tasks hold before an out-of-memory error; 0: not at all",
    ),
    Key(
        "WOOLY_RECOVERY_WAIT_S",
        "recovery_wait_s",
        _integer(0, 86_400),
        "an integer number of seconds from 0 to 86400",
        "how long to wait for a bus, a node or a controller that does not answer (at the start of a script 30 s at most); 0: not at all",
    ),
    Key(
        "WOOLY_RECOVERY_MB",
        "recovery_mb",
        _integer(0, 1 << 20),
        "an integer number of MB from 0 to 1048576",
        "host memory for an image of the session's buffers and its batches since, from which the session is built again when the node "
        "loses its memory; one that needs more is not built again; 0: none is",
    ),
    Key(
        "WOOLY_RECOVERY_TARGET_S",
        "recovery_target_s",
        _integer(0, 86_400),
        "an integer number of seconds from 0 to 86400",
        "how much work is repeated at most when the node loses the session's memory: an image is taken about as often, unless it would "
        "cost more than a fiftieth of the time",
    ),
    Key(
        "WOOLY_API_KEY",
        "api_key",
        _api_key,
        "a key such as wk_<id>_<secret>, as `wooly login` stores it, or a token of `wooly keys token`",
        "the API key, or a short-lived token of one, that authenticates you",
        secret=True,
    ),
    Key(
        "WOOLY_KEY_URL",
        "key_url",
        _url("http", "https"),
        "a URL such as https://wooly-operator.wooly-system.svc/v1/key",
        "where the token in WOOLY_TOKEN_FILE is exchanged for an API key, when no key is given (set in pods by the Kubernetes operator)",
    ),
    Key("WOOLY_TOKEN_FILE", "token_file", _path, "a file", "the pod's service account token, for WOOLY_KEY_URL"),
    Key(
        "WOOLY_TLS_CA",
        "tls_ca",
        _path,
        "a file of certificates (PEM)",
        "the CA certificates that bus and services are verified with; unset: the system's",
    ),
    Key(
        "WOOLY_INSECURE", "insecure", _switch, _BOOL, "allow sending the API key in plain text to other machines; only for private networks"
    ),
)
_BY_NAME: Final = {key.name: key for key in KEYS}


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for every variable of the environment that is named like ours and that nothing reads, with the nearest name."""
    environ = os.environ if environ is None else environ
    ours = [name for name in sorted(environ) if name.startswith(("WOOLY_", "WOOLYAI_")) and name not in _BY_NAME and name != FILE_VARIABLE]
    if not ours:
        return []
    from wooly.shared.variables import BY_NAME  # the rare case: this module is read on every import of torch

    unknown = [name for name in ours if name not in BY_NAME]
    return [f"{name} is not a variable that wooly knows, so it does nothing{_suggest(name)}" for name in unknown]


def flag_name(key: Key) -> str:
    """The command-line flag of ``key``: ``--required-vram`` for REQUIRED_VRAM; the product's prefixes are left out."""
    return "--" + _without_prefix(key.name).lower().replace("_", "-")


def config_file(environ: Mapping[str, str]) -> tuple[str, bool]:
    """The config file's path, and whether it was asked for by name (then it must exist)."""
    named = environ.get(FILE_VARIABLE, "").strip()
    return os.path.expanduser(named or _FILE_DEFAULT), bool(named)


def _read_file(path: str, *, must_exist: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{FILE_VARIABLE} names {path}, which does not exist; create it or unset {FILE_VARIABLE}") from None
        return {}
    except OSError as error:
        raise ConfigError(
            f"the config file {path} cannot be read ({error.strerror}); fix its permissions or name another in {FILE_VARIABLE}"
        ) from None
    import tomllib  # only here: most processes have no config file, and this module is read on every import of torch

    try:
        values = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f'the config file {path} is not valid TOML: {error}; write lines such as WOOLY_NATS_URL = "nats://bus:4222"'
        ) from None
    for name in values:
        if name not in _BY_NAME:
            raise ConfigError(f"{name} in {path} is not a known key{_suggest(name)}; allowed are {', '.join(_BY_NAME)}")
    return values


def _suggest(name: str) -> str:
    import difflib  # only on the way to an error

    plain = {_without_prefix(known): known for known in _BY_NAME}
    close = difflib.get_close_matches(_without_prefix(name.upper()), plain, n=1)
    return f" (did you mean {plain[close[0]]}?)" if close else ""


def _without_prefix(name: str) -> str:
    return name.removeprefix("WOOLYAI_").removeprefix("WOOLY_")


def _parse(key: Key, value: Any, source: str) -> Any:
    try:
        return key.parse(value)
    except _Bad:
        if key.secret:
            raise ConfigError(f"{key.name} ({source}) is not {key.allowed}; `wooly login` stores a good one") from None
        shown = re.sub(r"//[^@/]*@", "//***@", repr(value))  # a bus URL may hold a password; errors end up in logs
        raise ConfigError(f"{key.name}={shown} ({source}) is not allowed; use {key.allowed}") from None


def load(flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, *, task: bool = True) -> Config:
    """Merge all sources. ``flags`` maps key names to values given on the command line; ``environ`` is os.environ unless given.

    ``task`` False is for commands that only ask questions: what a task may only say with a controller does not matter to them.
    An empty environment variable counts as not set. Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    path, named = config_file(environ)
    sources: list[tuple[Callable[[Key], str], Mapping[str, Any]]] = [
        (lambda key: f"from {path}", _read_file(path, must_exist=named)),
        (lambda key: "from the environment", {key.name: environ[key.name] for key in KEYS if environ.get(key.name, "").strip()}),
        (lambda key: f"from the flag {flag_name(key)}", flags or {}),
    ]
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for describe, given in sources:
        for name, value in given.items():
            key = _BY_NAME[name]
            values[key.field] = _parse(key, value, describe(key))
            origin[name] = describe(key)
    if "api_key" not in values:
        _from_credentials(values, origin)
    config = Config(**values, origin=origin)
    _check_together(config, task)
    return config


def _from_credentials(values: dict[str, Any], origin: dict[str, str]) -> None:
    """What a pod's token is exchanged for, else what ``wooly login`` stored, where nothing else says who we are."""
    from wooly import credentials

    url, token_file = values.get("key_url", ""), values.get("token_file", "")
    if url and token_file:
        key = credentials.exchange(url, token_file, values.get("tls_ca", ""))
        values["api_key"] = _parse(_BY_NAME["WOOLY_API_KEY"], key, f"from {url}")
        origin["WOOLY_API_KEY"] = f"from {url}"
        return
    path = credentials.path()
    key = credentials.read(path)
    if key:
        values["api_key"] = _parse(_BY_NAME["WOOLY_API_KEY"], key, f"from {path}")
        origin["WOOLY_API_KEY"] = f"from {path}"


def _check_together(config: Config, task: bool) -> None:
    """Rules between keys."""
    origin = config.origin
    if config.controller_url:
        where = f"CONTROLLER_URL={config.controller_url!r} ({origin['CONTROLLER_URL']})"
        if config.gpus:
            raise ConfigError(
                f"GPUS={','.join(map(str, config.gpus))!r} ({origin['GPUS']}) cannot be combined with {where}: the controller chooses "
                "the devices; unset one of them (GPU_COUNT says how many)"
            )
    elif task:
        for name, value in (
            ("CONTROLLER_NODE_GROUP_IDS", ",".join(config.controller_node_group_ids)),
            ("WOOLY_QUEUE", "1" if config.queue else ""),
            ("WOOLY_TASK_ID", config.task_id),
        ):
            if value:
                raise ConfigError(f"{name}={value!r} ({origin[name]}) needs a controller; set CONTROLLER_URL or unset it")
    if config.sla_ms_p99:
        wanted = f"WOOLY_SLA_MS_P99={config.sla_ms_p99} ({origin['WOOLY_SLA_MS_P99']})"
        if config.prio:
            raise ConfigError(
                f"{wanted} contradicts PRIO={config.prio} ({origin['PRIO']}): a latency target needs PRIO 0, lower priorities wait for "
                "others; unset one of them"
            )
        if config.pace_percent:
            raise ConfigError(
                f"{wanted} contradicts WOOLY_PACE_PERCENT={config.pace_percent} ({origin['WOOLY_PACE_PERCENT']}): a paced task waits by "
                "its own wish; unset one of them"
            )
    if config.gpus and "GPU_COUNT" in origin and config.gpu_count != len(config.gpus):
        raise ConfigError(
            f"GPU_COUNT={config.gpu_count} ({origin['GPU_COUNT']}) disagrees with GPUS={','.join(map(str, config.gpus))!r} "
            f"({origin['GPUS']}), which lists {len(config.gpus)}; unset one of them"
        )


HIDE_LOCAL: Final = "remote"
"""The value of CUDA_VISIBLE_DEVICES that hides this machine's GPUs (it names none of them) from this process and its children, and not the
remote device."""


def is_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """True when the environment or the config file names a bus: what switches the device on at ``import torch``.

    Cheap when nothing is configured: a look-up and one failed open. Raises ConfigError for an unreadable file.
    """
    environ = os.environ if environ is None else environ
    if environ.get("WOOLY_NATS_URL", "").strip():
        return True
    path, named = config_file(environ)
    return "WOOLY_NATS_URL" in _read_file(path, must_exist=named)


def goes_on_without(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> bool:
    """True when WOOLY_ON_FAILURE=cpu is given. Reads this key alone: the rest of the configuration may be what is wrong."""
    environ = os.environ if environ is None else environ
    key = _BY_NAME["WOOLY_ON_FAILURE"]
    path, _ = config_file(environ)
    try:
        file = _read_file(path, must_exist=False)
    except ConfigError:
        file = {}
    for given in (flags, environ, file):
        value = str(given.get(key.name, "")).strip()
        if value:
            try:
                return str(key.parse(value)) == "cpu"
            except _Bad:
                return False
    return False
