"""Who may do what: the roles of tokens, and the acl of queues that name their people."""

from pathlib import Path

import pytest

from queue_core.cli.serving import serve_options
from queue_core.config.settings import parse_queue_file
from queue_core.errors import PermissionDeniedError, UnauthenticatedError
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.callers.access import VERB_OF_ACCESS, check_access, is_listed
from queue_core.server.callers.auth import REQUIRED_ROLES, Authorizer, Principal
from queue_core.task import QueueSpec
from queue_core.verbs.roles import Access, Role

OPEN = QueueSpec("work")
NAMED = QueueSpec("work", user_emails=("user@x.org", "Both@X.org"), writer_emails=("writer@x.org", "both@x.org"))
ONLY_WRITERS = QueueSpec("work", writer_emails=("writer@x.org",))
USING: tuple[Access, ...] = ("list", "get", "lease", "delete", "update")
ALL: tuple[Access, ...] = (*USING, "insert", "look")
SECRET = "0123456789abcdef"
OTHER_SECRET = "fedcba9876543210"


@pytest.mark.parametrize(
    ("spec", "email", "role", "allowed"),
    [
        pytest.param(OPEN, None, Role.WORKER, ALL, id="no acl: a worker without a name"),
        pytest.param(OPEN, "user@x.org", Role.WORKER, ALL, id="no acl: a worker with a name"),
        pytest.param(OPEN, None, Role.PRODUCER, ("insert", "look"), id="no acl: a producer"),
        pytest.param(OPEN, None, Role.VIEWER, ("list", "get", "look"), id="no acl: a viewer"),
        pytest.param(NAMED, None, Role.ADMIN, ALL, id="an admin may do everything"),
        pytest.param(NAMED, "else@x.org", Role.ADMIN, ALL, id="an admin who is not listed, too"),
        pytest.param(NAMED, None, Role.WORKER, (), id="a token without an email"),
        pytest.param(NAMED, "else@x.org", Role.WORKER, (), id="an email that is not listed"),
        pytest.param(NAMED, "user@x.org", Role.WORKER, (*USING, "look"), id="a user"),
        pytest.param(NAMED, "USER@x.ORG", Role.WORKER, (*USING, "look"), id="a user, written in capitals"),
        pytest.param(NAMED, "writer@x.org", Role.WORKER, ("insert", "look"), id="a writer"),
        pytest.param(NAMED, "both@x.org", Role.WORKER, ALL, id="one who is listed under both"),
        pytest.param(NAMED, "user@x.org", Role.VIEWER, ("list", "get", "look"), id="the role is the ceiling of a user"),
        pytest.param(NAMED, "both@x.org", Role.PRODUCER, ("insert", "look"), id="and of one under both"),
        pytest.param(NAMED, "user@x.org", Role.PRODUCER, ("look",), id="a producer who is only a user"),
        pytest.param(ONLY_WRITERS, "user@x.org", Role.WORKER, (), id="an acl of writers has no users"),
        pytest.param(ONLY_WRITERS, "writer@x.org", Role.WORKER, ("insert", "look"), id="an acl of writers only"),
    ],
)
def test_role_and_acl_must_both_allow(
    spec: QueueSpec, email: str | None, role: Role, allowed: tuple[Access, ...]
) -> None:
    caller = Principal(role, email)
    for access in ALL:
        if access in allowed:
            check_access(caller, spec, access)
            assert is_listed(caller, spec, access)
        else:
            with pytest.raises(PermissionDeniedError):
                check_access(caller, spec, access)


def test_every_access_has_a_verb_that_roles_are_known_for() -> None:
    assert set(VERB_OF_ACCESS) == set(ALL)
    assert set(VERB_OF_ACCESS.values()) <= set(REQUIRED_ROLES)


def test_a_refusal_says_who_and_for_what() -> None:
    with pytest.raises(PermissionDeniedError, match=r"work.*lease.*user_email.*else@x\.org"):
        check_access(Principal(Role.WORKER, "else@x.org"), NAMED, "lease")
    with pytest.raises(PermissionDeniedError, match=r"insert.*writer_email.*without an email"):
        check_access(Principal(Role.WORKER), NAMED, "insert")


def headers(secret: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"localhost"), (b"authorization", f"Bearer {secret}".encode())]


def test_the_gate_tells_who_calls() -> None:
    tokens = (AccessToken(Role.WORKER, SECRET, "a@x.org"), AccessToken(Role.ADMIN, OTHER_SECRET))
    gate = Authorizer(ServeOptions(tokens=tokens))
    assert gate.caller(headers(SECRET)) == Principal(Role.WORKER, "a@x.org")
    assert gate.caller(headers(OTHER_SECRET)) == Principal(Role.ADMIN)
    for wrong in (
        headers("wrong"),
        [(b"host", b"localhost")],
        [(b"host", b"localhost"), (b"authorization", b"Basic x")],
    ):
        with pytest.raises(UnauthenticatedError):
            gate.caller(wrong)


def test_without_tokens_everybody_is_an_admin_without_a_name() -> None:
    assert Authorizer(ServeOptions()).caller([(b"host", b"localhost")]) == Principal(Role.ADMIN)


def test_the_settings_file_may_name_who_bears_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET + "\n")
    token = {"role": "worker", "email": "a@x.org", "token_file": "token"}
    settings, mistakes = parse_queue_file({"server": {"tokens": [token]}})
    assert (mistakes, settings is None) == ([], False)
    assert settings is not None
    assert serve_options(settings, tmp_path).tokens == (AccessToken(Role.WORKER, SECRET, "a@x.org"),)


@pytest.mark.parametrize("email", ["", "nobody", "a b@x.org", "a@x.org\n", 5])
def test_an_email_out_of_form_is_a_mistake_at_its_place(email: object) -> None:
    token = {"role": "worker", "email": email, "token_file": "token"}
    _, mistakes = parse_queue_file({"server": {"tokens": [token]}})
    assert [mistake.path for mistake in mistakes] == [("server", "tokens", 0, "email")]
