"""The one table of how long texts and lists of messages may be, as types of fields: decoding refuses what is longer, by field. Pure.

A request is refused by its receiver. An event of a node that breaks a limit is undecodable, and ignored like any such. Events are kept for
ever, some from before these limits: their texts may be as long as ``RECORDED_CHARS_MAX``, although what is made of a request stays as short
as the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be; RecursionError for what is nested deeply, also in a field that the type
does not have."""

T = TypeVar("T")


Decode = Callable[[bytes | bytearray | memoryview], T]


def decoding(decoder: msgspec.msgpack.Decoder[T]) -> Decode[T]:
    """``decoder.decode``, which raises msgspec.DecodeError (ValidationError for another type) for all that is MALFORMED."""

    def decode(data: bytes | bytearray | memoryview) -> T:
        try:
            return decoder.decode(data)
        except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets them through
            raise msgspec.DecodeError(str(error)) from None

    return decode


NAME_CHARS_MAX: Final = 64
TENANT_CHARS_MAX: Final = 200
TITLE_CHARS_MAX: Final = 200
TEXT_CHARS_MAX: Final = 1000
RECORDED_CHARS_MAX: Final = 4096
DEVICES_MAX: Final = 64
"""Of a node (WOOLY_DEVICES), and of one task."""
DOMAINS_MAX: Final = 64
"""Of trust domains with several tenants that a node announces, and of the tenants of each."""
GROUPS_MAX: Final = 64
"""Of a node."""
RUNNING_MAX: Final = 2048
"""Sessions of one device that telemetry lists."""
ENDED_MAX: Final = 1024
"""Sessions that one request to a node names, to be ended."""
REQUEST_BYTES_MAX: Final = 16 << 10
"""Of a client's request to a node; the longest that keeps the limits of its fields has 3 KB. Batches have limits of their own."""
SEQ_MAX: Final = 1 << 62
"""Numbers of batches are below it."""
QUOTA_USES_MAX: Final = 128
"""Quotas of tenants that a node's telemetry lists."""

Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
"""Of a session, task, node, principal or group; what stands in subjects is at most as long."""
TenantName = Annotated[str, Meta(max_length=TENANT_CHARS_MAX)]
Title = Annotated[str, Meta(max_length=TITLE_CHARS_MAX)]
"""For people; a client cuts a longer one."""
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
"""A reason."""
Trace = Annotated[str, Meta(max_length=64)]
"""A W3C traceparent has 55 characters."""
Recorded = Annotated[str, Meta(max_length=RECORDED_CHARS_MAX)]
"""A text of an event."""
