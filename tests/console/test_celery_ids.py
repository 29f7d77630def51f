"""The page of a task is found by the id that Celery gave it, while the task is there and after it has ended."""

import contextlib

from queue_core.client import HttpQueues
from queue_core.roles import Role
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import CELERY_ID, NewTask
from tests.console.visits import Visitor
from tests.support.servers import QUEUE, a_server

SECRETS = {role: f"{str(role.name).lower()}-secret-0123456789" for role in (Role.ADMIN, Role.VIEWER)}
TOKENS = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
ID = "0b6b4f5e-0000-4000-8000-000000000001"


def of_celery(celery_id: str) -> NewTask:
    payload = f'{{"body":"","headers":{{"task":"work","id":"{celery_id}"}}}}'
    return NewTask(payload.encode(), headers={CELERY_ID: celery_id})


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
            assert f"<h1>{name}</h1>" in admin.get(page).html
            assert viewer.get(page).status == 404  # it would find out what a hidden payload has
            queue.delete(queue.lease(2, worker="w-1"))
            for visitor in (viewer, admin):
                found = visitor.get(page)
                assert (found.status, f"<h1>{name}</h1>" in found.html, "w-1" in found.text) == (200, True, True)
            (again,) = queue.add(of_celery(ID))
            assert f"<h1>{again.name}</h1>" in admin.get(page).html
            assert viewer.get(f"queues/{QUEUE}/tasks/{ID}x").status == 404
