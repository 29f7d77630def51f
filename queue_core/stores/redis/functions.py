"""The functions that Redis runs for us, joined from `lua/` into one library whose name says its version and content.

Two versions of the program share a server, as each calls the functions of its own library.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

from queue_core.stores.redis.client.client import FunctionLibrary

VERSION = 3
"""Of the layout: rises when keys or records change so that an older program would misread them.

Since 2 a task may have its own bound of leases, which a program of 1 drops with the next lease. Since 3 the
bytes of payloads may be counted, which a program of 2 passes by.
"""

_SHARED = ("base", "wake", "records")
_BLOCKS = (
    "answers",
    "queue",
    "names",
    "places",
    "filters",
    "settling",
    "adding",
    "leasing",
    "ending",
    "administering",
    "looking",
    "peeking",
    "supervising",
    "queues",
    "moving",
    "checking",
)
"""Each is put into a block of its own."""


@lru_cache(maxsize=1)
def library() -> FunctionLibrary:
    """The library of this program."""
    folder = Path(__file__).with_name("lua")
    texts = {name: (folder / f"{name}.lua").read_text(encoding="utf-8") for name in (*_SHARED, *_BLOCKS)}
    blocks = [texts[name] for name in _SHARED] + [f"do\n{texts[name]}end\n" for name in _BLOCKS]
    source = "\n".join(blocks)
    name = f"towline_{VERSION}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return FunctionLibrary(f"{name}_", f"#!lua name={name}\nlocal PREFIX = '{name}_'\n{source}")
