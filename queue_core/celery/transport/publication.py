"""One message on its way to its queues: each of its calls is numbered once, so that kombu may repeat it.

kombu publishes a message again after a lost answer: over another connection, and perhaps to another server. The repeat
carries the session and number of the first try, so it adds nothing a second time (ADR 28, ADR 43).
"""

import math
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queue_core.client.http.caller import Session
from queue_core.process import forking
from queue_core.task import NewTask
from queue_core.verbs import ClientCall, meaning_of

_MEMBER: Final = "towline_publication"
"""The property that a message has between two tries; it is never sent. kombu keeps the properties, not the message."""


@dataclass(slots=True)
class Publication:
    """A message that is being published.

    Args:
        calls: the numbers of its calls that may have been sent, each by the queue that it names.
        done: the queues that have it.
        queues: those it is for, once its exchange has told them.
        tag: the message's delivery tag, by which a mailbox's consumer knows a repeat.
    """

    calls: dict[str, Session] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    queues: Sequence[str] | None = None
    tag: str = ""


def taken_from(properties: dict[str, Any]) -> Publication | None:
    """Return the publication that an earlier try of a message left in its properties; None for a first try."""
    found = properties.pop(_MEMBER, None)
    return found if isinstance(found, Publication) else None


def left_in(properties: dict[str, Any], publication: Publication) -> None:
    """Leave a publication to the next try of its message."""
    properties[_MEMBER] = publication


class LeftPublications:
    """The last publication of each thread, if its outcome is in doubt. Thread-safe.

    `Connection.ensure(producer, producer.publish)` repeats the whole publish with new properties, over a new channel:
    the same message of the same thread is the same publication then. Over the channel that it failed on, it is another.
    """

    def __init__(self) -> None:
        self._last = threading.local()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """Leave the parent's to the parent."""
        self._last = threading.local()

    def leave(self, message: str, publication: Publication, *, channel: object) -> None:
        """Leave a publication to the next publish of this thread.

        Args:
            message: as JSON, without what is new in each try.
            channel: the one that it failed on.
        """
        self._last.one = (message, publication, weakref.ref(channel))

    def take(self, message: Callable[[], str], *, channel: object) -> Publication | None:
        """Return the publication that this message repeats, and forget it; None for a new message."""
        left: tuple[str, Publication, weakref.ref[object]] | None = getattr(self._last, "one", None)
        if left is None:
            return None
        self._last.one = None
        of_message, publication, failed = left
        return publication if failed() is not channel and message() == of_message else None


class PublishSessions:
    """The sessions that number the calls of publications. Thread-safe.

    A call that was not answered keeps its session for itself, and takes it along when nobody repeats it.
    """

    def __init__(self) -> None:
        self._free: deque[Session] = deque()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """Number the calls of a child anew: a number may not be used by both."""
        self._free = deque()

    def begin(self) -> Session:
        """Return a session with the number of a new call."""
        try:
            session = self._free.pop()
        except IndexError:
            session = Session(secrets.token_hex(8))
        session.number += 1
        session.sent_at = session.sent = None
        return session

    def end(self, session: Session) -> None:
        """Use a session for other calls, as the outcome of its present one is known."""
        self._free.append(session)


def client_call(session: Session, queue: str, tasks: Sequence[NewTask], *, now: float) -> ClientCall:
    """Return the present call of a session, an add of these tasks, for a store that this process opened.

    Its fingerprint is that of the payloads: a repeat may have another eta, as time went on, and another trace.

    Args:
        now: monotonic seconds.
    """
    meaning = meaning_of(queue, b"\0".join([task.payload for task in tasks]))
    if session.sent_at is None:
        return ClientCall(session.name, session.number, meaning=meaning)
    age_seconds = max(1, math.ceil(now - session.sent_at))
    return ClientCall(session.name, session.number, is_repeat=True, age_seconds=age_seconds, meaning=meaning)
