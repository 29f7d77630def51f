"""Private engines and free ports in the place of the addresses that a page shows."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.docs.blocks import Page
from tests.support.stores.engines import free_port

PORTS: Final = ("7878", "7879", "7880", "8000", "8080")
"""Ports that pages name without a host, too."""
_REST: Final = r"[^\s\"'`<>\\\]})|,;]*"
_SHOWN: Final = {
    "postgresql": re.compile(rf"(?<![\w+])postgres(?:ql)?://{_REST}"),
    "redis": re.compile(rf"(?<![\w+])redis://{_REST}"),
    "rabbitmq": re.compile(rf"(?<![\w+])(?:py)?amqp://{_REST}"),
}
_LOCAL: Final = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\]):(\d{4,5})\b")


@dataclass
class Addresses:
    """The addresses in place of those of one page: `new_url` makes a private database of an engine."""

    new_url: dict[str, Callable[[], str]]
    ports: dict[str, str] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    first_shown: dict[str, str] = field(default_factory=dict)

    def replaced(self, text: str) -> str:
        """Return text with private addresses; each address that is shown stands for one of its own."""
        for engine in self.new_url:
            text = _SHOWN[engine].sub(partial(self._private, engine), text)
        return re.sub(rf"(?<![\w.])({'|'.join(self.ports)})(?![\w])", lambda found: self.ports[found[1]], text)

    def first_url(self, engine: str, text: str) -> str:
        """Return the private URL for the first of an engine's addresses that a page shows."""
        found = _SHOWN[engine].search(text)
        return self._url(engine, found[0] if found else "")

    def shown(self, text: str) -> str:
        """Return output with the addresses of the page."""
        for private, shown in self.first_shown.items():
            text = text.replace(private, shown)
        for shown, private in self.ports.items():
            text = text.replace(f":{private}", f":{shown}")
        return text

    def _private(self, engine: str, found: re.Match[str]) -> str:
        return self._url(engine, found[0])

    def _url(self, engine: str, shown: str) -> str:
        """Return the private URL of an engine's database, whatever host a page writes before its name."""
        database = f"{engine} {shown.partition('://')[2].partition('?')[0].partition('/')[2]}"
        if database not in self.urls:
            self.urls[database] = self.new_url[engine]()
            self.first_shown[self.urls[database]] = shown
        return self.urls[database]


def addresses_of(page: Page, text: str, new_url: dict[str, Callable[[], str]]) -> Addresses:
    """Return the addresses for a page: free ports for those of its text, databases of the engines that it needs."""
    ports = dict.fromkeys([*PORTS, *_LOCAL.findall(text)], "")
    return Addresses(
        {engine: make for engine, make in new_url.items() if engine in page.needs},
        {port: str(free_port()) for port in ports},
    )
