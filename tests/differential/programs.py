"""Random programs: a seed always gives the same program. Pure."""

from collections.abc import Callable, Sequence
from random import Random

from tests.differential.operations import (
    BOUNDED,
    PLAIN,
    UNKNOWN,
    Add,
    Delete,
    Eta,
    Given,
    LeaseCall,
    Modify,
    NewOne,
    Pass,
    PassTo,
    Pause,
    Picked,
    Program,
    Purge,
    RetryParameters,
    Stats,
    Step,
    Which,
)

SECOND = 1_000_000
DAY = 86_400 * SECOND
NAMES = (b"task-0", b"task-1", b"task-2", b"task-3", b"task-4", b"task-5", b"A", b"z_9", b"-", b"0", b"n" * 500)
WRONG_NAMES = (b"with space", b"dot.", b"n" * 501, b"line\n", "grün".encode(), b"_7")
TAGS = (b"red", b"blue", "grün".encode(), b"red ", b"t" * 500)
WRONG_TAGS = (b"\xff\xfe", b"t" * 501, b"nul\x00")
BODIES = (b"", b"x", b"\x00\xff", "käse".encode(), b"0123456789" * 50)
TOO_LARGE = b"x" * ((1 << 20) + 1)
WEEK_SECONDS = 604_800.0
LEASES = (0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 10.0, 60.0, 3600.0, WEEK_SECONDS, 0.001, 0.0000016, 1.2345675)
WRONG_LEASES = (-1.0, -0.5, WEEK_SECONDS + 0.001, 1e9, float("nan"), float("inf"))


def a_program(seed: int, steps: int) -> Program:
    """Return the program of a seed."""
    random = Random(seed)
    weighted: Sequence[tuple[Callable[[Random], Step], float]] = (
        (_add, 22),
        (_lease, 28),
        (_modify, 16),
        (_delete, 11),
        (_stats, 8),
        (_pass, 8),
        (_pass_to, 6),
        (_purge, 0.6),
        (_pause, 1.5),
    )
    makers, weights = zip(*weighted, strict=True)
    return tuple(maker(random) for maker in random.choices(makers, weights, k=steps))


def _queue(random: Random) -> str:
    draw = random.random()
    if draw < 0.03:
        return random.choice((UNKNOWN, UNKNOWN, "no_such name", ""))
    return PLAIN if draw < 0.6 else BOUNDED


def _which(random: Random) -> Which:
    draw = random.random()
    if draw < 0.5:
        return Picked("leased", random.random())
    if draw < 0.7:
        return Picked("live", random.random())
    if draw < 0.85:
        return Picked("ever", random.random())
    return Given(random.choice((*NAMES, b"never-added", b"_987654321", b"")))


def _eta(random: Random) -> Eta:
    draw = random.random()
    if draw < 0.4:
        return Eta("now", 0)
    if draw < 0.6:
        return Eta("now", -random.choice((1, 1000, 5 * SECOND, 3600 * SECOND)))
    if draw < 0.68:
        return Eta("epoch", random.choice((0, 15 * SECOND)))
    if draw < 0.97:
        return Eta("now", random.choice((1, SECOND, 5 * SECOND, 10 * SECOND, 60 * SECOND, DAY, 30 * DAY)))
    return random.choice((Eta("now", 30 * DAY + 1), Eta("epoch", -1), Eta("epoch", (1 << 63) - 1)))


def _new_one(random: Random) -> NewOne:
    draw = random.random()
    name: Which | None = None
    if draw < 0.45:
        name = Given(random.choice(NAMES))
    elif draw < 0.47:
        name = Given(random.choice(WRONG_NAMES))
    elif draw < 0.5:
        name = Picked("ever", random.random())
    tag: bytes | None = random.choice((None, *TAGS[:3]))
    draw = random.random()
    if draw < 0.05:
        tag = random.choice((b"", *TAGS))
    elif draw < 0.06:
        tag = random.choice(WRONG_TAGS)
    body: bytes | None = random.choice(BODIES)
    draw = random.random()
    if draw < 0.01:
        body = None
    elif draw < 0.012:
        body = TOO_LARGE
    retry = None
    if random.random() < 0.15:
        limit = random.choice((None, None, 1, 2, 3, 0 if random.random() < 0.2 else 3))
        retry = RetryParameters(limit, random.choice((None, 0, 3600)))
    mode = random.random()
    queue = random.random()
    return NewOne(
        name,
        tag,
        _eta(random),
        body,
        "push" if mode < 0.004 else "pull",
        retry,
        random.choice((PLAIN, BOUNDED, UNKNOWN, "")) if queue < 0.01 else None,
    )


def _add(random: Random) -> Step:
    draw = random.random()
    count = random.choice((1, 1, 1, 2, 3, 5))
    if draw < 0.004:
        count = 101
    elif draw < 0.03:
        count = 40
    queue = _queue(random)
    if count > 5:
        tag = random.choice((None, *TAGS[:3]))
        return Add(queue, tuple(NewOne(None, tag, Eta("now", 0), b"%d" % number) for number in range(count)))
    return Add(queue, tuple(_new_one(random) for _ in range(count)))


def _lease(random: Random) -> Step:
    draw = random.random()
    seconds = random.choice(WRONG_LEASES) if draw < 0.03 else random.choice(LEASES)
    draw = random.random()
    count = random.choice((1, 1, 2, 3, 5, 10, 35, 1000))
    if draw < 0.03:
        count = random.choice((0, -1, 1001, 1 << 40))
    draw = random.random()
    if draw < 0.4:
        return LeaseCall(_queue(random), seconds, count, by_tag=False, tag=None)
    if draw < 0.65:
        return LeaseCall(_queue(random), seconds, count, by_tag=True, tag=random.choice((None, None, b"")))
    if draw < 0.96:
        return LeaseCall(_queue(random), seconds, count, by_tag=True, tag=random.choice(TAGS[:4]))
    if draw < 0.98:
        return LeaseCall(_queue(random), seconds, count, by_tag=True, tag=random.choice(WRONG_TAGS))
    return LeaseCall(_queue(random), seconds, count, by_tag=False, tag=random.choice((b"red", b"")))


def _modify(random: Random) -> Step:
    eta = random.choices(("own", "stale", "foreign", "beside"), (70, 14, 8, 8))[0]
    seconds = random.choice(WRONG_LEASES) if random.random() < 0.05 else random.choice(LEASES)
    return Modify(_queue(random), _which(random), eta, seconds)


def _delete(random: Random) -> Step:
    count = random.choice((0, 1, 1, 1, 2, 4))
    return Delete(_queue(random), tuple(_which(random) for _ in range(count)))


def _purge(random: Random) -> Step:
    return Purge(_queue(random))


def _pause(random: Random) -> Step:
    return Pause(_queue(random), random.random() < 0.12)


def _stats(random: Random) -> Step:
    known = (PLAIN, BOUNDED)
    return Stats(random.choice((known, (PLAIN,), (BOUNDED,), (*known, UNKNOWN, "no_such name"), ())))


def _pass(random: Random) -> Step:
    draw = random.random()
    if draw < 0.1:
        return Pass(random.choice((DAY, 9 * DAY, 10 * DAY)))
    return Pass(random.choice((1, 1000, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 61 * SECOND, 3600 * SECOND)))


def _pass_to(random: Random) -> Step:
    return PassTo(random.choice((PLAIN, BOUNDED)), random.choice((-1, 0, 0, 1)))
