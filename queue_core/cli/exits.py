"""The exit codes of all commands and their meanings; the numbers are those of sysexits.h where it has one."""

from typing import Final

OK: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
BAD_DATA: Final = 65
NO_INPUT: Final = 66
UNAVAILABLE: Final = 69
INTERNAL: Final = 70
CANT_CREATE: Final = 73
OUTPUT_CUT: Final = 74
TRY_AGAIN: Final = 75
NO_PERMISSION: Final = 77
BAD_CONFIG: Final = 78
INTERRUPTED: Final = 130

MEANINGS: Final = (
    (OK, "done"),
    (NEGATIVE, "done, and the answer is no: a problem was found, nothing was leased, ..."),
    (USAGE, "the command line is wrong"),
    (BAD_DATA, "a value is out of range: a name, a payload, a lease time"),
    (NO_INPUT, "a file is missing, or the named queue or task does not exist"),
    (UNAVAILABLE, "the server or the store does not answer, is full, or is not a queue"),
    (INTERNAL, "a bug in Towline: please report it"),
    (CANT_CREATE, "a file or a socket can't be created, or exists already"),
    (OUTPUT_CUT, "stdout was cut; the change in progress was finished, and stderr says what was done"),
    (TRY_AGAIN, "not now: a lease is lost, or another supervisor leads"),
    (NO_PERMISSION, "not allowed: a token's role, or a file's mode"),
    (BAD_CONFIG, "the settings are wrong; every error is listed"),
    (INTERRUPTED, "interrupted"),
)
