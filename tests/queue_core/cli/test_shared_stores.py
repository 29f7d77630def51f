"""Commands on a store that several hosts share: its settings, its password, and what is told when it is away."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from queue_core.cli import exits, serving
from queue_core.cli.failure import CommandError
from queue_core.cli.settings_file import load_queue_file, store_url
from queue_core.config.settings import QueueFile
from queue_core.config.store import StoreSettings
from tests.support.commands import Commands
from tests.support.eventually import eventually
from tests.support.stores import engines
from tests.support.stores.engines import Engine, EngineUnavailableError, free_port
from tests.support.stores.postgres_connections import Pooler, through
from tests.support.stores.stores import new_url

PASSWORD = "a/b@c:d"


def _write(folder: Path, store: object) -> None:
    settings = {"store": store, "durability": "relaxed", "server": {"listen": "unix:none.sock"}, "queues": {"q": {}}}
    (folder / "towline.yaml").write_text(json.dumps(settings))


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Engine]:
    home = tmp_path / "engines"
    home.mkdir()
    try:
        with engines.redis(home, settings={"appendonly": "yes", "appendfsync": "everysec"}) as engine:
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["postgresql", "redis"])
def test_a_command_opens_the_store_itself_when_no_server_answers(towline: Commands, name: str) -> None:
    _write(towline.folder, new_url("postgresql" if name == "postgresql" else "redis"))
    assert towline("add", "q", "work").code == 0
    assert towline("stats", "q", "--json").json["ready"] == 1
    assert towline("lease", "q").code == 0


def test_a_store_may_be_named_by_url_alone(towline: Commands) -> None:
    url = new_url("redis")
    _write(towline.folder, "memory:")
    assert towline("queues", "--store", url).code == 0
    assert towline("queues", "--url", url).code == 0


def test_the_password_comes_from_a_variable_or_a_file(
    towline: Commands, own_redis: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis.Redis.from_url(own_redis.tcp_url) as client:
        client.config_set("requirepass", PASSWORD)
    _write(towline.folder, own_redis.tcp_url)
    refused = towline("add", "q", "work")
    assert refused.code != 0
    _write(towline.folder, {"url": own_redis.tcp_url, "password_env": "STORE_PASSWORD"})
    assert towline("add", "q", "work").code == exits.BAD_CONFIG
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    assert towline("add", "q", "work").code == 0
    (towline.folder / "password").write_text(PASSWORD + "\n")
    _write(towline.folder, {"url": own_redis.tcp_url, "password_file": "password"})
    assert towline("add", "q", "more").code == 0
    shown = towline("config", "--json")
    assert PASSWORD not in shown.out + shown.err


def test_a_password_is_not_shown(towline: Commands) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}/0"
    _write(towline.folder, url)
    for told in (towline("config"), towline("config", "--json"), towline("stats", "q"), towline("doctor")):
        assert "secret" not in told.out + told.err
        assert "user" in told.out + told.err or "127.0.0.1" in told.out + told.err


@pytest.mark.parametrize("scheme", ["postgresql://user:secret@127.0.0.1:{}/db", "redis://:secret@127.0.0.1:{}/0"])
def test_a_server_whose_store_stays_away_says_so_and_gives_up(
    towline: Commands, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(serving, "MAX_START_SECONDS", 1.0)
    told = towline("serve", "--store", scheme.format(free_port()), "--listen", "127.0.0.1:0")
    assert told.code == exits.UNAVAILABLE
    assert "waiting up to 1 s for" in told.err
    assert "secret" not in told.err
    assert "***" in told.err
    assert "next:" in told.err


def test_a_server_waits_for_a_store_that_is_just_starting(own_redis: Engine) -> None:
    settings = QueueFile(store=StoreSettings(url=own_redis.tcp_url), durability="relaxed", queues={"q": {}})
    own_redis.kill()

    def opened() -> str:
        with serving.prepared_store(settings, Path.cwd(), patience_seconds=30.0) as store, store.read() as transaction:
            return transaction.queue("q").name

    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(opened)
        own_redis.start()
        assert eventually(opening.done) and opening.result() == "q"


def test_a_password_that_is_not_there_is_a_wrong_setting(tmp_path: Path) -> None:
    _write(tmp_path, {"url": "redis://host", "password_file": "missing"})
    settings, folder = load_queue_file(tmp_path / "towline.yaml")
    with pytest.raises(CommandError, match="missing"):
        store_url(settings, folder)


def test_the_doctor_looks_at_a_shared_store(towline: Commands) -> None:
    _write(towline.folder, new_url("redis"))
    found = {finding["check"]: finding for finding in towline("doctor", "--json").json}
    assert found["store"]["level"] in ("ok", "warn")
    _write(towline.folder, f"redis://127.0.0.1:{free_port()}/0")
    found = {finding["check"]: finding for finding in towline("doctor", "--json").json}
    assert found["store"]["level"] == "bad"


def test_the_doctor_says_what_keeps_waiters_from_being_woken(towline: Commands) -> None:
    url = new_url("postgresql")
    with closing(Pooler("127.0.0.1", urlsplit(url).port or 0)) as pooler:
        _write(towline.folder, through(url, pooler.port))
        found = {finding["check"]: finding for finding in towline("doctor", "--json").json}
    assert found["store"]["level"] == "warn"
    assert "listen=" in found["store"]["fix"]
