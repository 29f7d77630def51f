"""The watchdog process for containers: it ends those that a killed supervisor left and no other adopts.

Started by `orphans.py`; it sleeps on the supervisor's lock and imports as little as it can. An `app` worker checks the
lock itself and is gone before; any other program is signalled to stop, and then killed.
"""

import fcntl
import json
import os
import socket
import time
from urllib.parse import quote

from orchestrator.runtimes.watchdog import is_held

POLL_SECONDS = 2.0
"""Interval between two lists of containers without a supervisor."""
MARGIN_SECONDS = 5.0
"""Time after a container's own limit before it is killed."""
ANSWER_SECONDS = 10.0
"""Time limit of a call to the engine."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The longest answer read."""
DEFAULT_SECONDS = 60.0
"""Used where a label is missing or invalid."""
ENGINE_GONE_SECONDS = 600.0
"""An engine whose socket is gone this long won't return; until then its containers may run on (live-restore)."""

STATE_LABEL = "towline.state"
ORPHAN_GRACE_LABEL = "towline.orphan_grace"
ORPHAN_LABEL = "towline.orphan_seconds"
APP_LABEL = "towline.app"


def watch(engine_socket: str, state: str, own_lock_path: str, lock_path: str) -> None:
    """Return when the supervisor is gone and none of its containers runs, or when another watchdog runs.

    `state` is the containers' label; `lock_path` a file that a living supervisor holds an exclusive lock on.
    """
    own_lock = os.open(own_lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(own_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    lock = os.open(lock_path, os.O_RDONLY | os.O_CREAT, 0o600)
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)
        if _end_orphans(engine_socket, state, lock, own_lock_path):
            return


def verdict(labels: dict[str, str], *, lost_seconds: float) -> str:
    """Return the signal due to a container whose supervisor has been gone this long: KILL, STOP or "". Pure."""
    if lost_seconds >= _seconds(labels, ORPHAN_LABEL) + MARGIN_SECONDS:
        return "KILL"
    if lost_seconds >= _seconds(labels, ORPHAN_GRACE_LABEL) and not labels.get(APP_LABEL):
        return "STOP"
    return ""


def _end_orphans(engine_socket: str, state: str, lock: int, own_lock_path: str) -> bool:
    """Return True when no container runs or the engine is gone for good, False when a supervisor has taken over."""
    # Counted in sleeps, not read from a clock: a host that was suspended must not end everything on waking.
    lost_seconds = 0.0
    gone_seconds = 0.0
    signalled: set[str] = set()
    while True:
        running = _running(engine_socket, state)
        if running is not None and not running:
            return True
        if is_held(lock):
            return False
        gone_seconds = 0.0 if os.path.exists(engine_socket) else gone_seconds + POLL_SECONDS  # noqa: PTH110
        if gone_seconds >= ENGINE_GONE_SECONDS or (running is None and not os.path.exists(own_lock_path)):  # noqa: PTH110
            return True
        for container, labels in (running or {}).items():
            due = verdict(labels, lost_seconds=lost_seconds)
            if due == "KILL":
                _call(engine_socket, "POST", f"/containers/{container}/kill?signal=KILL")
            elif due == "STOP" and container not in signalled:
                signalled.add(container)
                signal = labels.get("towline.stop_signal", "SIGTERM")
                _call(engine_socket, "POST", f"/containers/{container}/kill?signal={quote(signal)}")
        time.sleep(POLL_SECONDS)
        lost_seconds += POLL_SECONDS


def _running(engine_socket: str, state: str) -> dict[str, dict[str, str]] | None:
    """Return the labels of the running containers, by id; None when the engine does not answer."""
    filters = json.dumps({"label": [f"{STATE_LABEL}={state}"], "status": ["running", "paused"]})
    answer = _call(engine_socket, "GET", f"/containers/json?filters={quote(filters)}")
    try:
        return {one["Id"]: one["Labels"] for one in json.loads(answer)}
    except (ValueError, KeyError, TypeError):
        return None


def _call(engine_socket: str, method: str, path: str) -> bytes:
    """Return the body of the engine's answer; empty when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(engine_socket)
            connection.sendall(f"{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n".encode())
            answer = bytearray()
            while (part := connection.recv(65536)) and len(answer) < MAX_ANSWER_BYTES:
                answer += part
        except OSError:
            return b""
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return body if b" 200 " in head.partition(b"\r\n")[0] else b""


def _seconds(labels: dict[str, str], name: str) -> float:
    try:
        return float(labels.get(name, DEFAULT_SECONDS))
    except ValueError:
        return DEFAULT_SECONDS
