"""Checks and headers that keep other pages out of the console, and foreign text from running in it. Pure."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from queue_core.process.loopback import is_loopback

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SITE_HEADERS: Final[Mapping[str, str]] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The headers of every answer to a browser, the manual's too."""
PAGE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_POLICY,
    "cache-control": "no-store",
    **SITE_HEADERS,
}
"""The headers of every page of the console."""


def refusal_of_write(headers: Mapping[str, str]) -> str:
    """Return why a request that changes something is refused as another site's; "" if it is the console's own.

    Browsers say in `Sec-Fetch-Site` which page a request comes from, and send `Origin` with each that is no GET.
    Without the former, the `Origin` must be there.
    """
    site, origin, host = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host", "")
    if site not in (None, "same-origin", "none"):
        return f"a page of another site sent this (Sec-Fetch-Site: {site[:40]})"
    if origin is None:
        return "" if site == "same-origin" else "neither Sec-Fetch-Site nor Origin says that this page sent it"
    if origin == "null" or not host or _host_in(origin) != host.lower():
        return f"a page of {origin[:100]} sent this"
    return ""


def _host_in(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def is_secure_host(headers: Mapping[str, str]) -> bool:
    """Return whether a browser must be told to use a session over TLS only: everywhere but on the loopback."""
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return True
    return not is_loopback(name)
