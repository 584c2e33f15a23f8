"""Addresses of callers, and which of them belong to one."""

from __future__ import annotations

import ipaddress
from typing import Final

_IPV6_PREFIX: Final = 64


def address_group(address: str) -> str:
    """The unit of limits: the address itself, or for IPv6 its network of 64 bits, whose addresses belong to one host."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
