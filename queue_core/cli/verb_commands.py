"""Commands made from verbs: their arguments, options, help and result are those of the value (ADR 136).

What asks, counts or prints tables is written by hand, in `commands/`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from inspect import getdoc
from typing import Any, cast, get_type_hints

import click

from queue_core.cli import exits
from queue_core.cli.group import Command, command
from queue_core.cli.options import tag_filter, tag_options, target_options
from queue_core.cli.output import echo, print_json
from queue_core.cli.target import TargetOptions, opened, opened_queue
from queue_core.client.queue import Queue, Queues
from queue_core.clock import SystemClock
from queue_core.task import TagFilter
from queue_core.unit.verb import Verb, path_members, result_type

Decorator = Callable[[Callable[..., int]], Callable[..., int]]
Record = Callable[[Any, Any], Mapping[str, object]]


def count_record(_verb: object, count: int) -> Mapping[str, object]:
    """Return the result of a verb that counts tasks as JSON."""
    return {"count": count}


def command_of(kind: type[Verb[Any]], name: str, *, examples: Sequence[str], record: Record = count_record) -> Command:
    """Return the command of a verb.

    Args:
        record: makes the JSON of `--json` from the verb and its result.
    """
    counts = result_type(kind) is int

    def run(*, as_json: bool, **given: Any) -> int:
        where = cast("TargetOptions", {option: given.pop(option) for option in TargetOptions.__annotations__})
        typed = kind(**{field: taken(given) for field, taken in _members(kind).items()})
        with _opened(typed, where) as found:
            verb = replace(typed, **({"queue": found.name} if hasattr(found, "name") else {}))
            result = found._call(verb)  # noqa: SLF001 - the facade's own way, which it has a method of each verb for
        if as_json:
            print_json(record(typed, result))
        else:
            echo(typed.sentence(result, SystemClock().now()))
        return exits.NEGATIVE if counts and not result else exits.OK

    run.__doc__ = f"{getdoc(kind)}{' Exit code 1 when there were none.' if counts else ''}"
    made: Callable[..., int] = target_options(run)
    for decorator in reversed(_decorators(kind)):
        made = decorator(made)
    return command(name, when_cut="stderr", examples=examples)(made)


@contextmanager
def _opened(verb: Verb[Any], where: TargetOptions) -> Iterator[Queue | Queues]:
    """Open what a verb is of: the queue in its path, or all queues."""
    if "queue" in path_members(type(verb)):
        with opened_queue(verb.queue, **where) as queue:  # type: ignore[attr-defined]
            yield queue
    else:
        with opened(**where) as (queues, _):
            yield queues


def _decorators(kind: type[Verb[Any]]) -> list[Decorator]:
    """Return what adds the arguments and options of a verb to a command, in order."""
    found: list[Decorator] = [click.argument(name) for name in path_members(kind)]
    for name, hint in _options(kind).items():
        if hint is TagFilter:
            found.append(tag_options)
        elif name == "names":
            found.append(click.option("--named", multiple=True, metavar="NAME", help="Only the tasks of these names."))
        else:
            found.append(click.option(f"--{name}", required=True))
    return found


def _members(kind: type[Verb[Any]]) -> dict[str, Callable[[Mapping[str, Any]], object]]:
    """Return what takes each member of a verb from the values of a command's arguments and options."""
    members: dict[str, Callable[[Mapping[str, Any]], object]] = {}
    for name in [field.name for field in fields(kind)]:
        hint = _options(kind).get(name)
        if hint is TagFilter:
            members[name] = lambda given: tag_filter(given["tags"], untagged=given["untagged"])
        elif name == "names":
            members[name] = lambda given: list(given["named"]) or None
        else:
            members[name] = lambda given, name=name: given[name]  # type: ignore[misc]
    return members


def _options(kind: type[Verb[Any]]) -> dict[str, object]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.name not in path_members(kind)}
