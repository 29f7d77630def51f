"""The body of an exchange means the same whether it is read with its model or without."""

import json

import pytest
from pydantic import ValidationError

from queue_core.errors import QueueError
from queue_core.server.asked import Asked, exchange_of
from queue_core.server.wire import ExchangeRequest

USUAL = {"count": 1, "worker": "machine-1", "wait_seconds": 30.0, "deletions": [{"token": "7.1700000000000000"}]}


def _by_model(body: bytes) -> Asked:
    model = ExchangeRequest.model_validate_json(body)
    deletions = [deletion.value() for deletion in model.deletions]
    return Asked(model.count, model.seconds, model.filter(), model.worker, model.wait_seconds, deletions)


BODIES = [
    b"{}",
    json.dumps(USUAL).encode(),
    *(
        json.dumps({**USUAL, **members}).encode()
        for members in (
            {"count": 1000},
            {"count": -1},
            {"count": 10**30},
            {"seconds": 60.0},
            {"seconds": 60},
            {"seconds": None},
            {"wait_seconds": 0},
            {"wait_seconds": 300.0},
            {"kind": "tags", "tags": ["resize", "crop", "resize"]},
            {"tags": ["resize"]},
            {"tags": []},
            {"kind": None},
            {"kind": "untagged"},
            {"kind": "oldest"},
            {"kind": "oldest", "tags": ["resize"]},
            {"deletions": []},
            {"deletions": [{"token": "1.2"}, {"token": "1.2"}, {"token": ""}]},
            {"deletions": [{"token": "1.2", "then": []}]},
            {"deletions": [{"token": "1.2", "then": [{"text": "next"}]}]},
            {"worker": "w\u00e9\U0001f600"},
        )
    ),
    b' { "worker" : "w" }\n',
]


@pytest.mark.parametrize("body", BODIES)
def test_a_body_is_read_as_its_model_reads_it(body: bytes) -> None:
    read, modelled = exchange_of(body), _by_model(body)
    assert read == modelled
    assert [type(value) for value in (read.wait_seconds, read.seconds)] == [
        type(value) for value in (modelled.wait_seconds, modelled.seconds)
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"count":true}',
        b'{"count":1.0}',
        b'{"count":"1"}',
        b'{"count":null}',
        b'{"seconds":true}',
        b'{"wait_seconds":"1"}',
        b'{"wait_seconds":null}',
        b'{"wait_seconds":NaN}',
        b'{"wait_seconds":1e999}',
        b'{"seconds":1e999}',
        b'{"worker":null}',
        b'{"worker":7}',
        b'{"worker":"\\ud800"}',
        b'{"wurker":"w"}',
        b'{"kind":"some"}',
        b'{"kind":{}}',
        b'{"kind":"any","tags":["a"]}',
        b'{"kind":"tags"}',
        b'{"tags":"resize"}',
        b'{"tags":[7]}',
        b'{"tags":null}',
        b'{"deletions":null}',
        b'{"deletions":{}}',
        b'{"deletions":["1.2"]}',
        b'{"deletions":[{}]}',
        b'{"deletions":[{"token":7}]}',
        b'{"deletions":[{"taken":"1.2"}]}',
        b'{"deletions":[{"token":"1.2","then":{}}]}',
        b'{"deletions":[{"token":"1.2","then":null}]}',
    ],
)
def test_what_is_wrong_with_a_body_is_what_its_model_says(body: bytes) -> None:
    with pytest.raises((ValidationError, QueueError)) as said:
        exchange_of(body)
    with pytest.raises(type(said.value)) as modelled:
        _by_model(body)
    assert str(said.value) == str(modelled.value)
