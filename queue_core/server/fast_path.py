"""The fast path: the verbs of workers and producers, from a request's bytes to an answer's, without a task or a
framework.

Both the ASGI application (`app.py`) and the protocol (`http/fast_protocol.py`) lead here (ADR 6).
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

from pydantic import ValidationError

from queue_core.client.local_calls import lease_lost
from queue_core.errors import InvalidRequestError, QueueError, TaskTooLargeError
from queue_core.fast_values import value
from queue_core.limits import MAX_ANSWER_BYTES, MAX_TASKS_PER_ADD, check_add_count, check_wait_seconds
from queue_core.log import get_logger
from queue_core.server import schemas
from queue_core.server.base import events
from queue_core.server.base.bodies.body_limit import BodyLimit
from queue_core.server.base.bodies.pieces import has_short_parts, pieces_of
from queue_core.server.base.bodies.value_count import MAX_VALUES, SHORT_BODY_BYTES, check_values
from queue_core.server.base.problems import MEDIA_TYPE, Problem, body_too_large, invalid, problem_of, refusal
from queue_core.server.callers.access import QueueAccess, check_scope
from queue_core.server.callers.auth import Authorizer, Headers, Principal, Ticket
from queue_core.server.commit.group_commit import Committer
from queue_core.server.leases import reports
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.leases.seals import NO_TOKENS, LeaseSeals, OpenedTokens
from queue_core.server.leases.waiting import WaitingLeases
from queue_core.server.schemas import response
from queue_core.store import Unit
from queue_core.task import NewTask
from queue_core.unit.service import Operation
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Added, ClientCall, Deletion, PayloadAllowance, Renewed, handed_over, meaning_of

JSON_TYPE = b"application/json"
REPLY_ALLOWANCE = PayloadAllowance(MAX_ANSWER_BYTES, each_bytes=512)
"""Room for the tasks of one answer. Base64 takes 4/3 of it, and the loop stands still while it is encoded."""
IDEMPOTENCY_HEADER = b"idempotency-key"
"""Names a client's call as `session/number/age`, so that it takes effect once (ADR 28).

A session has one call under way at a time and numbers them upwards, so the store keeps one answer for each. The age is
in whole seconds, rounded up, since the call was first sent; 0 for the first time.
"""
_IDEMPOTENCY_KEY = re.compile(rb"([A-Za-z0-9_-]{1,64})/([0-9]{1,15})/([0-9]{1,9})")
WAITING_VERBS: Final = frozenset({"lease", "exchange"})
WAIT_MEMBER: Final = re.compile(rb'"wait_seconds"\s*:\s*[0-9.eE+-]+')
"""The member of a body that a repeat may have otherwise: what is left of the time to wait. In a text its quotes are
escaped, so nothing else is found."""
MAX_SHOWN_KEY_CHARACTERS: Final = 60
"""Characters of a duplicate key that its error shows."""
FAR_APART_BYTES: Final = 256
"""Bytes between colons, on average, from which searching for each is faster than counting."""
SPARSE_BODY_BYTES: Final = 4 << 10
"""Bytes of a body from which that is considered."""
LONG_BODY_BYTES: Final = 1 << 20
"""Bytes of a body that is read in the loop: it stands still for some milliseconds."""
MANY_VALUES: Final = 4_096
"""Commas of a body that is read in the loop; each value costs some microseconds."""
TASK_BYTES: Final = 512
"""Bytes for which the commit of a task of `then` counts besides the body: a task without members has two there."""
MAX_PLAIN_BODY_BYTES: Final = 1 << 20
"""Bytes of a body without payloads."""
MAX_REPORT_BODY_BYTES: Final = 16 << 20
"""Bytes of a body that reports of leases, with tasks to add or checkpoints."""
ESCAPED_BYTES: Final = 6
"""Bytes of JSON that a byte of text may take."""

added_json = response(schemas.AddedTasks).json

leases_json = response(schemas.Leases).json

exchanged_json = response(schemas.Exchanged).json

renewed_json = response(schemas.RenewedLeases).json

T = TypeVar("T")
B = TypeVar("B", bound=schemas.RequestBody)

log = get_logger()

_TOKEN = attrgetter("token")
_THEN = attrgetter("then")


@value
class Reply:
    """An answer, before it is bytes on a connection."""

    status: int
    body: bytes
    media_type: bytes = JSON_TYPE
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_token_refused: bool = False


@value
class FastRequest:
    """A request that has arrived whole, and the callback for its reply.

    Args:
        caller: the connection, for callers that give no worker's name.
        reply: called once, in the loop.
        is_gone: returns whether the caller has hung up.
    """

    verb: str
    queue: str
    headers: Headers
    body: bytes | bytearray
    caller: object
    reply: Callable[[Reply], None]
    is_gone: Callable[[], bool]
    key: bytes | None = None
    """The value of its `Idempotency-Key`, where that was not left among the headers."""
    ticket: Ticket | None = None
    """Where its head is one that comes again: what was looked up for it."""

    def call_of(self, caller: Principal) -> ClientCall | None:
        """Return the client's call that this is, if it may be sent again. Raises `InvalidRequestError`."""
        key = self.key
        if key is None:
            key = next((value for name, value in self.headers if name == IDEMPOTENCY_HEADER), None)
            if key is None:
                return None
        body = self.body if self.verb not in WAITING_VERBS else WAIT_MEMBER.sub(b"", self.body)
        return client_call(key, meaning_of(f"{self.verb} {self.queue}", body, by=caller.mark))


