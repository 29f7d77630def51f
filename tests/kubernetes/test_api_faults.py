"""Calls that go wrong as no test can ask a real apiserver to: on its stand-in alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.runtimes.kubernetes.access import Access
from orchestrator.runtimes.kubernetes.api import Api, ApiBusyError, ApiError
from tests.support.kubernetes.server import LOST, Answer, StandIn, expired
from tests.support.kubernetes.stage import Stage

POD = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "worker"}]}}


@pytest.fixture
def api(fake: Stage) -> Iterator[Api]:
    made = Api(Access.of_kubeconfig(fake.kubeconfig))
    yield made
    made.close()


def test_an_answer_that_is_lost_says_nothing_about_the_pod(api: Api, fake: Stage, stand_in: StandIn) -> None:
    stand_in.answer("create", LOST)
    with pytest.raises(RuntimeUnavailableError):
        api.create("pods", POD)
    assert len(fake.pods()) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_list_that_fails_is_no_list_whatever_json_its_body_is(api: Api, stand_in: StandIn, status: int) -> None:
    # jupyterhub/kubespawner#868: a `Status` was read as a list without Pods, and every server was given up.
    stand_in.answer("list", Answer(status, "Timeout", "the request timed out"))
    with pytest.raises(RuntimeUnavailableError, match="the request timed out"):
        api.list("pods")


@pytest.mark.parametrize("status", [429, 503])
def test_an_apiserver_that_has_too_much_to_do_says_for_how_long(api: Api, stand_in: StandIn, status: int) -> None:
    stand_in.answer("create", Answer(status, "TooManyRequests", "too many requests", {"Retry-After": "7"}))
    with pytest.raises(ApiBusyError) as refused:
        api.create("pods", POD)
    assert refused.value.seconds == 7


def test_a_version_that_is_too_old_is_an_expired_error_as_an_answer(api: Api, fake: Stage, stand_in: StandIn) -> None:
    # apache/airflow#21087 and others: it comes as a status, and as an event inside an answer of 200.
    before = api.list("pods")
    api.create("pods", POD)
    stand_in.objects.forget()
    with pytest.raises(ApiError) as refused:
        api.watch("pods", selector="", version=before.version, seconds=10)
    assert refused.value.is_expired


@pytest.mark.parametrize("code", [410, 500])
def test_an_error_inside_a_watch_is_raised_with_its_code(api: Api, fake: Stage, stand_in: StandIn, code: int) -> None:
    watch = api.watch("pods", selector="", version=api.list("pods").version, seconds=60)
    stand_in.end_watches(expired(code))
    with pytest.raises(ApiError) as refused:
        list(watch)
    assert refused.value.status == code


def test_a_watch_that_is_cut_is_unavailable(api: Api, stand_in: StandIn) -> None:
    watch = api.watch("pods", selector="", version=api.list("pods").version, seconds=60)
    stand_in.end_watches()
    with pytest.raises(RuntimeUnavailableError):
        list(watch)


def test_a_half_open_watch_is_given_up_after_our_own_time_limit(api: Api, stand_in: StandIn) -> None:
    # apache/airflow#12644, kubernetes-client/python#1148: a watch without a client's time limit hangs for ever.
    stand_in.holds_events = True
    watch = api.watch("pods", selector="", version=api.list("pods").version, seconds=60, silent_seconds=0.3)
    api.create("pods", POD)
    with pytest.raises(RuntimeUnavailableError, match="does not answer"):
        list(watch)


def test_a_token_that_was_renewed_is_read_again_at_the_first_refusal(
    stand_in: StandIn, tmp_path: Path, fake: Stage
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    stand_in.token = "first"
    api = Api(Access(stand_in.url, "tests", fake.namespace, token_file=str(file)))
    api.list("pods")
    file.write_text("second")
    stand_in.token = "second"
    api.list("pods")
    assert [call.token for call in stand_in.asked("list")] == ["first", "first", "second"]
    api.close()


def test_a_token_that_stays_wrong_is_refused_after_one_more_try(stand_in: StandIn, tmp_path: Path, fake: Stage) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    stand_in.token = "another"
    api = Api(Access(stand_in.url, "tests", fake.namespace, token_file=str(file)))
    with pytest.raises(ApiError) as refused:
        api.list("pods")
    assert refused.value.status == 401
    assert len(stand_in.asked("list")) == 2
    api.close()
