"""What an app takes, what it refuses, and what a worker of it asks the queue for."""

import functools
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from queue_core.errors import AppError, AppImportError, InvalidQueueNameError, InvalidTagError
from queue_core.task import ANY, UNTAGGED, NewTask, TagFilter
from queue_core.worker.app import App, LeaseOffer, load_app
from queue_core.worker.context import Backoff, Retry, Task


def handle(task: object) -> None:
    """A handler that does nothing."""


def an_app(*handlers: tuple[str | None, int | None], queue: str = "q") -> App:
    """An app with a handler per (tag, batch)."""
    app = App()
    for tag, batch in handlers:
        app.task(queue=queue, tag=tag, batch=batch)(handle)
    return app


def test_a_handler_without_a_tag_takes_what_no_other_takes() -> None:
    app = App()

    @app.task(queue="q", tag="resize")
    def resize(task: object) -> None: ...

    @app.task(queue="q")
    def rest(task: object) -> None: ...

    assert app.handler("q", "resize").function is resize
    assert app.handler("q", "encode").function is rest
    assert app.handler("q", None).function is rest
    assert app.handler("other", None) is None


def test_a_second_handler_of_the_same_tag_is_refused_by_both_names() -> None:
    app = an_app(("resize", None))
    with pytest.raises(AppError, match=r"'resize'.*handle and handle"):
        app.task(queue="q", tag="resize")(handle)
    app = an_app((None, None))
    with pytest.raises(AppError, match="two handlers without a tag"):
        app.task(queue="q")(print)


def test_two_handlers_of_one_name_are_told_apart_by_their_modules() -> None:
    def resize(task: object) -> None: ...

    def other(task: object) -> None: ...

    other.__qualname__, other.__module__ = resize.__qualname__, "shop.tasks"
    app = App()
    app.task(queue="q", tag="resize")(resize)
    with pytest.raises(AppError, match=rf"{__name__}\.test_two.*resize and shop\.tasks\."):
        app.task(queue="q", tag="resize")(other)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param({"queue": "no spaces"}, InvalidQueueNameError, id="a queue out of form"),
        pytest.param({"queue": "q", "tag": ""}, InvalidTagError, id="an empty tag"),
        pytest.param({"queue": "q", "batch": 0}, AppError, id="a batch of none"),
        pytest.param({"queue": "q", "batch": 1001}, AppError, id="a batch beyond one lease"),
        pytest.param({"queue": "q", "timeout": "soon"}, AppError, id="a timeout that is no duration"),
        pytest.param({"queue": "q", "timeout": timedelta(seconds=3)}, AppError, id="a timeout of another type"),
        pytest.param({"queue": "q", "retry": 3}, AppError, id="a retry that is no Backoff"),
        pytest.param({"queue": "q", "retry": Backoff}, AppError, id="the class Backoff"),
        pytest.param({"queue": "q", "on": ValueError}, AppError, id="errors that are no map"),
        pytest.param({"queue": "q", "on": {"ValueError": Retry(1)}}, AppError, id="an error by its name"),
        pytest.param({"queue": "q", "on": {ValueError: "1m"}}, AppError, id="an error mapped to no answer"),
    ],
)
def test_a_handler_that_can_never_run_is_refused_when_it_is_registered(arguments: dict, error: type) -> None:
    with pytest.raises(error):
        App().task(**arguments)


def test_async_handlers_are_known_by_their_kind() -> None:
    app = App()

    async def coroutine(task: object, extra: int = 0) -> None: ...

    class Callable:
        async def __call__(self, task: object) -> None: ...

    app.task(queue="q", tag="function")(coroutine)
    app.task(queue="q", tag="partial")(functools.partial(coroutine, extra=1))
    app.task(queue="q", tag="object")(Callable())
    app.task(queue="q", tag="plain")(handle)
    kinds = {tag: app.handler("q", tag).is_async for tag in ("function", "partial", "object", "plain")}
    assert kinds == {"function": True, "partial": True, "object": True, "plain": False}


@pytest.mark.parametrize(
    ("handlers", "tags", "offer"),
    [
        pytest.param([(None, None)], ANY, LeaseOffer(ANY), id="a handler without a tag: anything"),
        pytest.param(
            [("b", None), ("a", None)], ANY, LeaseOffer(TagFilter.of("a", "b")), id="only tags that are handled"
        ),
        pytest.param([(None, None)], TagFilter.of("a"), LeaseOffer(TagFilter.of("a")), id="the pool's tags"),
        pytest.param([(None, None), ("a", None)], UNTAGGED, LeaseOffer(UNTAGGED), id="untagged"),
        pytest.param([(None, 50)], ANY, LeaseOffer(TagFilter.oldest(), 50), id="batches: the oldest task's tag"),
        pytest.param([("a", 9), ("b", 9)], ANY, LeaseOffer(TagFilter.oldest("a", "b"), 9), id="batches of two tags"),
        pytest.param([(None, 7)], UNTAGGED, LeaseOffer(UNTAGGED, 7), id="batches of untagged"),
        pytest.param([("a", 9), ("b", None)], ANY, LeaseOffer(TagFilter.of("a", "b"), 1, tops_up=True), id="mixed"),
        pytest.param([("a", 9), ("b", 5)], TagFilter.of("b"), LeaseOffer(TagFilter.oldest("b"), 5), id="some of them"),
    ],
)
def test_a_worker_asks_for_what_its_handlers_take(handlers: list, tags: TagFilter, offer: LeaseOffer) -> None:
    assert an_app(*handlers).offer("q", tags) == offer


