"""TLS for the bus, the data port and REST: contexts from files, and the rule that plain text stays on loopback.

WOOLY_TLS_CA: trusted authorities (a file of certificates; unset: the system's). WOOLY_TLS_CERT, WOOLY_TLS_KEY: this process's own
certificate. WOOLY_INSECURE=1: plain text beyond loopback after all, for a network that is private by other means.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from services.kit.errors import SettingError
from services.kit.log import get_logger
from wooly.shared import tls
from wooly.shared.tls import ReloadingContext, is_loopback

CA_VARIABLE = "WOOLY_TLS_CA"
CERT_VARIABLE = "WOOLY_TLS_CERT"
KEY_VARIABLE = "WOOLY_TLS_KEY"
INSECURE_VARIABLE = "WOOLY_INSECURE"


def client_context(environment: Mapping[str, str]) -> ssl.SSLContext:
    """Checks certificate and name of the other side. Raises SettingError."""
    try:
        return tls.client_context(environment.get(CA_VARIABLE, "").strip())
    except ValueError as error:
        raise SettingError(str(error)) from None


def server_context(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """With this process's own certificate, which is read again once it was replaced; None when it has none. Raises SettingError."""
    cert, key = environment.get(CERT_VARIABLE, "").strip(), environment.get(KEY_VARIABLE, "").strip()
    if not cert and not key:
        return None
    if not cert or not key:
        raise SettingError(f"{CERT_VARIABLE} and {KEY_VARIABLE} go together; set both, or neither")
    try:
        return ReloadingContext.of([cert, key], lambda: certified_context(cert, key))
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"{CERT_VARIABLE}={cert}, {KEY_VARIABLE}={key} cannot be used: {error}") from None


def certified_context(cert: str, key: str | None = None) -> ssl.SSLContext:
    """For a server, with the certificate and the key in these PEM files (None: in the same). Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(cert, key)
    return context


def plain_allowed(environment: Mapping[str, str], host: str, what: str, instead: str) -> None:
    """May ``what`` go over ``host`` unencrypted? ``instead``: what to set so that it need not. Raises SettingError when it may not."""
    if is_loopback(host):
        return
    if environment.get(INSECURE_VARIABLE, "").strip() == "1":
        get_logger().warning(f"{INSECURE_VARIABLE}=1: {what} goes over {host} in plain text; hosts on that network can read and change it")
        return
    raise SettingError(
        f"{what} would go over {host} in plain text: {instead}, or stay on 127.0.0.1 "
        f"({INSECURE_VARIABLE}=1 allows it on a network that is private by other means)"
    )
