"""The hand-over in SQL: a worker killed within its transaction shows neither half, and the next one does both."""

from pathlib import Path

import psycopg

from queue_core import open_queues
from tests.support.eventually import eventually
from tests.support.examples import a_copy_of
from tests.support.stores.stores import new_url


def test_a_worker_killed_within_its_transaction_leaves_neither_a_receipt_nor_a_letter(tmp_path: Path) -> None:
    url = new_url("postgresql")
    with a_copy_of("sql-hand-over", tmp_path, store=url) as example:
        queues = open_queues(url)
        orders, letters = queues.queue("orders"), queues.queue("letters")
        example.up()
        with psycopg.connect(url, autocommit=True) as ours, psycopg.connect(url) as blocking:

            def receipts() -> list[tuple[object, ...]]:
                return ours.execute("SELECT item, price FROM receipts").fetchall()

            def waiting() -> int:
                found = ours.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO receipts%'"
                ).fetchone()
                return 0 if found is None else int(found[0])

            eventually(lambda: ours.execute("SELECT to_regclass('receipts') IS NOT NULL").fetchone() == (True,))
            # A row of ours in the way: the worker has deleted its task and handed it over, and waits with its receipt.
            blocking.execute("INSERT INTO receipts VALUES ('book', 0)")
            orders.add(b"book 12")
            eventually(lambda: waiting() == 1)
            (killed,) = [name for name in example.worker_pids() if name.startswith("charge-")]
            example.kill_worker(killed)
            eventually(lambda: killed not in example.worker_pids())
            assert receipts() == []
            assert letters.stats().added_total == 0
            blocking.rollback()
            eventually(lambda: receipts() == [("book", 12)])
        text = example.folder / "letters.txt"
        eventually(lambda: text.exists() and text.read_text() == "Thank you for buying a book.\n")
        eventually(lambda: letters.stats().deleted_total == 1)
        assert (orders.stats().deleted_total, letters.stats().added_total) == (1, 1)
        (first, last) = reversed(orders.history().leases)
        assert (first.worker, first.outcome, last.outcome) == (killed, "released", "deleted")
        queues.close()
