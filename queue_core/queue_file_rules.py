"""What a queue.yaml or queue.xml may say: its grammar, and what `gcloud app deploy` refuses besides. Pure.

Push queues are held to the rules too before they are left out: a file that is right here is right there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from queue_core.limits import MAX_EMAILS, MAX_LEASES
from queue_core.mistakes import did_you_mean
from queue_core.queue_file import (
    Group,
    Items,
    Member,
    Node,
    Nothing,
    QueueFileEntries,
    Spelling,
    Text,
    Told,
    shown_key,
)
from queue_core.queue_file_scalars import (
    age_of,
    application_of,
    email_of,
    mode_of,
    name_of,
    number_of,
    rate_of,
    size_of,
    target_of,
    truth_of,
    whole_of,
)
from queue_core.task import QueueSpec
from queue_core.yaml_text import DocumentError, Place, line_at

MAX_RATE_PER_SECOND: Final = 500  # gcloud
MAX_BUCKET_SIZE: Final = 500  # gcloud
MAX_TOLD: Final = 100
"""Mistakes that are told one by one."""

Value: TypeAlias = str | float
_Readers: TypeAlias = Mapping[str, Callable[[Text], Value] | None]

# None: not a scalar.
_TOP: Final[_Readers] = {
    "queue": None,
    "total_storage_limit": size_of,
    "resume_paused_queues": truth_of,
    "application": application_of,
}
_QUEUE: Final[_Readers] = {
    "name": name_of,
    "mode": mode_of,
    "rate": rate_of,
    "bucket_size": whole_of,
    "max_concurrent_requests": whole_of,
    "target": target_of,
    "retry_parameters": None,
    "acl": None,
}
_RETRY: Final[_Readers] = {
    "task_retry_limit": whole_of,
    "task_age_limit": age_of,
    "min_backoff_seconds": number_of,
    "max_backoff_seconds": number_of,
    "max_doublings": whole_of,
}
_ACL: Final[_Readers] = {"user_email": email_of, "writer_email": email_of}

# gcloud's own phrases, so that who searches for one finds it here too.
_PULL_FORBIDS: Final[Mapping[str, str]] = {
    "rate": "Refill rate must not be specified for pull-based queue",
    "bucket_size": "Bucket size must not be specified for pull-based queue",
    "max_concurrent_requests": "Max concurrent requests must not be specified for pull-based queue",
    "target": "Target must not be specified for pull-based queue",
    "task_age_limit": "Can't specify task_age_limit for a pull queue",
    "min_backoff_seconds": "Can't specify min_backoff_seconds for a pull queue",
    "max_backoff_seconds": "Can't specify max_backoff_seconds for a pull queue",
    "max_doublings": "Can't specify max_doublings for a pull queue",
}
_NOT_NEGATIVE: Final[Mapping[str, str]] = {
    "task_retry_limit": "Task retry limit must not be less than zero",
    "min_backoff_seconds": "Min backoff seconds must not be less than zero",
    "max_backoff_seconds": "Max backoff seconds must not be less than zero",
    "max_doublings": "Max doublings must not be less than zero",
}


def entries_of(root: Node, *, also: Sequence[tuple[Place, str]], name: str, spelling: Spelling) -> QueueFileEntries:
    """The queues of the file called `name`.

    Raises `DocumentError` with all that is wrong: a line per mistake, in the file's order, those of `also` among them.
    """
    rules = _Rules(spelling, list(also))
    entries = rules.entries(root)
    if rules.mistakes:
        raise DocumentError(mistake_lines(rules.mistakes, name=name))
    return entries


def mistake_lines(mistakes: Sequence[tuple[Place, str]], *, name: str) -> tuple[str, ...]:
    """`queue.yaml:3:5: ...` for each, in the file's order; for those after the hundredth, how many they are."""
    ordered = sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake[0])
    lines = [line_at(name, place, message) for place, message in ordered]
    more = (
        f"{lines[MAX_TOLD].split(' ')[0]} and {len(lines) - MAX_TOLD} more mistakes from here"
        if lines[MAX_TOLD:]
        else ""
    )
    return (*lines[:MAX_TOLD], more) if more else tuple(lines)


