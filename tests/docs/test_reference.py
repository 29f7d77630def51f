"""The reference is what the program says: up to date, and every setting, command, option, event and error is on it."""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import jsonschema_rs
import pytest
from pydantic import TypeAdapter

import orchestrator
import queue_core
from orchestrator.settings_file import json_schema
from queue_core import errors
from queue_core.server.app import served_endpoints
from tests.support.reference.command_line import commands
from tests.support.reference.errors import errors_page, exit_codes_page
from tests.support.reference.events import ROOT, SECTIONS, events_of, logged_names
from tests.support.reference.http_api import fleet_endpoints
from tests.support.reference.pages import FOLDER, pages
from tests.support.reference.python_api import GROUPS, MADE_LATER, MODULES, public
from tests.support.reference.settings import Setting, settings

SETTINGS: Final = settings()


def page(name: str) -> str:
    """Return a page as it is committed."""
    return (FOLDER / name).read_text()


@pytest.fixture(scope="module")
def written() -> Mapping[str, str]:
    return pages()


def test_every_page_is_as_the_program_is_now(written: Mapping[str, str]) -> None:
    old = [name for name, text in written.items() if page(name) != text]
    assert old == [], "run: python -m tests.support.reference"


def keys(schema: object) -> Iterator[str]:
    """Yield the name of every setting of a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for inner in schema.values():
            yield from keys(inner)
    if isinstance(schema, list):
        for inner in schema:
            yield from keys(inner)


def test_every_setting_is_on_its_page_with_its_sentence_and_an_example() -> None:
    text = page("settings.md")
    assert {one.key for one in SETTINGS} == set(keys(json_schema()))
    for one in SETTINGS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{one.key}` |") and one.text[:40] in line)
        assert one.takes, one.path
        assert len(one.text.split()) > 1, one.path
        assert "Example: `" in row, one.path


@pytest.mark.parametrize("one", SETTINGS, ids=lambda one: str(one.path))
def test_an_example_of_a_setting_is_valid_and_no_default(one: Setting) -> None:
    schema = {**one.schema, "$defs": json_schema()["$defs"]}
    assert jsonschema_rs.is_valid(schema, one.example_value), one.example
    assert f"`{one.example.partition(': ')[2]}`" != one.default
    if one.field is not None and one.path != "pools":  # a pool gets its name by its key
        kind = Annotated[one.field.annotation, *one.field.metadata] if one.field.metadata else one.field.annotation
        TypeAdapter(kind).validate_python(one.example_value)


def test_every_command_and_option_is_on_its_page() -> None:
    text = page("command-line.md")
    common = text.partition("## Run\n")[0]
    parts = dict(re.findall(r"(?ms)^### towline ([\w -]+)\n(.*?)(?=^##|\Z)", text))
    for name, _, command in commands():
        told = parts[name] + common
        options = [option for one in command.params for option in one.opts if option.startswith("--")]
        assert [option for option in options if f"`{option}" not in told and f", {option}" not in told] == [], name
        assert command.help, name
        assert [one for one in getattr(command, "examples", ()) if f"$ {one}\n" not in parts[name]] == [], name


def test_every_event_that_is_logged_is_on_its_page_with_a_sentence() -> None:
    text = page("events.md")
    known = [one for _, modules in SECTIONS for module in modules for one in events_of(ROOT / module)]
    assert logged_names() - {name for name, _, _ in known} == set()
    assert [event for _, event, sentence in known if not sentence.endswith(".")] == []
    assert [event for _, event, _ in known if f"| `{event}` |" not in text] == []


def test_every_path_of_the_api_is_on_its_page() -> None:
    text = page("http-api.md")
    endpoints = [*served_endpoints(), *fleet_endpoints()]
    assert [one.path for one in endpoints if f"| `{one.method} {one.path}` |" not in text] == []
    linked = set(re.findall(r"\(#(\w+)\)", text))
    assert linked <= {one.lower() for one in re.findall(r"(?m)^### (\w+)$", text)}


def test_every_public_error_is_on_its_page_with_what_to_do() -> None:
    text = errors_page()
    public_errors = {name for module in (queue_core, orchestrator) for name in module.__all__ if name.endswith("Error")}
    assert {name for name in public_errors if f"`{name}`" not in text} == set()
    below = [line for line in text.splitlines() if line.startswith("| &nbsp;")]
    assert [line for line in below if not re.match(r"\| [^|]+ \| [^|]+\. \| [^|]+\. \|", line)] == []


def test_every_exit_code_has_its_meaning() -> None:
    text = exit_codes_page()
    listed = {name for line in text.splitlines() for name in re.findall(r"`(\w+Error)`", line)}
    ours = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert ours - listed == set()
    assert [f"| {code} |" for code in (0, 70, 75, 77, 78, 79, 80, 81) if f"| {code} |" not in text] == []


@pytest.mark.parametrize("path", MODULES)
def test_every_public_name_is_on_its_page_with_a_sentence(path: str) -> None:
    text, module = page("python-api.md"), importlib.import_module(path)
    names = public(module)
    assert [name for name in names if f"from {path} import {name}\n" not in text] == []
    if path == "queue_core":
        assert sorted(name for _, group in GROUPS for name in group.split()) == sorted(names)
    for name in set(names) - MADE_LATER:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert len((inspect.getdoc(found) or "").split()) > 3, name
        if inspect.isclass(found):
            for member, value in vars(found).items():
                if inspect.isfunction(value) and not member.startswith("_"):
                    assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"
