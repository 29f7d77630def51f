"""The measurements of every system: add rate, drain rate, and time from add to start of handler."""

import gc
import multiprocessing
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, cast

from tests.bench.driver import (
    BATCH,
    WORKERS,
    BenchDriver,
    Consumer,
    Framework,
    Library,
    NotOfferedError,
    Producer,
    is_library,
)
from tests.bench.loop_producer import LoopProducer
from tests.bench.record import RECORDING_VARIABLE, latencies_seconds, recorded, stamped_payload, steady_rate
from tests.bench.site import BenchSite

Kind = Literal["add", "add_batch", "drain", "drain_batch", "latency"]
KINDS: tuple[Kind, ...] = ("add", "add_batch", "drain", "drain_batch", "latency")

DRAIN_TIMEOUT_SECONDS = 120.0
WARM_UP_TASKS = 20
LATENCY_SAMPLES = 200
LATENCY_EVERY_SECONDS = 0.020
STOP_SECONDS = 5.0
POLL_SECONDS = 0.01


class MeasurementFailedError(Exception):
    """A system did not finish in time; the message says how far it came."""


def measure(driver: BenchDriver, kinds: Sequence[Kind], site: BenchSite) -> dict[Kind, float]:
    """Run one round of one system; return rates in tasks a second, latency as its median in seconds.

    Verbs a system does not offer are left out. Raises `EngineUnavailableError` and `MeasurementFailedError`.
    """
    figures: dict[Kind, float] = {}
    for kind in kinds:
        try:
            with _started(driver, site):
                figures[kind] = _MEASUREMENTS[kind](driver, site)
        except NotOfferedError:
            continue
    return figures


@contextmanager
def _started(driver: BenchDriver, site: BenchSite) -> Iterator[None]:
    try:
        driver.start(site)
        gc.collect()
        yield
    finally:
        driver.stop()


def _add(driver: BenchDriver, site: BenchSite) -> float:
    tasks = driver.loads.divided(site.divide_loads_by).add
    with closing(driver.producer()) as producer:
        payload = stamped_payload()
        for _ in range(WARM_UP_TASKS):
            producer.add(payload)
        began = time.perf_counter()
        _add_one_by_one(producer, payload, tasks)
        return tasks / (time.perf_counter() - began)


def _add_batch(driver: BenchDriver, site: BenchSite) -> float:
    batches = driver.loads.divided(site.divide_loads_by).add_batch // BATCH
    if batches == 0:
        raise NotOfferedError
    with closing(driver.producer()) as producer:
        payloads = [stamped_payload()] * BATCH
        producer.add_batch(payloads)
        began = time.perf_counter()
        for _ in range(batches):
            producer.add_batch(payloads)
        return batches * BATCH / (time.perf_counter() - began)


def _drain(driver: BenchDriver, site: BenchSite) -> float:
    tasks = driver.loads.divided(site.divide_loads_by).drain
    _fill(driver, tasks)
    if is_library(driver):
        return _drain_library(cast("Library", driver), tasks, size=1)
    recording = site.new_directory("record") / "started"
    with _workers(cast("Framework", driver), recording) as check:
        await_records(recording, tasks, check)
    return steady_rate(recording)


def _drain_batch(driver: BenchDriver, site: BenchSite) -> float:
    tasks = driver.loads.divided(site.divide_loads_by).drain_batch
    if not is_library(driver) or tasks == 0:
        raise NotOfferedError
    _fill(driver, tasks)
    return _drain_library(cast("Library", driver), tasks, size=BATCH)