@pytest.mark.parametrize(
    ("app", "tags", "told"),
    [
        pytest.param(an_app(("a", None)), TagFilter.of("a", "b"), "no handler for 'b'", id="a tag"),
        pytest.param(
            App(), TagFilter.of("a"), "no handler for 'a' in queue 'q'; add", id="no handler at all for a tag"
        ),
        pytest.param(
            an_app(("a", None), queue="typo"),
            TagFilter.of("a"),
            "no handler for 'a' in queue 'q'; the app has some for: 'typo'; add",
            id="handlers of another queue",
        ),
        pytest.param(an_app(("a", None)), UNTAGGED, "no handler for untagged tasks", id="untagged"),
        pytest.param(App(), ANY, "no handler for queue 'q'", id="no handler at all"),
        pytest.param(an_app(*((f"t{n}", None) for n in range(101))), ANY, "101 tags", id="too many tags"),
    ],
)
def test_a_worker_that_would_lease_what_nobody_handles_is_refused(app: App, tags: TagFilter, told: str) -> None:
    with pytest.raises(AppError, match=told):
        app.offer("q", tags)


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A directory to import from; forgotten afterwards."""
    path, known = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_an_app_is_loaded_from_where_the_worker_was_started(modules: Path) -> None:
    (modules / "app_to_load.py").write_text("from queue_core import App\nclass Holder:\n    app = App()\n")
    assert isinstance(load_app("app_to_load:Holder.app", directory=modules), App)


def test_an_app_is_looked_for_beside_a_link_to_the_settings_then_beside_the_file_itself(modules: Path) -> None:
    link, target = modules / "etc", modules / "srv"
    for folder, text in ((link, "one"), (target, "other")):
        folder.mkdir()
        (folder / "app_there.py").write_text(f"from queue_core import App\n{text} = App()\n")
    (target / "app_here.py").write_text("from queue_core import App\napp = App()\n")
    assert isinstance(load_app("app_here:app", directory=link, app_folder=target), App)
    assert isinstance(load_app("app_there:one", directory=link, app_folder=target), App)
    with pytest.raises(AppImportError, match=f"looked for in {link}, then in {target} and on PYTHONPATH"):
        load_app("app_nowhere:app", directory=link, app_folder=target)


@pytest.mark.parametrize(
    ("target", "text", "told"),
    [
        pytest.param("app_x", "", "not of the form module:attribute", id="no attribute"),
        pytest.param("app_x.py:app", "", "a file, not a module; write app_x:app", id="a file"),
        pytest.param(":app", "", "not of the form module:attribute", id="no module"),
        pytest.param("app_nowhere:app", "", r"no such module; it is looked for in /", id="no such module"),
        pytest.param("app_x.inner:app", "", "no such module", id="no such submodule"),
        pytest.param("app_x:app", "import not_installed", r"app_x.py:1: .*not_installed.*install", id="missing import"),
        pytest.param("app_x:app", "x = = 1", r"app_x.py:1: invalid syntax", id="a syntax error"),
        pytest.param("app_x:app", "x = 1\n1 / x - 1 / 0", r"app_x.py:2: ZeroDivisionError", id="an error inside"),
        pytest.param("app_x:app", "raise SystemExit(3)", "SystemExit: 3", id="it exits"),
        pytest.param("app_x:app", "y = 1", r"it has no 'app'; write `app = App", id="no such attribute"),
        pytest.param(
            "app_x:app",
            "from queue_core import App\nwork = App()",
            "name one of: app_x:work",
            id="another name",
        ),
        pytest.param("app_x:app", "app = 3", "app is of type int, not an App", id="something else"),
    ],
)
def test_an_app_that_cannot_be_loaded_says_what_to_mend(modules: Path, target: str, text: str, told: str) -> None:
    (modules / "app_x.py").write_text(text)
    with pytest.raises(AppImportError, match=told) as caught:
        load_app(target, directory=modules)
    assert caught.value.module
    assert caught.value.reason
    assert caught.value.hint


def test_a_handler_that_yields_is_refused_as_a_call_would_run_none_of_it() -> None:
    def pages(task: Task) -> Iterator[NewTask]:
        yield NewTask(task.payload)

    with pytest.raises(AppError, match="pages yields"):
        App().task(queue="q")(pages)
