"""`towline check`, `config` and `schema`: validate, print and describe the settings file."""

from pathlib import Path
from typing import Unpack

import click

from orchestrator.base.json_fields import list_in, mappings_of
from orchestrator.cli.fleet_events import not_in_force
from orchestrator.cli.import_checks import ImportFindings, check_imports
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import SupervisorOptions, supervisor_at, supervisor_options, supervisor_url
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.config.shown import shown_setting
from orchestrator.settings_file import DEFAULT_FILE, Project, effective, json_schema
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_argument, json_option, setting_options
from queue_core.cli.output import columns, echo, print_info, print_json, print_table
from queue_core.cli.serving import flag_overrides
from queue_core.process.wording import counted


@command("check", examples=("towline check", "towline check deploy/towline.yaml --no-import", "towline check --json"))
@click.option(
    "--import/--no-import",
    "imports",
    default=True,
    show_default=True,
    help="Import each pool's app in a process of its own, and check that it handles the pool's tags.",
)
@file_argument
@json_option
def check(imports: bool, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Read the settings file and list every mistake with line and column. Exit code 78 when there is one."""
    try:
        project = load_project(file)
        findings = check_imports(project) if imports else ImportFindings({})
        problems = [*_store_problems(project), *findings.problems]
    except CommandError as error:
        if as_json and error.code == exits.BAD_CONFIG:
            print_json({"mistakes": list(error.lines), "notes": []})
            return exits.BAD_CONFIG
        raise
    if as_json:
        print_json({"mistakes": problems, "notes": [*project.notes, *findings.notes]})
        return exits.BAD_CONFIG if problems else exits.OK
    for note in (*project.notes, *findings.notes):
        print_info(f"note: {note}")
    if problems:
        raise CommandError(problems, code=exits.BAD_CONFIG, fix="fix the app, then check again")
    queues, pools = len(project.queue_file.queues), len(project.pools)
    echo(f"{file or DEFAULT_FILE}: valid, {counted(queues, 'queue')}, {counted(pools, 'pool')}")
    return exits.OK


@command(
    "config",
    examples=("towline config", "towline config --origin", "TOWLINE_STORE=sqlite:///b.db towline config --origin"),
)
@click.option(
    "--origin", is_flag=True, help="Show where each value comes from: flag, variable, file and line, or default."
)
@setting_options
@host_option
@supervisor_options
def config(
    origin: bool,  # noqa: FBT001
    store: str | None,
    durability: str | None,
    listen: str | None,
    lifecycle: str | None,
    log: str | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[SupervisorOptions],
) -> int:
    """Print every setting in force. Precedence: flag, TOWLINE_... variable, file, default.

    Values that may be secret are shown as ***: variables of workers, passwords and tokens. --url shows the settings of
    a supervisor elsewhere.
    """
    flags = flag_overrides(
        [
            (("store",), store),
            (("durability",), durability),
            (("server", "listen"), listen),
            (("lifecycle",), lifecycle),
            (("log",), log),
        ]
    )
    found = _elsewhere(where) if where["url"] is not None else effective(load_project(where["file"], flags=flags))
    rows = [(path, shown_setting(path, value), place) for path, value, place in found]
    if as_json:
        print_json([{"setting": path, "value": value, "origin": where} for path, value, where in rows])
        return exits.OK
    titles = ("SETTING", "VALUE", *(["FROM"] if origin else []))
    heads = columns(*titles, keeps=titles, folds=titles[1:])
    print_table(heads, [(path, _shown(value), where)[: len(heads)] for path, value, where in rows], empty="")
    return exits.OK


def _elsewhere(where: SupervisorOptions) -> list[tuple[str, object, str]]:
    """Return the settings of the supervisor that `--url` names."""
    url = supervisor_url(where["url"], None)
    assert url is not None
    with supervisor_at(url, where["token_file"]) as supervisor:
        told = supervisor.get("supervisor", "settings")
    for setting in list_in(told, "not_in_force"):
        print_info(f"! {not_in_force(str(setting))}")
    found = mappings_of(told["settings"])
    return [(str(one["setting"]), one["value"], str(one["origin"])) for one in found]


@command(
    "schema", examples=("towline schema > towline.schema.json", "# yaml-language-server: $schema=towline.schema.json")
)
@json_option
def schema(as_json: bool) -> int:  # noqa: ARG001, FBT001
    """Print the JSON Schema of the settings file; editors complete and validate with it."""
    import json

    click.echo(json.dumps(json_schema(), indent=2))
    return exits.OK


def _store_problems(project: Project) -> list[str]:
    """Return the errors in the store's URL that only its driver can find."""
    from queue_core.errors import InvalidSettingError
    from queue_core.stores import check_url

    try:
        check_url(project.store)
    except InvalidSettingError as error:
        origin = project.origins.get("store.url") or project.origins.get("store", "")
        return [f"{origin}: store: {error}"]
    return []


def _shown(value: object) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
