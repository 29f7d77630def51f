"""Which process holds a port, a socket or a lock: found for real ones, and said in words."""

import fcntl
import os
import socket
import sys
from pathlib import Path

import pytest

from queue_core.process.holders import (
    ResourceHolder,
    command_of,
    holder_of_lock,
    holder_of_port,
    holder_of_socket,
)


def test_the_process_that_listens_on_a_port_is_found() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        found = holder_of_port("127.0.0.1", listening.getsockname()[1])
        assert found.pid == os.getpid()
        assert found.folder == str(Path.cwd())
        assert found.text.startswith(f"pid {os.getpid()}, `")


def test_the_process_that_listens_on_a_socket_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        assert holder_of_socket(path).pid == os.getpid()
    assert holder_of_socket(path) == ResourceHolder()


def test_the_process_that_holds_a_lock_is_found(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file:
        assert holder_of_lock(path) == ResourceHolder()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holder_of_lock(path).pid == os.getpid()
    assert holder_of_lock(tmp_path / "none") == ResourceHolder()


def test_of_another_users_process_the_user_is_known(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    line = "   0: 0100007F:1EC6 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1"
    (tmp_path / "net" / "tcp").write_text(f"  sl  local_address ...\n{line}\n")
    assert holder_of_port("127.0.0.1", 7878, proc=tmp_path).text == "a process of the user root"
    assert holder_of_port("127.0.0.1", 7879, proc=tmp_path).text == ""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([sys.executable, "-m", "orchestrator", "up"], "towline up"),
        (["/opt/venv/bin/python", "/opt/venv/bin/towline", "supervise", "-f", "a.yaml"], "towline supervise -f a.yaml"),
        (["/usr/sbin/nginx", "-c", "/etc/nginx.conf"], "nginx -c /etc/nginx.conf"),
        (["psql", "postgresql://me:hunter2secret@db/x"], "psql postgresql://***@db/x"),
        (["a\x1b[2J"], "a\\x1b[2J"),
    ],
)
def test_a_command_is_shown_short_and_without_secrets(arguments: list[str], shown: str) -> None:
    assert command_of(arguments) == shown
