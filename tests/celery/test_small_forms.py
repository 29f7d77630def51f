"""Small forms of the laboratory's claims: what `python3 -m tests.celery --all` shows at length."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.celery.transport.broker import close_brokers
from tests.celery import __main__ as laboratory
from tests.celery.claims import Claim, Conditions
from tests.celery.environments import NEWEST, NoEnvironmentError, environment_of, installed, packages_of, sources_of
from tests.celery.features import try_features
from tests.celery.kombu_classes import ended_run, start_classes
from tests.celery.lease_suite import ON_CHANNELS, Tally, on_channels
from tests.celery.long_tasks import begin, runs_of
from tests.celery.sites import Site, a_plain_redis, a_site
from tests.celery.upstream_celery import ended_tests, start_tests
from tests.support.servers import a_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

CHORD_TASKS = 20
SELECTED = (
    "test_tasks.py::test_tasks::test_simple_call",
    "test_tasks.py::test_tasks::test_basic_task",
    "test_tasks.py::test_tasks::test_ignore_result",
    "test_tasks.py::test_tasks::test_reject_with_requeue_redelivers_and_succeeds",
    "test_tasks.py::test_tasks::test_fail",
    "test_tasks.py::test_tasks::test_properties",
    "test_tasks.py::test_tasks::test_unicode_task",
    # Not `..._level_0`: it expects that the worker, a thread beside it, has the task after its own next line has run.
    "test_tasks.py::test_task_replacement::test_replaced_task_nesting_increments",
    "test_tasks.py::test_task_replacement::test_replaced_task_nesting_level_1",
    "test_tasks.py::test_task_replacement::test_replaced_task_nesting_chain",
    "test_canvas.py::test_link_error::test_link_error",
    "test_canvas.py::test_chain::test_simple_chain",
    "test_canvas.py::test_group::test_group_lone",
    "test_canvas.py::test_chord::test_replaced_nested_chord",
    "test_canvas.py::test_chord::test_single_task_header",
    "test_inspect.py::test_Inspect::test_ping",
    "test_inspect.py::test_Inspect::test_scheduled",
)
"""Tests of Celery's, of the quick ones."""


@pytest.fixture(scope="module", autouse=True)
def _environments() -> None:
    """Celery of the newest version, and upstream's tests; made by `run.py`, or now."""
    try:
        packages_of(NEWEST)
        installed("celery-upstream")
        sources_of("kombu")
        sources_of("celery")
    except NoEnvironmentError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with a_site("memory", folder, version=NEWEST, LAB_ETA="worker", LAB_PREFETCH="4", LAB_LEASE_SECONDS="1") as made:
        yield made


def conditions(folder: Path) -> Conditions:
    return Conditions(NEWEST, ("sqlite",), ("prefork",), folder)


def test_c1_kombus_own_classes_pass(tmp_path: Path) -> None:
    with a_server() as server:
        broker = server.url.replace("http://", "towline://")
        run = ended_run("memory", start_classes(broker, tmp_path, ("-n", "4", "-k", "not test_failed")))
    close_brokers()
    assert run.short == ()
    assert run.passed >= 36


def test_c2_leases_of_channels_keep_their_promises(site: Site) -> None:
    tally = Tally()
    on_channels(site, tally)
    assert (tally.short, tally.held) == ({}, [*ON_CHANNELS])


def test_c8_tasks_longer_than_their_lease_run_once_prefetched_and_held_for_their_eta_too(site: Site) -> None:
    site.start("one")
    begin(site, 3.0)
    assert runs_of(site, 3.0) == [1, 1, 1]


def test_c3_tests_of_celery_pass(tmp_path: Path) -> None:
    with a_server() as server:
        tests = [f"t/integration/{one}" for one in SELECTED]
        with a_plain_redis(tmp_path) as results:
            run = ended_tests(start_tests(f"towline+{server.url}", results, tests, tmp_path))
    close_brokers()
    assert (sorted(run.failed), len(run.passed) >= len(SELECTED)) == ([], True), run.output[-3000:]


def test_c12_features_work(tmp_path: Path) -> None:
    found = try_features(conditions(tmp_path), "prefork", CHORD_TASKS)
    assert {name: error for name, error in found.items() if error} == {}
    assert len(found) > 10


def test_a_program_gets_the_version_it_is_to_run_with() -> None:
    first, *_ = environment_of(NEWEST)["PYTHONPATH"].split(":")
    assert (Path(first) / "celery" / "__init__.py").is_file()


def test_claims_are_named_once_and_in_order() -> None:
    found = laboratory._claims()
    names = [claim.name for claim in found]
    assert all(isinstance(claim, Claim) for claim in found)
    assert len(names) == len(set(names))
    assert {"C1", "C2", "C3", "C5", "C8", "C10", "C12"} <= set(names)
