"""What pages hide can't be found out: by searching, by counting, or in the text of an error."""

import pytest

from queue_core.attempts.attempt import Failure
from queue_core.console.masks import masked_text
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import NewTask
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.servers import QUEUE, RunningServer, a_server

ROLES = (Role.VIEWER, Role.OPERATOR, Role.WORKER, Role.ADMIN)
SECRETS = {role: f"{str(role.name).lower()}-secret-0123456789" for role in ROLES}
TOKENS = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
REDACT = ("password", "*.pin")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('no account {"password": "hunter2", "cat": 1}', 'no account {"password": ***, "cat": 1}'),
        ("bad password=hunter2; retry", "bad password=***; retry"),
        ("PASSWORD: hunter2", "PASSWORD: ***"),
        ("{'pin': '1234'}", "{'pin': ***}"),
        ('said {\\"password\\": \\"hunter2\\"}', 'said {\\"password\\": ***}'),
        ("the password was wrong", "the password was wrong"),
        ("cat=1", "cat=1"),
    ],
)
def test_a_value_is_masked_by_the_name_before_it(text: str, shown: str) -> None:
    assert masked_text(text, REDACT) == shown


def test_masking_a_long_text_takes_time_in_proportion() -> None:
    text = "a" * 100_000 + '="' * 20_000 + "x=" * 20_000
    assert len(masked_text(text, REDACT)) > 10_000


def visitor(server: RunningServer, role: Role) -> Visitor:
    found = Visitor(server.port)
    found.post("login", {"token": SECRETS[role]})
    return found


def ask(server: RunningServer, verb: str, role: Role) -> int:
    headers = [("content-type", "application/json"), ("authorization", f"Bearer {SECRETS[role]}")]
    return server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", b'{"contains": "hunter"}', headers=headers).status


@pytest.mark.parametrize(
    ("options", "may"),
    [
        pytest.param(ServeOptions(tokens=TOKENS), {Role.OPERATOR, Role.WORKER, Role.ADMIN}, id="hidden from viewers"),
        pytest.param(ServeOptions(tokens=TOKENS, console_payloads=True), set(ROLES), id="shown to viewers"),
        pytest.param(
            ServeOptions(tokens=TOKENS, console_payloads=True, console_redact=REDACT),
            {Role.WORKER, Role.ADMIN},
            id="masked in part",
        ),
    ],
)
def test_payloads_are_searched_by_those_who_see_them(options: ServeOptions, may: set[Role]) -> None:
    with a_server(options=options) as server:
        queue = server.queue(token=SECRETS[Role.ADMIN])
        queue.add(NewTask(b"hunter2", name="one"))
        queue.close()
        for role in ROLES:
            assert ask(server, "search", role) == (200 if role in may else 403), role
        assert ask(server, "redrive-matching", Role.OPERATOR) == (200 if Role.OPERATOR in may else 403)
        for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN):
            page = visitor(server, role).get(f"queues/{QUEUE}?contains=hunter")
            assert ("queues/work/tasks/one" in page.html) == (role in may), role
            counted = visitor(server, role).get(f"queues/{QUEUE}/matching?change=delete&contains=hunter")
            assert ("can't be searched" in counted.text) == (role not in may), role
            form = visitor(server, role).get(f"queues/{QUEUE}").html
            assert ('name="contains"' in form) == (role in may), role


def test_errors_are_masked_by_the_rules_of_payloads_for_all_but_administrators() -> None:
    with a_server(options=ServeOptions(tokens=TOKENS, console_redact=REDACT)) as server:
        queue = server.queue(token=SECRETS[Role.ADMIN])
        queue.add(NewTask(b"x", name="one"))
        text = "no account: password=hunter2"
        failure = Failure("raised", "ValueError", text, "tasks.py:14", traceback=f"Traceback ...\nValueError: {text}")
        queue.release(queue.lease(), dead_reason="ValueError: password=hunter2", error=failure)
        queue.close()
        for address in (f"queues/{QUEUE}/tasks/one", f"queues/{QUEUE}/dead", f"queues/{QUEUE}/leases", "events"):
            shown = {role: visitor(server, role).get(address).text for role in (Role.VIEWER, Role.ADMIN)}
            assert "hunter2" not in shown[Role.VIEWER], address
            assert ("hunter2" in shown[Role.ADMIN]) == ("password=***" in shown[Role.VIEWER]), address