class FastEndpoint(Protocol):
    """An API on the fast path."""

    def admit(self, verb: str, headers: Headers, body_bytes: int | None) -> int:
        """Admit a request by its head, before any of its body is read; raises the error that it is refused with.

        Args:
            body_bytes: as the head declares; None where it does not.

        Returns:
            Bytes of memory reserved for a caller without a known token: see `free`.
        """

    def free(self, reserved_bytes: int) -> None:
        """Free the memory that was reserved for the body of a request."""

    def start(self, request: FastRequest) -> LeaseCall | None:
        """Begin; `request.reply` is called when it is done. Returns a call that may wait, for `FastVerbs.cancel`."""

    def refuse(self, error: Exception) -> Reply:
        """Return the answer to a request that was not admitted, or could not be read."""


class FastVerbs:
    """add, lease, exchange, renew and delete, for every queue."""

    VERBS = frozenset({"add", "lease", "exchange", "renew", "delete"})

    def __init__(
        self,
        authorizer: Authorizer,
        committer: Committer,
        waiting: WaitingLeases,
        body_limit: BodyLimit,
        access: QueueAccess,
        seals: LeaseSeals,
    ) -> None:
        self._authorizer = authorizer
        self._access = access
        self._seals = seals
        self._committer = committer
        self._waiting = waiting
        self._body_limit = body_limit
        self._readers: dict[str, Callable[[FastRequest, Principal], Callable[[], LeaseCall | None]]] = {
            "add": self._add,
            "lease": self._lease,
            "exchange": self._exchange,
            "renew": self._renew,
            "delete": self._delete,
        }
        """Each reads the body of its verb, in any thread, and returns what then begins the verb, in the loop."""

    def admit(self, verb: str, headers: Headers, body_bytes: int | None) -> int:
        """See `FastEndpoint.admit`."""
        self._authorizer.check(headers, verb)
        check_json(headers)
        self._check_size(verb, 0 if body_bytes is None else body_bytes)
        return 0

    def _check_size(self, verb: str, body_bytes: int) -> None:
        """Raise a `Problem` for a body that is longer than its verb needs; the general limit is checked elsewhere."""
        if body_bytes > MAX_PLAIN_BODY_BYTES and verb != "add":
            most = MAX_PLAIN_BODY_BYTES
            if verb != "lease":
                most = max(MAX_REPORT_BODY_BYTES, self._body_limit.single_task_limit(body_bytes))
            if body_bytes > most:
                raise body_too_large(most)

    def free(self, reserved_bytes: int) -> None:
        """See `FastEndpoint.free`: nothing is reserved here."""

    def start(self, request: FastRequest) -> LeaseCall | None:
        """See `FastEndpoint.start`."""
        try:
            ticket, in_force = request.ticket, self._authorizer.in_force
            if ticket is not None and ticket.tokens is in_force:
                caller = ticket.caller
            else:
                caller = self._authorizer.admitted(request.headers)
                check_scope(caller, request.queue)
                if ticket is not None and self._authorizer.stays(caller):
                    ticket.tokens, ticket.caller = in_force, caller
            size = len(request.body)
            if size > MANY_VALUES and (size > LONG_BODY_BYTES or request.body.count(b",") > MANY_VALUES):
                self._check_size(request.verb, size)  # it may have come in chunks
                self._start_long(request, caller)
                return None
            return self._readers[request.verb](request, caller)()
        except Exception as error:  # noqa: BLE001 - the top of a request
            request.reply(reply_of(error))
            return None

    def _start_long(self, request: FastRequest, caller: Principal) -> None:
        """Read a long body in a thread, where the loop does not stand still for it, then begin."""

        def begin(read: "asyncio.Future[Callable[[], LeaseCall | None]]") -> None:
            if read.cancelled():
                return
            refused = read.exception()  # raised here, it would keep itself, and the body, until the next collection
            if refused is not None:
                request.reply(reply_of(refused))
                return
            try:
                read.result()()
            except Exception as error:  # noqa: BLE001 - the top of a request
                request.reply(reply_of(error))

        most_bytes = ESCAPED_BYTES * self._body_limit.single_task_limit(len(request.body))

        def reader(request: FastRequest) -> Callable[[], LeaseCall | None]:
            check_values(request.body)
            if not has_short_parts(request.body, most=most_bytes):
                raise TaskTooLargeError(f"a value of the body has more than {most_bytes} bytes, which no payload has")
            return self._readers[request.verb](request, caller)

        asyncio.get_running_loop().run_in_executor(None, reader, request).add_done_callback(begin)

    def refuse(self, error: Exception) -> Reply:
        """See `FastEndpoint.refuse`."""
        return reply_of(error)

    def cancel(self, call: LeaseCall) -> None:
        """Cancel a call whose caller has hung up."""
        call.cancel()

    def _add(self, request: FastRequest, caller: Principal) -> Callable[[], None]:
        queue = request.queue
        if len(request.body) > LONG_BODY_BYTES:
            tasks = read_tasks(request.body)
        else:
            given = parse_body(schemas.AddRequest, request.body).tasks
            if len(given) > MAX_TASKS_PER_ADD:
                check_add_count(len(given))
            tasks = list(map(schemas.TaskIn.value, given))
        check = self._access.checker(caller, queue, "insert", adds=tasks)

        def add(work: UnitOfWork, call: ClientCall | None) -> list[Added]:
            check(work)
            return work.add(queue, tasks, call=call)

        def done(outcome: object) -> None:
            if isinstance(outcome, list):
                request.reply(Reply(200, added_json({"added": outcome})))
            else:
                request.reply(reply_of(outcome))

        operation = idempotent_operation(request.call_of(caller), add)
        return partial(self._committer.submit, operation, done, size_bytes=len(request.body), unit="verb")

    def _lease(self, request: FastRequest, caller: Principal) -> Callable[[], LeaseCall]:
        params = parse_body(schemas.LeaseBody, request.body)
        return partial(self._begin, request, caller, params, (), NO_TOKENS)

    def _exchange(self, request: FastRequest, caller: Principal) -> Callable[[], LeaseCall]:
        params = parse_body(schemas.ExchangeRequest, request.body)
        given = params.deletions
        tokens = self._seals.opened(list(map(_TOKEN, given)), caller) if given else NO_TOKENS
        deletions = list(map(schemas.DeletionIn.value, given, tokens.plain))
        return partial(self._begin, request, caller, params, deletions, tokens)

    def _begin(
        self,
        request: FastRequest,
        caller: Principal,
        params: schemas.LeaseBody,
        deletions: Sequence[Deletion],
        tokens: OpenedTokens,
    ) -> LeaseCall:
        check_wait_seconds(params.wait_seconds)
        adds = list(chain.from_iterable(map(_THEN, deletions)))
        check = self._access.checker(caller, request.queue, "lease", adds=adds)
        if params.wait_seconds and self._waiting.is_full:
            raise refusal(
                503,
                "too-many-waiting",
                f"{len(self._waiting)} calls wait already, which is this server's limit; call without wait_seconds",
                headers=((b"retry-after", b"1"),),
            )

        def answer(outcome: LeaseAnswer | Exception) -> None:
            if not isinstance(outcome, LeaseAnswer):
                request.reply(reply_of(outcome))
                return
            granted = outcome.granted.leases
            leases = list(map(schemas.lease_out, granted, map(self._seals.seal, map(_TOKEN, granted))))
            if request.verb == "exchange":
                exchanged: schemas.Exchanged = {"leases": leases, "lost": tuple(map(tokens.shown, outcome.lost))}
                if adds:
                    exchanged["added"] = list(outcome.added)
                body = exchanged_json(exchanged)
            else:
                body = leases_json({"leases": leases})
            request.reply(Reply(200, body))

        call = LeaseCall(
            request.queue,
            params.count,
            params.seconds,
            params.filter(),
            params.worker,
            params.wait_seconds,
            params.worker or request.caller,
            deletions,
            answer,
            request.is_gone,
            size_bytes=len(request.body) + TASK_BYTES * len(adds),
            client_call=request.call_of(caller),
            room=REPLY_ALLOWANCE,
            check=check,
        )
        call.start(self._waiting.context)
        return call

    def _renew(self, request: FastRequest, caller: Principal) -> Callable[[], None]:
        check = self._access.checker(caller, request.queue, "update")
        given = parse_body(reports.RenewRequest, request.body).values()
        tokens = self._seals.opened([renewal.token for renewal in given], caller)
        renewals = [replace(renewal, token=token) for renewal, token in zip(given, tokens.plain, strict=True)]

        def done(outcome: object) -> None:
            if not isinstance(outcome, list):
                request.reply(reply_of(outcome))
            elif None in outcome:
                lost = [renewal.token for renewal, one in zip(given, outcome, strict=True) if one is None]
                request.reply(reply_of(lease_lost("renew", lost)))
            else:
                shown = [replace(one, token=tokens.shown(one.token)) for one in outcome]
                request.reply(Reply(200, renewed_json({"renewed": shown})))

        def renew(work: UnitOfWork, call: ClientCall | None) -> list[Renewed | None]:
            check(work)
            return work.renew(request.queue, renewals, call=call)

        return partial(self._committer.submit, idempotent_operation(request.call_of(caller), renew), done)

    def _delete(self, request: FastRequest, caller: Principal) -> Callable[[], None]:
        given = parse_body(schemas.DeleteRequest, request.body).values()
        tokens = self._seals.opened(list(map(_TOKEN, given)), caller)
        deletions = [Deletion(token, one.then) for one, token in zip(given, tokens.plain, strict=True)]
        adds = list(chain.from_iterable(map(_THEN, deletions)))
        check = self._access.checker(caller, request.queue, "delete", adds=adds)

        def done(outcome: object) -> None:
            if not isinstance(outcome, tuple):
                request.reply(reply_of(outcome))
                return
            added: list[Added] = outcome[0]
            if outcome[1]:
                request.reply(reply_of(lease_lost("delete", list(map(tokens.shown, outcome[1])))))
            else:
                request.reply(Reply(200, added_json({"added": list(added)})))

        def delete(work: UnitOfWork, call: ClientCall | None) -> tuple[list[Added], list[str]]:
            check(work)
            return work.delete(request.queue, deletions, call=call)

        unit: Unit = "transaction" if handed_over(deletions) else "verb"
        operation = idempotent_operation(request.call_of(caller), delete)
        size_bytes = len(request.body) + TASK_BYTES * len(adds)
        return partial(self._committer.submit, operation, done, size_bytes=size_bytes, unit=unit)


