"""A fork changes nothing that a program means: each program leaves the same behind, executed and forked."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support.fleet.both_ways import BothWays


@dataclass(frozen=True, slots=True)
class Program:
    """An application: its module's lines, and what its handler does with task number `n`."""

    top: str
    body: str = "note(n)"
    needs: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


SAME: Final = {
    "a file that is appended to": Program('log = open("audit.csv", "a")', 'log.write(f"{n}\\n")'),
    "a file with lines of the import in its buffer": Program(
        'log = open("audit.csv", "a")\nlog.write("begun\\n")', 'log.write(f"{n}\\n")'
    ),
    "a binary file that is appended to": Program('log = open("audit.bin", "ab")', "log.write(b'%d;' % n)"),
    "a file of a class": Program('class Audit:\n    log = open("audit.csv", "a")', 'Audit.log.write(f"{n}\\n")'),
    "a file of a default": Program('def audit(n, log=open("audit.csv", "a")):\n    log.write(f"{n}\\n")', "audit(n)"),
    "a file that a handler opens for its module": Program(
        "log = None", 'global log\nlog = log or open("audit.csv", "a")\nlog.write(f"{n}\\n")'
    ),
    "a file that a handler opens for a class": Program(
        "class Audit:\n    log = None",
        'Audit.log = Audit.log or open("audit.csv", "a")\nAudit.log.write(f"{n}\\n")',
    ),
    "a file that a thread still knows at the end": Program(
        'import threading\nlog = open("audit.csv", "a")\ndef stay():\n    threading.Event().wait()',
        'threading.Thread(target=stay, daemon=True).start()\nlog.write(f"{n}\\n")',
    ),
    "a compressed file of a handler": Program(
        "import gzip\nlog = None",
        'global log\nlog = log or gzip.GzipFile("audit.gz", "ab", mtime=0)\nlog.write(b"%d;" % n)',
    ),
    "a file that is read line by line": Program(
        'words = open("words")', "note(words.readline().strip())", files={"words": "one\ntwo\nthree\nfour\n"}
    ),
    "a file that was read in part": Program(
        'words = open("words", "rb", buffering=0)\nwords.read(3)',
        "note(words.tell(), words.read(3))",
        files={"words": "onetwothreefour"},
    ),
    "a log": Program(
        'import logging\nlogging.basicConfig(filename="app.log", format="%(message)s")', 'logging.warning("task %s", n)'
    ),
    "a log that is written at the end": Program(
        "import logging.handlers\n"
        'log = logging.getLogger("shop")\n'
        'log.addHandler(logging.handlers.MemoryHandler(100, target=logging.FileHandler("app.log")))',
        'log.error("task %s", n)',
    ),
    "standard output in a file": Program('import sys\nsys.stdout = open("out", "a")', "print(n)"),
    "a temporary folder of a handler": Program(
        "import os, tempfile\nfolder = None",
        'global folder\nfolder = folder or tempfile.TemporaryDirectory(dir=".")\nnote(os.path.isdir(folder.name))',
    ),
    "a finalizer of a handler": Program(
        "import weakref\nclass Lease: pass\nheld = []",
        'held.append(Lease())\nweakref.finalize(held[-1], note, "ended", n)',
    ),
    "a finalizer in Python of a handler": Program(
        'import os\nended = os.open("ended", os.O_CREAT | os.O_APPEND | os.O_WRONLY)\n'
        "class Lease:\n    def __del__(self, write=os.write, ended=ended): write(ended, b'x')\n"
        "class Desk:\n    held = []",
        "Desk.held.append(Lease())",
    ),
    "a hook at exit of a handler": Program("import atexit", 'atexit.register(note, "ended", n)'),
    "a generator that a handler suspends": Program(
        'import os\nended = os.open("ended", os.O_CREAT | os.O_APPEND | os.O_WRONLY)\n'
        "def lease(write=os.write, ended=ended):\n    try:\n        yield\n    finally:\n        write(ended, b'x')\n"
        "class Desk:\n    held = []",
        "Desk.held.append(lease())\nnext(Desk.held[-1])",
    ),
    "counters": Program("import itertools\nids = itertools.count(); next(ids)", "note(next(ids))"),
    "a cache": Program(
        "import functools\ncalls = []\n"
        "@functools.lru_cache\ndef squared(n):\n    calls.append(n)\n    return n * n\nsquared(1)",
        "squared(1)\nnote(squared(n), len(calls))",
    ),
    "locks and queues of threads": Program(
        "import queue, threading\n"
        "lock, again, changed, ahead = threading.Lock(), threading.RLock(), threading.Condition(), queue.Queue()\n"
        "ahead.put('begun')",
        "with lock, again, changed:\n    ahead.put(n)\n    note(ahead.get())",
    ),
    "a database in memory": Program(
        'import sqlite3\nrows = sqlite3.connect(":memory:", check_same_thread=False)\n'
        'rows.execute("create table a (b)")',
        'rows.execute("insert into a values (?)", (n,))\nnote(rows.execute("select count(*) from a").fetchone()[0])',
    ),
    "another working directory": Program(
        'import os\nos.makedirs("data", exist_ok=True); os.chdir("data")', 'open("file", "a").write("x")'
    ),
    "a variable of the environment": Program(
        'import os\nos.environ["REGION"] = "eu"; os.environ.setdefault("STAGE", "test")',
        'note(os.environ["REGION"], os.environ["STAGE"])',
    ),
    "a mask of new files": Program(
        "import os\nos.umask(0o077)", 'open(f"file{n}", "w").close()\nnote(oct(os.stat(f"file{n}").st_mode))'
    ),
    "a signal handler": Program(
        "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: note('signalled'))",
        "os.kill(os.getpid(), signal.SIGUSR1)",
    ),
    "a blocked signal": Program(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})",
        "note(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))",
    ),
    "what a library of C prints": Program(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "out = libc.fopen\nout.restype = ctypes.c_void_p\nout = out(b'out', b'a')",
        "libc.fputs(b'x', ctypes.c_void_p(out))",
    ),
    "variables of a context and of a thread": Program(
        "import contextvars, threading\nregion = contextvars.ContextVar('region')\nregion.set('eu')\n"
        "local = threading.local()\nlocal.stage = 'test'",
        "note(region.get('none'), getattr(local, 'stage', 'none'))",
    ),
    "a folder that is read entry by entry": Program(
        "import os\nos.makedirs('many', exist_ok=True)\n"
        "for n in range(3000): open(f'many/{n}', 'w').close()\n"
        "entries = os.scandir('many'); next(entries)",
        "note(sum(1 for _ in entries))",
    ),
    "a member of an archive that was read in part": Program(
        "import zipfile\nwith zipfile.ZipFile('a.zip', 'a') as archive:\n"
        "    if not archive.namelist(): archive.writestr(zipfile.ZipInfo('words'), 'onetwothree')\n"
        "words = zipfile.ZipFile('a.zip').open('words'); words.read(3)",
        "note(words.read(3))",
    ),
    "rows of a table that were read in part": Program(
        "import csv\nrows = csv.reader(open('rows')); next(rows)",
        "note(next(rows))",
        files={"rows": "a,b\n1,2\n3,4\n5,6\n"},
    ),
    "a log that rotates": Program(
        "import logging.handlers\nlog = logging.getLogger('shop')\n"
        "log.addHandler(logging.handlers.RotatingFileHandler('app.log', maxBytes=9, backupCount=9))",
        "log.error('task %s', n)",
    ),
    "a compressor that has begun": Program(
        "import zlib\nlog, zipped = open('words.z', 'ab'), zlib.compressobj()\nlog.write(zipped.compress(b'begun'))",
        "log.write(zipped.compress(b'%d' % n) + zipped.flush(zlib.Z_SYNC_FLUSH))",
    ),
    "things to do at the end of a stack that nobody ends": Program(
        "import contextlib\nends = contextlib.ExitStack()\nends.callback(note, 'ended')", "note(n)"
    ),
    "a stack that a hook of a handler ends": Program(
        "import atexit, contextlib\nends = None",
        "global ends\nif ends is None:\n    ends = contextlib.ExitStack()\n    atexit.register(ends.close)\n"
        "ends.callback(note, 'ended', n)",
    ),
    "a call when a thing is gone": Program(
        "import weakref\nclass Desk: pass\ndesk = Desk()\n"
        "gone = weakref.ref(desk, lambda _, write=note: write('gone'))",
        "global desk\ndesk = None\nnote(n)",
    ),
    "a lock that the import holds": Program(
        "import threading\nlock = threading.RLock(); lock.acquire()",
        "with lock: note(lock.acquire(blocking=False))",
    ),
    "a lock of tasks of an event loop": Program(
        "import asyncio\nlock = asyncio.Lock()\nasync def locked(n):\n    async with lock: return n",
        "note(asyncio.run(locked(n)))",
    ),
    "a database in memory that connections share": Program(
        "import sqlite3\nopened = lambda: sqlite3.connect('file:shop?mode=memory&cache=shared', uri=True,"
        " check_same_thread=False)\nrows = opened()\nrows.execute('create table a (b)')",
        "other = opened()\nother.execute('insert into a values (?)', (n,)); other.commit()\n"
        "note(other.execute('select count(*) from a').fetchone()[0])",
    ),
    "a queue, a child and shared memory of a handler": Program(
        "import multiprocessing\nfrom multiprocessing import shared_memory\nheld = []",
        "ahead = multiprocessing.get_context('fork').Queue()\n"
        "child = multiprocessing.get_context('fork').Process(target=ahead.put, args=(n,))\n"
        "child.start()\nnote(ahead.get())\nchild.join()\nnote(child.exitcode)\n"
        "held.append(shared_memory.SharedMemory(create=True, size=8))\nnote(len(held))",
    ),
    "a shelf of a handler": Program(
        "import dbm.dumb, shelve\nshelf = None",
        "global shelf\nif shelf is None: shelf = shelve.Shelf(dbm.dumb.open('shelf', 'c'))\nshelf[str(n)] = n",
    ),
    "an event loop of a handler": Program(
        "import asyncio\nloop = None",
        "global loop\nloop = loop or asyncio.new_event_loop()\nnote(loop.run_until_complete(asyncio.sleep(0, n)))",
    ),
    "an exit code of its own": Program("import os", "if n == 1: os._exit(3)\nnote(n)"),
    "a pool of threads that has none yet": Program(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)",
        "note(pool.submit(abs, -n).result())",
    ),
}
"""Programs that fork, and leave the same."""
RANDOM: Final = {
    "a generator of a class, an instance, a default, a dict and a closure": Program(
        "import random\n"
        "class Sampler:\n    shared = random.Random()\n    def __init__(self): self.own = random.Random()\n"
        "sampler, named = Sampler(), {'orders': random.Random()}\n"
        "def jitter(rng=random.Random()): return rng.random()\n"
        "def made():\n    rng = random.Random()\n    return lambda: rng.random()\n"
        "draw = made()",
        "note(Sampler.shared.random())\nnote(sampler.own.random())\nnote(jitter())\n"
        "note(named['orders'].getrandbits(128))\nnote(draw())",
    ),
    "a generator of a field": Program(
        "import dataclasses, random\n@dataclasses.dataclass\nclass Sampler:\n"
        "    rng: random.Random = dataclasses.field(default_factory=random.Random)\nsampler = Sampler()",
        "note(sampler.rng.random())",
    ),
    "a generator that repeats itself on purpose": Program(
        "import random", "rng = random.Random(7)\nnote(rng.random())\nnote(rng.random())"
    ),
    "the functions of random, uuid and secrets": Program(
        "import random, secrets, uuid", "note(random.random())\nnote(uuid.uuid4())\nnote(secrets.token_hex())"
    ),
    "the functions of numpy.random": Program(
        "import numpy", "note(numpy.random.rand())\nnote(numpy.random.default_rng().random())", needs="numpy"
    ),
    "temporary files of handlers": Program("import tempfile\ntempfile.gettempdir()", "note(tempfile.mkdtemp(dir='.'))"),
}
"""Programs that fork, and whose lines are as different from each other."""


