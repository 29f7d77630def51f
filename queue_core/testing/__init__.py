"""Public: runs an app's handlers inside a test, with a store in memory and a manual clock: no process, no network.

The names are imported when they are first used: pytest loads this package for its plugin in every run.
"""

TYPE_CHECKING = False  # type checkers assume it is true; importing `typing` would cost start time

if TYPE_CHECKING:
    from queue_core.testing.run import ManualClock, MemoryQueues, NotEmptyError, TaskOutcome, run_until_empty
else:

    def __getattr__(name):
        if name in __all__:
            from queue_core.testing import run

            found = globals()[name] = getattr(run, name)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = ["ManualClock", "MemoryQueues", "NotEmptyError", "TaskOutcome", "run_until_empty"]
