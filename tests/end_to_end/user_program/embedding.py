"""A supervisor inside a program, and the policy asked for a size, as a user writes them."""

import sys
import threading
import time
from pathlib import Path

from orchestrator import (
    Decision,
    DocumentError,
    Fleet,
    Monotonic,
    Plan,
    PolicyState,
    PoolSpec,
    QueueSample,
    Supervisor,
    Waiting,
    context_of,
    decide,
    learn,
    open_supervisor,
    plan_actions,
    read_settings,
)
from queue_core import NewTask, open_queues


def size(pool: PoolSpec, ready: int) -> tuple[Decision, Plan]:
    now = Monotonic(100.0)
    waiting = (Waiting(1, 20.0), Waiting(ready, 1.0))
    sample = QueueSample(now, ready, delayed=0, in_flight=0, dead=0, waiting=waiting)
    fleet = Fleet(pool.name)
    state = learn(PolicyState(), sample, fleet=fleet, spec=pool, now=now)
    decision = decide(context_of(sample, fleet=fleet, spec=pool, state=state, now=now))
    return decision, plan_actions(decision, fleet=fleet, spec=pool, now=now)


def stop_when_published(supervisor: Supervisor, deadline: float) -> None:
    published = Path("published.txt")
    while time.monotonic() < deadline and not published.is_file():
        time.sleep(0.05)
    supervisor.request_stop()


def main() -> int:
    project = read_settings("towline.yaml")
    decision, plan = size(project.pools["resize"], 1000)
    assert 0 < len(plan.spawn) <= decision.target, decision.why
    try:
        read_settings("wrong.yaml")
    except DocumentError:
        return 1
    except OSError as error:
        print("refused:", error)
    url = project.store
    queues = open_queues(url)
    for spec in project.queue_file.specs():
        queues.put_queue(spec)
    queues.queue("thumbs").add(NewTask(b"cat.jpg", tag="resize"))
    with open_supervisor(project, url=url) as supervisor:
        threading.Thread(target=stop_when_published, args=(supervisor, time.monotonic() + 30)).start()
        code = supervisor.run()
    stats = queues.queue("thumbs").stats()
    queues.close()
    print("left:", stats.ready + stats.delayed + stats.in_flight)
    return code


if __name__ == "__main__":
    sys.exit(main())
