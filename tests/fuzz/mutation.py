"""Bytes that were right, and what may happen to them. Pure: chance comes from outside."""

from collections.abc import Sequence
from random import Random

CHANGES = (1, 1, 1, 2, 4)
MAX_RUN = 12
STRIKING = (0, 1, 2, 7, 8, 0x0B, 0x0C, 0x7F, 0x80, 0xFE, 0xFF)
"""Bytes at which lengths, numbers and groups turn into other ones."""


def mutated(data: bytes, others: Sequence[bytes], chance: Random) -> bytes:
    """`data` after a few changes; pieces of `others` may come in."""
    changed = bytearray(data)
    for _ in range(chance.choice(CHANGES)):
        at = chance.randint(0, len(changed))
        run = chance.randint(1, MAX_RUN)
        match chance.randrange(8):
            case 0:
                changed[at : at + 1] = bytes((chance.choice(STRIKING),))
            case 1 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                del changed[at : at + run]
            case 3:
                changed[at:at] = chance.randbytes(run)
            case 4:
                changed[at:at] = changed[at : at + run] * chance.randint(1, MAX_RUN)
            case 5:
                other = chance.choice(others)
                start = chance.randint(0, len(other))
                changed[at : at + run] = other[start : start + chance.randint(0, 40)]
            case 6:
                del changed[at:]
            case _:
                changed[at:at] = bytes((chance.choice(STRIKING),)) * run
    return bytes(changed)
