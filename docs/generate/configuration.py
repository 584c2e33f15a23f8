"""The configuration reference: keys of the client, variables of the services."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from docs.generate.text import sentence, table
from wooly.config import KEYS, Config, flag_name
from wooly.shared.variables import VARIABLES

__all__ = ["FOREIGN", "page"]

FOREIGN: Final = {
    "CUDA_LAUNCH_BLOCKING": "1 sends every operation at once, so that the line that an error names is exact. For debugging.",
    "LOCAL_RANK": "Set by launchers such as torchrun: the number of the process's one device (docs/how-to/distributed.md).",
    "LOCAL_WORLD_SIZE": "Set by launchers such as torchrun: how many devices the process sees.",
    "GROUP_WORLD_SIZE": "Set by torchrun: with one agent, the ranks of an attempt are apart from those of the attempts before it.",
    "TORCHELASTIC_RESTART_COUNT": "Set by torchrun: the number of the attempt.",
    "WORLD_SIZE": "Set by launchers such as torchrun, with `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RUN_ID` and "
    "`TORCHELASTIC_RESTART_COUNT`: the ranks that wait for their places together.",
    "CUDA_VISIBLE_DEVICES": "Empty or starting with a negative number: the script sees no device. Otherwise as for CUDA.",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "The OpenTelemetry collector that the client sends its traces to. Not set: no traces.",
    "OTEL_TRACES_SAMPLER_ARG": "The part of the batches that is traced, from 0 to 1.",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0 stops `import torch` from switching the device on; `wooly run` sets 1.",
    "TRACEPARENT": "The W3C trace context that the script's trace continues.",
    "WOOLYAI_CLIENT_CONFIG": "The path of the configuration file; `~/.config/wooly/config` otherwise.",
    "XDG_CACHE_HOME": "Where compiled CUDA sources are kept; `~/.cache` otherwise.",
}
"""What the client reads beside the keys of wooly/config.py, and what it means here."""


def page() -> str:
    """The page."""
    return "\n".join([_HEAD, _client(), _FILE, _foreign(), _SERVICES, _services()])


_HEAD: Final = """# Configuration reference

Every setting of the client and of the services, with type, default and meaning. The tables are made from the code that reads the settings.

## Client

A setting of the client has one name everywhere. Sources, from lowest to highest precedence: the default, the configuration file, the
environment, the flag of `wooly run`. An empty environment variable counts as not set. A value that is not allowed is an error that names
the setting, the value and its source.
"""

_FILE: Final = """
The configuration file is TOML, one `KEY = value` a line:

```toml
WOOLY_NATS_URL = "nats://bus:4222"
PRIO = 3
```

A key that the file names and that does not exist is an error.

### Further variables that the client reads
"""

_SERVICES: Final = """
## Services

Services are configured by environment variables alone. A value that is not allowed ends the service with an error that names the variable.
`up` is `wooly up`, `keyring` the tool that makes certificates and first keys, `executor` the process that owns a device.
"""


def _shown(value: Any) -> str:
    if value is None or value == "" or value == ():
        return "not set"
    if isinstance(value, bool):
        return str(int(value))
    return str(value)


def _client() -> str:
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Config)}
    rows = [
        (f"`{key.name}`" + ("" if key.secret else f" `{flag_name(key)}`"), key.allowed, _shown(defaults[key.field]), sentence(key.help))
        for key in KEYS
    ]
    return table(("Key, flag", "Allowed", "Default", "Meaning"), rows)


def _foreign() -> str:
    return table(("Variable", "Meaning"), [(f"`{name}`", text) for name, text in FOREIGN.items()])


def _services() -> str:
    rows: list[Sequence[str]] = []
    for variable in VARIABLES:
        kind = f"integer from {variable.low} to {variable.high}" if variable.kind == "integer" else variable.kind
        rows.append((f"`{variable.name}`", kind, variable.default or "not set", ", ".join(variable.readers), variable.meaning))
    return table(("Variable", "Type", "Default", "Read by", "Meaning"), rows)
