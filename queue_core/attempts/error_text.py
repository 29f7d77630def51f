"""Reads exceptions: class, text and traceback. Properties and `__str__` are a user's code: it may raise, hang, be huge.

Nothing here raises, whatever the exception is, and nothing takes longer than `READ_SECONDS` for each text (ADR 102).
"""

import sys
import traceback
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from itertools import islice
from threading import Event
from types import TracebackType
from typing import Final, cast

from queue_core.fast_values import value

READ_SECONDS: Final = 2.0
"""Seconds that the text of one exception may take to make."""
MAX_HANGING: Final = 8
"""Threads in which a text is still being made, at most; beyond them only plain texts are read."""
MAX_RAW_CHARACTERS: Final = 20_000
"""Characters of an exception's own text that are read at most."""
MAX_CLASS_CHARACTERS: Final = 200
MAX_ERRORS: Final = 10
"""Errors of a chain of causes, or members of a group, that a traceback has at most."""
MAX_DEPTH: Final = 5
"""Groups within groups that a traceback has at most."""
MAX_NOTES: Final = 10

_PLAIN: Final = (str, int, float, bool, bytes, type(None))
_READ_BY_SLOT: Final = (BaseException.__dict__["__str__"], KeyError.__dict__["__str__"])
"""What makes the text of most exceptions, by their arguments alone."""
_CAUSE_LINE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT_LINE: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
_hanging: dict[type, Event] = {}
"""Classes whose text is being made still, in a thread that nobody waits for any more."""


@value
class ExceptionParts:
    """The parts that Python keeps with an exception, read past properties of its class."""

    traceback: TracebackType | None
    cause: BaseException | None
    context: BaseException | None
    members: tuple[BaseException, ...] = ()


@value
class TracebackPart:
    """A call, or what is around calls: of the user's code or of a library's; a call names file and function."""

    text: str
    filename: str = ""


def name_of(kind: type) -> str:
    """Return the name of an exception's class."""
    return _read(type, "__name__", kind)


def path_of(kind: type) -> str:
    """Return the path by which a class is imported, such as `shop.errors.PaymentError`."""
    module = _read(type, "__module__", kind)
    name = _read(type, "__qualname__", kind)
    return f"{module}.{name}"[:MAX_CLASS_CHARACTERS] if module else name


def parts_of(error: BaseException) -> ExceptionParts:
    """Return the traceback, cause, context and members of an exception."""
    cause = BaseException.__dict__["__cause__"].__get__(error)
    is_hidden = BaseException.__dict__["__suppress_context__"].__get__(error)
    context = None if cause is not None or is_hidden else BaseException.__dict__["__context__"].__get__(error)
    members: tuple[BaseException, ...] = ()
    if is_kind(error, BaseExceptionGroup):
        members = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
    return ExceptionParts(BaseException.__dict__["__traceback__"].__get__(error), cause, context, members)


def is_kind(error: BaseException, kind: type | tuple[type, ...]) -> bool:
    """Return whether an exception is of a class; unlike `isinstance` it does not read the exception's `__class__`."""
    return issubclass(type(error), kind)


def text_of(error: BaseException) -> str:
    """Return an exception's text, cut; pydantic's own quotes the input."""
    kind = type(error)
    if _is_plain(error):
        return _made(lambda: _own_text(error))
    return _made_in_time(kind, lambda: _errors_text(error) or _own_text(error))


def text_of_value(given: object) -> str:
    """Return a text that a user's code gave, cut; of another value what `str` makes of it, "" for None."""
    if given is None:
        return ""
    if issubclass(type(given), str):
        return str.__getitem__(cast("str", given), slice(MAX_RAW_CHARACTERS))
    if type(given) in _PLAIN:
        return _made(lambda: str(given))
    return _made_in_time(type(given), lambda: str(given))


def without_traceback(error: BaseException) -> None:
    """Take the tracebacks of an exception and its causes away, and with them what the variables of its calls hold."""
    seen = 0
    one: BaseException | None = error
    while one is not None and seen < MAX_ERRORS:
        links = parts_of(one)
        BaseException.__dict__["__traceback__"].__set__(one, None)
        one, seen = links.cause or links.context, seen + 1


def traceback_parts(error: BaseException, *, limit: int, depth: int = 0) -> list[TracebackPart]:
    """Return an exception's traceback as Python prints it: causes first, of each the innermost `limit` calls."""
    chain: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    one: BaseException | None = error
    line = ""
    while one is not None and id(one) not in seen and len(chain) < MAX_ERRORS:
        seen.add(id(one))
        chain.append((one, line))
        links = parts_of(one)
        line = _CAUSE_LINE if links.cause is not None else _CONTEXT_LINE
        one = links.cause or links.context
    parts: list[TracebackPart] = []
    for each, follows in reversed(chain):
        parts += _parts_of_one(each, limit=limit, depth=depth)
        if follows:
            parts.append(TracebackPart(follows))
    return parts


