"""Registers Towline's transport in every program: upstream's tests start workers that import nothing of ours."""

import queue_core.kombu  # noqa: F401
