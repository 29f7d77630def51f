"""Hazards that an import leaves behind for forked workers, each in a process of its own."""

import ctypes.util
import importlib.util
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from queue_core.worker.template.descriptors import OpenDescriptor, address_text, hazards_of_descriptors
from queue_core.worker.template.hazard import ForkHazard
from queue_core.worker.template.native_threads import NativeThread, hazards_of
from queue_core.worker.template.started_threads import recorded_threads

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import os, sys
from queue_core.worker.template.hazards import find_hazards
from queue_core.worker.template.recorded_import import recorded_import
with recorded_import() as recorded:
    import shop
found = find_hazards(own_descriptors=getattr(shop, "OWN", ()), recorded=recorded)
import json
print(json.dumps([[each.kind, each.detail, each.sentence] for each in found]), flush=True)
os._exit(0)
"""
NATIVE_THREAD = """
import ctypes
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, libc.pause, None) == 0
"""


def hazards_after(folder: Path, application: str) -> list[ForkHazard]:
    """Import an application in a process of its own and return the hazards that it leaves."""
    (folder / "shop.py").write_text(application)
    return [ForkHazard(*each) for each in json.loads(output_of(folder, PROGRAM))]


def output_of(folder: Path, program: str) -> str:
    """Run a program in a folder and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    "application",
    [
        pytest.param("import json, decimal, sqlite3, asyncio, ssl", id="imports only"),
        pytest.param(
            "import queue_core.worker.main, queue_core.stores.sqlite.store, queue_core.stores.postgres.store\n"
            "import queue_core.stores.redis.store\nfrom queue_core.worker.app import App\napp = App()",
            id="a worker's own modules, and an app",
        ),
        pytest.param("file = open(__file__)", id="a file that is read"),
        pytest.param("import logging; logging.basicConfig(filename='log'); logging.warning('begin')", id="a log"),
        pytest.param(
            "import os; null = open('/dev/null'); random = open('/dev/urandom', 'rb', buffering=0)",
            id="harmless devices",
        ),
        pytest.param(
            "import sqlite3; sqlite3.connect('shop.db').execute('create table a (b)').connection.close()",
            id="a database that was closed",
        ),
        pytest.param(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(8) as pool: list(pool.map(str, range(100)))",
            id="a pool that has ended",
        ),
        pytest.param("import subprocess, sys; subprocess.run([sys.executable, '-c', ''])", id="a child that has ended"),
        pytest.param("import asyncio; asyncio.run(asyncio.sleep(0))", id="an event loop that has ended"),
        pytest.param("import os; OWN = os.pipe()", id="descriptors of the caller"),
        pytest.param("import random; safe = random.SystemRandom(); own = random.Random()", id="random"),
        pytest.param("import random; a = random.Random(7).random()", id="a random number that is the same each time"),
        pytest.param("import os; a = os.open('.', os.O_RDONLY); b = os.open('.', os.O_PATH)", id="folders"),
        pytest.param("import signal; signal.signal(signal.SIGUSR1, print)", id="a signal handler"),
        pytest.param(
            "import time\nt = time.perf_counter()\nimport json\ntook = time.perf_counter() - t\ndel t",
            id="a time that is not kept",
        ),
        pytest.param("import time\ntook = -time.monotonic()\ntook += time.monotonic()", id="a duration"),
        pytest.param(
            "import datetime, os\nA = [0.0, 30.0, 86_400, 2**31, 1_700_000_000, 10**12]\nB = '2025-01-31T23:59:59'\n"
            "C = datetime.date.today(); D = datetime.datetime(2025, 1, 1); E = '1' * 19; F = 'f' * 32; G = os.getcwd()",
            id="numbers, dates and texts",
        ),
        pytest.param(
            "import uuid\nA = uuid.UUID('12345678-1234-4234-8234-123456789abc'); B = uuid.NAMESPACE_DNS\n"
            "C = str(uuid.uuid5(B, 'a'))",
            id="UUIDs that are always these",
        ),
        pytest.param("import time\ndef f(): return time.time()\nclass A:\n    now = time.time", id="a clock"),
    ],
)
def test_an_import_that_leaves_nothing_behind_has_no_hazard(tmp_path: Path, application: str) -> None:
    assert hazards_after(tmp_path, application) == []


