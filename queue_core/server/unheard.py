"""Whether what was written to a connection has arrived, as the kernel knows it."""

import asyncio
import socket
from struct import unpack_from

TCP_INFO_BYTES = 216
BYTES_ACKED, NOTSENT_BYTES, BYTES_SENT = 120, 144, 200
"""Offsets in Linux's `struct tcp_info`, from 4.19 on; `bytes_retrans` follows `bytes_sent`, which includes it."""


def is_unheard(transport: asyncio.Transport) -> bool:
    """Whether the other end's machine has not confirmed all that was written; False where nobody knows."""
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:  # not TCP
        return False
    if len(info) < TCP_INFO_BYTES:
        return False
    (confirmed,) = unpack_from("Q", info, BYTES_ACKED)
    (unsent,) = unpack_from("I", info, NOTSENT_BYTES)
    sent, sent_again = unpack_from("QQ", info, BYTES_SENT)
    return unsent > 0 or bool(confirmed < sent - sent_again)
