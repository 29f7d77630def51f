"""Reads a queue.yaml or queue.xml for commands; failures as people meet them."""

from pathlib import Path

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.config.yaml_document import MAX_TEXT_BYTES, DocumentError
from queue_core.queue_files.entries import QueueFileEntries


def load_queue_file_entries(path: Path) -> QueueFileEntries:
    """What a queue.yaml or queue.xml says. Raises `CommandError` with every mistake in it."""
    if not path.is_file():
        told = f"no such file: {path}"
        raise CommandError(told, code=exits.NO_INPUT, where=str(path.parent.absolute()), fix="check the path")
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    try:
        return _read(data, path)
    except DocumentError as error:
        count = len(error.lines)
        fix = f"mend {'it' if count == 1 else f'all {count}'}, then run this again; nothing was changed"
        raise CommandError(error.lines, code=exits.BAD_CONFIG, fix=fix) from None


def is_xml(path: Path, data: bytes) -> bool:
    """By the name; where that says nothing, by the first thing in it."""
    if path.suffix.lower() in {".xml", ".yaml", ".yml"}:
        return path.suffix.lower() == ".xml"
    return data.lstrip(b"\xef\xbb\xbf\xfe\xff\x00 \t\r\n").startswith(b"<")


def _read(data: bytes, path: Path) -> QueueFileEntries:
    if is_xml(path, data):
        from queue_core.queue_files.xml import read_queue_xml

        return read_queue_xml(data, name=str(path))
    from queue_core.queue_files.yaml import read_queue_yaml

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        told = f"{path}:{line}:1: byte 0x{data[error.start]:02x} is not UTF-8: save the file as UTF-8"
        raise DocumentError((told,)) from None
    return read_queue_yaml(text, name=str(path))