def test_a_python_thread_is_named_with_the_line_that_started_it(tmp_path: Path) -> None:
    (hazard,) = hazards_after(
        tmp_path,
        "import threading\n\nthreading.Thread(target=threading.Event().wait, name='pool-1', daemon=True).start()\n",
    )
    assert hazard == ForkHazard(
        kind="python_thread",
        detail="thread 'pool-1' of shop.py:3",
        sentence="shop.py:3 started the thread 'pool-1' while it was imported: start it in @app.on_start, then workers "
        "can fork",
    )


def test_the_threads_of_a_pool_are_those_of_the_line_that_submits(tmp_path: Path) -> None:
    hazards = hazards_after(
        tmp_path,
        "from concurrent.futures import ThreadPoolExecutor\nimport threading\n"
        "pool = ThreadPoolExecutor(1)\n\npool.submit(threading.Event().wait)\n",
    )
    assert [each.detail for each in hazards] == ["thread 'ThreadPoolExecutor-0_0' of shop.py:5"]


def test_a_thread_of_a_library_is_told_with_the_line_that_called_it(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "tracing.py").write_text(
        "import threading\n\ndef trace():\n"
        "    threading.Thread(target=threading.Event().wait, name='traces', daemon=True).start()\n"
    )
    (hazard,) = hazards_after(
        tmp_path, "import sys\nsys.path.append('site-packages')\nimport tracing\ntracing.trace()\n"
    )
    assert hazard.sentence.startswith("tracing:4, called by shop.py:4, started the thread 'traces' while")


def test_a_thread_that_threading_does_not_know_is_found_once(tmp_path: Path) -> None:
    hazards = hazards_after(
        tmp_path,
        "import _thread, threading\nbegun, never = threading.Event(), threading.Event()\n"
        "def run():\n    begun.set()\n    never.wait()\n_thread.start_new_thread(run, ())\nbegun.wait()\n",
    )
    assert [(each.kind, each.detail) for each in hazards] == [("python_thread", "thread 'of _thread' of shop.py:5")]


def test_a_thread_of_a_c_library_that_stays_at_a_fork_is_a_hazard(tmp_path: Path) -> None:
    (hazard,) = hazards_after(tmp_path, NATIVE_THREAD)
    assert (hazard.kind, hazard.detail) == ("native_thread", "a thread of a C library")


def test_a_thread_of_jemalloc_that_stays_at_a_fork_is_no_hazard(tmp_path: Path) -> None:
    name = """
import os
for task in set(os.listdir("/proc/self/task")) - {os.readlink("/proc/self")}:
    with open(f"/proc/self/task/{task}/comm", "w") as comm:
        comm.write(NAME)
"""
    assert hazards_after(tmp_path, NATIVE_THREAD + name.replace("NAME", "'jemalloc_bg_thd'")) == []
    (hazard,) = hazards_after(tmp_path, NATIVE_THREAD + name.replace("NAME", "'feeder'"))
    assert hazard.detail == "a thread 'feeder' of a C library"


def test_threads_that_a_library_ends_before_a_fork_are_no_hazard(tmp_path: Path) -> None:
    handler = """
@ctypes.CFUNCTYPE(None)
def before_fork():
    libc.pthread_cancel(thread)
    libc.pthread_join(thread, None)
assert libc.__register_atfork(before_fork, None, None, None) == 0
"""
    assert hazards_after(tmp_path, NATIVE_THREAD + handler) == []


def test_open_mp_after_a_parallel_region_is_a_hazard(tmp_path: Path) -> None:
    library = ctypes.util.find_library("gomp")
    if library is None:
        pytest.skip("GNU OpenMP (libgomp) is not installed")
    hazards = hazards_after(
        tmp_path,
        f"import ctypes\nlibc = ctypes.CDLL(None)\nctypes.CDLL({library!r}).GOMP_parallel(libc.getpid, None, 3, 0)\n",
    )
    assert {each.kind for each in hazards} == {"native_thread"}
    assert "of GNU OpenMP (libgomp)" in hazards[0].detail


