"""The bounds of a head beside its size: what is parsed of a request before its caller is known takes little time. Pure.

A Cookie, a query, a path and a Content-Type are read by libraries; some are slow with texts made for that (ADR 41).
"""

from typing import Final

from queue_core.server.base.problems import Problem, refusal
from queue_core.server.callers.auth import Headers

MAX_HEADERS: Final = 256
MAX_PATH_BYTES: Final = 8 << 10
MAX_QUERY_FIELDS: Final = 1_000
MAX_MEDIA_TYPE_BYTES: Final = 256
"""Bytes of a `Content-Type`. It is also the size of a head from which one is looked at."""


def head_refusal(url: bytes, headers: Headers) -> Problem | None:
    """Return the refusal of a head that is over a bound; None: it is within all of them."""
    if len(headers) > MAX_HEADERS:
        return refusal(431, "head-too-large", f"a request must have at most {MAX_HEADERS} headers")
    path, _, query = url.partition(b"?")
    if len(path) > MAX_PATH_BYTES:
        return refusal(414, "target-too-long", f"the path of a request must have at most {MAX_PATH_BYTES} bytes")
    if query.count(b"&") >= MAX_QUERY_FIELDS:
        detail = f"the query of a request must have at most {MAX_QUERY_FIELDS} parameters"
        return refusal(414, "target-too-long", detail)
    for name, value in headers:
        if name == b"content-type" and len(value) > MAX_MEDIA_TYPE_BYTES:
            detail = f"the Content-Type of a request must have at most {MAX_MEDIA_TYPE_BYTES} bytes"
            return refusal(431, "head-too-large", detail)
    return None
