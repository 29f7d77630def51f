"""Preparation before a fork and in the child, seen in real children."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_core.worker.template.preparation import reseed

ROOT = Path(__file__).resolve().parents[4]
CHILDREN = 40
DRAWS = """
import importlib, os, sys
from queue_core.worker.template.preparation import prepare_to_fork, reseed
module = importlib.import_module(sys.argv[1])
module.seed(7)
module.random()
prepare_to_fork()
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        if sys.argv[3] == "reseeded":
            reseed()
        os.write(1, f"{module.random()!r}\\n".encode())
        os._exit(0)
    os.waitpid(child, 0)
"""
MEMORY = """
import gc, os, sys
from queue_core.worker.template.preparation import prepare_to_fork
objects = [[number] for number in range(400_000)]
prepare_to_fork()
if sys.argv[1] == "unfrozen":
    gc.unfreeze()

def shared_bytes():
    lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return sizes["Shared_Clean"] + sizes["Shared_Dirty"]

child = os.fork()
if not child:
    before = shared_bytes()
    gc.collect()
    os.write(1, f"{shared_bytes() / before}".encode())
    os._exit(0)
os.waitpid(child, 0)
"""


def output_of(program: str, *arguments: str) -> str:
    """Run a program and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def draws(module: str, kind: str) -> list[str]:
    """The number that each of the children draws."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module.partition('.')[0]} is not installed")
    return output_of(DRAWS, module, str(CHILDREN), kind).split()


@pytest.mark.parametrize("module", ["random", "numpy.random"])
def test_reseeded_children_draw_numbers_of_their_own(module: str) -> None:
    assert len(set(draws(module, "reseeded"))) == CHILDREN


def test_numpy_draws_the_same_number_in_each_child_that_is_not_reseeded() -> None:
    numbers = draws("numpy.random", "forked")
    assert (len(numbers), len(set(numbers))) == (CHILDREN, 1)


def test_other_generators_get_entropy_of_their_own() -> None:
    given = iter(range(1, 100))
    seeds: list[bytes] = []
    reseed(entropy=lambda size: bytes([next(given)]) * size, others=[seeds.append, seeds.append])
    assert len(set(seeds)) == 2
    assert all(len(seed) == 8 for seed in seeds)


def test_a_collection_in_a_child_leaves_memory_shared() -> None:
    assert float(output_of(MEMORY, "frozen")) >= 0.75
    assert float(output_of(MEMORY, "unfrozen")) < 0.75


def test_what_was_printed_before_a_fork_is_printed_once() -> None:
    printed = output_of(
        "import os, sys\nfrom queue_core.worker.template.preparation import prepare_to_fork\n"
        "print('before')\nprepare_to_fork()\nchild = os.fork()\nif child: os.waitpid(child, 0)\n"
    )
    assert printed == "before\n"


def test_a_prepared_process_has_the_codecs_of_a_first_connection() -> None:
    printed = output_of(
        "import sys\nfrom queue_core.worker.template.preparation import prepare_to_fork\n"
        "before = 'encodings.idna' in sys.modules\nprepare_to_fork()\nprint(before, 'encodings.idna' in sys.modules)"
    )
    assert printed == "False True\n"


def test_a_process_without_streams_can_be_prepared() -> None:
    output_of(
        "import sys\nfrom queue_core.worker.template.preparation import prepare_to_fork\n"
        "sys.stdout.close()\nsys.stderr = None\nprepare_to_fork()"
    )