def test_open_blas_computes_rightly_in_a_fork(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    application = "import numpy\nmatrix = numpy.ones((300, 300))\nassert (matrix @ matrix)[0, 0] == 300\n"
    assert hazards_after(tmp_path, application) == []
    forked = (
        "\nimport os\npid = os.fork()\nassert (matrix @ matrix)[0, 0] == 300\n"
        "if not pid: os._exit(7)\nprint(os.wait()[1])"
    )
    assert output_of(tmp_path, application + forked).strip() == str(7 << 8)


def test_a_library_that_hangs_in_a_fork_is_a_hazard(tmp_path: Path) -> None:
    printed = output_of(
        tmp_path,
        "import os, threading\nfrom queue_core.worker.template.native_threads import trial_fork\n"
        "print(trial_fork())\nos.register_at_fork(after_in_child=threading.Event().wait)\n"
        "print(trial_fork(seconds=0.05).kind)\n",
    )
    assert printed.split() == ["None", "fork_handler"]


@pytest.mark.parametrize(
    ("threads", "loaded", "details"),
    [
        pytest.param([], ["PyTorch"], [], id="none"),
        pytest.param(
            [NativeThread("", "libgomp-24e2ab19.so.1.0.0")] * 3, [], ["3 threads of GNU OpenMP (libgomp)"], id="a file"
        ),
        pytest.param(
            [NativeThread("grpc_global_tim", ""), NativeThread("event_engine", "libc.so.6")],
            [],
            ["2 threads of gRPC"],
            id="names of threads",
        ),
        pytest.param(
            [NativeThread("", "")],
            ["PyTorch", "oneTBB"],
            ["a thread of a C library (perhaps of PyTorch or oneTBB)"],
            id="suspects",
        ),
        pytest.param([NativeThread("feeder", "")], [], ["a thread 'feeder' of a C library"], id="only a name"),
        pytest.param([NativeThread("", "libown.so.3")], ["PyTorch"], ["a thread of libown.so.3"], id="unknown library"),
    ],
)
def test_native_threads_are_told_by_their_library(
    threads: list[NativeThread], loaded: list[str], details: list[str]
) -> None:
    assert [each.detail for each in hazards_of(threads, loaded=loaded)] == details


@pytest.mark.parametrize(
    ("application", "kinds"),
    [
        pytest.param("import socket\na, b = socket.socketpair()", ["socket"], id="two ends of a pair"),
        pytest.param("import socket\na = socket.socket()", ["socket"], id="an unconnected socket"),
        pytest.param(
            "import socket\na = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)", ["socket"], id="netlink"
        ),
        pytest.param("import os\na = os.pipe()", ["pipe"], id="a pipe"),
        pytest.param("import os\nos.mkfifo('fifo'); a = os.open('fifo', os.O_RDWR)", ["pipe"], id="a named pipe"),
        pytest.param("import select\na = select.epoll()", ["kernel_object"], id="epoll"),
        pytest.param("import os\na = os.eventfd(0)", ["kernel_object"], id="eventfd"),
        pytest.param("import ctypes\na = ctypes.CDLL(None).inotify_init()", ["kernel_object"], id="inotify"),
        pytest.param("import os\na = os.memfd_create('cache')", ["memory_file"], id="a memory file"),
        pytest.param("import asyncio\na = asyncio.new_event_loop()", ["kernel_object", "socket"], id="an event loop"),
        pytest.param(
            "import sqlite3\na = sqlite3.connect('shop.db')\na.execute('create table a (b)')",
            ["database_file"],
            id="SQLite",
        ),
        pytest.param(
            "import sqlite3\na = sqlite3.connect('shop.db')\na.execute('pragma journal_mode = wal')\n"
            "a.execute('create table a (b)')",
            ["database_file"],
            id="SQLite with a log",
        ),
        pytest.param("import fcntl\na = open('lock', 'w'); fcntl.flock(a, fcntl.LOCK_EX)", ["lock"], id="flock"),
        pytest.param("import fcntl\na = open(__file__); fcntl.flock(a, fcntl.LOCK_SH)", ["lock"], id="a shared flock"),
        pytest.param("import fcntl\na = open('lock', 'w'); fcntl.lockf(a, fcntl.LOCK_EX)", ["lock"], id="a POSIX lock"),
        pytest.param(
            "import subprocess, sys\na = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)",
            ["child_process", "pipe"],
            id="a child",
        ),
        pytest.param(
            "import os, subprocess\na = subprocess.Popen(['false'])\n"
            "os.waitid(os.P_PID, a.pid, os.WEXITED | os.WNOWAIT)",
            ["child_process"],
            id="a child that has ended and was not waited for",
        ),
        pytest.param("import random\na = random.Random(7)", ["generator"], id="a generator"),
        pytest.param("import random\nclass A:\n    a = random.Random(7)", ["generator"], id="a generator of a class"),
        pytest.param("import random\na = {1: [random.Random(7)]}", ["generator"], id="a generator in a dict"),
        pytest.param("import random\ndef f(a=random.Random(7)): ...", ["generator"], id="a generator of a default"),
        pytest.param(
            "import random\ndef f():\n    a = random.Random(7)\n    return lambda: a.random()\nf = f()",
            ["generator"],
            id="a generator of a closure",
        ),
        pytest.param("import random\na = random.Random(); a.setstate(a.getstate())", ["generator"], id="a state"),
        pytest.param("import random, time\nrandom.seed(time.time())", ["generator"], id="a seed"),
        pytest.param("a = open('/dev/urandom', 'rb')", ["generator"], id="random numbers that are read ahead"),
        pytest.param("import random\na = random.uniform(0, 60)", ["identity"], id="a random number"),
        pytest.param("import random\na = random.Random().getrandbits(64)", ["identity"], id="an own random number"),
        pytest.param("import random\na = [1, 2]; random.Random().shuffle(a)", ["identity"], id="an order of its own"),
        pytest.param("import os\na = os.getrandom(8)", ["identity"], id="random bytes of the kernel"),
        pytest.param("import os\na = f'worker-{os.getpid()}'", ["identity"], id="the process id"),
        pytest.param(
            "import multiprocessing\na = multiprocessing.current_process().pid",
            ["identity"],
            id="the process id of multiprocessing",
        ),
        pytest.param(
            "import os\na = os.environb.get(b'TOWLINE_WORKER')", ["identity"], id="the worker's name, in bytes"
        ),
        pytest.param("from uuid import uuid4\na = str(uuid4())", ["identity"], id="a UUID"),
        pytest.param("import uuid\na = uuid.uuid1()", ["identity"], id="a UUID of the host"),
        pytest.param("import secrets\na = secrets.token_hex()", ["identity"], id="a token"),
        *(
            pytest.param(f"{each[1]}", ["identity"], id=each[0])
            for each in (
                ("the time", "import time\na = time.time()"),
                ("the time in nanoseconds", "import time\na = {'started': [time.time_ns()]}"),
                ("the time in milliseconds", "import time\na = int(time.time() * 1000)"),
                ("the monotonic clock", "import time\na = time.monotonic()"),
                ("the clock of a timer", "import time\na = time.perf_counter_ns()"),
                ("a datetime", "from datetime import datetime\na = datetime.now()"),
                ("a datetime with a zone", "from datetime import datetime, UTC\na = datetime.now(UTC)"),
                ("a text of the time", "import time\na = time.strftime('run-%Y%m%d-%H%M%S')"),
                ("a text with seconds", "import time\na = f'w-{int(time.time())}'"),
                ("an ISO text", "from datetime import datetime\na = datetime.now().isoformat()"),
                ("a counter from the time on", "import itertools, time\na = itertools.count(time.time_ns())"),
                ("the time in a class", "import time\nclass A:\n    at = time.time()"),
                ("the time in an instance", "import time\nclass A:\n    def __init__(s): s.at = time.time()\na = A()"),
                ("the time in slots", "import time\nclass A:\n    __slots__ = 'at'\na = A(); a.at = time.time()"),
                ("the time in a default", "import time\ndef f(at=time.time()): ..."),
                (
                    "the time in a closure",
                    "import time\ndef f():\n    at = time.time()\n    return lambda: at\nf = f()",
                ),
                ("a process of psutil", "import psutil\na = psutil.Process()"),
            )
        ),
        pytest.param("import tempfile\na = tempfile.mkdtemp()", ["identity"], id="a temporary folder that stays"),
        pytest.param("import os\na = os.environ.get('TOWLINE_WORKER')", ["identity"], id="the worker's name"),
        pytest.param("import tempfile\na = tempfile.TemporaryDirectory()", ["finalizer", "identity"], id="a folder"),
        pytest.param("import tempfile\na = tempfile.NamedTemporaryFile()", ["file", "finalizer"], id="a named file"),
        pytest.param("import tempfile\na = tempfile.TemporaryFile()", ["file"], id="a temporary file"),
        pytest.param("import atexit, shutil\natexit.register(shutil.rmtree, 'a')", ["finalizer"], id="a hook at exit"),
        pytest.param(
            "import os, weakref\nclass A: pass\na = A(); weakref.finalize(a, os.remove, 'a')",
            ["finalizer"],
            id="weakref.finalize",
        ),
        pytest.param(
            "class A:\n    def __del__(self): ...\nclass B:\n    held = [A()]",
            ["finalizer"],
            id="a finalizer in Python",
        ),
        pytest.param(
            "import multiprocessing.util\nmultiprocessing.util.Finalize(None, print, exitpriority=1)",
            ["finalizer"],
            id="a finalizer of multiprocessing",
        ),
        pytest.param(
            "import io\nclass A(io.RawIOBase):\n    def close(self): ...\na = A()",
            ["finalizer"],
            id="a file of its own",
        ),
        pytest.param("import shelve\na = shelve.open('a')", ["finalizer"], id="a shelf"),
        pytest.param(
            "def f():\n    try:\n        yield\n    finally:\n        print()\na = f(); next(a)",
            ["finalizer"],
            id="a suspended generator",
        ),
        pytest.param(
            "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield\na = f(); a.__enter__()",
            ["finalizer"],
            id="a context that was entered",
        ),
        pytest.param(
            "import types\n@types.coroutine\ndef f():\n    yield\nasync def g():\n    await f()\na = g(); a.send(None)",
            ["finalizer"],
            id="a suspended coroutine",
        ),
        pytest.param("import multiprocessing\na = multiprocessing.Lock()", ["shared_memory"], id="a lock of processes"),
        pytest.param("import multiprocessing\na = multiprocessing.Event()", ["shared_memory"], id="an event"),
        pytest.param("import multiprocessing\na = multiprocessing.Value('i')", ["shared_memory"], id="a value"),
        pytest.param("import multiprocessing\na = multiprocessing.RawArray('i', 3)", ["shared_memory"], id="an array"),
        pytest.param(
            "import multiprocessing\na = multiprocessing.Queue()",
            ["pipe", "shared_memory"],
            id="a queue of processes",
        ),
        pytest.param("import mmap\na = mmap.mmap(-1, 8)", ["shared_memory"], id="mmap"),
        pytest.param(
            "import mmap\nwith open('a', 'w+b') as f:\n    f.truncate(8); a = {'a': mmap.mmap(f.fileno(), 8)}",
            ["shared_memory"],
            id="mmap of a file",
        ),
        pytest.param("a = open('a', 'w')", ["file"], id="a file that is written"),
        pytest.param("open('a', 'w').close(); a = open('a', 'r+')", ["file"], id="a file that is changed"),
        pytest.param("import os\na = os.open('a', os.O_CREAT | os.O_WRONLY)", ["file"], id="a bare descriptor"),
        pytest.param("import gzip\na = gzip.open('a.gz', 'ab')", ["file"], id="a compressed file"),
        pytest.param("a = open('a', 'a', encoding='UTF_16')", ["file"], id="a text that begins with a mark"),
        pytest.param("a = open('/proc/self/statm')", ["file"], id="a file of the process"),
        pytest.param("import signal\nsignal.signal(signal.SIGALRM, print); signal.alarm(99)", ["timer"], id="a timer"),
        pytest.param("import os\nos.dup2(os.open('a', os.O_CREAT | os.O_APPEND), 2)", ["stream"], id="a stream"),
    ],
)
def test_an_import_that_leaves_something_open_has_a_hazard(tmp_path: Path, application: str, kinds: list[str]) -> None:
    hazards = hazards_after(tmp_path, application)
    assert sorted({each.kind for each in hazards}) == kinds
    assert all("on_start" in each.sentence for each in hazards)


LIBRARY = """
import base64, os, secrets, time, uuid
def made(): return uuid.uuid4()
def token(): return secrets.token_hex()
def url_token(): return secrets.token_urlsafe()
def ulid():
    number = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10))
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[number >> 5 * at & 31] for at in reversed(range(26)))
class Client:
    def __init__(self): self.started, self.id = time.time(), str(uuid.uuid4())
"""
WITH_LIBRARY = "import sys; sys.path.append('site-packages')\nimport library\n"


@pytest.mark.parametrize(
    "application",
    [
        "a = library.made()",
        "a = f'worker-{library.made()}'",
        "a = library.made().hex",
        "a = library.token()",
        "class A:\n    a = {'a': library.url_token()}",
        "a = library.ulid()",
        "a = vars(library.Client())",
    ],
)
def test_an_id_that_a_library_made_for_the_application_is_a_hazard(tmp_path: Path, application: str) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "library.py").write_text(LIBRARY)
    hazards = hazards_after(tmp_path, WITH_LIBRARY + application)
    assert {each.kind for each in hazards} == {"identity"}
    assert all("shop." in each.sentence for each in hazards)


