"""Frames: how messages stand one behind the other in a byte stream, and records in a journal. Pure.

A *frame* is the body's length (u32, little-endian) and the body: data port, executor protocol, the journal's lane of programs.
A *checked frame* has the first 8 bytes of the body's blake3 between the two: journals of the cores, the node's journal of facts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec
from blake3 import blake3

HEAD: Final = struct.Struct("<I")
_CHECKED_HEAD: Final = struct.Struct("<I8s")
_encoder: Final = msgspec.msgpack.Encoder()

CHECKED_BYTES_MAX: Final = 16 << 20
"""A last frame that claims more than this and is not there is not torn: its length is damaged, and good frames may stand behind it."""


class FrameDamage(ValueError):
    """A checked frame that is not the last one is damaged."""


def frame(message: msgspec.Struct) -> bytes:
    """The frame of ``message`` in msgpack."""
    out = bytearray(HEAD.size)
    _encoder.encode_into(message, out, HEAD.size)
    HEAD.pack_into(out, 0, len(out) - HEAD.size)
    return bytes(out)


class Frames:
    """Cuts a stream into the bodies of its frames, wherever it is broken."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies completed by ``data``."""
        rest = self._rest
        rest += data
        out = []
        at = 0
        while len(rest) - at >= HEAD.size:
            (length,) = HEAD.unpack_from(rest, at)
            if len(rest) - at - HEAD.size < length:
                break
            at += HEAD.size + length
            out.append(bytes(rest[at - length : at]))
        if at:
            del rest[:at]
        return out


def checked_frame(body: bytes) -> bytes:
    return _CHECKED_HEAD.pack(len(body), _check(body)) + body


def checked_frames(data: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """The bodies of ``data`` and where each frame ends. A torn last frame (the process died while writing) is left out; damage before it
    raises FrameDamage."""
    view = memoryview(data)
    at = number = 0
    while at + _CHECKED_HEAD.size <= len(view):
        length, check = _CHECKED_HEAD.unpack_from(view, at)
        end = at + _CHECKED_HEAD.size + length
        if end > len(view):
            if length > CHECKED_BYTES_MAX:
                raise FrameDamage(f"record {number} at byte {at} claims {length} bytes: the journal is damaged, set it aside")
            return
        body = view[at + _CHECKED_HEAD.size : end]
        if _check(body) != check:
            if end == len(view):
                return  # the last frame's bytes did not all reach the disk
            raise FrameDamage(f"record {number} at byte {at} does not match its checksum: the journal is damaged, set it aside")
        yield end, body
        at = end
        number += 1


def _check(body: bytes | memoryview) -> bytes:
    return blake3(body).digest(length=8)
