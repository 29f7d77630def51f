"""The benchmark's records: each handler writes when its task was added and when it started.

One 16-byte record per task, appended by one write: the cheapest way to get rate and latency of every system. It imports
little, as that counts towards a worker's start.
"""

import os
import struct
import time
from functools import cache
from pathlib import Path

QUEUE = "bench"
PAYLOAD_BYTES = 200
RECORD = struct.Struct("=qq")  # added, started: nanoseconds of CLOCK_MONOTONIC, the same in all processes
STAMP_DIGITS = 20
RECORDING_VARIABLE = "TOWLINE_BENCH_RECORDING"
STEADY_FROM, STEADY_TO = 0.1, 0.9


def stamped_payload() -> bytes:
    """Return a payload with its time of creation: digits and padding, as text, which every system can carry."""
    return b"%0*d" % (STAMP_DIGITS, time.monotonic_ns()) + b"x" * (PAYLOAD_BYTES - STAMP_DIGITS)


def record(payload: bytes | str) -> None:
    """Append one record to the file that the environment names."""
    started = time.monotonic_ns()
    os.write(_recording(), RECORD.pack(int(payload[:STAMP_DIGITS]), started))


@cache
def _recording() -> int:
    """Open the file once for the life of a worker and of the children it forks."""
    return os.open(os.environ[RECORDING_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def recorded(path: Path) -> int:
    """Return how many handlers have started."""
    return path.stat().st_size // RECORD.size if path.exists() else 0


def steady_rate(path: Path) -> float:
    """Return tasks a second over the middle four fifths of the starts, without warm-up and tail."""
    started: list[int] = sorted(start for _, start in RECORD.iter_unpack(path.read_bytes()))
    first, last = int(len(started) * STEADY_FROM), int(len(started) * STEADY_TO)
    return (last - first) / ((started[last] - started[first]) / 1e9)


def latencies_seconds(path: Path) -> list[float]:
    """Return the times from add to start of handler of all records, sorted."""
    return sorted((start - added) / 1e9 for added, start in RECORD.iter_unpack(path.read_bytes()))
