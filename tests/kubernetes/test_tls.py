"""Whom the runtime trusts: a real apiserver with a certificate of its own authority, at an address."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.runtimes.kubernetes.access import Access
from orchestrator.runtimes.kubernetes.api import Api
from tests.support.fleet.certificates import a_certificate
from tests.support.kubernetes.stage import Stage


def asked(access: Access) -> str:
    api = Api(access)
    try:
        return api.list("pods").version
    finally:
        api.close()


def test_an_apiserver_at_an_address_is_known_by_its_certificate(real: Stage) -> None:
    assert asked(Access.of_kubeconfig(real.kubeconfig))


def test_a_name_that_the_certificate_has_is_taken_and_another_is_refused(real: Stage) -> None:
    access = Access.of_kubeconfig(real.kubeconfig)
    assert asked(replace(access, server_name="kubernetes"))
    with pytest.raises(RuntimeUnavailableError):
        asked(replace(access, server_name="another.example"))


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_an_apiserver_of_another_authority_is_refused_unless_nothing_is_verified(real: Stage, tmp_path: Path) -> None:
    access = replace(Access.of_kubeconfig(real.kubeconfig), ca_file=str(a_certificate(tmp_path).certificate))
    with pytest.raises(RuntimeUnavailableError, match="certificate"):
        asked(access)
    assert asked(replace(access, is_verified=False))


def test_an_authority_that_was_replaced_is_read_again_without_a_restart(real: Stage, tmp_path: Path) -> None:
    right = Access.of_kubeconfig(real.kubeconfig)
    file = tmp_path / "ca.crt"
    file.write_bytes(a_certificate(tmp_path).certificate.read_bytes())
    api = Api(replace(right, ca_file=str(file)))
    with pytest.raises(RuntimeUnavailableError):
        api.list("pods")
    shutil.copy(right.ca_file, file)
    assert api.list("pods").version
    api.close()