def both_ways(folder: Path, program: Program) -> BothWays:
    if program.needs and importlib.util.find_spec(program.needs) is None:
        pytest.skip(f"{program.needs} is not installed")
    return BothWays(folder, program.top, program.body, program.files)


@pytest.mark.parametrize("name", SAME)
def test_a_forked_worker_leaves_what_an_executed_one_leaves(tmp_path: Path, name: str) -> None:
    ways = both_ways(tmp_path, SAME[name])
    executed, forked = ways.executed(), ways.forked()
    assert executed.files
    assert forked == executed


@pytest.mark.parametrize("name", RANDOM)
def test_forked_workers_draw_numbers_as_different_as_those_of_executed_ones(tmp_path: Path, name: str) -> None:
    ways = both_ways(tmp_path, RANDOM[name])
    executed, forked = ways.executed(), ways.forked()
    assert (forked.codes, forked.tasks_left) == (executed.codes, executed.tasks_left) == ((0, 0), 0)
    assert forked.repeats["notes"] == executed.repeats["notes"]


@pytest.mark.parametrize("way", ["executed", "forked"])
def test_a_worker_that_recycles_itself_writes_all_lines_of_its_files(tmp_path: Path, way: str) -> None:
    """Each of its children ends with a buffer of its own."""
    ways = both_ways(tmp_path, Program('log = open("audit.csv", "a")', 'log.write(f"{n}\\n")'))
    left = ways.recycled(forked=way == "forked")
    assert left.tasks_left == 0
    assert sorted(left.files["audit.csv"].split()) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("way", ["executed", "forked"])
