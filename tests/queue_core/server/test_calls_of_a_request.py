"""How many functions the library and a server call for one task, which `tests.bench.calls` prints."""

from typing import Literal

import pytest

from tests.bench.calls import count_library, count_requests

MOST = {"add": 196, "exchange": 230, "lease": 204}
"""Calls of Python functions on 3.11, with those of a busy machine's timers; later versions make fewer."""
MOST_OF_LIBRARY = {"add": 108, "exchange": 130, "lease": 108}
"""The same for a program that opened the store itself, and with the functions of C."""


@pytest.mark.parametrize("folder", ["changed", "unchanged"])
def test_a_verb_of_the_library_calls_no_more_functions(folder: Literal["changed", "unchanged"]) -> None:
    counted = {verb: calls.python + calls.native for verb, calls in count_library(folder=folder, counted=50).items()}
    assert {verb: calls for verb, calls in counted.items() if calls > MOST_OF_LIBRARY[verb]} == {}
    assert all(calls > 50 for calls in counted.values()), "this thread was counted"


@pytest.mark.parametrize("with_tokens", [False, True], ids=["without tokens", "with tokens"])
def test_a_request_on_the_fast_path_calls_no_more_functions(with_tokens: bool) -> None:
    counted = count_requests(with_tokens=with_tokens, counted=50)
    assert {verb: calls.python for verb, calls in counted.items() if calls.python > MOST[verb]} == {}
    assert all(calls.python > 100 for calls in counted.values()), "the server's thread was counted"
