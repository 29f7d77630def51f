"""All verbs that are values, as far as others may call them: each says the roles and the access that it needs."""

from typing import Any, Final

from queue_core.unit import queue_verbs, registration_verbs, schedule_verbs, search_verbs, store_verbs
from queue_core.unit.verb import Verb

VERBS: Final[tuple[type[Verb[Any]], ...]] = (
    *queue_verbs.SERVED,
    *queue_verbs.OTHERS,
    *store_verbs.SERVED,
    *store_verbs.OTHERS,
    *registration_verbs.OTHERS,
    *schedule_verbs.SERVED,
    search_verbs.FindTasks,
)