def test_what_a_library_keeps_for_itself_is_none(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "library.py").write_text(LIBRARY)
    assert hazards_after(tmp_path, WITH_LIBRARY + "a = library.Client()") == []


def test_the_name_that_keeps_a_time_is_told(tmp_path: Path) -> None:
    (hazard,) = hazards_after(tmp_path, "import time\nSTARTED = time.time()")
    assert hazard.sentence == (
        "shop.STARTED keeps the time of the import, which would be the same in all forked workers: make it in "
        "@app.on_start, then workers can fork"
    )


def test_sockets_are_told_with_their_peers(tmp_path: Path) -> None:
    application = """
import socket
socket.setdefaulttimeout(5)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.setblocking(True)
local = socket.socket(socket.AF_UNIX)
local.bind("run"); local.listen()
near = socket.socket(socket.AF_UNIX)
near.connect("run")
print(server.getsockname()[1])
"""
    (tmp_path / "shop.py").write_text(application)
    port, found = output_of(tmp_path, PROGRAM).splitlines()
    assert sorted(detail for _, detail, _ in json.loads(found)) == [
        f"a connection to 127.0.0.1:{port}",
        "a connection to Unix socket run",
        f"a socket that listens at 127.0.0.1:{port}",
        "a socket that listens at Unix socket run",
    ]


