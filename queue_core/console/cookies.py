"""Read one cookie of a request by a small grammar. Pure.

`http.cookies` takes seconds for a head of quoted backslashes (CVE-2024-7592), and anybody may send one.
"""

from collections.abc import Mapping
from typing import Final

MAX_COOKIE_CHARACTERS: Final = 4_096
"""Characters of a value; a longer one is none of ours."""


def cookie_of(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a cookie, the last of its name; "" without one."""
    found = ""
    for pair in headers.get("cookie", "").split(";"):
        key, equals, value = pair.partition("=")
        if equals and key.strip() == name:
            found = value.strip().removeprefix('"').removesuffix('"')
    return found if len(found) <= MAX_COOKIE_CHARACTERS else ""
