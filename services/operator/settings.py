"""Settings of the operator, from environment variables."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.kit.credentials import file_text
from services.kit.errors import SettingError
from services.kit.http import parse_address
from services.kit.variables import integer


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one operator process."""

    #: unique among the operators of a cluster
    name: str
    #: the namespace of the operator: its lease, its secret, node servers
    namespace: str
    #: DNS name of the service through which the API server and pods reach the operators
    host: str
    #: the MutatingWebhookConfiguration whose authorities the operator keeps
    webhook: str
    #: of the operator; empty: the one of the WoolyCluster
    controller_url: str
    api_key: str = field(repr=False)
    tls_ca: str
    insecure: bool
    #: host and port that the webhook listens on
    listen: tuple[str, int]
    #: time that a reservation is held without a session
    start_lease_ms: int
    #: of the certificate
    folder: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Raises SettingError naming the variable."""
        namespace = environment.get("OPERATOR_NAMESPACE", "").strip()
        if not namespace:
            raise SettingError("OPERATOR_NAMESPACE is not set; give the namespace that the operator runs in, for example wooly-system")
        service = environment.get("OPERATOR_SERVICE", "").strip() or "wooly-operator"
        return cls(
            name=environment.get("OPERATOR_NAME", "").strip() or platform.node() or "operator",
            namespace=namespace,
            host=f"{service}.{namespace}.svc",
            webhook=environment.get("OPERATOR_WEBHOOK", "").strip() or "wooly-operator",
            controller_url=environment.get("CONTROLLER_URL", "").strip(),
            api_key=environment.get("WOOLY_API_KEY", "").strip() or file_text(environment, "WOOLY_API_KEY_FILE"),
            tls_ca=environment.get("WOOLY_TLS_CA", "").strip(),
            insecure=environment.get("WOOLY_INSECURE", "").strip() == "1",
            listen=parse_address(environment.get("WOOLY_HTTP", "").strip() or "0.0.0.0:8443"),
            start_lease_ms=integer(environment, "OPERATOR_START_LEASE_MS"),
            folder=Path(environment.get("WOOLY_DATA_DIR", ".wooly")).resolve() / "operator",
        )
