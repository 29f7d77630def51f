"""Options that several commands share, and their value types."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from queue_core.task import ANY, UNTAGGED, TagFilter

Function = TypeVar("Function", bound=Callable[..., Any])


if TYPE_CHECKING:  # older releases of click can't be subscripted at run time
    _FloatParam = click.ParamType[float]
    _IntParam = click.ParamType[int]
else:
    _FloatParam = _IntParam = click.ParamType


MAX_DURATION_SECONDS: Final = 3_650 * 86_400
"""The longest duration of an option."""
ANY_ID: Final = click.IntRange(0, 2**63 - 1)
"""The number of a task, or a seed."""


class DurationType(_FloatParam):
    """A duration in seconds, written as in the settings file: 500ms, 30s, 5m; a bare number is seconds."""

    name = "duration"

    def __init__(self, least_seconds: float = 0.0) -> None:
        """Args:
        least_seconds: the shortest one.
        """
        self.least_seconds = least_seconds

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `parse_seconds`. Most verbs have a lower limit than `MAX_DURATION_SECONDS`, which they name."""
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = self._parsed(str(value), param, ctx)
        if not self.least_seconds <= seconds <= MAX_DURATION_SECONDS:
            bounds = f"{self.least_seconds:g} s and {MAX_DURATION_SECONDS // 86_400:,} days"
            self.fail(f"{value}: a duration must be between {bounds}", param, ctx)
        return seconds

    def _parsed(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from queue_core.config.units import parse_seconds  # imports pydantic, which a worker's start does not need

        try:
            return parse_seconds(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FiniteRange(click.FloatRange):
    """A range of numbers; NaN, which is neither below nor above anything, is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.FloatRange`."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is no number.", param, ctx)
        return number


class SizeType(_IntParam):
    """A size in bytes, written as in the settings file: 64KiB, 1MB; a bare number is bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `parse_bytes`."""
        from queue_core.config.units import parse_bytes

        try:
            return parse_bytes(int(value) if isinstance(value, int) or str(value).isdigit() else value)  # type: ignore[call-overload]
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = DurationType()
SIZE = SizeType()
_FILE = click.Path(path_type=Path)  # of a folder `read_text` says more than click
_FILE_ARGUMENT: Final = f"{__name__}.file"


def json_option(function: Function) -> Function:
    """Add `--json` and `--debug`, which every command has."""
    function = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback after a failure.")(
        function
    )
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def file_option(function: Function) -> Function:
    """Add `-f, --file`: the settings file."""
    return _file_option(function, None)


def _file_option(function: Function, callback: Callable[..., Path | None] | None) -> Function:
    return click.option(
        "-f",
        "--file",
        type=_FILE,
        envvar="TOWLINE_FILE",
        callback=callback,
        help="Settings file  [default: towline.yaml, where there is one]",
    )(function)


def file_argument(function: Function) -> Function:
    """Add `FILE` and `-f, --file`: the settings file, for commands that are about it."""

    def given(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
        context.meta[_FILE_ARGUMENT] = value

    def chosen(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
        argument: Path | None = context.meta.get(_FILE_ARGUMENT)
        if argument is None:
            return value
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"the settings file is given twice: {argument} and --file {value}; leave one out")
        return argument

    # Eager, so that the argument is processed before the option, whatever their order.
    argument = click.argument(
        "path", type=_FILE, required=False, metavar="[FILE]", expose_value=False, is_eager=True, callback=given
    )
    return argument(_file_option(function, chosen))


def token_file_option(function: Function) -> Function:
    """Add `--token-file`: a file with the caller's token."""
    return click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with the bearer token  [or TOWLINE_TOKEN, TOWLINE_TOKEN_FILE]",
    )(function)


def target_options(function: Function) -> Function:
    """Add the options of `find_target`: `--url`, `--store`, `--token-file`, `-f`; and `--json`."""
    function = token_file_option(json_option(file_option(function)))
    function = click.option("--store", help="Open this store directly, such as sqlite:///towline.db.")(function)
    return click.option(
        "--url", help="Server, such as http://127.0.0.1:7878 or unix:///run/towline.sock; several by commas."
    )(function)


def setting_options(function: Function) -> Function:
    """Add the options that override the settings file."""
    for name, takes, text in (
        ("--log", click.Path(dir_okay=False), "File for the lifecycle log, one JSON object per line."),
        ("--lifecycle", click.Choice(["task", "batch", "off"]), "Log changes per task, per batch, or not."),
        ("--listen", None, "host:port, or unix:/path  [default: 127.0.0.1:7878]"),
        ("--durability", click.Choice(["strict", "relaxed"]), "strict: tasks survive a power cut; relaxed: a crash."),
        ("--store", None, "URL of the store  [default: sqlite:///towline.db]"),
    ):
        function = click.option(name, type=takes, help=text)(function)
    return function


def log_options(function: Function) -> Function:
    """Add `--log-level`."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option(
        "--log-level", type=levels, default="info", show_default=True, help="Least level logged on stderr."
    )(function)


def tag_options(function: Function) -> Function:
    """Add `--tag` and `--untagged`, which select tasks."""
    function = click.option("--untagged", is_flag=True, help="Only tasks without a tag.")(function)
    return click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only this tag; may be repeated.")(function)


def tag_filter(tags: Sequence[str], *, untagged: bool, grouped: bool = False) -> TagFilter:
    """Return the filter of these options. Raises `click.UsageError` for a contradiction."""
    if untagged and (tags or grouped):
        raise click.UsageError("--untagged can't be combined with --tag or --group")
    if grouped:
        return TagFilter.oldest(*tags)
    if untagged:
        return UNTAGGED
    return TagFilter.of(*tags) if tags else ANY
