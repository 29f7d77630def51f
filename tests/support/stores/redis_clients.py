"""Clients of private Redis servers with test functions, for tests of client and signals without a store."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest
import redis

from queue_core.errors import StoreUnavailableError
from queue_core.stores.redis.client import client as client_module
from queue_core.stores.redis.client.client import FunctionLibrary, RedisClient
from queue_core.stores.redis.signals import RedisSignals
from tests.support.stores import engines
from tests.support.stores.engines import Engine, EngineUnavailableError

KEY = "{link}:counter"

_HEAD = """#!lua name=towline_test
local function register(name, callback, flags)
  redis.register_function{ function_name = 'towline_test_' .. name, callback = callback, flags = flags or {} }
end

-- As the store's functions do: a session's last call is answered again, an older one changes nothing.
local function once(change)
  return function(keys, args)
    local last = redis.call('HMGET', keys[1], args[1] .. ':number', args[1] .. ':answer')
    local number = tonumber(args[2])
    if last[1] and tonumber(last[1]) > number then return redis.error_reply('STALE call') end
    if last[1] and tonumber(last[1]) == number then return tonumber(last[2]) end
    local answer = change(keys, args)
    redis.call('HSET', keys[1], args[1] .. ':number', args[2], args[1] .. ':answer', answer)
    return answer
  end
end

register('count', once(function(keys, args) return redis.call('HINCRBY', keys[1], 'count', args[3]) end))
register('fill', once(function(keys, args) return redis.call('HSET', keys[1], args[3], string.rep('x', 100000)) end))
register('empty', once(function(keys) return redis.call('DEL', keys[1]) end), { 'allow-oom' })
register('read', function(keys) return redis.call('HGET', keys[1], 'count') end, { 'no-writes' })
local function seconds()
  local now = redis.call('TIME')
  return now[1] + now[2] / 1000000
end

register('spin', function(keys, args)
  local ends_at = seconds() + args[1]
  while seconds() < ends_at do end
  return 1
end, { 'no-writes' })
register('break', once(function(keys) return redis.call('LPUSH', keys[1], 1) end))
"""


def a_library() -> FunctionLibrary:
    """Return a library of functions to call, and of functions that wake waiters."""
    wake = files("queue_core.stores.redis").joinpath("lua/wake.lua").read_text()

    return FunctionLibrary("towline_test_", _HEAD + wake)


@contextmanager
def a_client(url: str, *, durability: Literal["strict", "relaxed"] = "relaxed") -> Iterator[RedisClient]:
    """Open a client for a server with any settings."""
    client = RedisClient(url, a_library(), durability=durability)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def signals_on(url: str) -> Iterator[RedisSignals]:
    """Return what one process uses to wake waiters of others on queues of that server."""
    with a_client(url) as client, signals_over(client) as signals:
        yield signals


@contextmanager
def signals_over(client: RedisClient) -> Iterator[RedisSignals]:
    """Return the same over an existing client."""
    signals = RedisSignals(client)
    try:
        yield signals
    finally:
        signals.close()


@contextmanager
def a_redis(folder: Path, settings: dict[str, str] | None = None, *, durable: bool = False) -> Iterator[Engine]:
    """Run a private server; skip, by name, where there is none."""
    try:
        with engines.redis(folder, durable=durable, settings=settings) as engine:
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def operator(engine: Engine, **options: str) -> "redis.Redis[bytes]":
    """Open a plain Redis connection, as an operator has."""
    return redis.Redis(host=engine.host, port=engine.port, **options)


def count(client: RedisClient, by: int = 1) -> object:
    """Make a change that shows if it took effect twice, and return the new sum."""
    return client.call("count", [KEY], [by])


def counted(client: RedisClient) -> int:
    """Return the sum."""
    answer = client.read("read", [KEY])
    return int(answer) if isinstance(answer, bytes) else 0


def impatient(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.3) -> None:
    """Let clients give up early, for tests of their errors."""
    monkeypatch.setattr(client_module, "RETRY_SECONDS", seconds)


def opened(url: str) -> RedisClient | None:
    """Return a client, or None if the connection was cut while it opened."""
    try:
        return RedisClient(url, a_library(), durability="relaxed")
    except StoreUnavailableError:
        return None
