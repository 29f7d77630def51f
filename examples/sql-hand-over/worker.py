"""Charges orders: the receipt, the end of the task and the task of the letter are one commit."""

import os

import psycopg

from queue_core import Lease, LeaseLostError, NewTask, Queue, WorkerRetiredError, open_queue

STORE = os.environ["TOWLINE_STORE"]
TABLE = "CREATE TABLE IF NOT EXISTS receipts (item text PRIMARY KEY, price integer NOT NULL)"


def charge(orders: Queue, lease: Lease, connection: psycopg.Connection) -> None:
    """Write the receipt of an order such as `book 12`, and hand it over to the letters."""
    item, price = lease.payload.decode().split()
    letter = NewTask(item.encode(), queue="letters", tag="letter")
    with connection.transaction():
        orders.delete(lease, then=[letter], connection=connection)
        connection.execute("INSERT INTO receipts VALUES (%s, %s)", (item, int(price)))


def main() -> None:
    """Work until the supervisor says that there is no more to do, or ends this process."""
    orders = open_queue(STORE, "orders")
    with psycopg.connect(STORE, autocommit=True) as connection:
        connection.execute(TABLE)
        while True:
            try:
                for lease in orders.lease(wait_seconds=20, worker=os.environ.get("TOWLINE_WORKER", "")):
                    charge(orders, lease, connection)
            except LeaseLostError:
                continue  # another worker has the order: all of ours was rolled back
            except WorkerRetiredError:
                return


if __name__ == "__main__":
    main()
