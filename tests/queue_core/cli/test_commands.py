"""The verbs as they are typed, on a store of their own."""

import io
from pathlib import Path
from typing import cast

import click
import pytest

from queue_core.cli.target import find_target
from tests.support.commands import CommandResult, Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 30s, max_leases: 2, retry: {min: 0s, max: 0s}}
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


def pipe_in(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))


def token_of(leased: CommandResult) -> str:
    return str(cast("dict[str, object]", leased.lines[0])["token"])


def states(towline: Commands) -> dict[str, object]:
    counts = cast("dict[str, object]", towline("stats", "thumbs", "--json").json)
    return {name: counts[name] for name in ("ready", "delayed", "in_flight", "dead", "deleted_total")}


def test_a_task_is_added_leased_and_deleted(towline: Commands) -> None:
    added = towline("add", "thumbs", "cat.jpg", "--tag", "resize", "--name", "cat")
    assert (added.code, added.out) == (0, "cat\n")
    leased = towline("lease", "thumbs", "--json")
    lease = cast("dict[str, object]", leased.lines[0])
    assert (lease["payload"], lease["tag"], lease["name"]) == ("cat.jpg", "resize", "cat")
    assert towline("delete", "thumbs", token_of(leased)).code == 0
    assert states(towline) == {"ready": 0, "delayed": 0, "in_flight": 0, "dead": 0, "deleted_total": 1}


def test_tasks_are_added_with_headers(towline: Commands) -> None:
    assert towline("add", "thumbs", "a", "b", "--header", "request-id=r=7", "--header", "empty=").code == 0
    tasks = cast("dict[str, list[dict[str, object]]]", towline("peek", "thumbs", "--json").json)["tasks"]
    assert [task["headers"] for task in tasks] == [{"request-id": "r=7", "empty": ""}] * 2
    lease = cast("dict[str, object]", towline("lease", "thumbs", "--json").lines[0])
    assert lease["headers"] == {"request-id": "r=7", "empty": ""}


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        pytest.param(["r-7"], "NAME=VALUE", id="no value"),
        pytest.param(["a=1", "a=2"], "given twice", id="a name twice"),
        pytest.param(["a b=1"], "1 to 64 letters", id="no name"),
        pytest.param(["a=" + "x" * 4096], "4 KiB", id="too long"),
    ],
)
def test_headers_out_of_range_are_refused_and_nothing_is_added(
    towline: Commands, headers: list[str], said: str
) -> None:
    refused = towline("add", "thumbs", "a", *(word for header in headers for word in ("--header", header)))
    assert refused.code not in (0, 1)
    assert said in refused.err
    assert states(towline)["ready"] == 0


def test_nothing_to_lease_is_exit_code_1_and_an_empty_stdout(towline: Commands) -> None:
    leased = towline("lease", "thumbs")
    assert (leased.code, leased.out) == (1, "")
    assert "nothing to lease" in leased.err


def test_a_name_that_is_taken_is_exit_code_1(towline: Commands) -> None:
    towline("add", "thumbs", "a", "--name", "cat")
    again = towline("add", "thumbs", "b", "--name", "cat", "--json")
    assert again.code == 1
    assert again.lines == [{"name": "cat", "status": "exists"}]


def test_every_line_of_stdin_is_a_task(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, b"".join(b"%d\n" % number for number in range(2500)))
    assert towline("add", "thumbs", "--lines", "--tag", "n").code == 0
    assert states(towline)["ready"] == 2500


def test_stdin_as_a_whole_is_one_payload_byte_for_byte(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, b"\x00\xff\n")
    assert towline("add", "thumbs").code == 0
    lease = cast("dict[str, object]", towline("lease", "thumbs", "--json").lines[0])
    assert lease["payload_base64"] == "AP8K"


def test_a_payload_comes_from_a_file(towline: Commands) -> None:
    (towline.folder / "cat.json").write_bytes(b'{"cat": 1}')
    towline("add", "thumbs", "--from", "cat.json")
    assert cast("dict[str, object]", towline("lease", "thumbs", "--json").lines[0])["payload"] == '{"cat": 1}'