def test_looking_at_sockets_and_databases_changes_nothing_of_them(tmp_path: Path) -> None:
    application = """
import os, socket, sqlite3
waiting, other = socket.socketpair()
socket.setdefaulttimeout(5)
database = sqlite3.connect("shop.db", isolation_level=None)
database.execute("create table a (b)")
database.execute("begin immediate")
"""
    check = """
from queue_core.worker.template.hazards import find_hazards
locks = lambda: [line for line in open("/proc/locks") if f" {os.getpid()} " in line]
before = os.get_blocking(waiting.fileno()), len(locks())
find_hazards(own_descriptors=())
print(before, before == (os.get_blocking(waiting.fileno()), len(locks())))
"""
    blocking, locks, same = output_of(tmp_path, application + check).split()
    assert (blocking, same) == ("(True,", "True")
    assert int(locks.rstrip(")")) > 0


@pytest.mark.parametrize(
    ("family", "address", "text"),
    [
        pytest.param(2, ("10.0.0.3", 5432), "PostgreSQL at 10.0.0.3:5432", id="a known port"),
        pytest.param(2, ("10.0.0.3", 4711), "10.0.0.3:4711", id="another port"),
        pytest.param(10, ("::1", 6379, 0, 0), "Redis at [::1]:6379", id="IPv6"),
        pytest.param(1, "/run/x", "Unix socket /run/x", id="Unix"),
        pytest.param(1, "/run/.s.PGSQL.5432", "PostgreSQL at Unix socket /run/.s.PGSQL.5432", id="PostgreSQL nearby"),
        pytest.param(1, b"\0name", "Unix socket @name", id="abstract"),
        pytest.param(1, "", "", id="unnamed"),
    ],
)
def test_an_address_is_told_with_its_service(family: int, address: object, text: str) -> None:
    assert address_text(family, address) == text


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        pytest.param("/dev/nvidia0", ["gpu"], id="CUDA"),
        pytest.param("/dev/kfd", ["gpu"], id="ROCm"),
        pytest.param("/dev/dri/renderD128", ["gpu"], id="DRI"),
        pytest.param("/dev/ttyUSB0", ["device"], id="serial"),
        pytest.param("/dev/pts/3", [], id="terminal"),
        pytest.param("/dev/null", [], id="null"),
    ],
)
def test_devices_are_hazards_but_for_the_common_ones(path: str, kinds: list[str]) -> None:
    assert [each.kind for each in hazards_of_descriptors([OpenDescriptor(path, stat.S_IFCHR)])] == kinds


