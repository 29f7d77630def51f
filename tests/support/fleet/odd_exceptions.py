"""Exceptions that a handler may raise and that are hard to read: their own code raises, hangs, recurses, or is huge.

Programs of real workers import this module too: it needs nothing of a test.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from queue_core.worker.context import Dead, Retry


class BrokenError(BaseException):
    """What code of an exception raises that is no `Exception`."""


def _with_property(name: str) -> type[BaseException]:
    def read(_self: object) -> object:
        raise BrokenError

    return type("PropertyError", (Exception,), {name: property(read)})


def _with_method(name: str, *, module: str = __name__) -> type[BaseException]:
    def call(*_: object, **__: object) -> object:
        raise BrokenError

    return type("MethodError", (Exception,), {name: call, "__module__": module})


class _HostileClass(type):
    """Reading anything of a class of this kind raises."""

    def __getattribute__(cls, name: str) -> object:
        raise BrokenError


def _hostile_class() -> BaseException:
    class HostileClassError(Exception, metaclass=_HostileClass):
        pass

    return HostileClassError("x")


class HostileText(str):
    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise BrokenError

    def __format__(self, _: str) -> str:
        raise BrokenError

    def __str__(self) -> str:
        raise BrokenError


class HostileTextError(Exception):
    def __str__(self) -> str:
        return HostileText("fine")


class HostileArgument:
    def __repr__(self) -> str:
        raise BrokenError


class HugeError(Exception):
    def __str__(self) -> str:
        return "x" * 5_000_000


class WrongTypeError(Exception):
    __str__ = cast("Callable[[BaseException], str]", lambda _: 7)


def _deep_chain() -> BaseException:
    error: BaseException = ValueError("the first")
    for number in range(5_000):
        after = ValueError(number)
        after.__cause__ = error
        error = after
    return error


def _deep_group() -> BaseException:
    error: Exception = _with_property("__cause__")()
    for _ in range(500):
        error = ExceptionGroup("group", [error, _with_method("__str__")()])
    return error


def _loop() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    return one


def _with_text(text: str) -> BaseException:
    kind = type("TextError", (Exception,), {"__module__": text, "__qualname__": text})
    return cast("type[BaseException]", kind)(text)


def _recursive(name: str, wrap: Callable[[Callable[..., object]], object] = lambda call: call) -> BaseException:
    def call(*arguments: object) -> object:
        return call(*arguments)

    return cast("type[BaseException]", type("RecursiveError", (Exception,), {name: wrap(call)}))()


def _that_fails_as_it_is_read() -> BaseException:
    """Each reading raises another one of this kind, with this one as its context."""

    def read(_self: object) -> str:
        raise FailingError

    class FailingError(Exception):
        __str__ = __repr__ = read

    return FailingError()


def _raised_at(filename: str) -> BaseException:
    """Of code whose file's name no store can keep."""
    code = compile("raise ValueError('of odd code')", "x", "exec").replace(co_filename=filename)
    try:
        exec(code, {})
    except ValueError as error:
        return error
    raise AssertionError


def _meant(kind: type[BaseException], **attributes: object) -> BaseException:
    """A `Retry` or `Dead` of a class that did not call `__init__`, or whose attributes were changed."""
    error = Exception.__new__(type("Meant", (kind,), {}))
    error.__dict__.update(attributes)
    return error


def _with_reduce() -> BaseException:
    def call(*_: object) -> object:
        raise BrokenError

    names = ("__reduce__", "__reduce_ex__", "__getstate__", "add_note", "with_traceback")
    return cast("type[BaseException]", type("ReduceError", (Exception,), dict.fromkeys(names, call)))("x")


class InitError(Exception):
    def __init__(self, first: str, *, second: str) -> None:
        """Its `args` don't make another one."""


HOSTILE: dict[str, Callable[[], BaseException]] = {
    **{
        f"property {name}": lambda name=name: _with_property(name)()  # type: ignore[misc]
        for name in (
            "errors",
            "args",
            "__notes__",
            "__cause__",
            "__context__",
            "__suppress_context__",
            "__traceback__",
            "__class__",
            "__dict__",
        )
    },
    **{
        f"method {name}": lambda name=name: _with_method(name)()  # type: ignore[misc]
        for name in ("__str__", "__repr__", "__getattribute__", "__getattr__", "__hash__", "__eq__", "__bool__")
    },
    "errors of pydantic's kind": _with_method("errors", module="pydantic.made_up"),
    "class": _hostile_class,
    "text": HostileTextError,
    "argument": lambda: ValueError(HostileArgument()),
    "huge": HugeError,
    "no text": WrongTypeError,
    "notes that are none": lambda: _noted(7),
    "notes of others": lambda: _noted([HostileText("a"), HostileArgument()]),
    "deep chain": _deep_chain,
    "deep group": _deep_group,
    "loop": _loop,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(7),
    "StopAsyncIteration": StopAsyncIteration,
    "BaseException": lambda: BrokenError("x"),
    "surrogates": lambda: _with_text("\udcff\ud800"),
    "zeros": lambda: _with_text("a\x00b"),
    "odd file": lambda: _raised_at("/tmp/\udcff\x00.py"),
    "huge file": lambda: _raised_at("/x" * 5_000 + ".py"),
    "recursive __str__": lambda: _recursive("__str__"),
    "recursive __repr__": lambda: _recursive("__repr__"),
    "recursive errors": lambda: _recursive("errors", property),
    "recursive __class__": lambda: _recursive("__class__", property),
    "recursive __getattribute__": lambda: _recursive("__getattribute__"),
    "raises itself": _that_fails_as_it_is_read,
    "__reduce__": _with_reduce,
    "__init__": lambda: InitError("a", second="b"),
    "group of hostile ones": lambda: BaseExceptionGroup("g", [_recursive("__str__"), HugeError(), _hostile_class()]),
    "Retry without delay": lambda: _meant(Retry),
    **{
        f"Retry of {delay!r:.20}": lambda delay=delay: _meant(Retry, delay_seconds=delay, charge="counted")  # type: ignore[misc]
        for delay in (None, "60", -1, 1e305, float("nan"), 10**400, [], HostileArgument)
    },
    "Retry of an odd charge": lambda: _meant(Retry, delay_seconds=0, charge="perhaps"),
    "Dead without reason": lambda: _meant(Dead),
    "base group": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), SystemExit(1)]),
}


def _noted(notes: object) -> BaseException:
    error = ValueError("noted")
    error.__dict__["__notes__"] = notes
    return error


ODD_REASONS: dict[str, Callable[[], object]] = {
    "number": lambda: 7,
    "none": lambda: None,
    "exception": lambda: ValueError("no image"),
    "hostile": HostileArgument,
    "hostile text": lambda: HostileText("no image"),
    "zeros": lambda: "a\x00b",
    "surrogates": lambda: "\ud800",
    "bytes": lambda: b"no image",
    "huge": lambda: "x" * 5_000_000,
}
"""Reasons of a `Dead` that are no text, or none that a store can keep."""


def dead_of(reason: str) -> BaseException:
    return Dead(cast("Any", ODD_REASONS[reason]()))


def raise_all(number: int) -> None:
    """Raise the exception of this number, of all there are."""
    if number < len(HOSTILE):
        raise [*HOSTILE.values()][number]()
    raise dead_of([*ODD_REASONS][number - len(HOSTILE)])


ALL: list[str] = [*HOSTILE, *(f"Dead of {reason}" for reason in ODD_REASONS)]
