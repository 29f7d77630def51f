"""What a Redis URL may say, and which servers a queue is entrusted to: values only, no server."""

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from queue_core.config.redis_url import RedisAddress, parse_url
from queue_core.errors import (
    InvalidSettingError,
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnsafeError,
)
from queue_core.stores.redis.client.errors import CallFailedError, failure_of
from queue_core.stores.redis.client.handshake import RedisServerInfo, check_kind, check_settings

INFO = {"redis_version": "7.0.15", "redis_mode": "standalone", "role": "master", "maxmemory_policy": "noeviction"}
SYNCED = {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory": "0", "maxmemory-policy": "noeviction"}


@pytest.mark.parametrize(
    ("url", "kind", "addresses", "database"),
    [
        pytest.param("redis://host", "server", ["host:6379"], 0, id="a host alone"),
        pytest.param("redis://host:7000/3", "server", ["host:7000"], 3, id="port and database"),
        pytest.param("redis://[::1]:7000/", "server", ["[::1]:7000"], 0, id="an IPv6 address"),
        pytest.param("rediss://user:pa%2Fss@host/1", "server", ["host:6379"], 1, id="TLS and a login"),
        pytest.param("redis+unix:///run/redis.sock?database=2", "socket", ["/run/redis.sock"], 2, id="a socket"),
        pytest.param("redis+cluster://a,b:7001", "cluster", ["a:6379", "b:7001"], 0, id="nodes of a cluster"),
        pytest.param("redis+sentinel://a,b:1/main/4", "sentinel", ["a:26379", "b:1"], 4, id="sentinels"),
    ],
)
def test_a_url_names_servers(url: str, kind: str, addresses: list[str], database: int) -> None:
    parsed = parse_url(url)
    assert (parsed.kind, [str(address) for address in parsed.addresses], parsed.database) == (kind, addresses, database)


def test_a_url_may_hold_a_login_tls_files_and_a_promise() -> None:
    parsed = parse_url("rediss://us%40er:p%3Aw@host/0?ssl_ca_certs=/ca.pem&assume_durable=true")
    assert (parsed.username, parsed.password, parsed.is_tls) == ("us@er", "p:w", True)
    assert parsed.tls_files == (("ssl_ca_certs", "/ca.pem"),)
    assert parsed.assumes_durable
    assert parse_url("redis://:secret@host").username is None
    assert parse_url("redis+sentinel://a/main").service == "main"


@pytest.mark.parametrize(
    "url",
    [
        "redis:host",
        "redis6://host",
        "redis://",
        "redis://user:hunter2@",
        "redis://host:99999",
        "redis://host:port",
        "redis://host/first",
        "redis://host/1/2",
        "redis://a,b",
        "redis://user:hunter2@host?unknown=1",
        "redis://host?assume_durable=maybe",
        "redis://host?ssl_ca_certs=/ca.pem",
        "redis://host?x",
        "redis://user:hunter2#@host",
        "redis://user:hunter2?x@host",
        "redis://[::1",
        "redis+unix://",
        "redis+cluster://a/1",
        "redis+sentinel://a",
        "redis+sentinel://a/main/1/2",
    ],
)
def test_another_url_is_refused_without_telling_its_password(url: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        parse_url(url)
    assert "redis+cluster://" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://host?spread=thumbs:8", "redis+cluster://u:hunter2@a,b?spread=x&x=1"])
def test_a_url_that_asks_for_a_queue_on_several_nodes_is_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"whole on one node.*leave the option out.*postgresql:") as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


def test_a_password_is_shown_nowhere() -> None:
    parsed = parse_url("redis://user:hunter2@host/1")
    assert parsed.shown == "redis://host/1"
    assert "hunter2" not in repr(parsed)


@pytest.mark.parametrize(
    ("changed", "cluster"),
    [
        pytest.param({"redis_version": "6.2.14"}, False, id="too old"),
        pytest.param({"redis_mode": "sentinel"}, False, id="a sentinel"),
        pytest.param({"redis_mode": "cluster"}, False, id="a cluster's node, not addressed as one"),
        pytest.param({}, True, id="a single server, addressed as a cluster"),
    ],
)
def test_a_server_of_another_kind_is_refused(changed: dict[str, str], cluster: bool) -> None:
    with pytest.raises(StoreUnsafeError):
        check_kind(RedisServerInfo(INFO | changed, SYNCED), "host:6379", cluster=cluster)


def test_valkey_and_redis_from_7_on_are_taken() -> None:
    check_kind(
        RedisServerInfo(INFO | {"valkey_version": "8.1.0", "redis_version": "7.2.4"}, SYNCED),
        "host:6379",
        cluster=False,
    )
    check_kind(RedisServerInfo(INFO | {"redis_mode": "cluster"}, SYNCED), "host:6379", cluster=True)


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        pytest.param(SYNCED, "", id="every write synced"),
        pytest.param(SYNCED | {"appendfsync": "everysec"}, "about the last second", id="synced once a second"),
        pytest.param(SYNCED | {"appendfsync": "no"}, "30 seconds", id="synced when the kernel likes"),
        pytest.param(SYNCED | {"appendonly": "no", "save": "60 1"}, "last snapshot (save 60 1)", id="snapshots only"),
        pytest.param(SYNCED | {"appendonly": "no"}, "everything", id="in memory only"),
        pytest.param(None, "CONFIG GET", id="settings that are not shown"),
    ],
)
def test_what_can_be_lost_is_refused_under_strict_and_told_under_relaxed(
    settings: dict[str, str] | None, lost: str
) -> None:
    server = RedisServerInfo(INFO, settings)
    told = check_settings(server, "host:6379", durability="relaxed", assumes_durable=False)
    assert lost in told
    assert bool(told) == bool(lost)
    if not lost:
        assert check_settings(server, "host:6379", durability="strict", assumes_durable=False) == ""
        return
    with pytest.raises(StoreUnsafeError) as caught:
        check_settings(server, "host:6379", durability="strict", assumes_durable=False)
    assert lost in str(caught.value)


