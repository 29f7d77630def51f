"""`towline init`: write a commented settings file and an example program; never overwrite existing files."""

import json
import re
from pathlib import Path
from typing import Final

import click

from queue_core.cli import exits
from queue_core.cli.commands.queues_apply import load_queue_file_entries
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import json_option
from queue_core.cli.output import print_info, print_json
from queue_core.config.units import format_bytes
from queue_core.queue_files.entries import QueueFileEntries
from queue_core.task import QueueSpec

_PLAIN: Final = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z][A-Za-z0-9-]*", re.IGNORECASE)
_POOL: Final = """\
#   {key}:
#     queue: {key}
#     command: [python, worker.py]  # or app: tasks:app, with handlers of this project's own
#     slo: 30s                    # the longest a task may wait for its lease: what the pool is sized by
#     workers: {{min: 0, max: 8}}
"""


def settings_text(entries: QueueFileEntries, *, head: str, source: str) -> str:
    """Return the whole file: `head` (store, server), the queues, a commented pool for each, and what was left out.

    Args:
        source: name of the file that the queues come from.
    """
    queues = "".join(_queue(spec) for spec in entries.queues)
    pools = "".join(_POOL.format(key=_key(spec.name)) for spec in entries.queues)
    limit_bytes = entries.total_storage_limit_bytes
    limit = "" if limit_bytes is None else f"total_storage_limit: {format_bytes(limit_bytes)}\n"
    text = f"{head}{limit}\n# Pull queues of {_line(source)}.\n" + (f"queues:\n{queues}" if queues else "queues: {}\n")
    if pools:
        text += (
            f"\n# Pools of workers, one for each queue: give it its program, and take the # away.\n# pools:\n{pools}"
        )
    left = _left_out(entries)
    return (
        text + (f"\n# Not carried over from {_line(source)}:\n" if left else "") + "".join(f"# - {it}\n" for it in left)
    )


def _queue(spec: QueueSpec) -> str:
    lines = []
    if spec.max_leases is not None:
        lines.append(f"max_leases: {spec.max_leases}".ljust(28) + "# task_retry_limit")
    lines.append("on_exhausted: delete".ljust(28) + "# as App Engine does at the limit; dead keeps the task instead")
    if spec.user_emails or spec.writer_emails:
        lines.append("acl:".ljust(28) + "# who may use the REST APIs: see email under server.tokens")
    if spec.user_emails:
        lines.append(f"  users: {_list(spec.user_emails)}")
    if spec.writer_emails:
        lines.append(f"  writers: {_list(spec.writer_emails)}")
    return f"  {_key(spec.name)}:\n" + "".join(f"    {line}\n" for line in lines)


def _left_out(entries: QueueFileEntries) -> list[str]:
    left = []
    if entries.push_queues:
        left.append(f"push queues, as nothing here calls handlers: {', '.join(entries.push_queues)}")
    if not entries.resume_paused_queues:
        left.append("resume_paused_queues: False: a queue that is paused stays so until `towline resume`")
    return left


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _list(texts: tuple[str, ...]) -> str:
    """Return a YAML list; JSON's quotes are valid YAML."""
    return json.dumps(texts, ensure_ascii=False)


def _line(text: str) -> str:
    """Return `text` on one line, for a comment."""
    return "".join(character if character.isprintable() else "?" for character in text)


HEAD: Final = """\
# towline.yaml: queues and the pools of workers that work on them. `towline check` lists every mistake in it,
# `towline config --origin` every setting in force. Durations are 500ms, 30s, 5m, 6h; sizes 64KiB, 512MiB.

store: sqlite:///towline.db     # a file beside this one
durability: strict              # an add that returned survives power loss; relaxed: only a crash of the process

server:
  listen: 127.0.0.1:7878        # or unix:towline.sock; another address needs tokens:
  # tokens:
  #   - {role: producer, token_env: PRODUCER_TOKEN}
  #   - {role: admin, token_file: admin.token}
"""
SETTINGS: Final = f"""\
{HEAD}
queues:
  thumbs:
    lease: 30s                  # how long a worker holds a task; renewed while its handler lives
    max_lease: 10m              # the longest a lease may become by renewals
    max_leases: 5               # then the task is dead: kept, listed, and ready again by `towline redrive`
    retry: {{min: 1s, max: 5m}}   # rest after a failed lease, doubling

pools:
  resize:
    queue: thumbs
    tags: [resize]              # leave out for any task
    app: tasks:app              # module:attribute; or command: [./worker, --fast]
    slo: 30s                    # the longest a task may wait for its lease: what the pool is sized by
    workers: {{min: 0, max: 8}}
    grace: 30s                  # from asking a worker to stop to ending it
    concurrency: 1              # tasks one worker holds at a time
    recycle: {{tasks: 1000, memory: 512MiB, age: 6h}}
"""
PROGRAM: Final = '''\
"""Work for the queues of towline.yaml. Try it: towline up, and in another terminal: python3 tasks.py cat.jpg"""

import sys

from queue_core import App

app = App("towline.yaml")


@app.function(queue="thumbs")
def resize(path: str, width: int = 200) -> None:
    """Returning deletes the task; raising gives it back, to be tried again after a rest."""
    print(f"resizing {path} to {width}")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print("added", resize.add(path).name)
'''


@command(
    "init",
    when_cut="stderr",
    examples=("towline init", "towline init --dir demo", "towline init --no-example", "towline init --from queue.yaml"),
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), default=".", help="Write into this folder."
)
@click.option("--example/--no-example", default=True, help="Write tasks.py too.")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With the pull queues of an App Engine queue.yaml or queue.xml, and without tasks.py.",
)
@json_option
def init(folder: Path, example: bool, source: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Write towline.yaml, with comments, and tasks.py. Existing files are left alone: exit code 73."""
    if source is not None:
        settings = settings_text(load_queue_file_entries(source), head=HEAD, source=str(source))
        wanted = {folder / "towline.yaml": settings}
    else:
        wanted = {folder / "towline.yaml": SETTINGS} | ({folder / "tasks.py": PROGRAM} if example else {})
    there = [path for path in wanted if path.exists()]
    if there:
        message = f"{', '.join(map(str, there))}: exists already, and was left as it is"
        raise CommandError(message, code=exits.CANT_CREATE, fix="name another folder with --dir, or move it away first")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        with path.open("x", encoding="utf-8") as file:  # x: never overwrite a file that appeared in between
            file.write(text)
    if as_json:
        print_json({"written": [str(path) for path in wanted]})
    else:
        click.echo("\n".join(f"wrote {path}" for path in wanted))
        place = "" if folder == Path() else f"cd {folder} && "
        if source is not None:
            print_info(f"next: {place}towline serve; or give its pools their programs, and {place}towline up")
        else:
            print_info(
                f"next: {place}towline up, and in another terminal: {place}python3 tasks.py cat.jpg"
                if example
                else f"next: {place}towline up"
            )
    return exits.OK
