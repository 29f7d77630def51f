"""Bytes of requests that are not answered yet: one budget for the heads and bodies of all connections (ADR 93).

Lives in the listener's loop.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Final

FREE_BYTES: Final = 4 << 10
"""Bytes of each request that are not counted: an ordinary head and a small body always have room."""
MIN_BUDGET_BYTES: Final = 256 << 20
"""The budget of a listener, at least; with larger bodies it has room for four of them."""
STRANGERS_SHARE: Final = 4
"""Callers without a known token, and all heads that have not arrived whole, have one part in so many together."""
CALLERS_SHARE: Final = 2
"""A token has one part in so many, at most."""
ADMINS_SHARE: Final = 4
"""One part in so many is for admins alone."""


def budget_bytes(max_body_bytes: int) -> int:
    """Return the budget of a listener with this limit on bodies."""
    return max(MIN_BUDGET_BYTES, 4 * max_body_bytes)


class BytesInFlight:
    """The budget, and what is taken of it: by each token, and by strangers (None)."""

    def __init__(self, most: int = MIN_BUDGET_BYTES) -> None:
        self.most = most
        self.taken = 0
        self.arrived = 0
        """All that was ever taken."""
        self._by_caller: Counter[Hashable] = Counter()

    def refusal(self, count: int, caller: Hashable, *, is_admin: bool = False, is_alone: bool = False) -> str:
        """Return why so many bytes more have no room; "" where they have.

        Args:
            caller: None for strangers.
            is_alone: nobody has a token, so there is only one caller.
        """
        parts = STRANGERS_SHARE if caller is None else CALLERS_SHARE
        share = self.most if is_alone else self.most // parts
        own = self._by_caller[caller]
        if own + count > share:
            whose = "without a known token" if caller is None else "with this token"
            return f"requests {whose} hold {own} bytes, and may hold {share}"
        most = self.most if is_admin else self.most - self.most // ADMINS_SHARE
        return f"requests hold {self.taken} bytes, and may hold {most}" if self.taken + count > most else ""

    def take(self, count: int, caller: Hashable) -> None:
        """Count bytes that have arrived."""
        self.taken += count
        self.arrived += count
        self._by_caller[caller] += count

    def leave(self, count: int, caller: Hashable) -> None:
        """Count bytes no more: their request is answered."""
        self.taken -= count
        self._by_caller[caller] -= count
        if not self._by_caller[caller]:
            del self._by_caller[caller]