def read_tasks(body: bytes | bytearray) -> list[NewTask]:
    """Return the tasks of an add. Raises `InvalidRequestError`, and as `parse_body` does."""
    tasks: list[NewTask] = []
    if len(body) <= LONG_BODY_BYTES:
        return [task.value() for task in parse_body(schemas.AddRequest, body).tasks]
    check_values(body)
    for piece in pieces_of(body):
        try:
            tasks += [task.value() for task in parse_body(schemas.AddRequest, piece).tasks]
        except ValidationError as error:
            raise invalid(error, first_task=len(tasks)) from None
    return tasks


def parse_body(model: type[B], body: bytes | bytearray) -> B:
    """Return a body as its model. Raises `ValidationError`, and a `Problem` for a key that an object has twice, and
    for more values than any body has."""
    if len(body) > SHORT_BODY_BYTES:
        check_values(body)
    params: B = model.__pydantic_validator__.validate_json(body)
    check_keys(body, params.keys(), colons=params.colons)
    return params


async def read_model(model: type[B], body: bytes, *, most: int = MAX_VALUES) -> B:
    """Return the body of a regular endpoint as its model, like `parse_body`; a long one is read in a thread."""

    def read() -> B:
        check_values(body, most=most)
        params = model.model_validate_json(body)
        check_every_key(body)
        return params

    return read() if len(body) <= SHORT_BODY_BYTES else await asyncio.to_thread(read)


