"""Options that many commands share, and the values they are read into."""

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


class DurationType(_FloatParam):
    """Seconds, written as in the file: 500ms, 30s, 5m; a bare number is seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `parse_seconds`; a negative number comes through, for the verb to refuse with its limit."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return float(str(value))
        except ValueError:
            pass
        from queue_core.config.units import parse_seconds  # brings pydantic, which a worker's start can do without

        try:
            return parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(_IntParam):
    """Bytes, written as in the file: 64KiB, 1MB; a bare number is bytes."""

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
_FILE = click.Path(path_type=Path, dir_okay=False)
_FILE_ARGUMENT: Final = f"{__name__}.file"


def json_option(function: Function) -> Function:
    """`--json`, `--debug`: what every command takes."""
    function = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when it fails.")(
        function
    )
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def file_option(function: Function) -> Function:
    """`-f, --file`: the settings file."""
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
    """`FILE` or `-f, --file`: the settings file, for commands that are about it."""

    def given(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
        context.meta[_FILE_ARGUMENT] = value

    def chosen(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
        argument: Path | None = context.meta.get(_FILE_ARGUMENT)
        if argument is None:
            return value
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"the settings file is given twice: {argument} and --file {value}; leave one out")
        return argument

    # Eager, so that it is known whatever the order they were typed in.
    argument = click.argument(
        "path", type=_FILE, required=False, metavar="[FILE]", expose_value=False, is_eager=True, callback=given
    )
    return argument(_file_option(function, chosen))


def target_options(function: Function) -> Function:
    """Where the queues are: `--url`, `--store`, `--token-file`, `-f`; and `--json`."""
    function = json_option(file_option(function))
    function = click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with the bearer token  [or TOWLINE_TOKEN, TOWLINE_TOKEN_FILE]",
    )(function)
    function = click.option("--store", help="Open this store directly, such as sqlite:///towline.db.")(function)
    return click.option(
        "--url", help="Server, such as http://127.0.0.1:7878 or unix:///run/towline.sock; several by commas."
    )(function)


def setting_options(function: Function) -> Function:
    """Settings of the file that a flag may change."""
    for name, takes, told in (
        ("--log", click.Path(dir_okay=False), "File for the lifecycle log, a JSON object a line."),
        ("--lifecycle", click.Choice(["task", "batch", "off"]), "How finely changes are logged."),
        ("--listen", None, "host:port, or unix:/path  [default: 127.0.0.1:7878]"),
        ("--durability", click.Choice(["strict", "relaxed"]), "What an add that returned survives."),
        ("--store", None, "Where tasks are kept  [default: sqlite:///towline.db]"),
    ):
        function = click.option(name, type=takes, help=told)(function)
    return function


def log_options(function: Function) -> Function:
    """`--log-level`."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option("--log-level", type=levels, default="info", show_default=True, help="What stderr tells.")(
        function
    )


def tag_options(function: Function) -> Function:
    """Which tasks: `--tag` (again for more), `--untagged`."""
    function = click.option("--untagged", is_flag=True, help="Only tasks without a tag.")(function)
    return click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only this tag; again for more.")(function)


def tag_filter(tags: Sequence[str], *, untagged: bool, grouped: bool = False) -> TagFilter:
    """The filter that the options describe. Raises `click.UsageError` for a contradiction."""
    if untagged and (tags or grouped):
        raise click.UsageError("--untagged goes with neither --tag nor --group")
    if grouped:
        return TagFilter.oldest(*tags)
    if untagged:
        return UNTAGGED
    return TagFilter.of(*tags) if tags else ANY
