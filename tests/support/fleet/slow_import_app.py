"""The recording app, as an application that takes a while to import."""

import time

time.sleep(1.0)

from tests.support.fleet.recording_app import app  # noqa: E402

__all__ = ["app"]