def reply_of(error: object) -> Reply:
    """Return the answer to an error. One that is no `QueueError` is a bug: it is logged, and its details are not
    sent."""
    if isinstance(error, QueueError):
        problem = problem_of(error)
    elif isinstance(error, Problem):
        problem = error
    elif isinstance(error, ValidationError):
        problem = invalid(error)
    else:
        log.error(events.REQUEST_FAILED, exc_info=error)
        problem = refusal(500, "internal", "the server failed; its log has the details")
    return Reply(problem.status, problem.body(), MEDIA_TYPE, problem.headers, problem.status == 401)


def check_json(headers: Headers) -> None:
    """Raise a `Problem` unless the body is declared as JSON."""
    for name, text in headers:
        if name == b"content-type":
            if text == JSON_TYPE or text.partition(b";")[0].strip().lower() == JSON_TYPE:
                return
            raise refusal(415, "not-json", f"the body must be application/json, not {text.decode('latin-1')[:100]}")
    raise refusal(415, "not-json", "the body must be JSON: send `Content-Type: application/json`")


def client_call(key: bytes, meaning: str) -> ClientCall:
    """Return the call that a key names, with its fingerprint. Raises `InvalidRequestError`."""
    match = _IDEMPOTENCY_KEY.fullmatch(key)
    if match is None or int(match[2]) < 1:
        raise InvalidRequestError(
            "an Idempotency-Key is `session/number/age`: 1 to 64 letters, digits, - or _, a number from 1 on, and how "
            "many seconds ago the call was first sent, 0 for now; leave it out if the call is never sent again"
        )
    age_seconds = int(match[3])
    return ClientCall(match[1].decode(), int(match[2]), age_seconds > 0, age_seconds, meaning)


