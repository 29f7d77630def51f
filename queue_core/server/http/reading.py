"""How much of what a connection sends is parsed in one turn of the loop; the rest is kept, and no more read (ADR 109).

Else one stranger's segment with thousands of requests or chunks in it would hold up all other callers.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

READ_BYTES: Final = 32 << 10
"""Bytes that are read at a time, and parsed in one turn. asyncio reads 256 KiB, and TLS hands over what it has."""
PIECE_BYTES: Final = 512
"""Bytes that are parsed between two looks at the counts: room for 32 requests, of 16 bytes at least."""
TURN_REQUESTS: Final = 16
"""Requests of a connection that are begun in one turn, not counting those of the same piece."""
WAITING_REQUESTS: Final = 16
"""Requests of a connection that wait for the answer to an earlier one, in the same way."""


class HeldFlow(FlowControl):
    """uvicorn's flow control; nothing is read while bytes are kept, whoever asks for it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False
        self._is_wanted = True

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`."""
        self._is_wanted = False
        super().pause_reading()

    def resume_reading(self) -> None:
        """Read again, once nothing is kept."""
        self._is_wanted = True
        if self.read_paused and not self._is_held:
            super().resume_reading()

    def hold(self) -> None:
        """Read no more: bytes are kept."""
        self._is_held = True
        super().pause_reading()

    def release(self) -> None:
        """Read again unless reading is paused: nothing is kept any more."""
        self._is_held = False
        if self._is_wanted:
            super().resume_reading()
