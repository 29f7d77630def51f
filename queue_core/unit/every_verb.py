"""The verbs whose endpoints follow from their values."""

from typing import Any, Final

from queue_core.unit import queue_verbs, store_verbs
from queue_core.unit.verb import Verb

VERBS: Final[tuple[type[Verb[Any]], ...]] = (*queue_verbs.SERVED, *store_verbs.SERVED)
