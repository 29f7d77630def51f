"""A token opens a session; nothing else does, and no other site can use it."""

from collections.abc import Iterator
from urllib.parse import quote, urljoin

import pytest

from queue_core.clock import SystemClock
from queue_core.console.sessions import PLAIN_COOKIE, SECURE_COOKIE, SESSION_SECONDS, session_cookie
from queue_core.verbs.roles import Role
from tests.console.asking import OWN, Answer, ask, logged_in
from tests.console.stage import QUEUE, TOKENS, ConsoleStage, a_console

HOST = "queues.example"
PAUSE = f"queues/{QUEUE}/pause"


@pytest.fixture(scope="module")
def stage() -> Iterator[ConsoleStage]:
    with a_console(roles=tuple(Role), hosts=[HOST]) as running:
        yield running


def log_in(stage: ConsoleStage, token: str = TOKENS[Role.VIEWER], **more: object) -> Answer:
    return ask(stage, "login", {"token": token, "back": str(more.get("back", ""))}, headers=dict(OWN))


def attributes(answer: Answer) -> set[str]:
    return {one.strip().lower() for one in answer.headers["set-cookie"].split(";")[1:]}


def test_a_page_sends_those_who_are_not_logged_in_to_the_login(stage: ConsoleStage) -> None:
    for path in ("", "queues", f"queues/{QUEUE}/tasks/letter-1"):
        answer = ask(stage, path)
        location = urljoin(f"{stage.console}{path}", answer.headers["location"])
        back = f"?back={quote(path, safe='')}" if path else ""
        assert (answer.status, location) == (303, f"{stage.console}login{back}")
        assert "letter" not in answer.text
    assert ask(stage, f"live/queues/{QUEUE}").status == 401
    assert ask(stage, PAUSE, {}).status == 303
    assert not stage.queues.queue(QUEUE).stats().paused


def test_a_wrong_token_is_refused_and_not_repeated(stage: ConsoleStage) -> None:
    for token in ("", "wrong", TOKENS[Role.ADMIN][:-1], TOKENS[Role.ADMIN] + "x"):
        answer = log_in(stage, token)
        assert (answer.status, "set-cookie" in answer.headers) == (401, False)
        assert "Unknown token" in answer.text
        assert not token or token not in answer.text


def test_a_session_on_the_loopback_is_for_this_site_and_no_script(stage: ConsoleStage) -> None:
    answer = log_in(stage)
    assert answer.status == 303
    assert answer.cookie.startswith(f"{PLAIN_COOKIE}=")
    assert attributes(answer) == {"httponly", "samesite=strict", "path=/", f"max-age={SESSION_SECONDS}"}
    assert TOKENS[Role.VIEWER] not in answer.headers["set-cookie"]
    assert ask(stage, "queues", cookie=answer.cookie).status == 200


def test_a_session_beyond_the_loopback_needs_tls(stage: ConsoleStage) -> None:
    answer = ask(stage, "login", {"token": TOKENS[Role.VIEWER]}, headers={"host": HOST, **OWN})
    assert answer.cookie.startswith(f"{SECURE_COOKIE}=")
    assert attributes(answer) >= {"secure", "httponly", "samesite=strict", "path=/"}
    assert not [one for one in attributes(answer) if one.startswith("domain")]
    assert ask(stage, "queues", cookie=answer.cookie, headers={"host": HOST}).status == 200


@pytest.mark.parametrize("name", [PLAIN_COOKIE, SECURE_COOKIE])
def test_a_session_that_is_changed_over_or_of_another_token_opens_nothing(stage: ConsoleStage, name: str) -> None:
    now = SystemClock().now() / 1e6
    whole = session_cookie(TOKENS[Role.ADMIN], name="s", now_seconds=now)
    assert ask(stage, "queues", cookie=f"{name}={whole}").status == 200
    ends, session, of, signature = whole.split(".")
    over = session_cookie(TOKENS[Role.ADMIN], name="s", now_seconds=now - SESSION_SECONDS - 60)
    unknown = session_cookie("another-token", name="s", now_seconds=now)
    longer = f"{int(ends) + 3600}.{session}.{of}.{signature}"
    for cookie in (over, unknown, longer, whole[:-1], TOKENS[Role.ADMIN], "", "é"):
        assert ask(stage, "queues", cookie=f"{name}={cookie}".encode().decode("latin-1")).status == 303
        assert ask(stage, PAUSE, {}, cookie=f"{name}={cookie}".encode().decode("latin-1")).status == 303
    assert not stage.queues.queue(QUEUE).stats().paused


