"""No number that a person writes, in an option or in the settings file, is taken for another or ends in a traceback."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.cli import command
from orchestrator.settings_file import json_schema, parse
from queue_core.cli import exits
from queue_core.cli.options import DurationType, SizeType
from queue_core.config.yaml_document import DocumentError
from tests.support.commands import Commands

NUMERIC = (click.types.IntParamType, click.types.FloatParamType, DurationType, SizeType)
HUGE = ("1e305", "-1e305", "inf", "-inf", "9" * 400, "9" * 5_000, "-" + "9" * 400)
TEXTS = ("0", "-1", "0.5", "nan", "true", "", "²", str(2**63), str(2**64), *HUGE)
UNITS = (
    "1e305s",
    "9" * 309 + "s",
    "9" * 308 + "s" + "9" * 308 + "s",
    "-1s",
    "nans",
    "9" * 400 + "TiB",
    "1000000000TiB",
)
LONGEST_MESSAGE = 1_500
BUG = 70
ARGUMENTS = {
    "add": ["q", "x"],
    "lease": ["q"],
    "release": ["q", "1.1"],
    "renew": ["q", "1.1"],
    "peek": ["q"],
    "search": ["q"],
    "queues storage": [],
    "events": [],
}
"""Commands that are run, with what else they need; of the others the options are parsed."""
YAML = (
    "0",
    "-1",
    "0.5",
    "1.0e+305",
    "1.0e+400",
    ".nan",
    ".inf",
    "-.inf",
    "true",
    str(2**63),
    "9" * 400,
    "9" * 5_000,
    *UNITS,
)

NEVER = (*YAML[4:9], "9" * 5_000, *UNITS[:5])
"""What is no value of any setting."""


def options() -> Iterator[tuple[str, click.Option]]:
    """Every option of every command that takes a number, a duration or a size."""

    def commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if isinstance(found, click.Group):
                yield from commands(found, (*path, name))
            elif found is not None:
                yield " ".join((*path, name)), found

    for name, found in commands(command(), ()):
        for option in found.params:
            if isinstance(option, click.Option) and not option.is_flag and isinstance(option.type, NUMERIC):
                yield name, option


OPTIONS = [pytest.param(name, option, id=f"{name} {option.opts[0]}") for name, option in options()]


@pytest.fixture
def queue(towline: Commands) -> Commands:
    """A store with a queue."""
    (towline.folder / "towline.yaml").write_text("store: 'sqlite:///q.db'\nqueues: {q: {}}\n")
    return towline


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_an_option_takes_a_number_as_it_is_or_says_what_it_takes(
    queue: Commands, name: str, option: click.Option
) -> None:
    for text in (*TEXTS, *UNITS):
        if name in ARGUMENTS:
            done = queue(*name.split(), *ARGUMENTS[name], f"{option.opts[0]}={text}")
            shown = done.err
            assert done.code != BUG, (text[:40], shown[-500:])
            assert len(shown) <= LONGEST_MESSAGE, (text[:40], len(shown))
            refused = done.code in (exits.USAGE, exits.BAD_DATA)
        else:
            refused = is_refused(option, text)
        if text in HUGE or (text in UNITS and not text.endswith("TiB")) or text in ("nan", "true", "", "²"):
            assert refused, text[:40]


def is_refused(option: click.Option, text: str) -> bool:
    try:
        value = option.type_cast_value(click.Context(click.Command("any")), text)
    except click.BadParameter:
        return True
    assert isinstance(value, int | float)
    assert math.isfinite(value)
    return False


def test_the_options_are_all_there() -> None:
    names = {name for name, _ in options()}
    assert {*ARGUMENTS, "work", "demo", "bench", "top", "simulate", "backtest", "drain", "reload", "scale"} <= names
    assert len(OPTIONS) > 40


# -- the settings file ------------------------------------------------------------------------------------------------


def places() -> Iterator[tuple[str, Any]]:
    """Every number of the settings file as its schema describes them, with the mark in its place."""
    whole: Mapping[str, Any] = json_schema()
    yield from _marked(whole, whole, ())


def _resolved(whole: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in part:
        yield from _resolved(whole, whole["$defs"][part["$ref"].rpartition("/")[2]])
    elif choices := part.get("anyOf") or part.get("oneOf") or part.get("allOf"):
        for one in choices:
            yield from _resolved(whole, one)
    else:
        yield part


def _marked(whole: Mapping[str, Any], part: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    is_number = False
    for one in _resolved(whole, part):
        is_number = is_number or one.get("type") in ("number", "integer")
        if len(path) > 8:
            continue
        for name, inner in one.get("properties", {}).items():
            if name not in path:
                for found, value in _marked(whole, inner, (*path, name)):
                    yield found, {name: value}
        if isinstance(more := one.get("additionalProperties"), dict):
            for found, value in _marked(whole, more, (*path, "x")):
                yield found, {"x": value}
        if isinstance(items := one.get("items"), dict):
            for found, value in _marked(whole, items, (*path, "[]")):
                yield found, [value]
    if is_number:
        yield ".".join(path), "MARK"


PLACES = list(dict(places()).items())


@pytest.mark.parametrize(("name", "tree"), [pytest.param(name, tree, id=name) for name, tree in PLACES])
def test_a_number_of_the_settings_file_is_taken_as_it_is_or_refused(name: str, tree: Any) -> None:
    for number in YAML:
        text = _yaml(tree).replace("MARK", number)
        try:
            parse(text, name="towline.yaml", directory=Path("/srv"))
        except DocumentError as error:
            assert len(str(error)) <= LONGEST_MESSAGE, number[:40]
            assert number not in NEVER or name.rpartition(".")[2].strip("[]") in str(error), (number[:40], str(error))
        else:
            assert number not in NEVER, number[:40]


def _yaml(tree: Any) -> str:
    match tree:
        case dict():
            return "{" + ", ".join(f"{name}: {_yaml(value)}" for name, value in tree.items()) + "}"
        case list():
            return "[" + ", ".join(map(_yaml, tree)) + "]"
    return str(tree)


def test_the_schema_reaches_the_numbers_of_pools_and_queues() -> None:
    names = {name for name, _ in PLACES}
    assert {"pools.x.workers.max", "pools.x.slo", "queues.x.lease", "queues.x.max_leases"} <= names
    assert len(names) > 40
