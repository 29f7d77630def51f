"""Pass texts between the processes of one file by Unix datagrams; nothing is written to the disk (ADR 39).

A process that receives is a socket in `<file>-mail/`, by its name. Each recipient has a socket of its own to be sent
from, as the kernel lets one that is stopped fill no other's.
"""

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock, Thread

from queue_core.clock import Clock
from queue_core.errors import StoreUnavailableError

PIECE_CHARACTERS = 32 << 10
MAX_PIECE_BYTES = 64 << 10
MAX_SOCKET_PATH_BYTES = 107
"""The kernel's limit."""
ROUND_SECONDS = 10.0
PATIENCE_SECONDS = 0.5
"""How long a recipient may take to make room; after that it misses texts, and is told so."""
CLOSE_SECONDS = 5.0

_GAP = b"!"
_LOOK = b""


class DatagramBus:
    """See `MessageBus`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._folder = path.with_name(path.name + "-mail")
        self._clock = clock
        self._sending = Lock()
        self._recipients: dict[str, socket.socket] = {}
        self._behind: set[str] = set()
        self._node = ""
        self._socket: socket.socket | None = None
        self._wakeup = -1
        self._thread: Thread | None = None
        self._is_ending = False

    @property
    def piece_characters(self) -> int:
        """See `MessageBus.piece_characters`."""
        return PIECE_CHARACTERS

    def receive(
        self,
        node: str,
        *,
        on_piece: Callable[[str], None],
        on_gap: Callable[[], None],
        on_round: Callable[[], None],
    ) -> None:
        """See `MessageBus.receive`."""
        if self._socket is not None:
            return
        self._node = node
        self._on_piece, self._on_gap, self._on_round = on_piece, on_gap, on_round
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            shared = self._path.stat().st_mode & 0o060 == 0o060
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o770 if shared else 0o700)
            with self._address(node) as address:
                bound.bind(address)
            (self._folder / node).chmod(0o660 if shared else 0o600)
        except OSError as error:
            bound.close()
            raise StoreUnavailableError(f"no socket in {self._folder}: {error.strerror}") from error
        self._socket = bound
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Thread(target=self._work, args=(bound,), name="towline-mailboxes", daemon=True)
        self._thread.start()

    def send(self, pieces: Sequence[tuple[str, str]]) -> None:
        """See `MessageBus.send`."""
        with self._sending:
            listed = self._listed() if any(not node for node, _ in pieces) else []
            everybody = [node for node in listed if node != self._node]
            for to, piece in pieces:
                for node in [to] if to else everybody:
                    self._send(node, piece.encode())

    def nodes(self) -> set[str]:
        """See `MessageBus.nodes`."""
        with self._sending:
            return {node for node in self._listed() if node == self._node or self._send(node, _LOOK)}

    def leave_to_parent(self) -> None:
        """See `MessageBus.leave_to_parent`."""
        self._is_ending = True
        self._close_sockets()

    def close(self) -> None:
        """See `MessageBus.close`."""
        self._is_ending = True
        if self._thread is None:
            return
        os.eventfd_write(self._wakeup, 1)
        self._thread.join(CLOSE_SECONDS)
        with contextlib.suppress(OSError):
            (self._folder / self._node).unlink()
        self._close_sockets()

    def _close_sockets(self) -> None:
        bound, self._socket = self._socket, None
        for one in [*self._recipients.values(), *([bound] if bound is not None else [])]:
            one.close()
        self._recipients.clear()
        if self._wakeup >= 0:
            os.close(self._wakeup)
            self._wakeup = -1

    def _listed(self) -> list[str]:
        try:
            return os.listdir(self._folder)  # noqa: PTH208 - names only
        except OSError:
            return []

    def _send(self, node: str, message: bytes) -> bool:
        """Send a datagram; False where the process is gone. One that misses some is told so before the next."""
        sender = self._recipients.get(node) or self._connect(node)
        if sender is None:
            return False
        is_behind = node in self._behind
        try:
            sender.settimeout(0.0 if is_behind or not message else PATIENCE_SECONDS)
            if is_behind and message:
                sender.send(_GAP)
                self._behind.discard(node)
            sender.send(message)
        except (TimeoutError, BlockingIOError):
            if message:
                self._behind.add(node)
        except OSError:
            sender.close()
            del self._recipients[node]
            self._behind.discard(node)
            with contextlib.suppress(OSError):
                (self._folder / node).unlink()
            return False
        return True

    def _connect(self, node: str) -> socket.socket | None:
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with self._address(node) as address:
                sender.connect(address)
        except ConnectionRefusedError:
            sender.close()
            with contextlib.suppress(OSError):
                (self._folder / node).unlink()
            return None
        except OSError:
            sender.close()
            return None
        self._recipients[node] = sender
        return sender

    @contextlib.contextmanager
    def _address(self, node: str) -> Iterator[str]:
        """Return a socket's address; through a descriptor of its folder where the path is too long for a socket."""
        path = str(self._folder / node)
        if len(path.encode()) <= MAX_SOCKET_PATH_BYTES:
            yield path
            return
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{node}"
        finally:
            os.close(descriptor)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self, bound: socket.socket) -> None:
        poll = select.poll()
        poll.register(bound.fileno(), select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        next_round = self._clock.monotonic() + ROUND_SECONDS
        while not self._is_ending:
            if poll.poll(max(0.0, next_round - self._clock.monotonic()) * 1000):
                self._read(bound)
            if self._clock.monotonic() >= next_round:
                next_round = self._clock.monotonic() + ROUND_SECONDS
                self._on_round()

    def _read(self, bound: socket.socket) -> None:
        while not self._is_ending:
            try:
                message = bound.recv(MAX_PIECE_BYTES)
            except BlockingIOError:
                return
            if message == _GAP:
                self._on_gap()
            elif message != _LOOK:
                self._on_piece(message.decode("ascii", "replace"))
