"""Opening: the first frames of a gRPC connection; calls are held until the client has taken up the limits. Pure.

gRPC keeps its limit for a call's metadata, of 16 KiB, only from the moment at which the client has acknowledged its
settings; until then HTTP/2's own holds, of 16 MiB: half a million fields in 500 KB, by anyone (ADR 134).
"""

from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES: Final = 16_384
"""The longest frame of a client that has not acknowledged the settings."""
MAX_HELD_BYTES: Final = 128 << 10
"""What is held, at most: the 64 KiB of messages that HTTP/2 allows before an answer, and as much for heads."""
MAX_FRAMES: Final = 4_096
"""Frames before the acknowledgement. Looking at each takes a microsecond."""
_FRAME_HEAD_BYTES: Final = 9
_SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 4, 6, 7, 8
_OF_CONNECTION: Final = frozenset({_SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE})
_ACK: Final = 1


class OpeningError(ValueError):
    """A client that gRPC's own would not be: it is cut."""


class Opening:
    """Puts the client's acknowledgement before its calls; from then on everything goes through as it is."""

    def __init__(self) -> None:
        self.is_over = False
        self._begun = False
        self._frames = 0
        self._data = bytearray()
        self._held = bytearray()

    def take(self, data: bytes) -> bytes:
        """Take what has arrived; returns what may go on now. Raises `OpeningError`."""
        if self.is_over:
            return data
        self._data += data
        ready = bytearray()
        if not self._begun and not self._begin(ready):
            return b""
        while not self.is_over and (frame := self._frame()) is not None:
            kind, flags, stream = frame[3], frame[4], int.from_bytes(frame[5:9], "big") & 0x7FFF_FFFF
            if kind in _OF_CONNECTION and stream == 0:
                ready += frame
                self.is_over = kind == _SETTINGS and bool(flags & _ACK)
            else:
                self._held += frame
        if len(self._held) > MAX_HELD_BYTES:
            raise OpeningError(f"more than {MAX_HELD_BYTES} bytes before the settings are acknowledged")
        if self.is_over:
            ready += self._held + self._data
            self._held.clear()
            self._data.clear()
        return bytes(ready)

    def _begin(self, ready: bytearray) -> bool:
        """Take the preface; returns whether all of it is there."""
        found = bytes(self._data[: len(PREFACE)])
        if not PREFACE.startswith(found):
            raise OpeningError("this is no HTTP/2")
        self._begun = found == PREFACE
        if self._begun:
            ready += found
            del self._data[: len(PREFACE)]
        return self._begun

    def _frame(self) -> bytes | None:
        """Take the next frame, when all of it is there."""
        if len(self._data) < _FRAME_HEAD_BYTES:
            return None
        length = int.from_bytes(self._data[:3], "big")
        if length > MAX_FRAME_BYTES:
            raise OpeningError(f"a frame of {length} bytes before the settings are acknowledged")
        end = _FRAME_HEAD_BYTES + length
        if len(self._data) < end:
            return None
        self._frames += 1
        if self._frames > MAX_FRAMES:
            raise OpeningError(f"more than {MAX_FRAMES} frames before the settings are acknowledged")
        frame = bytes(self._data[:end])
        del self._data[:end]
        return frame
