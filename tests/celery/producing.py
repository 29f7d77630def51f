"""A program that calls a task of Celery at a steady rate: `python3 -m tests.celery.producing BROKER FILE RATE SECONDS`.

A line for each call: `returned NAME`, or `raised NAME ERROR`. What raised may be published or not.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path

from celery import Celery

from tests.celery.sites import PROGRAM

TASK_SECONDS = 0.05


def main(broker: str, file: str, rate: str, seconds: str) -> None:
    """Call until the time is over; a call that takes long puts off those after it, and none is left out."""
    app = Celery("producer", broker=broker)
    began = time.monotonic()
    with Path(file).open("a") as output, app.producer_or_acquire() as producer:
        for number in range(round(float(rate) * float(seconds))):
            with suppress(ValueError):
                time.sleep(began + number / float(rate) - time.monotonic())
            name = f"call-{number}"
            try:
                app.send_task(f"{PROGRAM}.nap", (name, TASK_SECONDS), task_id=name, producer=producer)
            except Exception as error:  # noqa: BLE001 - whatever a caller gets, the call did not return
                said = f"raised {name} {' '.join(repr(error).split())}"
            else:
                said = f"returned {name}"
            print(said, file=output, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
