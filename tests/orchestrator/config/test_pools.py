"""What a pool's owner may write, and what is said about each mistake."""

import pytest
from pydantic import ValidationError

from orchestrator.base.errors import ConfigError
from orchestrator.config.pools import PoolSpec, parse_pools, parse_supervisor
from tests.support.fleet.fleet_builders import a_pool

GOOD = {"queue": "thumbs", "app": "tasks:app", "slo": "30s"}


def mistakes_in(pools: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_pools(pools)
    return {".".join(map(str, m.path)): m.message for m in caught.value.problems}


def test_the_slo_is_the_only_scaling_setting_that_must_be_given() -> None:
    pool = parse_pools({"resize": GOOD})["resize"]
    assert (pool.name, pool.slo, pool.workers.min, pool.workers.max) == ("resize", 30.0, 0, 8)
    assert (pool.grace, pool.concurrency, pool.churn, pool.eps, pool.tags) == (30.0, 1, 15.0, 0.005, None)


def test_every_setting_is_read_in_the_units_people_write() -> None:
    pool = parse_pools(
        {
            "resize": {
                "queue": "thumbs",
                "tags": ["resize", "crop"],
                "command": ["python", "worker.py"],
                "runtime": "process",
                "slo": "1m30s",
                "workers": {"min": 1, "max": 40},
                "grace": 45,
                "concurrency": 4,
                "recycle": {"tasks": 1000, "memory": "512MiB", "age": "6h"},
                "env": {"LEVEL": "9"},
                "cwd": "/srv",
                "churn": "5s",
                "eps": "1%",
                "max_step_up": 10,
                "spawn_parallelism": 2,
            }
        }
    )["resize"]
    assert pool.command == ("python", "worker.py")
    assert (pool.slo, pool.grace, pool.churn, pool.eps) == (90.0, 45.0, 5.0, 0.01)
    assert (pool.recycle.tasks, pool.recycle.memory, pool.recycle.age) == (1000, 512 * 2**20, 21_600.0)


def test_a_pool_reads_back_from_what_it_writes() -> None:
    pool = a_pool(recycle={"memory": "1GB"}, env={"A": "b"}, eps="0.1%", grace="1m30s")
    assert PoolSpec.model_validate(pool.model_dump(mode="json")) == pool
    assert pool.model_dump(mode="json")["grace"] == "1m30s"


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        pytest.param(
            "slo", "30 sec", "30 sec: write a duration such as 500ms, 30s, 5m, 6h, 2d; did you mean 30s?", id="slo-unit"
        ),
        pytest.param("slo", 0, "must be more than 0s: 0s", id="slo-zero"),
        pytest.param("slo", True, "True: write a duration such as 500ms, 30s, 5m, 6h, 2d", id="slo-truth"),
        pytest.param("eps", "90%", "must be at most 50%: 90%", id="eps-large"),
        pytest.param("concurrency", True, "must be a whole number: True", id="concurrency-truth"),
        pytest.param("concurrency", 1001, "must be at most 1000: 1001", id="concurrency-large"),
        pytest.param("tags", [], "must not be empty: leave it out instead", id="tags-empty"),
        pytest.param("tags", ["a", "a"], "a tag is given twice", id="tags-twice"),
        pytest.param("tags", "a", "must be a list, such as [first, second]: a", id="tags-text"),
        pytest.param(
            "runtime",
            "docker",
            "docker: needs an image at least: write {docker: {image: NAME}}",
            id="docker-without-an-image",
        ),
        pytest.param(
            "runtime",
            "podman",
            "podman: write process, external, {docker: {image: NAME}}, {swarm: {image: NAME}} or"
            " {kubernetes: {image: NAME}}",
            id="runtime-unknown",
        ),
        pytest.param("workers", 4, "must be a mapping of settings: 4", id="workers-number"),
        pytest.param("name", "x", "a pool is named by its key: leave this out", id="name"),
        pytest.param("command", ["true"], "give either app or command, not both", id="app-and-command"),
        pytest.param("slop", "30s", "unknown setting, did you mean 'slo'?", id="unknown-close"),
        pytest.param("colour", "red", "unknown setting", id="unknown-far"),
    ],
)
def test_a_mistake_says_what_the_value_and_the_fix(setting: str, value: object, said: str) -> None:
    assert mistakes_in({"resize": {**GOOD, setting: value}}) == {f"pools.resize.{setting}": said}


