"""What a worker keeps back to end with."""

from queue_core.worker.spare_address_space import SpareAddressSpace


def test_it_is_given_once_and_can_be_kept_back_again() -> None:
    spare = SpareAddressSpace(1 << 20)
    spare.give()
    spare.give()
    assert spare.take()
    assert spare.take()


def test_where_there_is_not_so_much_that_is_told() -> None:
    spare = SpareAddressSpace(1 << 62)
    assert not spare.take()
    spare.give()
