"""`towline export`: write tasks to a file; or, with --to, the pools as files for another platform."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path
from typing import Final

import click

from orchestrator.cli.project_file import load_project
from orchestrator.export.compose import compose
from orchestrator.export.crema import crema, flaws_of
from orchestrator.export.helm import helm
from orchestrator.export.incluster import kubernetes
from orchestrator.export.keda import DNS_LABEL, keda
from orchestrator.export.kubernetes import NAME
from orchestrator.export.request import CloudRunPlace, ExportedFiles, ExportRefusedError, ExportRequest, Platform
from orchestrator.export.systemd import systemd
from orchestrator.settings_file import DEFAULT_FILE
from queue_core.cli import exits
from queue_core.cli.commands.export_import import export as export_tasks
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.opened_store import store_options
from queue_core.cli.output import print_info, print_json
from queue_core.cli.settings_file import read_text
from queue_core.config.messages import did_you_mean
from queue_core.config.yaml_document import read_document
from queue_core.process.private_files import FILE_MODE, source_opener
from queue_core.process.private_files import opener as private_opener

EXPORTS: Final[Mapping[Platform, Callable[[ExportRequest], ExportedFiles]]] = {
    "kubernetes": kubernetes,
    "keda": keda,
    "helm": helm,
    "crema": crema,
    "compose": compose,
    "systemd": systemd,
}

_NAMESPACES: Final[Mapping[str, str]] = {"kubernetes": NAME}
"""The namespace by default, where it is not `default`: the supervisor can read all Secrets of its own."""
_FILE: Final = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
_FOLDER: Final = click.Path(path_type=Path, file_okay=False)

_PLATFORMS: Final = """
With --to: write files that run the pools of the settings file on that platform. kubernetes: manifests in which the
supervisor starts and stops its workers' Pods by name, so that no busy one is ended; helm: a chart of the same objects,
or of those of keda, where all pools are of runtime docker or external; keda: manifests in which KEDA scales Deployments
to the supervisor's numbers, and the cluster chooses which Pods end, busy ones too; crema: worker pools of Cloud
Run, which Google's CREMA scales; compose: a compose file; systemd: units. Nothing is applied. Exit code 78: the
settings don't fit the platform; every reason is listed.
"""


@command(
    "export",
    help=f"{cleandoc(export_tasks.help or '')}\n{_PLATFORMS}",
    examples=(
        "towline export backup.jsonl.gz",
        "towline export thumbs.jsonl --queue thumbs --store sqlite:///towline.db",
        "towline export --to kubernetes --image registry.example/thumbs:1 | kubectl apply --server-side --filename -",
        "towline export --to keda --image resize=thumbs:1 --namespace work | kubectl apply --filename -",
        "towline export --to helm --image resize=thumbs:1 --out chart",
        "towline export --to compose --out deploy",
        "towline export --to systemd --out /etc/systemd/system",
    ),
)
@click.argument("path", type=_FILE, metavar="FILE", required=False)
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; may be repeated.")
@click.option("--resume", is_flag=True, help="Continue after the last whole line of an interrupted FILE.")
@click.option(
    "--to",
    type=click.Choice(list(EXPORTS)),
    help="Export the pools to this platform instead of tasks.",
)
@click.option("--out", type=_FOLDER, help="With --to: the folder for the files  [default: stdout]")
@click.option("--force", is_flag=True, help="With --out: overwrite existing files.")
@click.option(
    "--image", "images", multiple=True, metavar="[POOL=]IMAGE", help="With --to: image of the workers; may be repeated."
)
@click.option(
    "--server-image", default="towline:latest", show_default=True, help="Image of queue server and supervisor."
)
@click.option("--namespace", help="Of Kubernetes  [default: towline; with --to keda and helm: default]")
@click.option("--project", default="", help="With --to crema: the project of Google Cloud.")
@click.option("--region", default="", help="With --to crema: the region of Cloud Run.")
@click.option("--server-url", default="", help="With --to crema: where workers reach the queue server.")
@store_options
def export(
    path: Path | None,
    queues: tuple[str, ...],
    resume: bool,  # noqa: FBT001  click's flags
    to: Platform | None,
    out: Path | None,
    force: bool,  # noqa: FBT001
    images: tuple[str, ...],
    server_image: str,
    namespace: str | None,
    project: str,
    region: str,
    server_url: str,
    store: str | None,
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Export tasks with the queue's own command, pools with ours."""
    if to is None:
        if path is None:
            raise click.UsageError("give a FILE for tasks, or --to and a platform for pools")
        if out is not None or images or force:
            raise click.UsageError("--out, --force and --image go with --to")
        assert export_tasks.callback is not None
        code: int = export_tasks.callback(
            path=path, queues=queues, resume=resume, store=store, file=file, as_json=as_json
        )
        return code
    if path is not None or queues or resume or store:
        raise click.UsageError("--to goes with neither FILE, --queue, --resume nor --store")
    place = CloudRunPlace(project, region, server_url)
    if to == "crema" and (flaws := flaws_of(place)):
        raise click.UsageError("\n".join(flaws))
    request = _request(
        file, images, server_image=server_image, namespace=namespace or _NAMESPACES.get(to, "default"), cloud_run=place
    )
    try:
        exported = EXPORTS[to](request)
    except ExportRefusedError as error:
        raise CommandError(error.lines, code=exits.BAD_CONFIG, fix="correct the settings, then export again") from None
    for warning in exported.warnings:
        print_info(f"warning: {warning}")
    if out is None:
        if exported.private:
            named = ", ".join(exported.private)
            print_info(
                f"warning: not printed, since they have the values of pools' variables: {named}; --out writes them"
            )
        _print(exported, as_json=as_json)
    else:
        _write(exported, out, force=force, as_json=as_json)
    return exits.OK


