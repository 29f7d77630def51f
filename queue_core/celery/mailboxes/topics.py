"""The topics that match a routing key, found in one pass over its words. Pure."""

from collections.abc import Iterable, Iterator, Sequence

MAX_WORDS = 128
"""Words of a topic or a routing key: AMQP's 255 bytes have no more."""


class Topics:
    """Patterns of AMQP: `*` is one word, `#` any number of them, also none.

    All patterns are the states of one automaton, a bit for each of their elements and one behind the last, which says
    that the pattern matches: so each word of a key is one step for all of them (ADR 42).
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        starts, stars, hashes = list[int](), list[int](), list[int]()
        self._places: dict[str, list[int]] = {}
        self._ends: dict[int, str] = {}
        place = 0
        for pattern in patterns:
            starts.append(place)
            for element in _normal(words_of(pattern)):
                of = stars if element == "*" else hashes if element == "#" else self._places.setdefault(element, [])
                of.append(place)
                place += 1
            self._ends[place] = pattern
            place += 1
        self._size = place
        self._starts, self._stars, self._hashes, self._accepts = map(self._bits, (starts, stars, hashes, self._ends))

    def matching(self, routing_key: str) -> list[str]:
        """Return the patterns that match."""
        words = words_of(routing_key)
        takes = {word: self._stars | self._bits(self._places.get(word, ())) for word in set(words)}
        states = self._passed(self._starts)
        for word in words:
            states = self._passed(((states & takes[word]) << 1) | (states & self._hashes))
            if not states:
                return []
        return [self._ends[place] for place in _places(states & self._accepts)]

    def _passed(self, states: int) -> int:
        """Add the states behind a `#`, which may match nothing; no two of them stand in a row."""
        return states | ((states & self._hashes) << 1)

    def _bits(self, places: Iterable[int]) -> int:
        cells = bytearray(self._size // 8 + 1)
        for place in places:
            cells[place >> 3] |= 1 << (place & 7)
        return int.from_bytes(cells, "little")


def words_of(topic: str) -> Sequence[str]:
    """Return the words of a topic or a routing key."""
    return topic.split(".") if topic else ()


def _normal(elements: Iterable[str]) -> Iterator[str]:
    """Yield the elements of a pattern with each run of wildcards in one form: all of its `*`, then a `#` if any."""
    has_hash = False
    for element in elements:
        if element == "#":
            has_hash = True
            continue
        if has_hash and element != "*":
            has_hash = False
            yield "#"
        yield element
    if has_hash:
        yield "#"


def _places(bits: int) -> Iterator[int]:
    """Yield the places of the bits that are set."""
    for index, cell in enumerate(bits.to_bytes(bits.bit_length() // 8 + 1, "little")):
        if cell:
            yield from (index * 8 + bit for bit in range(8) if cell >> bit & 1)
