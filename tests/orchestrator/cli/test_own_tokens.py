"""The tokens that `towline up` adds to those of its settings."""

import pytest

from orchestrator.cli.commands.up import _with_own_tokens
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role


@pytest.mark.parametrize("role", [Role.WORKER, Role.ADMIN])
def test_workers_get_a_worker_s_rights_whoever_the_settings_know(role: Role) -> None:
    options = ServeOptions(tokens=(AccessToken(role, "given-secret-0123456789"),))
    added = _with_own_tokens(options, "ours", "theirs").tokens[1:]
    assert [(token.role, token.secret) for token in added] == [(Role.ADMIN, "ours"), (Role.WORKER, "theirs")]