def _parts_of_one(error: BaseException, *, limit: int, depth: int) -> list[TracebackPart]:
    links = parts_of(error)
    parts: list[TracebackPart] = []
    if links.traceback is not None:
        parts.append(TracebackPart("Traceback (most recent call last):\n"))
        parts += _calls(links.traceback, limit=limit)
    parts.append(TracebackPart(_last_lines(error)))
    if depth < MAX_DEPTH:
        for number, member in enumerate(links.members[:MAX_ERRORS], start=1):
            parts.append(TracebackPart(f"  +---------------- {number} ----------------\n"))
            for part in traceback_parts(member, limit=limit, depth=depth + 1):
                lines = part.text.splitlines(keepends=True)
                parts.append(TracebackPart("".join(f"    | {line}" for line in lines), part.filename))
    return parts


def _calls(innermost: TracebackType, *, limit: int) -> list[TracebackPart]:
    try:
        frames = deque(traceback.walk_tb(innermost), maxlen=limit)
        summary = traceback.StackSummary.extract(iter(frames))
        files = [frame.filename for frame in summary]
        texts = summary.format()
    except BaseException as failed:  # noqa: BLE001  source lines are read by the module's own loader
        return [TracebackPart(f"  (its calls can't be shown: {name_of(type(failed))})\n")]
    if len(texts) != len(files):  # repeated calls are folded
        return [TracebackPart(text, _file_in(text)) for text in texts]
    return [TracebackPart(text, file) for text, file in zip(texts, files, strict=True)]


def _file_in(text: str) -> str:
    _, _, behind = text.partition('File "')
    return behind.partition('"')[0]


def _last_lines(error: BaseException) -> str:
    kind = type(error)
    module = _read(type, "__module__", kind)
    shown = name_of(kind) if module in ("builtins", "__main__") else path_of(kind)
    text = text_of(error)
    lines = f"{shown}: {text}\n" if text else f"{shown}\n"
    return lines + "".join(f"{note}\n" for note in _notes_of(error))


def _notes_of(error: BaseException) -> list[str]:
    try:
        kept = BaseException.__dict__["__dict__"].__get__(error).get("__notes__")
        notes = list(islice(kept, MAX_NOTES)) if type(kept) is list else []
    except BaseException:  # noqa: BLE001  as above
        return []
    return [note[:MAX_RAW_CHARACTERS] for note in notes if type(note) is str]


def _is_plain(error: BaseException) -> bool:
    """Return whether an exception's text is made without any code of a user's."""
    mro = type.__dict__["__mro__"].__get__(type(error))
    slot = next((each for kind in mro if (each := type.__dict__["__dict__"].__get__(kind).get("__str__"))), None)
    args = BaseException.__dict__["args"].__get__(error)
    return slot in _READ_BY_SLOT and all(type(arg) in _PLAIN for arg in args) and not _is_pydantic(type(error))


def _is_pydantic(kind: type) -> bool:
    return "pydantic" in sys.modules and _read(type, "__module__", kind).startswith("pydantic")


def _errors_text(error: BaseException) -> str:
    """Return the text of one of pydantic's errors without the input; "" for any other."""
    if not _is_pydantic(type(error)):
        return ""
    try:
        details = error.errors(include_url=False, include_context=False, include_input=False)  # type: ignore[attr-defined]
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in details)
    except BaseException:  # noqa: BLE001  its own text is read instead
        return ""


def _own_text(error: BaseException) -> str:
    if is_kind(error, BaseExceptionGroup):  # its text counts the members only
        return str(BaseExceptionGroup.__str__(cast("BaseExceptionGroup[BaseException]", error)))
    return str(error)


def _made(make: Callable[[], str]) -> str:
    try:
        return str.__getitem__(make(), slice(MAX_RAW_CHARACTERS))
    except BaseException as failed:  # noqa: BLE001  a user's `__str__`
        return f"(its text can't be made: {name_of(type(failed))})"


def _made_in_time(kind: type, make: Callable[[], str]) -> str:
    """Make a text in a thread of its own, and leave it after `READ_SECONDS`."""
    for each, ended in list(_hanging.items()):
        if ended.is_set():
            _hanging.pop(each, None)
    if kind in _hanging or len(_hanging) >= MAX_HANGING:
        return "(its text can't be made: an earlier one hangs)"
    made: list[str] = []
    begun, ended = Event(), Event()
    context = copy_context()

    def work() -> None:
        begun.set()
        try:
            made.append(context.run(_made, make))
        finally:
            ended.set()

    try:
        # `Thread.start` waits without a bound for a thread that has no memory to begin.
        start_new_thread(work, ())
        ended.wait(READ_SECONDS)
    except BaseException as failed:  # noqa: BLE001  no thread can be started, or there is no memory
        return f"(its text can't be made: {name_of(type(failed))})"
    if made:
        return made[0]
    if not begun.is_set() or ended.is_set():
        return "(its text can't be made: there is no memory)"
    _hanging[kind] = ended
    return f"(its text can't be made: it took longer than {READ_SECONDS:g} s)"


def _read(of: type, attribute: str, kind: type) -> str:
    """Return a text that a class has, past properties of its metaclass."""
    try:
        found = of.__dict__[attribute].__get__(kind)
    except BaseException:  # noqa: BLE001  no such text
        return ""
    return found[:MAX_CLASS_CHARACTERS] if type(found) is str else ""


def leaves_of(error: BaseException, *, most: int) -> Sequence[BaseException]:
    """Return the errors of a group, however deep, the first ones; an error that is no group by itself."""
    return tuple(islice(_leaves(error), most))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    below = [error]
    while below:
        one = below.pop()
        if members := parts_of(one).members:
            below += reversed(members)
        else:
            yield one