def test_a_running_event_loop_is_a_hazard(tmp_path: Path) -> None:
    hazards = output_of(
        tmp_path,
        "import asyncio\nfrom queue_core.worker.template.hazards import find_hazards\n"
        "async def main():\n    print([each.kind for each in find_hazards(own_descriptors=())])\nasyncio.run(main())",
    )
    assert "event_loop" in hazards


def test_a_grpc_channel_is_a_hazard_and_its_import_is_not(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc") is None:
        pytest.skip("grpcio is not installed")
    assert hazards_after(tmp_path, "import grpc") == []
    hazards = hazards_after(tmp_path, "import grpc\nchannel = grpc.insecure_channel('127.0.0.1:1')")
    assert ("grpc", "a gRPC channel") in {(each.kind, each.detail) for each in hazards}
    assert "of gRPC" in " ".join(each.detail for each in hazards if each.kind == "native_thread")


def test_a_cuda_context_is_a_hazard_of_a_torch_that_is_loaded(tmp_path: Path) -> None:
    loaded = """
import sys, types
sys.modules["torch"] = torch = types.ModuleType("torch")
sys.modules["torch.cuda"] = torch.cuda = types.ModuleType("torch.cuda")
torch.cuda.is_initialized = lambda: {}
"""
    assert hazards_after(tmp_path, loaded.format(False)) == []
    assert [each.detail for each in hazards_after(tmp_path, loaded.format(True))] == ["a CUDA context"]


def test_the_generator_of_numpy_itself_is_no_hazard_and_another_is(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    assert hazards_after(tmp_path, "import numpy.random\nfrom numpy.random import mtrand\na = mtrand._rand") == []
    hazards = hazards_after(tmp_path, "import numpy\nchance = numpy.random.default_rng()")
    assert [each.detail for each in hazards if each.kind == "generator"] == ["shop.chance"]


@pytest.mark.parametrize(
    ("application", "detail"),
    [
        pytest.param("import mmap\nclass A:\n    a = [mmap.mmap(-1, 8)]", "shop.A (mmap.mmap)", id="memory"),
        pytest.param(
            "import multiprocessing\nlock = multiprocessing.Lock()",
            "shop.lock (multiprocessing.synchronize.Lock)",
            id="a lock",
        ),
        pytest.param(
            "class Desk:\n    def __del__(self): ...\ndesks = [Desk()]",
            "shop.Desk (shop.desks), with a finalizer",
            id="__del__",
        ),
        pytest.param("import atexit\natexit.register(print)", "print at exit, of shop.py:2", id="a hook at exit"),
    ],
)
def test_a_hazard_names_its_class_and_what_leads_to_it(tmp_path: Path, application: str, detail: str) -> None:
    (hazard,) = hazards_after(tmp_path, application)
    assert hazard.detail == detail


def test_a_socket_is_named_by_what_leads_to_it(tmp_path: Path) -> None:
    (hazard,) = hazards_after(tmp_path, "import socket\nclass Client:\n    own = socket.socket()\nclient = Client()")
    assert "an unconnected TCP socket is open (shop.Client) after the import" in hazard.sentence


def test_a_generator_is_told_by_the_module_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text("import random\nRANDOM = random.Random(7)\n")
    hazards = hazards_after(tmp_path, "from prices import RANDOM as chance\n")
    assert [each.detail for each in hazards] == ["prices.RANDOM"]


def test_looking_sets_up_no_lazy_object_and_no_lazy_module(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text("print('loaded')\n")
    application = """
import importlib.util, sys
class Settings:
    @property
    def __class__(self):
        print("set up")
        return int
settings = Settings()
spec = importlib.util.find_spec("later")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["later"] = later = importlib.util.module_from_spec(spec)
spec.loader.exec_module(later)
sys.modules["grpc._channel"] = channel = importlib.util.module_from_spec(importlib.util.find_spec("types"))
channel.Channel = type("Channel", (), {})
"""
    assert hazards_after(tmp_path, application) == []
    assert output_of(tmp_path, application + "later.__doc__, isinstance(settings, int)") == "loaded\nset up\n"


def test_the_start_of_threads_is_as_before_after_the_block() -> None:
    before = vars(threading.Thread)["start"]
    thread = threading.Thread(target=threading.Event().set)
    with pytest.raises(ZeroDivisionError), recorded_threads() as threads:
        assert vars(threading.Thread)["start"] is not before
        thread.start()
        raise ZeroDivisionError
    assert vars(threading.Thread)["start"] is before
    thread.join()
    assert threads.alive == {}
    assert str(threads.place_of(thread)).endswith("test_hazards.py:" + str(thread_line()))


def thread_line() -> int:
    """The line of `thread.start()` above."""
    return next(
        number
        for number, line in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if line.strip() == "thread.start()"
    )