@dataclass(frozen=True, slots=True)
class _Settings:
    """A group that was read: its members by key, the values of those scalars that are right, and its place."""

    path: str
    place: Place
    members: Mapping[str, Member]
    values: Mapping[str, Value]

    def has(self, key: str) -> bool:
        """Whether something is written after the key, right or wrong."""
        return key in self.members and not isinstance(self.members[key].value, Nothing)

    def number(self, key: str) -> float | None:
        """The value of a number; None when it is left out, or wrong."""
        value = self.values.get(key)
        return value if isinstance(value, int | float) else None


class _Rules:
    """One reading of a tree; every method that finds something wrong notes it and goes on."""

    def __init__(self, spelling: Spelling, mistakes: list[tuple[Place, str]]) -> None:
        self.mistakes = mistakes
        self._spelling = spelling
        self._names: dict[str, Place] = {}

    def entries(self, root: Node) -> QueueFileEntries:
        top = self._settings(root, "", _TOP)
        if top is None:
            return QueueFileEntries()
        specs: list[QueueSpec] = []
        push: list[str] = []
        for index, item in enumerate(self._items(top, "queue")):
            queue = self._settings(item, f"queue[{index}]", _QUEUE)
            if queue is None:
                continue
            name = self._name(queue)
            users, writers = self._acl(queue)
            retry = self._retry(queue)
            if queue.values.get("mode") == "pull":
                limit = self._check_pull(queue, retry)
                specs.append(
                    QueueSpec(name, max_leases=limit, on_exhausted="delete", user_emails=users, writer_emails=writers)
                )
            elif "mode" in queue.values or not queue.has("mode"):
                self._check_push(queue, retry)
                push.append(name)
        size = top.number("total_storage_limit")
        resume = top.values.get("resume_paused_queues", True)
        return QueueFileEntries(tuple(specs), tuple(push), None if size is None else int(size), bool(resume))

    # -- one queue ------------------------------------------------------------------------------------------------

    def _name(self, queue: _Settings) -> str:
        """The name, or "" after a mistake."""
        if not queue.has("name"):
            self._note(queue.place, queue.path, "a queue must have a name")
        name = str(queue.values.get("name", ""))
        if name in self._names:
            told = f"there are two queues '{name}', the first in line {self._names[name].line}: keep one of them"
            self._note_at(queue, "name", told)
        elif name:
            self._names[name] = queue.members["name"].place
        return name

    def _acl(self, queue: _Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Users and writers, each address once."""
        found: dict[str, dict[str, None]] = {key: {} for key in _ACL}
        for index, item in enumerate(self._items(queue, "acl")):
            path = self._path(queue.path, "acl")
            entry = self._settings(item, f"{path}[{index}]" if self._spelling == "yaml" else path, _ACL)
            for key, email in entry.values.items() if entry else ():
                found[key][str(email)] = None
        for key, emails in found.items():
            if len(emails) > MAX_EMAILS:
                word = shown_key(key, self._spelling)
                self._note_at(queue, "acl", f"at most {MAX_EMAILS} of {word} in one queue: {len(emails)}")
        return tuple(found["user_email"]), tuple(found["writer_email"])

    def _retry(self, queue: _Settings) -> _Settings | None:
        if not queue.has("retry_parameters"):
            return None
        value = queue.members["retry_parameters"].value
        retry = self._settings(value, self._path(queue.path, "retry_parameters"), _RETRY)
        for key, phrase in _NOT_NEGATIVE.items() if retry else ():
            number = retry.number(key) if retry else None
            if retry and number is not None and number < 0:
                self._note_at(retry, key, f"{phrase}: {number:g}")
        return retry

    def _check_pull(self, queue: _Settings, retry: _Settings | None) -> int | None:
        """The number of leases after which a task is deleted."""
        for settings in (queue, retry) if retry else (queue,):
            for key, phrase in _PULL_FORBIDS.items():
                if settings.has(key):
                    self._note_at(settings, key, f"{phrase}: leave it out")
        limit = retry.number("task_retry_limit") if retry else None
        if retry is None or limit is None:
            return None
        if limit == 0:
            told = "a pull queue's limit is how often a task is leased before it is deleted, so 0 would lease none"
            self._note_at(retry, "task_retry_limit", f"{told}: write 1 or more, or leave it out for no limit")
        if limit > MAX_LEASES:
            self._note_at(retry, "task_retry_limit", f"must be at most {MAX_LEASES}, or left out for no limit: {limit}")
        return int(limit)

    def _check_push(self, queue: _Settings, retry: _Settings | None) -> None:
        if not queue.has("rate"):
            fix = "write a rate such as 5/s; or, for a pull queue, the mode"
            self._note(queue.place, queue.path, f"Refill rate must be specified for push-based queue: {fix}")
        rate = queue.number("rate") or 0
        if rate > MAX_RATE_PER_SECOND:
            told = f"Refill rate must not exceed {MAX_RATE_PER_SECOND} per second (is {rate:g})"
            self._note_at(queue, "rate", told)
        size = queue.number("bucket_size") or 0
        if size < 0:
            self._note_at(queue, "bucket_size", f"must be 0 or more, or the queue rate is invalid: {size}")
        if size > MAX_BUCKET_SIZE:
            self._note_at(queue, "bucket_size", f"Maximum bucket size is {MAX_BUCKET_SIZE}: {size}")
        if self._spelling == "xml" and "acl" in queue.members:
            self._note_at(queue, "acl", "is not defined for push queues: leave it out, or write <mode>pull</mode>")
        if retry is None:
            return
        age = retry.number("task_age_limit")
        if age is not None and age < 1:
            self._note_at(retry, "task_age_limit", f"Task age limit must be greater than zero: {age:g} s")
        low, high = retry.number("min_backoff_seconds"), retry.number("max_backoff_seconds")
        if low is not None and high is not None and low > high:
            told = f"Min backoff sec must not be greater than max backoff sec: {low:g} > {high:g}"
            self._note_at(retry, "min_backoff_seconds", told)

    # -- the tree -------------------------------------------------------------------------------------------------

    def _settings(self, node: Node, path: str, readers: _Readers) -> _Settings | None:
        if not isinstance(node, Group):
            if not isinstance(node, Told):
                known = ", ".join(shown_key(key, self._spelling) for key in readers)
                self._note(node.place, path, f"must be a mapping of settings ({known})")
            return None
        members: dict[str, Member] = {}
        values: dict[str, Value] = {}
        for member in node.members:
            inner = self._path(path, member.key if member.key.isprintable() else ascii(member.key))
            if member.key not in readers:
                known_keys = [shown_key(key, self._spelling) for key in readers]
                meant = did_you_mean(shown_key(member.key, self._spelling), known_keys)
                self._note(member.place, inner[:200], f"unknown setting{meant}")
            elif member.key in members:
                first = members[member.key].place
                self._note(member.place, inner, f"is given twice; first in line {first.line}: keep one of them")
            else:
                members[member.key] = member
                reader = readers[member.key]
                value = None if reader is None else self._scalar(member.value, inner, reader)
                if value is not None:
                    values[member.key] = value
        return _Settings(path, node.place, members, values)

    def _scalar(self, node: Node, path: str, reader: Callable[[Text], Value]) -> Value | None:
        if isinstance(node, Nothing | Told):
            return None
        if not isinstance(node, Text):
            self._note(node.place, path, "must be one value, not a list or a mapping")
            return None
        try:
            return reader(node)
        except ValueError as error:
            self._note(node.place, path, str(error))
            return None

    def _items(self, settings: _Settings, key: str) -> Sequence[Node]:
        if not settings.has(key):
            return ()
        value = settings.members[key].value
        if isinstance(value, Items):
            return value.items
        if not isinstance(value, Told):
            self._note(value.place, self._path(settings.path, key), "must be a list, each item after a '- '")
        return ()

    def _path(self, path: str, key: str) -> str:
        return f"{path}{'.' if path else ''}{shown_key(key, self._spelling)}"

    def _note_at(self, settings: _Settings, key: str, message: str) -> None:
        self._note(settings.members[key].place, self._path(settings.path, key), message)

    def _note(self, place: Place, path: str, message: str) -> None:
        self.mistakes.append((place, f"{path}: {message}" if path else message))
