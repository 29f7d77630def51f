"""A lease is ended by its holder alone: its token can't be made of what others see, at any store, at any server."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from queue_core.client.http_calls import HttpQueue
from queue_core.client.local_calls import LocalQueue
from queue_core.clock import Instant
from queue_core.errors import InvalidTokenError, LeaseLostError
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.callers.auth import Principal
from queue_core.server.leases import seals
from queue_core.server.leases.seals import MAX_KNOWN_TOKENS, LeaseSeals, LeaseSecret
from queue_core.server.server import ServerThread
from queue_core.store import Store
from queue_core.task import NewTask, QueueSpec, token_of
from queue_core.unit.service import QueueService
from queue_core.verbs import Renewal
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer

SECRETS = {role: f"{str(role.name).lower()}-0123456789abcdef" for role in Role}
OPTIONS = ServeOptions(tokens=tuple(AccessToken(role, secret) for role, secret in SECRETS.items()))
WORKER, ADMIN = Principal(Role.WORKER), Principal(Role.ADMIN)
SECRET = LeaseSecret(b"k" * 32, Instant(1_000))


@contextmanager
def serving(store: Store) -> Iterator[RunningServer]:
    """Serve a store that the test closes itself."""
    QueueService(store).run(lambda work: work.put_queue(QueueSpec(QUEUE)))
    thread = ServerThread(store, replace(OPTIONS, port=0))
    try:
        yield RunningServer(thread, store, thread.start())
    finally:
        thread.stop()


@pytest.fixture
def server(store: Store) -> Iterator[RunningServer]:
    with serving(store) as running:
        yield running


@pytest.fixture
def worker(server: RunningServer) -> Iterator[HttpQueue]:
    queue = server.queue(token=SECRETS[Role.WORKER])
    yield queue
    queue.close()


def computed(queue: HttpQueue) -> str:
    """Make a token of what any viewer sees of a leased task."""
    (task,) = queue.peek().tasks
    return token_of(task.id, task.leased_at)


def test_no_token_that_is_made_of_what_peek_shows_ends_a_lease(server: RunningServer, worker: HttpQueue) -> None:
    worker.add(NewTask(b"x", name="one"))
    (lease,) = worker.lease(seconds=60)
    guess = computed(worker)
    seal = lease.token.removeprefix(f"{guess}.")
    wrong = f"{guess}.{'0' * len(seal)}"
    assert lease.token != guess
    for token in (guess, wrong):
        for end in (worker.delete, worker.release, worker.renew):
            with pytest.raises(LeaseLostError) as raised:
                end(token)
            assert raised.value.tokens == (token,)
        exchanged = {"deletions": [{"token": token}], "count": 1}
        body = json.dumps(exchanged).encode()
        headers = [("content-type", "application/json"), ("authorization", f"Bearer {SECRETS[Role.WORKER]}")]
        reply = server.ask("POST", f"/v1/queues/{QUEUE}/exchange", body, headers=headers).json()
        assert reply == {"leases": [], "lost": [token]}
    (renewed,) = worker.renew([Renewal(lease.token, 90.0)])
    assert renewed.token == lease.token
    worker.delete(lease)
    assert worker.stats().deleted_total == 1


def test_the_seal_of_one_lease_fits_no_other(worker: HttpQueue) -> None:
    worker.add([NewTask(b"x"), NewTask(b"y")])
    one, other = worker.lease(2, seconds=60)
    mixed = f"{one.token.rpartition('.')[0]}.{other.token.rpartition('.')[2]}"
    with pytest.raises(LeaseLostError):
        worker.delete(mixed)
    worker.delete([one, other])


def test_a_lease_of_one_server_is_ended_at_another_server_of_the_store(store: Store) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(serving(store))
        second = LeaseSeals(QueueService(store))
        queue = first.queue(token=SECRETS[Role.WORKER])
        queue.add(b"x")
        (lease,) = queue.lease(seconds=60)
        plain = lease.token.rpartition(".")[0]
        assert second.opened([lease.token], WORKER).plain == [plain]
        assert second.seal(plain) == lease.token
        queue.close()


def test_a_program_that_opened_the_store_itself_ends_its_leases_as_ever(store: Store) -> None:
    with serving(store):
        queue = LocalQueue(QueueService(store), QUEUE)
        queue.add(b"x")
        (lease,) = queue.lease(seconds=60)
        queue.delete(lease)
        assert queue.stats().deleted_total == 1


def test_an_administrator_ends_any_lease(server: RunningServer, worker: HttpQueue) -> None:
    worker.add(b"x")
    worker.lease(seconds=60)
    admin = server.queue(token=SECRETS[Role.ADMIN])
    admin.delete(computed(worker))
    assert worker.stats().deleted_total == 1
    admin.close()


def test_a_lease_of_before_the_secret_has_a_token_without_a_seal() -> None:
    assert SECRET.opened("7.999", may_end_any=False) == "7.999"
    assert SECRET.opened("7.1000", may_end_any=False) != "7.1000"
    assert SECRET.opened("7.1000", may_end_any=True) == "7.1000"
    assert SECRET.opened(SECRET.seal("7.1000"), may_end_any=False) == "7.1000"
    assert SECRET.opened(SECRET.seal("7.1000")[:-1] + "z", may_end_any=False).startswith("7.9999")


@pytest.mark.parametrize("token", ["", ".", "a.b", "a.b.c", "7", "7.", "7.8.9.0", "-1.2.3", "1.2\n.3"])
def test_a_text_that_is_no_token_is_told(token: str) -> None:
    with pytest.raises(InvalidTokenError):
        SECRET.opened(token, may_end_any=False)


def test_a_repeated_call_is_answered_with_the_same_token(store: Store) -> None:
    seals = LeaseSeals(QueueService(store))
    assert seals.seal("7.1000") == seals.seal("7.1000") == LeaseSeals(QueueService(store)).seal("7.1000")


def test_what_was_sealed_here_is_opened_without_a_hash_by_whoever_gives_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, others = LeaseSeals(QueueService(store)), LeaseSeals(QueueService(store))
    sealed, forged = mine.seal("7.1000"), mine.seal("8.1000").replace("8.", "7.", 1)
    hashed, seal = [], seals._SEAL

    def counting(token: bytes, *, key: bytes) -> object:
        hashed.append(token)
        return seal(token, key=key)

    monkeypatch.setattr(seals, "_SEAL", counting)
    assert list(mine.opened([sealed], WORKER).plain) == ["7.1000"]
    assert hashed == []
    assert list(others.opened([sealed], WORKER).plain) == ["7.1000"]
    assert list(mine.opened([forged], WORKER).plain) != ["7.1000"]
    assert len(hashed) == 2


def test_remembered_tokens_are_bounded_and_forgotten_ones_are_opened() -> None:
    secret = LeaseSecret(b"k" * 32, Instant(1_000))
    tokens = [secret.seal(f"{number}.2000") for number in range(MAX_KNOWN_TOKENS + 10)]
    assert len(secret.plain_of) <= MAX_KNOWN_TOKENS
    assert tokens[0] not in secret.plain_of
    assert secret.opened(tokens[0], may_end_any=False) == "0.2000"


def test_what_was_sealed_with_a_secret_is_not_opened_after_the_store_was_emptied(store: Store) -> None:
    seals = LeaseSeals(QueueService(store))
    sealed = seals.seal("7.1000")
    QueueService(store).run(
        lambda work: work.transaction.keep_answer(":lease-secret", 2, b"1 " + b"aa" * 32, now=work.now, kept="always")
    )
    seals.forget()
    assert list(seals.opened([sealed], WORKER).plain) != ["7.1000"]


def test_the_secret_is_not_shown() -> None:
    assert "6b6b" not in repr(SECRET)
    assert "kkkk" not in repr(SECRET)
