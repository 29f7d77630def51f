"""The mailboxes of one process, joined with those of the other processes that have the same store open (ADR 39).

A thin shell around `Mailboxes`: it sends their news by the store's bus, and hands them those of others.
"""

import secrets
from itertools import groupby
from operator import itemgetter
from threading import Event, Lock

from queue_core.celery.mailboxes.mailboxes import Mailboxes
from queue_core.celery.mailboxes.news import Echo, Joiner, decoded, encoded, pieces
from queue_core.clock import Clock
from queue_core.errors import StoreError, StoreUnavailableError
from queue_core.log import get_logger
from queue_core.store import MessageBus

OPEN_SECONDS = 1.0
"""How long the first call waits for what the other processes have; one that is stopped does not answer."""
POLL_SECONDS = 0.05
ECHO_SECONDS = 1.0

MAILBOXES_ALONE = "mailboxes.alone"
"""Other processes' mailboxes can't be reached from here: the store can't be listened to; the event says why."""
MAILBOXES_UNREACHED = "mailboxes.unreached"
"""Announcements could not be sent; they are sent again in the next round."""
NEWS_REFUSED = "mailboxes.news_refused"
"""A text on the bus that is not of ours."""

_log = get_logger()


def new_node() -> str:
    """Return a name for a process among those of its store: eight hexadecimal digits."""
    return secrets.token_hex(4)


class MailboxNetwork:
    """Keeps `boxes` in touch with other processes from the first `open` on. Thread-safe."""

    def __init__(self, bus: MessageBus | None, clock: Clock) -> None:
        """Args:
        bus: the store's; None: no other process can open the store.
        clock: the store's: the instants of declarations decide between processes.
        """
        self.boxes = Mailboxes(new_node() if bus is not None else "")
        self._bus = bus
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._opening = Lock()
        self._sending = Lock()
        self._joiner = Joiner()
        self._echoes: dict[int, Event] = {}
        self._number = 0
        self._is_behind = False
        self._answered = Event()
        self._is_open = self._bus is None

    def renew_after_fork(self, bus: MessageBus | None) -> None:
        """Begin anew in the child of a fork, with a bus of its own."""
        if self._bus is not None:
            self._bus.leave_to_parent()
        self._bus = bus
        self.boxes.renew_after_fork(new_node() if bus is not None else "")
        self._begin()

    @property
    def is_open(self) -> bool:
        """Return whether `open` was called, or nothing is to be opened."""
        return self._is_open

    def open(self) -> None:
        """Receive from now on, and know the mailboxes of all other processes; does nothing the next time.

        Where the store can't be listened to, it is logged, and only mailboxes of this process are reached.
        Raises `StoreUnavailableError`.
        """
        if not self._is_open and self._bus is not None:
            with self._opening:
                self._open_once(self._bus)

    def _open_once(self, bus: MessageBus) -> None:
        if self._is_open:
            return
        try:
            bus.receive(self.boxes.node, on_piece=self._on_piece, on_gap=self._on_gap, on_round=self._on_round)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            _log.warning(MAILBOXES_ALONE, error=str(error))
            self._is_open = True
            return
        self.boxes.announce()
        self.flush()
        self._await_answers(bus)
        self._is_open = True

    def flush(self) -> None:
        """Send the news that verbs left. Raises `StoreError` when they can't be sent: then others missed them."""
        bus = self._bus
        if bus is None or not self.boxes.has_outgoing:
            return
        with self._sending:
            node, size = self.boxes.node, bus.piece_characters
            sent: list[tuple[str, str]] = []
            for recipient, run in groupby(self.boxes.take_outgoing(), key=itemgetter(0)):
                self._number += 1
                text = encoded(node, [news for _, news in run])
                sent += [(recipient, piece) for piece in pieces(text, sender=node, number=self._number, size=size)]
            if not sent:
                return
            try:
                bus.send(sent)
            except StoreError:
                self._is_behind = True
                raise

    def await_earlier_news(self) -> None:
        """Return when all that other processes have sent so far is known here, or a second is over.

        A mailbox that was declared a moment ago elsewhere may not be known here yet. Raises `StoreError`.
        """
        bus = self._bus
        if bus is None or not self._is_open or not self.boxes.has_peers:
            return
        is_back = Event()
        with self._sending:
            self._number += 1
            number, node = self._number, self.boxes.node
            self._echoes[number] = is_back
            text = encoded(node, [Echo(number)])
            try:
                bus.send(
                    [(node, piece) for piece in pieces(text, sender=node, number=number, size=bus.piece_characters)]
                )
            except StoreError:
                self._echoes.pop(number, None)
                raise
        is_back.wait(ECHO_SECONDS)
        self._echoes.pop(number, None)

    def close(self) -> None:
        """Leave the other processes, and end the connections."""
        if self._bus is None:
            return
        if self.boxes.is_used:
            self.boxes.leave()
            self._flush_or_log()
        self._bus.close()

    def _await_answers(self, bus: MessageBus) -> None:
        """Wait until each process that receives has said what it has."""
        ends_at = self._clock.monotonic() + OPEN_SECONDS
        while self.boxes.unknown(bus.nodes()) and self._clock.monotonic() < ends_at:
            self._answered.wait(POLL_SECONDS)
            self._answered.clear()

    # -- in the thread of the bus -----------------------------------------------------------------------------------

    def _on_piece(self, piece: str) -> None:
        try:
            text = self._joiner.take(piece)
            if text is None:
                return
            sender, news = decoded(text)
        except ValueError as error:
            _log.warning(NEWS_REFUSED, error=str(error))
            return
        if sender == self.boxes.node:
            for one in news:
                if isinstance(one, Echo) and one.number in self._echoes:
                    self._echoes[one.number].set()
            return
        self.boxes.receive(sender, news, now=self._clock.now())
        self._answered.set()
        self._flush_or_log()

    def _on_gap(self) -> None:
        self._is_behind = True
        self._catch_up()

    def _on_round(self) -> None:
        """Forget processes that have ended, and ask those that are not known yet."""
        if self._bus is None:
            return
        try:
            nodes = self._bus.nodes()
        except StoreError:
            self._is_behind = True
            return
        self._joiner.forget(self.boxes.keep_only(nodes))
        self.boxes.announce_to(self.boxes.unknown(nodes))
        self._catch_up()

    def _catch_up(self) -> None:
        """Tell others again what there is here, and ask them, after anything may have been missed."""
        if self._is_behind:
            self._is_behind = False
            self.boxes.announce()
        self._flush_or_log()

    def _flush_or_log(self) -> None:
        try:
            self.flush()
        except StoreError as error:
            _log.warning(MAILBOXES_UNREACHED, error=str(error))