def idempotent_operation(call: ClientCall | None, run: Callable[[UnitOfWork, ClientCall | None], T]) -> Operation[T]:
    """Return a verb as an operation that takes effect once, even if a client sends its call again."""
    if call is None:
        return lambda work: run(work, None)
    return RepeatableOperation(call, run)


class RepeatableOperation(Generic[T]):
    """An operation of a client's call that may be run again, here or by another server."""

    def __init__(self, call: ClientCall, run: Callable[[UnitOfWork, ClientCall], T]) -> None:
        self._call = call
        self._run = run
        self._has_run = False

    def __call__(self, work: UnitOfWork) -> T:
        """Run the verb; from the second time on as a repeat, as the first may have taken effect."""
        call = replace(self._call, is_repeat=True) if self._has_run else self._call
        self._has_run = True
        return self._run(work, call)


# -- an object with a key twice -------------------------------------------------------------------------------------


def check_keys(body: bytes | bytearray, parsed: int, *, colons: Callable[[], int] = int) -> None:
    """Raise a `Problem` that names a key which an object of `body` has twice.

    A parser keeps the last of them, and nobody knows which was meant. Every key has a colon behind it: a text with no
    more colons than parsed keys has none twice. That is found by counting, without parsing again.

    Args:
        body: valid JSON.
        parsed: how many keys its objects have as they were parsed, all taken together.
        colons: returns how many colons there are in its strings, as far as known; they count where nothing is escaped.
    """
    is_short = len(body) < SPARSE_BODY_BYTES
    found = body.count(b":") if is_short else _count_colons(body, most=parsed + colons())
    if found != parsed and (found != parsed + colons() or b"\\" in body):
        check_every_key(body)


def _count_colons(body: bytes | bytearray, *, most: int) -> int:
    """Count the colons, up to one more than `most`; in a long payload a search is ten times as fast as a count."""
    if len(body) < (most + 1) * FAR_APART_BYTES:
        return body.count(b":")
    found, at = 0, body.find(b":")
    while at >= 0 and found <= most:
        found, at = found + 1, body.find(b":", at + 1)
    return found


def check_every_key(body: bytes | bytearray) -> None:
    """Check any JSON for duplicate keys, by parsing it anew."""
    json.loads(
        body,
        object_pairs_hook=_check_pairs,
        parse_int=_ignore_number,
        parse_float=_ignore_number,
        parse_constant=_ignore_number,
    )


def _check_pairs(pairs: list[tuple[str, None]]) -> None:
    """Replace each object by None, so that a body is never in memory twice."""
    if len(pairs) > 1 and len({key for key, _ in pairs}) < len(pairs):
        raise _duplicate_key([key for key, _ in pairs])


def _duplicate_key(keys: list[str]) -> Problem:
    key = next(key for key, count in Counter(keys).items() if count > 1)
    shown = json.dumps(key if len(key) <= MAX_SHOWN_KEY_CHARACTERS else key[:MAX_SHOWN_KEY_CHARACTERS] + "...")
    return refusal(400, "duplicate-key", f"an object of the body has the key {shown} twice; send it once")


def _ignore_number(_text: str) -> None:
    """Replace a number, of any length, by None."""
