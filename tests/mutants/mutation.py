"""A mutation as a value, and how it is applied to a file's text. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


class StaleMutationError(Exception):
    """The text that a mutation replaces does not stand exactly once in its file: the program has changed."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One deliberate mistake.

    Args:
        name: what the mistaken program does, in a few words joined by hyphens.
        breaks: the invariant that no longer holds, as `I10`, or another promise in a few words.
        file: path of the file, from the root of the project.
        old, new: the text that is replaced, which stands exactly once in the file, and what replaces it.
        tests: files or test ids that pytest is given, some of which must fail; a file's name may be a pattern.
        only: what pytest's `-k` is given, so that one store is enough.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""

    def applied(self, text: str) -> str:
        """The file's text with the mistake in it. Raises `StaleMutationError`."""
        found = text.count(self.old)
        if found != 1:
            raise StaleMutationError(
                f"{self.name}: the text to replace stands {found} times in {self.file}, not once: change the mutation"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutation. `failed`: the test that noticed it; "" where none did, or the time was up."""

    mutation: Mutation
    outcome: str
    seconds: float
    failed: str = ""

    @property
    def is_killed(self) -> bool:
        """Whether the tests noticed."""
        return self.outcome != "survived"

    def line(self) -> str:
        """`killed    sqlite-horizon-ignored  I10  3.2 s  test_order_holds...`."""
        return (
            f"{self.outcome:<10}{self.mutation.name:<52}{self.mutation.breaks:<22}{self.seconds:>6.1f} s  {self.failed}"
        )


def summary(results: Sequence[Result]) -> str:
    """`killed 26 of 27`."""
    return f"killed {sum(one.is_killed for one in results)} of {len(results)}"
