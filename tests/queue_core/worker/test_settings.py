"""What a worker process is told through its environment."""

from pathlib import Path

import pytest

from queue_core.errors import InvalidSettingError
from queue_core.task import ANY, UNTAGGED, TagFilter
from queue_core.worker.settings import RecycleLimits, WorkerSettings


def test_a_supervisor_says_everything_through_the_environment() -> None:
    settings = WorkerSettings.from_environment(
        {
            "TOWLINE_APP": "tasks:app",
            "TOWLINE_WORKER": "resize-7f3k2",
            "TOWLINE_POOL": "resize",
            "TOWLINE_URL": "unix:///run/towline.sock",
            "TOWLINE_TOKEN": "a-secret",
            "TOWLINE_DURABILITY": "relaxed",
            "TOWLINE_QUEUE": "thumbs",
            "TOWLINE_TAGS": '["resize", "crop"]',
            "TOWLINE_CONCURRENCY": "4",
            "TOWLINE_GRACE_SECONDS": "12.5",
            "TOWLINE_RECYCLE": '{"tasks": 1000, "memory_bytes": null, "age_seconds": 21600.0}',
            "TOWLINE_SUPERVISOR_LOCK": "/run/towline.lock",
            "TOWLINE_ORPHAN_GRACE_SECONDS": "60",
        }
    )
    assert settings == WorkerSettings(
        app="tasks:app",
        worker="resize-7f3k2",
        pool="resize",
        url="unix:///run/towline.sock",
        token="a-secret",
        durability="relaxed",
        queue="thumbs",
        tags=TagFilter.of("resize", "crop"),
        concurrency=4,
        grace_seconds=12.5,
        recycle=RecycleLimits(tasks=1000, age_seconds=21600.0),
        supervisor_lock=Path("/run/towline.lock"),
        orphan_grace_seconds=60.0,
    )
    assert "a-secret" not in repr(settings)


def test_what_is_not_said_has_a_default_and_the_identity_is_fresh() -> None:
    settings = WorkerSettings.from_environment({"TOWLINE_TAGS": ""}, identity=lambda: "fresh")
    assert settings == WorkerSettings(app="", worker="fresh")
    assert WorkerSettings.from_environment({}).worker != WorkerSettings.from_environment({}).worker


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        pytest.param("", ANY, id="nothing: any"),
        pytest.param("[]", ANY, id="an empty list: any"),
        pytest.param('["a"]', TagFilter.of("a"), id="one"),
        pytest.param("untagged", UNTAGGED, id="untagged"),
        pytest.param('"untagged"', UNTAGGED, id="untagged, as JSON"),
        pytest.param('["untagged"]', TagFilter.of("untagged"), id="a tag of that name"),
    ],
)
def test_tags_are_a_list_or_the_word_untagged(text: str, tags: TagFilter) -> None:
    assert WorkerSettings.from_environment({"TOWLINE_TAGS": text}).tags == tags


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TOWLINE_TAGS", "resize"),
        ("TOWLINE_DURABILITY", "lax"),
        ("TOWLINE_TAGS", "[1]"),
        ("TOWLINE_TAGS", '[""]'),
        ("TOWLINE_CONCURRENCY", "0"),
        ("TOWLINE_CONCURRENCY", "1001"),
        ("TOWLINE_CONCURRENCY", "two"),
        ("TOWLINE_GRACE_SECONDS", "-1"),
        ("TOWLINE_GRACE_SECONDS", "nan"),
        ("TOWLINE_GRACE_SECONDS", "inf"),
        ("TOWLINE_ORPHAN_GRACE_SECONDS", "1m"),
        ("TOWLINE_RECYCLE", "1000"),
        ("TOWLINE_RECYCLE", '{"task": 1}'),
        ("TOWLINE_RECYCLE", '{"tasks": 0}'),
        ("TOWLINE_RECYCLE", '{"tasks": true}'),
        ("TOWLINE_RECYCLE", '{"memory_bytes": 1.5}'),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidSettingError, match=name):
        WorkerSettings.from_environment({name: text})


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(InvalidSettingError, match=r"TOWLINE_TAGS.*TOWLINE_CONCURRENCY"):
        WorkerSettings.from_environment({"TOWLINE_TAGS": "{}", "TOWLINE_CONCURRENCY": "x"})


def test_what_is_secret_may_be_in_files(tmp_path: Path) -> None:
    token, url = tmp_path / "token", tmp_path / "url"
    token.write_text("a-token\n")
    url.write_text("redis://me:pass-word@store/0\n")
    settings = WorkerSettings.from_environment({"TOWLINE_TOKEN_FILE": str(token), "TOWLINE_URL_FILE": str(url)})
    assert (settings.token, settings.url) == ("a-token", "redis://me:pass-word@store/0")


def test_a_variable_comes_before_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-file")
    settings = WorkerSettings.from_environment({"TOWLINE_TOKEN": "a-token", "TOWLINE_TOKEN_FILE": str(file)})
    assert settings.token == "a-token"


def test_a_file_that_is_missing_is_a_mistake_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="TOWLINE_TOKEN_FILE must name a file that can be read"):
        WorkerSettings.from_environment({"TOWLINE_TOKEN_FILE": str(tmp_path / "none")})
