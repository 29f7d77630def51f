"""A broker's URL is shown, answered, logged and pickled without its token or password."""

import copy
import io
import json
import logging
import pickle  # noqa: TID251 - as kombu's users do
import traceback

import pytest
from celery import Celery
from kombu import Connection

import queue_core.kombu  # noqa: F401 - registers the transport
from queue_core.celery.transport.connection_info import shown_info

TOKEN = "hunter2-of-the-broker"
URLS = [
    f"towline+http://:{TOKEN}@127.0.0.1:1/shop",
    f"towline+http://{TOKEN}@127.0.0.1:1/shop",
    f"towline+https://:{TOKEN}@127.0.0.1:1",
    f"towline://:{TOKEN}@127.0.0.1:1",
    f"towline://{TOKEN}@127.0.0.1:1/shop",
    f"towline+http://:{TOKEN}@127.0.0.1:1,http://:{TOKEN}@127.0.0.1:2/shop",
    f"towline+http://:{TOKEN}@127.0.0.1:1;towline+http://:{TOKEN}@127.0.0.1:2",
    "towline+http://127.0.0.1:1",
]


@pytest.mark.parametrize("url", URLS)
def test_a_connection_says_nothing_of_its_token(url: str) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        for connection in (
            first := Connection(url, transport_options={"token": TOKEN}),
            first.clone(),
            copy.copy(first),
        ):
            told = [repr(connection), str(connection), json.dumps(connection.info()), connection.as_uri()]
            told.append(repr(pickle.dumps(connection)))
            with pytest.raises(Exception) as caught:
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=0.1)
            error: BaseException | None = caught.value
            while error is not None:
                told += [str(error), repr(error), repr(error.args)]
                error = error.__cause__ or error.__context__
            told.append("".join(traceback.format_exception_only(caught.value)))
            assert [one for one in told if TOKEN in one] == []
    finally:
        logging.getLogger().removeHandler(handler)
    assert TOKEN not in log.getvalue()


@pytest.mark.parametrize("url", URLS)
def test_an_app_says_nothing_of_its_brokers_token(url: str) -> None:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"token": TOKEN}
    told = [app.conf.humanize(with_defaults=True), repr(app.conf.table(with_defaults=True)), app.bugreport()]
    told += [repr(app), app.connection_for_read().as_uri(), json.dumps(app.connection_for_write().info())]
    assert [one for one in told if TOKEN in one] == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"towline+postgresql://ann:{TOKEN}@db/x", "towline+postgresql://ann:***@db/x"),
        (f"towline+redis://:{TOKEN}@cache/0", "towline+redis://:***@cache/0"),
        (f"towline+postgresql://db/x?password={TOKEN}", "towline+postgresql://db/x?password=***"),
        (f"towline+http://:{TOKEN}@[::1:7878/shop", "towline+http://:***@[::1:7878/shop"),
        ("towline+sqlite:///shop.db", "towline+sqlite:///shop.db"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_url_of_a_store_is_told_without_its_password(url: str, shown: str) -> None:
    told = shown_info({"hostname": url, "userid": "", "password": TOKEN, "alternates": [url]})
    assert (told["hostname"], told["alternates"]) == (shown, [shown])
    assert TOKEN not in repr(told)


def test_connections_to_other_brokers_are_told_as_kombu_has_them() -> None:
    assert Connection("memory://ann:pw@host//").info()["transport"] == "memory"
    assert Connection("amqp://ann:pw@host//").info()["password"] == "pw"
