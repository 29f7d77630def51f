"""The documentation's four snippets in a row; says as JSON what came of them."""

import json
import sys

from google.appengine.api import taskqueue


def run(name: str) -> dict[str, object]:
    """Add with tags, lease, lease by tag with and without one, delete; on an empty queue."""
    q = taskqueue.Queue(name)
    q.add(taskqueue.Task(payload="parse1", method="PULL", tag="parse"))
    q.add(taskqueue.Task(payload="parse2", method="PULL", tag="parse"))
    q.add(taskqueue.Task(payload="render1", method="PULL", tag="render"))
    q.add(taskqueue.Task(payload="render2", method="PULL", tag="render"))
    q.add([taskqueue.Task(payload="any", method="PULL")])

    rendered = q.lease_tasks_by_tag(3600, 100, "render")
    oldest = q.lease_tasks_by_tag(3600, 100)
    rest = q.lease_tasks(3600, 100)

    tasks = rendered + oldest + rest
    q.delete_tasks(tasks)
    return {
        "rendered": [task.payload.decode() for task in rendered],
        "oldest": [task.payload.decode() for task in oldest],
        "rest": [task.payload.decode() for task in rest],
        "deleted": all(task.was_deleted for task in tasks),
        "left": q.fetch_statistics().tasks,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))  # noqa: T201
    sys.exit(int(sys.argv[2]))