def test_a_request_to_stop_does_not_cut_a_worker_short_that_ends_by_itself(tmp_path: Path, way: str) -> None:
    program = Program(
        'import atexit, os, signal\nlog = open("audit.csv", "a")',
        'log.write(f"{n}\\n")\natexit.register(lambda: n % 2 or os.kill(os.getpid(), signal.SIGTERM))',
    )
    ways = both_ways(tmp_path, program)
    left = ways.executed() if way == "executed" else ways.forked()
    assert left.codes == (0, 0)
    assert left.files["audit.csv"].split() == [b"0", b"1", b"2", b"3"]


def test_each_child_of_a_forked_worker_draws_numbers_of_its_own(tmp_path: Path) -> None:
    ways = both_ways(tmp_path, Program("import random\nrng = random.Random()", "note(rng.random())"))
    assert ways.recycled(forked=True).repeats["notes"] == [1, 1, 1, 1]


def test_what_a_template_does_at_its_end_is_not_done_by_a_worker_that_has_to_fork(tmp_path: Path) -> None:
    """With `start: fork`: the import's hooks and finalizers belong to all workers."""
    ways = both_ways(
        tmp_path,
        Program(
            "import atexit, os, tempfile, weakref\n"
            "class Desk:\n"
            "    def __del__(self, note=note): note('deleted')\n"
            "folder = tempfile.TemporaryDirectory(dir='.')\ndesk = Desk()\n"
            "atexit.register(note, 'hook')\nweakref.finalize(desk, note, 'finalized')",
            "note(os.path.isdir(folder.name))",
        ),
    )
    left = ways.forked(state="unsafe")
    assert left.files["notes"].split() == [b"True"] * 4
    assert left.codes == (0, 0)
