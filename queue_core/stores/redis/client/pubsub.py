"""Receive the messages of channels, in one thread, with a connection to each server that holds a subscribed queue.

A lost connection is opened again, and `on_reopened` is called for its channels, as messages may have been missed.
"""

import contextlib
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError, ResponseError

from queue_core.config.redis_url import RedisAddress
from queue_core.errors import StoreError
from queue_core.stores.redis.client.client import RedisClient
from queue_core.stores.redis.client.connection import Answer, RedisDriver

SILENCE_SECONDS = 2.0
"""A server that is silent this long is sent a PING; after as long again its connection counts as lost."""
ROUND_SECONDS = 5.0
"""How often unused channels are closed, moved queues followed, and waiters registered again."""
IDLE_SECONDS = 30.0
"""How long the thread goes on without a channel."""
PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(slots=True)
class _Channel:
    """A channel: the key whose server has it, the server where it is subscribed now, and whether it missed messages."""

    name: str
    key: str
    address: RedisAddress | None = None
    is_late: bool = False
    ready: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Server:
    """The connection to a server, when it last sent anything, and when it was sent a PING."""

    driver: RedisDriver
    received_at: float
    pinged_at: float | None = None


class PubSub:
    """The subscribed channels. Callbacks run in its thread and must not raise."""

    def __init__(
        self,
        client: RedisClient,
        *,
        on_message: Callable[[str, bytes], None],
        on_reopened: Callable[[str], None],
        on_round: Callable[[], None],
    ) -> None:
        """Args:
        on_message: called with a channel's name and a message.
        on_reopened: called with a channel that is open again and may have missed messages.
        on_round: called every `ROUND_SECONDS`.
        """
        self._client = client
        self._on_message = on_message
        self._on_reopened = on_reopened
        self._on_round = on_round
        self._lock = threading.Lock()
        self._channels: dict[str, _Channel] = {}
        self._thread: threading.Thread | None = None
        self._wakeup: int | None = None
        self._is_closed = False
        self._servers: dict[RedisAddress, _Server] = {}
        self._by_descriptor: dict[int, RedisAddress] = {}
        self._poll = select.poll()
        self._failures = 0
        self._retry_at = 0.0
        self._unwanted: list[_Channel] = []

    def open(self, name: str, key: str, *, timeout_seconds: float) -> bool:
        """Subscribe to a channel on the server that holds `key`; return False on a timeout and go on trying."""
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                channel = self._channels[name] = _Channel(name, key)
                self._wake_locked()
        if channel.ready.wait(timeout_seconds):
            return True
        channel.is_late = True
        return False

    def shut(self, name: str) -> None:
        """Unsubscribe from a channel."""
        with self._lock:
            channel = self._channels.pop(name, None)
            if channel is not None:
                self._unwanted.append(channel)
                self._wake_locked()

    def leave_to_parent(self) -> None:
        """In the child of a fork: close the copies of the parent's connections."""
        servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            with contextlib.suppress(RedisError, OSError):
                server.driver.disconnect()
        if self._wakeup is not None:
            os.close(self._wakeup)
            self._wakeup = None

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
            self._wake_locked()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake_locked(self) -> None:
        if self._thread is not None:
            assert self._wakeup is not None, "it is made before the thread"
            os.eventfd_write(self._wakeup, 1)
        elif not self._is_closed:
            self._wakeup = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._work, name="towline-redis-pubsub", daemon=True)
            self._thread.start()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._wakeup is not None, "it is made before the thread"
        self._poll.register(self._wakeup, select.POLLIN)
        monotonic = self._client.clock.monotonic
        next_round = wanted_at = monotonic()
        next_round += ROUND_SECONDS
        while True:
            self._subscribe()
            for descriptor, _ in self._poll.poll(1000 * self._seconds_to_sleep(next_round)):
                if descriptor == self._wakeup:
                    os.eventfd_read(self._wakeup)
                elif descriptor in self._by_descriptor:
                    self._read(self._by_descriptor[descriptor])
            self._ping_silent()
            now = monotonic()
            if now >= next_round:
                next_round = now + ROUND_SECONDS
                self._move()
                self._on_round()
            if self._channels:
                wanted_at = now
            if self._is_over(now - wanted_at):
                return

    def _is_over(self, idle_seconds: float) -> bool:
        with self._lock:
            if not self._is_closed and (self._channels or self._unwanted or idle_seconds < IDLE_SECONDS):
                return False
            for address in list(self._servers):
                self._drop(address)
            if self._wakeup is not None:
                self._poll.unregister(self._wakeup)
                os.close(self._wakeup)
            self._wakeup = self._thread = None
            return True

    def _seconds_to_sleep(self, next_round: float) -> float:
        now = self._client.clock.monotonic()
        due = next_round
        if any(channel.address is None for channel in self._listed()):
            due = min(due, self._retry_at)
        for server in self._servers.values():
            due = min(due, (server.pinged_at or server.received_at) + SILENCE_SECONDS)
        return max(0.0, due - now)

    def _listed(self) -> list[_Channel]:
        with self._lock:
            return list(self._channels.values())

    def _subscribe(self) -> None:
        """Subscribe to the channels that are not open, and unsubscribe from unwanted ones."""
        with self._lock:
            unwanted, self._unwanted = self._unwanted, []
        for channel in unwanted:
            self._send(channel, "SUNSUBSCRIBE")
        if self._client.clock.monotonic() < self._retry_at:
            return
        for channel in self._listed():
            if channel.address is not None:
                continue
            try:
                address = self._client.address(channel.key)
                if address not in self._servers:
                    self._connect(address)
            except StoreError:
                self._put_off()
                return
            channel.address = address
            self._send(channel, "SSUBSCRIBE")

    def _connect(self, address: RedisAddress) -> None:
        server = self._servers[address] = _Server(self._client.connect(address), self._client.clock.monotonic())
        descriptor = server.driver.fileno()
        self._by_descriptor[descriptor] = address
        self._poll.register(descriptor, select.POLLIN)

    def _send(self, channel: _Channel, command: str) -> None:
        server = self._servers.get(channel.address) if channel.address is not None else None
        if server is None:
            return
        try:
            server.driver.send_command(command, channel.name)
        except (RedisError, OSError):
            if channel.address is not None:
                self._lose(channel.address)

    def _read(self, address: RedisAddress) -> None:
        server = self._servers[address]
        server.received_at = self._client.clock.monotonic()
        server.pinged_at = None
        try:
            while address in self._servers and server.driver.can_read(0):
                self._take(address, server.driver.read_response())
        except ResponseError:  # most likely MOVED: the channel is on another server now
            self._client.forget_topology()
            self._lose(address)
        except (RedisError, OSError):
            self._lose(address)

    def _take(self, address: RedisAddress, answer: Answer) -> None:
        if not isinstance(answer, list) or len(answer) < 3:
            return  # a pong
        kind, name, data = answer[0], answer[1], answer[2]
        channel = self._channels.get(name.decode()) if isinstance(name, bytes) else None
        if channel is None:
            return
        if kind == b"smessage" and isinstance(data, bytes):
            self._on_message(channel.name, data)
        elif kind == b"ssubscribe":
            self._failures = 0
            channel.ready.set()
            if channel.is_late:
                channel.is_late = False
                self._on_reopened(channel.name)
        elif kind == b"sunsubscribe" and channel.address == address:  # the cluster moved the slot away
            self._client.forget_topology()
            self._close(channel)

    def _ping_silent(self) -> None:
        now = self._client.clock.monotonic()
        for address, server in list(self._servers.items()):
            if server.pinged_at is not None and now - server.pinged_at >= SILENCE_SECONDS:
                self._lose(address)
            elif server.pinged_at is None and now - server.received_at >= SILENCE_SECONDS:
                server.pinged_at = now
                try:
                    server.driver.send_command("PING")
                except (RedisError, OSError):
                    self._lose(address)

    def _move(self) -> None:
        """Unsubscribe channels whose queues are on another server now; `_subscribe` opens them there."""
        for channel in self._listed():
            with contextlib.suppress(StoreError):
                if channel.address is not None and self._client.address(channel.key) != channel.address:
                    self._send(channel, "SUNSUBSCRIBE")
                    self._close(channel)

    def _lose(self, address: RedisAddress) -> None:
        self._drop(address)
        for channel in self._listed():
            if channel.address == address:
                self._close(channel)
        self._client.forget_topology()
        self._put_off()

    def _close(self, channel: _Channel) -> None:
        channel.address = None
        channel.is_late = True
        channel.ready.clear()

    def _put_off(self) -> None:
        pause_seconds = PAUSES_SECONDS[min(self._failures, len(PAUSES_SECONDS) - 1)]
        self._failures += 1
        self._retry_at = self._client.clock.monotonic() + pause_seconds

    def _drop(self, address: RedisAddress) -> None:
        server = self._servers.pop(address, None)
        if server is None:
            return
        for descriptor in [known for known, at in self._by_descriptor.items() if at == address]:
            del self._by_descriptor[descriptor]
            self._poll.unregister(descriptor)
        with contextlib.suppress(RedisError, OSError):
            server.driver.disconnect()
