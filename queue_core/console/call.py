"""A look at a page: its viewer, its address, its instant, and the calls that it makes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic_core import to_json

from queue_core.console.api import ApiProblemError, ApiReply, ConsoleApi, Query
from queue_core.console.masks import masked_reply
from queue_core.console.shared import PageMemory
from queue_core.verbs.wire import Json

MAX_DIGITS = 18
"""Digits of a whole number in an address, at most."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The viewer of a page: known by a token, or not at all where everybody may look."""

    token: str | None = field(repr=False)
    is_logged_in: bool


@dataclass(frozen=True, slots=True)
class PayloadRules:
    """The payloads that pages show: to viewers or not, and without which members of JSON."""

    for_viewers: bool = False
    redact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageCall:
    """One look at a page.

    Args:
        path, query: the names in the page's address.
        now_seconds: of the wall clock.
        writes: whether this console may change anything.
        role: the viewer's, as the API says; "" until it was asked.
        rights: equal for viewers who see the same: role, email (acls name it) and the scope of the token.
        paths: those that the API has.
        memory: what pages keep between two looks.
        payloads: which payloads are shown.
        form: the fields of a form that a page works with; none of a page that is looked at.
    """

    api: ConsoleApi
    viewer: Viewer
    path: dict[str, str]
    query: Sequence[tuple[str, str]]
    now_seconds: float
    writes: bool = False
    role: str = ""
    rights: str = ""
    paths: frozenset[str] = frozenset()
    memory: PageMemory = field(default_factory=lambda: PageMemory(lambda: 0.0), repr=False)
    payloads: PayloadRules = PayloadRules()
    form: Mapping[str, str] = field(default_factory=dict)

    def at(self, now_seconds: float) -> "PageCall":
        """Return the same look at another instant."""
        return replace(self, now_seconds=now_seconds)

    def through(self, api: ConsoleApi) -> "PageCall":
        """Return the same look, with its calls made by another way."""
        return replace(self, api=api)

    def one(self, name: str, default: str = "") -> str:
        """Return a parameter of the address, the last of its name."""
        found = [value for key, value in self.query if key == name]
        return found[-1] if found else default

    def count(self, name: str) -> int:
        """Return a parameter that is a whole number; 0 for any other text."""
        text = self.one(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else 0

    @property
    def may_operate(self) -> bool:
        """Return whether buttons are drawn; whether they work is decided by the API."""
        return self.writes and self.role in ("operator", "admin")

    @property
    def may_order(self) -> bool:
        """Return whether buttons are drawn that give orders to a supervisor: not where it runs elsewhere."""
        return self.may_operate and "/v1/pools/{pool}/pause" in self.paths

    @property
    def sees_payloads(self) -> bool:
        """Return whether pages show payloads to this viewer."""
        return self.payloads.for_viewers or self.role != "viewer"

    @property
    def keeps_payloads(self) -> bool:
        """Return whether this viewer may keep a payload as a file, in which nothing is masked."""
        return self.sees_payloads and (not self.payloads.redact or self.role == "admin")

    @property
    def may_administer(self) -> bool:
        """Return whether buttons are drawn that delete something."""
        return self.writes and self.role == "admin"

    async def introduced(self) -> "PageCall":
        """Ask the API who the viewer is, and what it has. Raises `ApiProblemError`."""
        me = await self.get("/v1/me")
        email = me.get("email") if me.get("by_email", True) else None
        rights = to_json([me["role"], email, me.get("queues")]).decode()
        return replace(self, role=str(me["role"]), rights=rights)

    async def get(self, path: str, *, query: Query = ()) -> Json:
        """Read. Raises `ApiProblemError`."""
        reply = await self.api.call("GET", path, query=query, token=self.viewer.token)
        return self._shown(reply)

    def _shown(self, reply: ApiReply) -> Json:
        """Return a reply with its texts masked for all but administrators. Raises `ApiProblemError`."""
        if not reply.is_done:
            raise ApiProblemError(reply)
        redact = self.payloads.redact
        return reply.body if not redact or self.role == "admin" else masked_reply(reply.body, redact)

    async def post(self, path: str, body: Json | None = None) -> Json:
        """Make a call with a body. Raises `ApiProblemError`."""
        reply = await self.api.call("POST", path, body or {}, token=self.viewer.token)
        return self._shown(reply)


def whole_task(task: Json) -> Json:
    """Return a task with the members that the API leaves out where there is nothing to say."""
    left_out: Json = {"headers": {}, "attempts": [], "progress": None, "checkpoint_bytes": 0, "priority": 0}
    return {**left_out, **task}