def test_leases_take_one_tag_several_or_none(towline: Commands) -> None:
    for tag in ("a", "b", "c"):
        towline("add", "thumbs", tag, "--tag", tag)
    towline("add", "thumbs", "bare")

    def payloads(*options: str) -> list[object]:
        leased = towline("lease", "thumbs", "-n", "10", "--json", *options)
        return [cast("dict[str, object]", lease)["payload"] for lease in leased.lines]

    assert payloads("--untagged") == ["bare"]
    assert payloads("--tag", "b") == ["b"]
    assert payloads("--group") == ["a"]
    assert payloads("--tag", "a", "--tag", "c") == ["c"]


def test_a_renewed_lease_ends_later(towline: Commands) -> None:
    towline("add", "thumbs", "a")
    leased = towline("lease", "thumbs", "--json")
    before = cast("dict[str, object]", leased.lines[0])["expires_at"]
    renewed = cast("dict[str, object]", towline("renew", "thumbs", token_of(leased), "--for", "5m", "--json").lines[0])
    assert cast("int", renewed["expires_at"]) > cast("int", before)


def test_a_task_dies_with_a_reason_is_listed_and_redriven(towline: Commands) -> None:
    towline("add", "thumbs", "a")
    leased = towline("lease", "thumbs", "--json")
    assert towline("release", "thumbs", token_of(leased), "--dead", "no such image").code == 0
    assert states(towline)["dead"] == 1
    page = cast("dict[str, list[dict[str, object]]]", towline("peek", "thumbs", "--state", "dead", "--json").json)
    assert page["tasks"][0]["reason"] == "no such image"
    assert towline("redrive", "thumbs").out == "1 ready again\n"
    assert towline("redrive", "thumbs").code == 1


def test_a_released_task_may_be_delayed(towline: Commands) -> None:
    towline("add", "thumbs", "a")
    towline("release", "thumbs", token_of(towline("lease", "thumbs", "--json")), "--delay", "1h")
    assert states(towline)["delayed"] == 1


def test_a_paused_queue_grants_nothing_until_it_is_resumed(towline: Commands) -> None:
    towline("add", "thumbs", "a")
    towline("pause", "thumbs")
    assert towline("lease", "thumbs").code == 1
    assert "paused" in towline("queues").out
    towline("resume", "thumbs")
    assert towline("lease", "thumbs").code == 0


