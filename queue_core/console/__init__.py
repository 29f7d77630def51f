"""The console: pages over queues, pools, workers and tasks. A client of the API, with the rights of the viewer's token.

Whatever a page shows or does is an API call that the viewer could make: roles are checked there, not here.
"""

from importlib import import_module


def load_console() -> None:
    """Import the console, and compile what has no page of its own: a tenth of a second's work, for a thread."""
    import_module("queue_core.console.app")
    rendering = import_module("queue_core.console.rendering")
    for name in ("login.html", "problem.html"):
        rendering.compile_template(name)
