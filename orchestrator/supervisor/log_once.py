"""Log a lasting failure once, and its end once: a log that repeats itself every second hides what is new."""


class LogOnce:
    """The last failure of one operation that is repeated every turn."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[object, ...] | None = None

    def is_new(self, error: BaseException) -> bool:
        """Record a failure; return whether it differs from the one before. An `OSError` is compared by its errno."""
        found = (type(error), error.errno if isinstance(error, OSError) and error.errno else str(error))
        before, self._known = self._known, found
        return found != before

    def recovers(self) -> bool:
        """Record a success; return whether the operation had failed before."""
        had_failed, self._known = self._known is not None, None
        return had_failed
