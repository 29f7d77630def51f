"""The page of a task is found by the id that Celery gave it, while the task is there and after it has ended."""

import contextlib

from queue_core.client.http_calls import HttpQueues
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import CELERY_ID, NewTask
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.servers import QUEUE, a_server

SECRETS = {role: f"{str(role.name).lower()}-secret-0123456789" for role in (Role.ADMIN, Role.VIEWER)}
TOKENS = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
ID = "0b6b4f5e-0000-4000-8000-000000000001"


def of_celery(celery_id: str) -> NewTask:
    payload = f'{{"body":"","headers":{{"task":"work","id":"{celery_id}"}}}}'
    return NewTask(payload.encode(), headers={CELERY_ID: celery_id})


def test_the_search_and_the_events_find_tasks_by_the_id_of_celery() -> None:
    with a_server(options=ServeOptions(tokens=TOKENS)) as server:
        viewer, admin = Visitor(server.port), Visitor(server.port)
        viewer.post("login", {"token": SECRETS[Role.VIEWER]})
        admin.post("login", {"token": SECRETS[Role.ADMIN]})
        with contextlib.closing(HttpQueues(server.url, token=SECRETS[Role.ADMIN])) as queues:
            queue = queues.queue(QUEUE)
            (other,) = queue.add(of_celery("another-0b6b4f5e"))
            (added,) = queue.add(of_celery(ID))
            link = f'tasks/{added.name}"'

            def is_found_by(visitor: Visitor) -> tuple[bool, bool]:
                searched, seen = visitor.get(f"queues?q={ID}").html, visitor.get(f"events?task={ID}").html
                assert f"tasks/{other.name}" not in searched + seen
                return link in searched, link in seen

            assert is_found_by(admin) == (True, True), "waiting"
            assert is_found_by(viewer) == (False, False), "it would find out what a hidden payload has"
            leases = queue.lease(2, worker="w-1")
            assert is_found_by(admin) == (True, True), "running"
            queue.delete(leases)
            assert is_found_by(admin) == is_found_by(viewer) == (True, True), "ended"
            assert link in admin.get(f"queues?q={added.name}").html
            assert link in admin.get(f"events?task={ID}&queue={QUEUE}&event=task.deleted").html
            assert link not in admin.get(f"events?task={ID}&worker=w-2").html
            assert "no task has it" in admin.get("queues?q=0b6b4f5e-none").text


def test_a_task_has_its_page_at_the_id_of_celery() -> None:
    with a_server(options=ServeOptions(tokens=TOKENS)) as server:
        viewer, admin = Visitor(server.port), Visitor(server.port)
        viewer.post("login", {"token": SECRETS[Role.VIEWER]})
        admin.post("login", {"token": SECRETS[Role.ADMIN]})
        with contextlib.closing(HttpQueues(server.url, token=SECRETS[Role.ADMIN])) as queues:
            queue = queues.queue(QUEUE)
            queue.add(of_celery("another-0b6b4f5e"))
            (added,) = queue.add(of_celery(ID))
            name = added.name
            page = f"queues/{QUEUE}/tasks/{ID}"
            assert f"<h1 data-copy>{name}</h1>" in admin.get(page).html
            assert viewer.get(page).status == 404  # it would find out what a hidden payload has
            queue.delete(queue.lease(2, worker="w-1"))
            for visitor in (viewer, admin):
                found = visitor.get(page)
                assert (found.status, f"<h1 data-copy>{name}</h1>" in found.html, "w-1" in found.text) == (
                    200,
                    True,
                    True,
                )
            (again,) = queue.add(of_celery(ID))
            assert f"<h1 data-copy>{again.name}</h1>" in admin.get(page).html
            assert viewer.get(f"queues/{QUEUE}/tasks/{ID}x").status == 404