def _request(
    file: Path | None, images: tuple[str, ...], *, server_image: str, namespace: str, cloud_run: CloudRunPlace
) -> ExportRequest:
    if not DNS_LABEL.fullmatch(namespace):
        raise click.UsageError(f"--namespace: {namespace!r} is no name: 1 to 63 of a-z, 0-9 and -, no - at its ends")
    place = file or Path(DEFAULT_FILE)
    project = load_project(file)
    document = read_document(read_text(place), name=str(place))
    return ExportRequest(
        project,
        document,
        images=_images(images, project.pools),
        server_image=server_image,
        namespace=namespace,
        program=_program(),
        settings_path=str(place.absolute()),
        version=version("towline"),
        cloud_run=cloud_run,
    )


def _images(given: tuple[str, ...], pools: Mapping[str, object]) -> dict[str, str]:
    images: dict[str, str] = {}
    for one in given:
        pool, separator, image = one.partition("=")
        if not separator:
            pool, image = "", one
        if pool and pool not in pools:
            raise click.UsageError(f"--image: there is no pool '{pool}'{did_you_mean(pool, pools)}")
        if not image:
            raise click.UsageError(f"--image: {one}: give POOL=IMAGE, or IMAGE for all pools")
        images[pool] = image
    return images


def _program() -> tuple[str, ...]:
    found = shutil.which("towline")
    return (found,) if found else (sys.executable, "-m", "orchestrator")


def _print(exported: ExportedFiles, *, as_json: bool) -> None:
    if as_json:
        print_json({"files": exported.files, "warnings": list(exported.warnings)})
        return
    for number, (name, text) in enumerate(exported.files.items()):
        if len(exported.files) > 1:
            click.echo(f"{'---' if number and name.endswith('.yaml') else ''}\n# {name}".lstrip())
        click.echo(text, nl=False)


def _write(exported: ExportedFiles, out: Path, *, force: bool, as_json: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    files = {**exported.files, **exported.private}
    there = [name for name, text in files.items() if _differs(out / name, text)]
    if there and not force:
        message = f"already there with other contents: {', '.join(there)}"
        raise CommandError(message, code=exits.CANT_CREATE, where=str(out.absolute()), fix="--force overwrites them")
    for name, text in files.items():
        is_private = name in exported.private
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        with open(
            out / name, "w", encoding="utf-8", newline="", opener=private_opener if is_private else source_opener
        ) as file:
            if is_private:  # one that was there keeps its mode, which may be another
                os.fchmod(file.fileno(), FILE_MODE)
            file.write(text)
    if as_json:
        print_json({"files": [str(out / name) for name in files], "warnings": list(exported.warnings)})
        return
    print_info(f"wrote {', '.join(str(out / name) for name in files)}")
    if exported.private:
        print_info(f"with the values of pools' variables, for you alone to read: {', '.join(exported.private)}")


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() != text.encode()
    except FileNotFoundError:
        return False
