"""The shortest part of a program that still shows a difference. Pure."""

from collections.abc import Callable

from tests.differential.steps import Program

MAX_TRIES = 2000


def shrunk(program: Program, differs: Callable[[Program], bool]) -> Program:
    """Leave out what can be left out: halves first, single steps in the end.

    Args:
        program: one that differs.
        differs: runs a program; called 2000 times at most.
    """
    tries = 0
    size = max(1, len(program) // 2)
    while True:
        begin = 0
        is_shorter = False
        while begin < len(program):
            shorter = program[:begin] + program[begin + size :]
            tries += 1
            if tries > MAX_TRIES:
                return program
            if shorter and differs(shorter):
                program = shorter
                is_shorter = True
            else:
                begin += size
        if size == 1 and not is_shorter:
            return program
        size = size if is_shorter else max(1, size // 2)
