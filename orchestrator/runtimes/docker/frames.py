"""Splits what an engine sends of a container's output into pieces with their time. Pure; fed as bytes arrive.

The stream is an answer of HTTP/1.0: a head, then frames of an 8 byte header and one piece with its time in front.
"""

from typing import Final

from orchestrator.runtimes.docker.state import nanoseconds
from orchestrator.value import value

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
_HEADER_BYTES: Final = 8
_MAX_STAMP_BYTES: Final = 40


class NoLogError(Exception):
    """The engine does not send the output of this container; the message says why."""


@value
class Piece:
    """What a container wrote at one instant: a line, or up to 16 KiB of a longer one. `at` in nanoseconds."""

    at: int
    data: bytes


class Frames:
    """One stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_head = False

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces that are complete now. Raises `NoLogError`."""
        self._buffer += data
        if not self._has_head:
            head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not found:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise NoLogError("no answer of an engine")
                return []
            status = head.split(b"\r\n", 1)[0].split(b" ")
            if len(status) < 2 or status[1] != b"200":
                raise NoLogError(rest.decode(errors="replace").strip() or head.decode(errors="replace"))
            self._has_head = True
            self._buffer = bytearray(rest)
        return self._pieces()

    def _pieces(self) -> list[Piece]:
        pieces = []
        start = 0
        while len(self._buffer) - start >= _HEADER_BYTES:
            length = int.from_bytes(self._buffer[start + 4 : start + _HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise NoLogError("its output has no frames: it has a terminal")
            end = start + _HEADER_BYTES + length
            if end > len(self._buffer):
                break
            pieces.append(_piece(bytes(self._buffer[start + _HEADER_BYTES : end])))
            start = end
        del self._buffer[:start]
        return pieces


def _piece(frame: bytes) -> Piece:
    stamp, found, rest = frame.partition(b" ")
    instant = nanoseconds(stamp.decode(errors="replace")) if found and len(stamp) <= _MAX_STAMP_BYTES else None
    return Piece(0, frame) if instant is None else Piece(instant, rest)
