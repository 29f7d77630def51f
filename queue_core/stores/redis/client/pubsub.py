"""Receives what is sent to our channels: one thread, and a connection to each server that holds a queue we listen for.

A connection that is lost is made again; whoever listens is told, as it may have missed something meanwhile.
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
from queue_core.stores.redis.client.connection import Answer, RedisProtocol

SILENCE_SECONDS = 2.0
"""After so long without a word the server is asked whether it is there; after as long again the link counts as cut."""
ROUND_SECONDS = 5.0
"""How often everything is looked over: channels that nobody listens to, queues that moved, ears that were forgotten."""
IDLE_SECONDS = 30.0
PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(slots=True)
class _Channel:
    """One channel: the key whose server it is on, where we listen to it now, and whether that was lost before."""

    name: str
    key: str
    address: RedisAddress | None = None
    is_late: bool = False
    ready: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Ear:
    """One connection: when it last said something, and when it was asked to."""

    wire: RedisProtocol
    heard_at: float
    asked_at: float | None = None


class PubSub:
    """Opened channels. The callbacks run in its thread and must not raise."""

    def __init__(
        self,
        link: RedisClient,
        *,
        heard: Callable[[str, bytes], None],
        opened_late: Callable[[str], None],
        round_made: Callable[[], None],
    ) -> None:
        """Args:
        heard: told a channel's name and what was sent to it.
        opened_late: told a channel that is open now, but was not for a while.
        round_made: called every few seconds.
        """
        self._link = link
        self._heard = heard
        self._opened_late = opened_late
        self._round_made = round_made
        self._lock = threading.Lock()
        self._channels: dict[str, _Channel] = {}
        self._thread: threading.Thread | None = None
        self._poke: int | None = None
        self._is_closed = False
        self._ears: dict[RedisAddress, _Ear] = {}
        self._by_descriptor: dict[int, RedisAddress] = {}
        self._poll = select.poll()
        self._failures = 0
        self._retry_at = 0.0
        self._unwanted: list[_Channel] = []

    def open(self, name: str, key: str, *, timeout_seconds: float) -> bool:
        """Listen to a channel on the server that holds `key`; False when that takes longer, and goes on meanwhile."""
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
        """Stop listening to a channel."""
        with self._lock:
            channel = self._channels.pop(name, None)
            if channel is not None:
                self._unwanted.append(channel)
                self._wake_locked()

    def leave_to_parent(self) -> None:
        """In the child of a fork: close the copies of what the parent's thread listens to."""
        ears, self._ears = list(self._ears.values()), {}
        for ear in ears:
            with contextlib.suppress(RedisError, OSError):
                ear.wire.disconnect()
        if self._poke is not None:
            os.close(self._poke)
            self._poke = None

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
            assert self._poke is not None, "the thread has made it"
            os.eventfd_write(self._poke, 1)
        elif not self._is_closed:
            self._poke = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._work, name="towline-redis-ears", daemon=True)
            self._thread.start()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._poke is not None, "made before the thread is"
        self._poll.register(self._poke, select.POLLIN)
        monotonic = self._link.clock.monotonic
        next_round = wanted_at = monotonic()
        next_round += ROUND_SECONDS
        while True:
            self._subscribe()
            for descriptor, _ in self._poll.poll(1000 * self._seconds_to_sleep(next_round)):
                if descriptor == self._poke:
                    os.eventfd_read(self._poke)
                elif descriptor in self._by_descriptor:
                    self._read(self._by_descriptor[descriptor])
            self._ask_the_silent()
            now = monotonic()
            if now >= next_round:
                next_round = now + ROUND_SECONDS
                self._move()
                self._round_made()
            if self._channels:
                wanted_at = now
            if self._is_over(now - wanted_at):
                return

    def _is_over(self, idle_seconds: float) -> bool:
        with self._lock:
            if not self._is_closed and (self._channels or self._unwanted or idle_seconds < IDLE_SECONDS):
                return False
            for address in list(self._ears):
                self._drop(address)
            if self._poke is not None:
                self._poll.unregister(self._poke)
                os.close(self._poke)
            self._poke = self._thread = None
            return True

    def _seconds_to_sleep(self, next_round: float) -> float:
        now = self._link.clock.monotonic()
        due = next_round
        if any(channel.address is None for channel in self._listed()):
            due = min(due, self._retry_at)
        for ear in self._ears.values():
            due = min(due, (ear.asked_at or ear.heard_at) + SILENCE_SECONDS)
        return max(0.0, due - now)

    def _listed(self) -> list[_Channel]:
        with self._lock:
            return list(self._channels.values())

    def _subscribe(self) -> None:
        """Send for the channels that are not open, and let go of those that are not wanted."""
        with self._lock:
            unwanted, self._unwanted = self._unwanted, []
        for channel in unwanted:
            self._send(channel, "SUNSUBSCRIBE")
        if self._link.clock.monotonic() < self._retry_at:
            return
        for channel in self._listed():
            if channel.address is not None:
                continue
            try:
                address = self._link.address(channel.key)
                if address not in self._ears:
                    self._connect(address)
            except StoreError:
                self._put_off()
                return
            channel.address = address
            self._send(channel, "SSUBSCRIBE")

    def _connect(self, address: RedisAddress) -> None:
        ear = self._ears[address] = _Ear(self._link.wire(address), self._link.clock.monotonic())
        descriptor = ear.wire.fileno()
        self._by_descriptor[descriptor] = address
        self._poll.register(descriptor, select.POLLIN)

    def _send(self, channel: _Channel, command: str) -> None:
        ear = self._ears.get(channel.address) if channel.address is not None else None
        if ear is None:
            return
        try:
            ear.wire.send_command(command, channel.name)
        except (RedisError, OSError):
            if channel.address is not None:
                self._lose(channel.address)

    def _read(self, address: RedisAddress) -> None:
        ear = self._ears[address]
        ear.heard_at = self._link.clock.monotonic()
        ear.asked_at = None
        try:
            while address in self._ears and ear.wire.can_read(0):
                self._take(address, ear.wire.read_response())
        except ResponseError:  # MOVED, most likely: the channel is on another server by now
            self._link.look_again()
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
            self._heard(channel.name, data)
        elif kind == b"ssubscribe":
            self._failures = 0
            channel.ready.set()
            if channel.is_late:
                channel.is_late = False
                self._opened_late(channel.name)
        elif kind == b"sunsubscribe" and channel.address == address:  # the cluster moved the slot away
            self._link.look_again()
            self._close(channel)

    def _ask_the_silent(self) -> None:
        now = self._link.clock.monotonic()
        for address, ear in list(self._ears.items()):
            if ear.asked_at is not None and now - ear.asked_at >= SILENCE_SECONDS:
                self._lose(address)
            elif ear.asked_at is None and now - ear.heard_at >= SILENCE_SECONDS:
                ear.asked_at = now
                try:
                    ear.wire.send_command("PING")
                except (RedisError, OSError):
                    self._lose(address)

    def _move(self) -> None:
        """Queues that are on another server by now, as calls have found out."""
        for channel in self._listed():
            with contextlib.suppress(StoreError):
                if channel.address is not None and self._link.address(channel.key) != channel.address:
                    self._send(channel, "SUNSUBSCRIBE")
                    self._close(channel)

    def _lose(self, address: RedisAddress) -> None:
        self._drop(address)
        for channel in self._listed():
            if channel.address == address:
                self._close(channel)
        self._link.look_again()
        self._put_off()

    def _close(self, channel: _Channel) -> None:
        channel.address = None
        channel.is_late = True
        channel.ready.clear()

    def _put_off(self) -> None:
        pause_seconds = PAUSES_SECONDS[min(self._failures, len(PAUSES_SECONDS) - 1)]
        self._failures += 1
        self._retry_at = self._link.clock.monotonic() + pause_seconds

    def _drop(self, address: RedisAddress) -> None:
        ear = self._ears.pop(address, None)
        if ear is None:
            return
        for descriptor in [known for known, at in self._by_descriptor.items() if at == address]:
            del self._by_descriptor[descriptor]
            self._poll.unregister(descriptor)
        with contextlib.suppress(RedisError, OSError):
            ear.wire.disconnect()
