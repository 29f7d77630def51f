"""Variables of a forked process, as /proc shows them."""


import subprocess
import sys
from pathlib import Path
from typing import Final

from queue_core.worker.template.environment_block import ROOM_VARIABLE

REPOSITORY: Final = Path(__file__).parents[4]
ROOM_BYTES: Final = 4096
PROGRAM: Final = """
import ctypes, os, sys
from queue_core.worker.template.environment_block import NoRoomError, add_variables
{before}
if os.fork() == 0:
    try:
        add_variables({variables!r})
        print("own", *[os.environ[name][:80] for name in {variables!r}])
        print("kept", os.environ["KEPT"], ctypes.string_at(kept).decode())
        for entry in open("/proc/self/environ", "rb").read().split(b"\\0"):
            if entry:
                print("shown", entry.decode(errors="surrogateescape")[:80])
    except NoRoomError as error:
        print("refused", error)
    sys.stdout.flush()
    os._exit(0)
os.wait()
print("parent", b"ADDED" in open("/proc/self/environ", "rb").read())
"""
GETENV: Final = "get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_void_p; kept = get(b'KEPT')"


def lines_of(variables: dict[str, str], *, before: str = "", room: int | None = ROOM_BYTES) -> list[str]:
    """Return what a child says that has added these variables, and its parent."""
    environment = {"FIRST": "1", "PYTHONPATH": str(REPOSITORY), "KEPT": "as it was", "PYTHONUTF8": "1"}
    if room is not None:
        environment[ROOM_VARIABLE] = "-" * room
    program = PROGRAM.format(variables=variables, before=f"{GETENV}\n{before}")
    ran = subprocess.run(
        [sys.executable, "-c", program], env={**environment, "LAST": "2"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def shown(lines: list[str]) -> dict[str, str]:
    entries = [line.removeprefix("shown ").partition("=") for line in lines if line.startswith("shown ")]
    assert len({name for name, _, _ in entries}) == len(entries)
    return {name: text for name, _, text in entries}


def test_what_is_added_is_shown_beside_what_was_there() -> None:
    lines = lines_of({"ADDED": "to it", "TOWLINE_WORKER": "w1"})
    assert lines[:2] == ["own to it w1", "kept as it was as it was"]
    assert shown(lines) == {
        "FIRST": "1",
        "PYTHONPATH": str(REPOSITORY),
        "KEPT": "as it was",
        "PYTHONUTF8": "1",
        "TOWLINE_WORKER": "w1",
        "ADDED": "to it",
        "LAST": "2",
    }
    assert lines[-1] == "parent False"


def test_what_does_not_fit_is_left_out_of_what_is_shown_alone() -> None:
    lines = lines_of({"ADDED": "x" * ROOM_BYTES, "TOWLINE_WORKER": "w1"})
    assert lines[0] == f"own {'x' * 80} w1"
    assert shown(lines)["TOWLINE_WORKER"] == "w1"
    assert "ADDED" not in shown(lines)
    assert shown(lines)["LAST"] == "2"


def test_all_of_the_room_can_be_used() -> None:
    entry = len(f"{ROOM_VARIABLE}=") + ROOM_BYTES - len("TOWLINE_WORKER=")
    assert len(shown(lines_of({"TOWLINE_WORKER": "w" * entry}))["TOWLINE_WORKER"]) > 60
    assert "TOWLINE_WORKER" not in shown(lines_of({"TOWLINE_WORKER": "w" * (entry + 1)}))


def test_text_that_is_no_ascii_is_shown_as_it_is() -> None:
    assert shown(lines_of({"TOWLINE_WORKER": "größe-1"}))["TOWLINE_WORKER"] == "größe-1"


def test_without_room_nothing_is_written() -> None:
    lines = lines_of({"TOWLINE_WORKER": "w1"}, room=None)
    assert lines[0].startswith("refused a library has written over the environment")


def test_an_environment_that_a_library_has_written_over_is_left_alone() -> None:
    """As those do that change a process's title."""
    overwrite = (
        "from queue_core.worker.template.environment_block import find_room\n"
        "start, size = find_room()\n"
        "ctypes.memset(start - 10, 120, size + 10)"
    )
    lines = lines_of({"TOWLINE_WORKER": "w1"}, before=overwrite)
    assert lines[0].startswith("refused a library has written over the environment")


def test_variables_that_an_import_has_set_stay() -> None:
    lines = lines_of({"ADDED": "to it"}, before="os.environ['KEPT'] = 'changed'; kept = get(b'KEPT')")
    assert lines[1] == "kept changed changed"