def _latency(driver: BenchDriver, site: BenchSite) -> float:
    """Add a task every 20 ms to waiting workers; return the median from just before the add to the handler."""
    if is_library(driver):
        raise NotOfferedError
    recording = site.new_directory("record") / "started"
    samples = max(LATENCY_SAMPLES // site.divide_loads_by, 20)
    with _workers(cast("Framework", driver), recording) as check, closing(driver.producer()) as producer:
        for _ in range(WARM_UP_TASKS):
            producer.add(stamped_payload())
        await_records(recording, WARM_UP_TASKS, check)
        os.truncate(recording, 0)
        due = time.monotonic()
        for _ in range(samples):
            due += LATENCY_EVERY_SECONDS
            time.sleep(max(due - time.monotonic(), 0))
            producer.add(stamped_payload())
        await_records(recording, samples, check)
    return statistics.median(latencies_seconds(recording))


_MEASUREMENTS: dict[Kind, Callable[[BenchDriver, BenchSite], float]] = {
    "add": _add,
    "add_batch": _add_batch,
    "drain": _drain,
    "drain_batch": _drain_batch,
    "latency": _latency,
}


def _fill(driver: BenchDriver, tasks: int) -> None:
    """Add at least `tasks`, in batches where possible."""
    payload = stamped_payload()
    with closing(driver.producer()) as producer:
        if driver.loads.add_batch:
            for _ in range(-(-tasks // BATCH)):
                producer.add_batch([payload] * BATCH)
        else:
            _add_one_by_one(producer, payload, tasks)


def _add_one_by_one(producer: Producer, payload: bytes, tasks: int) -> None:
    if isinstance(producer, LoopProducer):
        producer.add_one_by_one(payload, tasks)
        return
    for _ in range(tasks):
        producer.add(payload)


def _drain_library(driver: Library, tasks: int, *, size: int) -> float:
    """Let two processes connect, start together, and delete until none is left."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    children = []
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        child = context.Process(target=_consume, args=(driver.consumer(), size, theirs), daemon=True)
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    try:
        for pipe in pipes:
            _receive(pipe)
        for pipe in pipes:
            pipe.send("go")
        results = [_receive(pipe) for pipe in pipes]
    finally:
        for child, pipe in zip(children, pipes, strict=True):
            pipe.close()
            child.join(STOP_SECONDS)
            if child.is_alive():
                child.kill()
                child.join()
    deleted = sum(count for count, _, _ in results)
    if deleted < tasks:
        raise MeasurementFailedError(f"{driver.name}: {deleted} of {tasks} tasks were drained")
    return deleted / (max(ended for _, _, ended in results) - min(began for _, began, _ in results))


def _consume(connect: Callable[[], Consumer], size: int, pipe: Connection) -> None:
    """Run a consumer's process; send its count of deleted tasks, and the times of its start and last delete."""
    with closing(connect()) as consumer:
        pipe.send((0, 0.0, 0.0))
        pipe.recv()
        deleted = 0
        began = ended = time.monotonic()
        while taken := consumer.take(size):
            deleted += taken
            ended = time.monotonic()
        pipe.send((deleted, began, ended))


def _receive(pipe: Connection) -> tuple[int, float, float]:
    if not pipe.poll(DRAIN_TIMEOUT_SECONDS):
        raise MeasurementFailedError(f"a consumer said nothing for {DRAIN_TIMEOUT_SECONDS:.0f} s")
    try:
        return cast("tuple[int, float, float]", pipe.recv())
    except EOFError:
        raise MeasurementFailedError("a consumer's process ended early; its traceback is above") from None


@contextmanager
def _workers(driver: Framework, recording: Path) -> Iterator[Callable[[], None]]:
    """Run the framework's workers; yield a check that raises when one of them has ended."""
    log = recording.with_name("workers.log")
    processes: list[subprocess.Popen[bytes]] = []

    try:
        with log.open("wb") as output:
            for command in driver.workers():
                processes.append(_popen(command, recording, output.fileno()))  # noqa: PERF401 - ended if one fails
        yield check_alive(processes, log)
    finally:
        for process in processes:
            end_group(process)


def _popen(command: Sequence[str], recording: Path, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=os.environ | {RECORDING_VARIABLE: str(recording)},
        start_new_session=True,
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that we started, then the rest of its group."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check_alive(processes: Sequence[subprocess.Popen[bytes]], log: Path) -> Callable[[], None]:
    """Return a check that raises, with the log's last lines, when one of the processes has ended."""

    def check() -> None:
        for process in processes:
            if process.poll() is not None:
                said = log.read_text(errors="replace").strip().splitlines()[-8:]
                raise MeasurementFailedError(f"a worker exited with {process.returncode}: " + "\n".join(said))

    return check


def await_records(recording: Path, tasks: int, check: Callable[[], None]) -> None:
    """Wait until `tasks` handlers have started. Raises `MeasurementFailedError`, also when `check` does."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_SECONDS
    while recorded(recording) < tasks:
        check()
        if time.monotonic() > deadline:
            raise MeasurementFailedError(
                f"{recorded(recording)} of {tasks} tasks started in {DRAIN_TIMEOUT_SECONDS:.0f} s"
            )
        time.sleep(POLL_SECONDS)