def test_an_operator_may_vouch_for_settings_that_are_not_shown_but_not_for_others() -> None:
    hidden = RedisServerInfo(INFO, None)
    assert check_settings(hidden, "host:6379", durability="strict", assumes_durable=True) == ""
    with pytest.raises(StoreUnsafeError):
        check_settings(
            RedisServerInfo(INFO, SYNCED | {"appendfsync": "no"}),
            "host:6379",
            durability="strict",
            assumes_durable=True,
        )


@pytest.mark.parametrize("durability", ["strict", "relaxed"])
@pytest.mark.parametrize(
    "server",
    [
        RedisServerInfo(INFO, SYNCED | {"maxmemory": "1000", "maxmemory-policy": "allkeys-lru"}),
        RedisServerInfo(INFO | {"maxmemory": "1000", "maxmemory_policy": "volatile-ttl"}, None),
    ],
)
def test_a_server_that_drops_keys_is_refused_whatever_the_durability(server: RedisServerInfo, durability: str) -> None:
    with pytest.raises(StoreUnsafeError) as caught:
        check_settings(server, "host:6379", durability=durability, assumes_durable=True)  # type: ignore[arg-type]
    assert "maxmemory-policy noeviction" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "step", "kind"),
    [
        (RedisConnectionError("Connection closed by server."), "resend", StoreUnavailableError),
        (RedisTimeoutError("Timeout reading from host"), "resend", StoreUnavailableError),
        (OSError("name not known"), "resend", StoreUnavailableError),
        (RedisConnectionError("max number of clients reached"), "again", StoreUnavailableError),
        (BusyLoadingError("Redis is loading the dataset in memory"), "again", StoreUnavailableError),
        (ResponseError("BUSY Redis is busy running a script."), "again", StoreUnavailableError),
        (ResponseError("TRYAGAIN Multiple keys request during rehashing"), "again", StoreUnavailableError),
        (ResponseError("CLUSTERDOWN The cluster is down"), "again", StoreUnavailableError),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), "again", StoreUnavailableError),
        (ReadOnlyError("You can't write against a read only replica."), "elsewhere", StoreUnavailableError),
        (ResponseError("MASTERDOWN Link with MASTER is down"), "elsewhere", StoreUnavailableError),
        (ResponseError("MOVED 42 10.0.0.1:7000"), "moved", StoreUnavailableError),
        (ResponseError("ASK 42 10.0.0.1:7000"), "again", StoreUnavailableError),
        (ResponseError("Script attempted to access a non local key"), "stop", OutcomeUnknownError),
        (ResponseError("Function not found"), "load", StoreUnavailableError),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "stop", StoreFullError),
        (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "stop", StoreFullError),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), "again", StoreUnavailableError),
        (AuthenticationError("Authentication required."), "stop", StoreUnsafeError),
        (AuthenticationError("invalid username-password pair"), "stop", StoreUnsafeError),
        (NoPermissionError("this user has no permissions to run the 'fcall' command"), "stop", StoreUnsafeError),
        (ResponseError("WRONGTYPE Operation against a key"), "stop", CallFailedError),
    ],
)
def test_every_failure_has_its_rule(error: Exception, step: str, kind: type[StoreError]) -> None:
    failure = failure_of(error, "host:6379")
    assert failure.next == step
    assert type(failure.error) is kind
    assert failure.is_answered == (step != "resend")


def test_an_address_is_written_as_a_url_has_it() -> None:
    assert [str(RedisAddress("host", 1)), str(RedisAddress("::1", 2)), str(RedisAddress("/run/r.sock", 0))] == [
        "host:1",
        "[::1]:2",
        "/run/r.sock",
    ]