def test_a_token_in_the_address_or_in_a_header_opens_no_page(stage: ConsoleStage) -> None:
    token = TOKENS[Role.ADMIN]
    assert ask(stage, f"queues?token={token}", headers={"authorization": f"Bearer {token}"}).status == 303


def test_a_session_survives_a_restart_and_ends_with_its_token() -> None:
    with a_console(roles=[Role.VIEWER, Role.OPERATOR]) as before:
        session = logged_in(before, Role.OPERATOR)
    with a_console(roles=[Role.VIEWER, Role.OPERATOR]) as after:
        assert ask(after, "queues", cookie=session).status == 200
    with a_console(roles=[Role.VIEWER]) as without:
        assert ask(without, "queues", cookie=session).status == 303


def test_a_logout_takes_the_session_away(stage: ConsoleStage) -> None:
    session, other = logged_in(stage, Role.VIEWER), logged_in(stage, Role.VIEWER)
    answer = ask(stage, "logout", {}, cookie=session)
    assert answer.status == 303
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert ask(stage, "queues", cookie=session).status == 303, "a copy of the cookie opens nothing"
    assert ask(stage, "queues", cookie=other).status == 200, "another session with the same token goes on"
    assert ask(stage, "logout").status == 405  # an image of another page logs nobody out


@pytest.mark.parametrize(
    ("back", "leads_to"),
    [("queues/mail", "./queues/mail"), ("//elsewhere.example", "./"), ("https://elsewhere.example/", "./"), ("", "./")],
)
def test_a_login_leads_to_a_page_of_the_console(stage: ConsoleStage, back: str, leads_to: str) -> None:
    assert log_in(stage, back=back).headers["location"] == leads_to


FOREIGN_REQUESTS = {
    "no header at all": {},
    "cross-site": {"sec-fetch-site": "cross-site"},
    "same-site": {"sec-fetch-site": "same-site"},
    "an address that was typed": {"sec-fetch-site": "none"},
    "a foreign origin": {"origin": "https://elsewhere.example"},
    "a foreign origin that says it is ours": {"origin": "https://elsewhere.example", "sec-fetch-site": "same-origin"},
    "no origin": {"origin": "null"},
    "our origin from another site": {"origin": "OURS", "sec-fetch-site": "cross-site"},
}


@pytest.mark.parametrize("headers", FOREIGN_REQUESTS.values(), ids=FOREIGN_REQUESTS.keys())
def test_a_form_of_another_page_does_nothing(stage: ConsoleStage, headers: dict[str, str]) -> None:
    session = logged_in(stage, Role.ADMIN)
    sent = {name: stage.url if value == "OURS" else value for name, value in headers.items()}
    for path, form in ((PAUSE, {}), ("logout", {}), ("login", {"token": TOKENS[Role.ADMIN]})):
        answer = ask(stage, path, form, cookie=session, headers=sent)
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)
    assert not stage.queues.queue(QUEUE).stats().paused


def test_a_form_of_an_old_browser_has_its_origin(stage: ConsoleStage) -> None:
    session = logged_in(stage, Role.OPERATOR)
    for verb in ("pause", "resume"):
        answer = ask(stage, f"queues/{QUEUE}/{verb}", {}, cookie=session, headers={"origin": stage.url})
        assert answer.status == 303


def test_a_page_of_another_name_is_refused(stage: ConsoleStage) -> None:
    assert ask(stage, "login", headers={"host": "elsewhere.example"}).status == 421


@pytest.mark.parametrize(
    "path", ["login", "queues", "queues/no-such-queue", "no/such/page", f"live/queues/{QUEUE}/settings"]
)
def test_every_page_says_how_it_may_be_used(stage: ConsoleStage, path: str) -> None:
    answer = ask(stage, path, cookie=logged_in(stage, Role.VIEWER))
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