def test_a_purge_asks_first(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    towline("add", "thumbs", "a", "b")
    pipe_in(monkeypatch, b"n\n")
    assert towline("purge", "thumbs").code == 130
    assert states(towline)["ready"] == 2
    assert towline("purge", "thumbs", "--yes").out == "2 deleted\n"


def test_a_purge_that_asked_deletes_what_it_counted(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    towline("add", "thumbs", "a", "b")
    towline("lease", "thumbs")

    def add_and_agree(*_words: object, **_more: object) -> bool:
        towline("add", "thumbs", "since")
        return True

    monkeypatch.setattr(click, "confirm", add_and_agree)
    assert towline("purge", "thumbs").out == "2 deleted\n"
    assert states(towline)["ready"] == 1


def test_peek_pages_through_a_queue(towline: Commands) -> None:
    towline("add", "thumbs", "a", "b", "c")
    first = cast("dict[str, object]", towline("peek", "thumbs", "--limit", "2", "--json").json)
    rest = cast(
        "dict[str, list[dict[str, object]]]",
        towline("peek", "thumbs", "--after", str(first["next_after"]), "--json").json,
    )
    assert [task["payload"] for task in rest["tasks"]] == ["c"]


def test_counts_are_told_per_tag(towline: Commands) -> None:
    towline("add", "thumbs", "a", "b", "--tag", "x")
    towline("add", "thumbs", "c")
    found = cast("list[dict[str, object]]", towline("stats", "thumbs", "--tags", "--json").json)
    assert {one["tag"]: one["ready"] for one in found} == {None: 1, "x": 2}


def test_a_token_that_is_not_current_is_exit_code_75(towline: Commands) -> None:
    towline("add", "thumbs", "a")
    leased = towline("lease", "thumbs", "--json")
    towline("delete", "thumbs", token_of(leased))
    again = towline("delete", "thumbs", token_of(leased))
    assert again.code == 75
    assert "no longer current" in again.err
    assert "next:" in again.err


def test_errors_are_json_when_json_is_asked_for(towline: Commands) -> None:
    import json

    told = towline("stats", "nothing", "--json")
    assert told.code == 66
    assert json.loads(told.err)["code"] == 66
    assert told.out == ""


def test_a_url_and_a_store_at_once_are_refused(towline: Commands) -> None:
    assert towline("queues", "--url", "http://127.0.0.1:1", "--store", "sqlite:///a.db").code == 2


def test_a_store_without_a_file_is_as_durable_as_the_variable_says(
    towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWLINE_DURABILITY", "relaxed")
    assert find_target(url=None, store="sqlite:///a.db", token_file=None, file=None).durability == "relaxed"
    monkeypatch.setenv("TOWLINE_DURABILITY", "sometimes")
    told = towline("queues", "--store", "sqlite:///a.db")
    assert told.code == 78
    assert "TOWLINE_DURABILITY" in told.err


def test_events_need_a_server(towline: Commands) -> None:
    told = towline("events")
    assert told.code == 69
    assert "towline up" in told.err


def test_bench_measures_what_it_says(towline: Commands) -> None:
    told = towline("bench", "--for", "50ms", "--durability", "relaxed", "--json")
    speeds = cast("list[dict[str, object]]", told.json)
    assert [(speed["what"], speed["batch"]) for speed in speeds] == [
        ("add", 1),
        ("add", 100),
        ("lease + delete", 1),
        ("lease + delete", 100),
    ]
    assert all(cast("float", speed["tasks_per_second"]) > 0 for speed in speeds)
    assert not list(towline.folder.glob(".towline-bench-*"))


@pytest.mark.parametrize(
    ("flag", "environment", "token"),
    [
        pytest.param("flag", {"TOWLINE_TOKEN": "typed", "TOWLINE_TOKEN_FILE": "secret"}, "from-flag", id="the flag"),
        pytest.param(None, {"TOWLINE_TOKEN": "typed", "TOWLINE_TOKEN_FILE": "secret"}, "typed", id="the variable"),
        pytest.param(None, {"TOWLINE_TOKEN": "", "TOWLINE_TOKEN_FILE": "secret"}, "from-file", id="its file"),
        pytest.param(None, {}, None, id="none"),
    ],
)
def test_a_token_comes_from_the_flag_the_variable_or_the_file_it_names(
    towline: Commands, monkeypatch: pytest.MonkeyPatch, flag: str | None, environment: dict[str, str], token: str | None
) -> None:
    Path("flag").write_text("from-flag\n")
    Path("secret").write_text("from-file\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    path = Path(flag) if flag else None
    assert find_target(url="http://queue.example", store=None, token_file=path, file=None).token == token


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"\x7fELF\xd0\xd0", "is not UTF-8 text", id="no text"),
        pytest.param(b"\n", "no token", id="empty"),
    ],
)
def test_a_file_that_holds_no_token_is_told_with_its_name(towline: Commands, content: bytes, told: str) -> None:
    (towline.folder / "secret").write_bytes(content)
    answer = towline("stats", "thumbs", "--url", "http://127.0.0.1:1", "--token-file", "secret")
    assert answer.code == 78
    assert told in answer.err
    assert "where: secret" in answer.err
    settings = "server: {tokens: [{role: admin, token_file: secret}]}"
    (towline.folder / "towline.yaml").write_text(settings)
    assert towline("serve").code == 78


def test_a_path_through_a_file_is_no_mistake_of_towline(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text("supervisor: {state_dir: towline.yaml}\nserver: {listen: 'unix:q'}")
    answer = towline("up")
    assert answer.code == 66
    assert "a part of it is a file" in answer.err
