"""Values that are quick to make are values all the same."""

from dataclasses import asdict, field, replace

from orchestrator.base.values import value


@value
class Pair:
    left: int
    right: tuple[int, ...] = field(default_factory=tuple)


def test_values_with_the_same_fields_are_equal_and_one_key() -> None:
    assert Pair(1, (2,)) == Pair(1, (2,)) != Pair(1, (3,))
    assert {Pair(1): "one"}[Pair(1)] == "one"


def test_a_changed_value_is_another_one() -> None:
    pair = Pair(1)
    assert replace(pair, left=2) == Pair(2)
    assert pair == Pair(1)


def test_a_value_has_its_fields_and_no_others() -> None:
    assert asdict(Pair(1, (2,))) == {"left": 1, "right": (2,)}
    assert not hasattr(Pair(1), "__dict__")