COMMAND = {"queue": "thumbs", "command": ["true"], "slo": "30s"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        pytest.param(COMMAND, "only an app is imported and forked, and these workers are a command", id="command"),
        pytest.param({**GOOD, "runtime": "external"}, "external workers are started by something else", id="external"),
        pytest.param(
            {**GOOD, "runtime": {"docker": {"image": "a"}}},
            "only workers that are processes of this host are forked, and these are containers",
            id="docker",
        ),
        pytest.param(
            {**GOOD, "runtime": {"swarm": {"image": "a"}}},
            "only workers that are processes of this host are forked, and these are containers",
            id="swarm",
        ),
    ],
)
def test_a_fork_is_refused_where_there_is_nothing_to_fork_from_and_auto_means_exec(
    settings: dict[str, object], why: str
) -> None:
    assert mistakes_in({"resize": {**settings, "start": "fork"}}) == {
        "pools.resize.start": f"fork: {why}: leave start out"
    }
    for start in ("auto", "exec"):
        assert parse_pools({"resize": {**settings, "start": start}})["resize"].start == start


@pytest.mark.parametrize("start", ["auto", "fork", "exec"])
def test_workers_of_an_app_start_as_the_pool_says_and_none_is_replaced_for_it(start: str) -> None:
    pool = parse_pools({"resize": {**GOOD, "start": start}})["resize"]
    assert pool.start == start
    assert pool.digest() == parse_pools({"resize": GOOD})["resize"].digest()


@pytest.mark.parametrize("name", ["Resize", "-a", "a_b", "", "a" * 64, "a\n", 7])
def test_a_pools_name_is_short_and_plain(name: object) -> None:
    (said,) = mistakes_in({name: GOOD}).values()
    assert "1 to 63 of a-z, 0-9 and -" in said


def test_every_mistake_is_told_in_one_go() -> None:
    mistakes = mistakes_in(
        {
            "Bad": GOOD,
            "b": {
                "queue": "a b",
                "sloo": "30s",
                "workers": {"min": 9, "max": 3, "mx": 1},
                "app": "tasks",
                "tags": ["x"],
                "untagged": True,
                "env": {"1": "x"},
                "recycle": {"memory": "5"},
            },
            "c": None,
        }
    )
    assert set(mistakes) == {
        "pools.Bad",
        "pools.b.queue",
        "pools.b.slo",
        "pools.b.sloo",
        "pools.b.workers.min",
        "pools.b.workers.mx",
        "pools.b.app",
        "pools.b.untagged",
        "pools.b.env.1",
        "pools.b.recycle.memory",
        "pools.c",
    }
    assert mistakes["pools.b.workers.min"] == "must be at most max, which is 3: 9"
    assert mistakes["pools.b.workers.mx"] == "unknown setting, did you mean 'max'?"
    assert mistakes["pools.b.slo"] == "is required: The longest a task may wait before it is leased"


def test_a_pool_needs_something_to_run() -> None:
    assert mistakes_in({"a": {"queue": "q", "slo": 1}}) == {
        "pools.a": "give app: module:attribute, or command: [program, argument], or celery: {app: proj}"
    }


def test_contradictions_are_refused_without_the_parser_too() -> None:
    with pytest.raises(ValidationError):
        a_pool(least=3, most=2)
    with pytest.raises(ValidationError):
        a_pool(command=["true"])


def test_pools_must_be_a_mapping() -> None:
    assert set(mistakes_in(["a"])) == {"pools"}
    assert parse_pools({}) == {}


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"app": "tasks:other"}, True),
        ({"env": {"A": "1"}}, True),
        ({"cwd": "/"}, True),
        ({"queue": "other"}, True),
        ({"tags": ["a"]}, True),
        ({"untagged": True}, True),
        ({"concurrency": 2}, True),
        ({"recycle": {"tasks": 5}}, True),
        ({"grace": 5}, True),
        ({"slo": 5}, False),
        ({"workers": {"min": 2, "max": 4}}, False),
        ({"churn": 5}, False),
        ({"max_step_up": 1}, False),
    ],
)
def test_only_what_a_worker_was_started_with_changes_the_digest(change: dict[str, object], replaces: bool) -> None:
    assert (a_pool(**change).digest() != a_pool().digest()) is replaces


def test_the_digest_is_the_same_in_every_process() -> None:
    assert a_pool().digest() == "d44999704eb3"
    assert a_pool(env={"A": "1", "B": "2"}).digest() == a_pool(env={"B": "2", "A": "1"}).digest()


def test_the_supervisors_own_settings() -> None:
    assert parse_supervisor({"orphan_grace": "2m"}).orphan_grace == 120.0
    with pytest.raises(ConfigError) as caught:
        parse_supervisor({"orphan_grce": 1, "state_dir": ""})
    assert {m.path for m in caught.value.problems} == {("supervisor", "orphan_grce"), ("supervisor", "state_dir")}
