"""Who may call Cloud Tasks over REST: tokens by their roles, queues with an acl, pages from elsewhere."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.google.cloud_tasks import PARENT, PLACE
from tests.support.google.cloud_tasks_calls import call, error_of
from tests.support.servers import QUEUE, RunningServer, a_server

ADMIN, WORKER, PRODUCER, VIEWER = ("admin-" * 4, "worker-" * 4, "producer-" * 4, "viewer-" * 4)
ANN, BOB = "ann-" * 6, "bob-" * 6
TOKENS = (
    AccessToken(Role.ADMIN, ADMIN),
    AccessToken(Role.WORKER, WORKER),
    AccessToken(Role.PRODUCER, PRODUCER),
    AccessToken(Role.VIEWER, VIEWER),
    AccessToken(Role.WORKER, ANN, "ann@example.com"),
    AccessToken(Role.WORKER, BOB, "bob@example.com"),
)
LEASE = {"maxTasks": 1, "leaseDuration": "60s"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=TOKENS)) as running:
        yield running


@pytest.mark.parametrize(
    ("secret", "method", "path", "body", "status"),
    [
        ("", "GET", PARENT, None, 401),
        ("unknown", "GET", "nothing", None, 401),
        (VIEWER, "GET", PARENT, None, 200),
        (VIEWER, "POST", f"{PARENT}/tasks", {"task": {}}, 403),
        (PRODUCER, "POST", f"{PARENT}/tasks", {"task": {}}, 200),
        (PRODUCER, "POST", f"{PARENT}/tasks:lease", LEASE, 403),
        (WORKER, "POST", f"{PARENT}/tasks:lease", LEASE, 200),
        (WORKER, "POST", f"{PARENT}:purge", {}, 403),
        (WORKER, "DELETE", PARENT, None, 403),
        (ADMIN, "POST", f"{PARENT}:purge", {}, 200),
    ],
)
def test_a_token_may_do_what_its_role_allows(
    guarded: RunningServer, secret: str, method: str, path: str, body: object, status: int
) -> None:
    reply = call(guarded, method, f"/v2beta2/{path}", body, secret=secret)
    assert reply.status == status
    if status != 200:
        assert error_of(reply)[1] == ("UNAUTHENTICATED" if status == 401 else "PERMISSION_DENIED")


def test_a_queue_that_is_not_there_is_told_without_the_names_of_others(guarded: RunningServer) -> None:
    for path in (f"v2beta2/{PLACE}/queues/nowhere", "taskqueue/v1beta2/projects/p/taskqueues/nowhere"):
        reply = call(guarded, "GET", f"/{path}", None, secret=WORKER)
        assert (reply.status, QUEUE in str(reply.json())) == (404, False)


def test_an_upload_needs_an_admin(guarded: RunningServer) -> None:
    assert error_of(call(guarded, "POST", "/api/queue/update", b"queue:", secret=WORKER))[:2] == (
        403,
        "PERMISSION_DENIED",
    )


def test_permissions_are_those_of_the_token(guarded: RunningServer) -> None:
    asked = ["cloudtasks.tasks.create", "cloudtasks.tasks.lease", "cloudtasks.queues.purge"]
    held = [
        call(guarded, "POST", f"/v2beta2/{PARENT}:testIamPermissions", {"permissions": asked}, secret=secret).json()
        for secret in (ADMIN, WORKER, VIEWER)
    ]
    assert held == [{"permissions": asked}, {"permissions": asked[:2]}, {}]


def test_a_queue_with_an_acl_knows_its_people() -> None:
    with a_server(options=ServeOptions(tokens=TOKENS)) as server:
        spec = replace(QueueSpec(QUEUE), user_emails=("ann@example.com",), writer_emails=("bob@example.com",))
        QueueService(server.store).run(lambda turn: turn.put_queue(spec))

        def allowed(secret: str) -> list[bool]:
            calls = [
                ("POST", f"{PARENT}/tasks", {"task": {}}),
                ("POST", f"{PARENT}/tasks:lease", LEASE),
                ("GET", f"{PARENT}/tasks", None),
                ("GET", PARENT, None),
            ]
            replies = [call(server, method, f"/v2beta2/{path}", body, secret=secret) for method, path, body in calls]
            assert {reply.status for reply in replies} <= {200, 403}
            return [reply.status == 200 for reply in replies]

        assert {secret: allowed(secret) for secret in (ADMIN, ANN, BOB, WORKER)} == {
            ADMIN: [True] * 4,
            ANN: [False, True, True, True],
            BOB: [True, False, False, True],
            WORKER: [False] * 4,
        }
        listed = [call(server, "GET", f"/v2beta2/{PLACE}/queues", secret=secret).json() for secret in (ANN, WORKER)]
        assert ("queues" in listed[0], listed[1]) == (True, {})


def test_a_foreign_page_is_turned_away_in_the_same_shape(server: RunningServer) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert error_of(call(server, "GET", f"/v2beta2/{PARENT}", **headers))[:2] == (403, "PERMISSION_DENIED")
