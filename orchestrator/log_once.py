"""A failure that lasts is told once, and so is its end: a log that repeats itself every second hides what is new."""


class LogOnce:
    """What went wrong last with one thing that is tried again and again."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[object, ...] | None = None

    def is_new(self, error: BaseException) -> bool:
        """Whether this is another failure than the one before. What the kernel refuses counts by its number."""
        found = (type(error), error.errno if isinstance(error, OSError) and error.errno else str(error))
        before, self._known = self._known, found
        return found != before

    def recovers(self) -> bool:
        """It went well now; whether it had gone wrong before."""
        had_failed, self._known = self._known is not None, None
        return had_failed
