"""Several callers in one history: each gets call numbers of its own."""

from dataclasses import replace

from tests.faults.history import Answered, History, Invoked

NUMBERS_EACH = 1_000_000_000


class NumberedHistory:
    """Writes into another history, with the numbers of one caller moved out of the others' way."""

    def __init__(self, history: History, caller: int) -> None:
        self._history = history
        self._offset = caller * NUMBERS_EACH

    def write(self, line: Invoked | Answered) -> None:
        """See `History.write`."""
        self._history.write(replace(line, call=line.call + self._offset))
