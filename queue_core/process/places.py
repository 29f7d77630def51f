"""Places for what stays open, such as streams and long waits: bounded in all and for each caller, with room for admins.

Lives in a server's loop.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Final

ADMINS_SHARE: Final = 10
"""One place in so many is for admins alone: whoever fills all others must not keep them from looking."""
CALLERS_SHARE: Final = 2
"""A caller has one place in so many, at most."""


class Places:
    """A number of places, and who has them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._by_caller: Counter[Hashable] = Counter()

    def refusal(self, caller: Hashable, *, is_admin: bool) -> str:
        """Return why there is no place for this caller; "" where there is one.

        `caller`: None where callers are not told apart, as at a server without tokens.
        """
        own = self._by_caller[caller] if caller is not None else 0
        of_caller = max(1, self.most // CALLERS_SHARE)
        if caller is not None and own >= of_caller:
            return f"{own} are open with this token, which is its limit here"
        most = self.most if is_admin else max(1, self.most - self.most // ADMINS_SHARE)
        return f"{self.taken} are open, which is the limit" if self.taken >= most else ""

    def take(self, caller: Hashable) -> None:
        """Take a place."""
        self.taken += 1
        if caller is not None:
            self._by_caller[caller] += 1

    def leave(self, caller: Hashable) -> None:
        """Give a place back."""
        self.taken -= 1
        if caller is not None:
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]
