"""The snippets in a thread that the program starts."""

import json
import sys
import threading

from tests.end_to_end.google.appengine_programs.snippets import run

if __name__ == "__main__":
    found: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: found.append(run(sys.argv[1])))
    thread.start()
    thread.join()
    print(json.dumps(found[0]))  # noqa: T201
