"""The rules of queue.yaml and queue.xml: their grammar, and the checks of `gcloud app deploy`. Pure.

Push queues are validated too, so that a file that is valid here is valid for App Engine. See ADR 12.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from queue_core.config.messages import did_you_mean
from queue_core.config.yaml_document import DocumentError, Place, line_at
from queue_core.google.queue_files.entries import (
    EmptyItem,
    Group,
    Items,
    MappingItem,
    Node,
    QueueFileEntries,
    Spelling,
    Text,
    UnreadableItem,
    shown_key,
)
from queue_core.limits import MAX_EMAIL_CHARACTERS, MAX_EMAILS, MAX_LEASES, MAX_QUEUE_NAME_CHARACTERS
from queue_core.task import QueueSpec

MAX_STORAGE_LIMIT_BYTES: Final = (1 << 63) - 1  # our own: the range of a store's column
_MAX_DIGITS: Final = 19

_NAME = re.compile(r"[a-zA-Z0-9-]{1,100}")
_RATE = re.compile(r"0|([0-9]+(?:\.[0-9]*)?)/([smhd])")
_AGE = re.compile(r"(.*)([smhd])", re.DOTALL)
_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]*))?([BKMGT]?)")
_TARGET = re.compile(r"(?:(?!-)[a-z0-9-]{1,100}\.)?(?!-)[a-z0-9-]{1,63}")
_APPLICATION = re.compile(r"(?:[a-z0-9-]{1,100}~)?(?:(?!-)[a-z0-9.-]{1,100}:)?(?!-)[a-z0-9-]{0,99}[a-z0-9]")
_EMAIL = re.compile(rf"[^\s]{{1,{MAX_EMAIL_CHARACTERS}}}")
_WHOLE = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_HEXADECIMAL = re.compile(r"[-+]?0x[0-9a-fA-F]+")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BYTES_PER: Final = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS_PER: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

# The meanings of unquoted scalars in YAML 1.1, which App Engine reads.
_TRUE: Final = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE: Final = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_NUMBER_UNLIKE_ITSELF = re.compile(r"-?0[0-7]+|0b[01]+|0x[0-9a-fA-F]+|-?[0-9]+[eE]-?[0-9]+|-0")


def name_of(text: Text) -> str:
    """Return a queue's name."""
    return _matched(_NAME, text, f"must be 1 to {MAX_QUEUE_NAME_CHARACTERS} letters, digits or '-'")


def mode_of(text: Text) -> str:
    """Return `push` or `pull`."""
    if text.value not in {"push", "pull"}:
        raise ValueError(f"must be push or pull, in lower case: {_shown(text.value)}")
    return text.value


def rate_of(text: Text) -> float:
    """Return a rate in calls per second."""
    match = _RATE.fullmatch(text.value)
    if match is None:
        raise ValueError(f"must be 0, or a number and a unit, such as 5/s, 10.5/m, 1/h: {_shown(text.value)}")
    return float(match[1]) / _SECONDS_PER[match[2]] if match[1] else 0.0


def integer_value(text: Text) -> int:
    """Return a whole number. 5.0 is valid; unquoted 010 is not, as it is 8 in YAML 1.1 and 10 in 1.2."""
    value = text.value.strip()
    if text.style == "plain" and _OCTAL.fullmatch(value) and value.strip("+-0_"):
        raise ValueError(f"begins with 0, so App Engine reads it as an octal number: {_shown(value)}")
    if text.style == "plain" and _HEXADECIMAL.fullmatch(value) and len(value) <= _MAX_DIGITS:
        return int(value, 16)
    if _WHOLE.fullmatch(value) and len(value) <= _MAX_DIGITS:
        return int(value)
    number = _float(value) if text.style == "plain" else None
    if number is None or not number.is_integer() or abs(number) >= 10**_MAX_DIGITS:
        raise ValueError(f"must be a whole number: {_shown(value)}")
    return int(number)


def number_of(text: Text) -> float:
    """Return a finite number."""
    number = _float(text.value)
    if number is None:
        raise ValueError(f"must be a number: {_shown(text.value)}")
    return number


def age_of(text: Text) -> float:
    """Return the seconds of `1h`, `3.5d`; a unit is required."""
    match = _AGE.fullmatch(text.value)
    number = _float(match[1]) if match else None
    if match is None or number is None or number < 0:
        raise ValueError(f"must be a number and a unit (s, m, h, d), such as 1h or 3.5d: {_shown(text.value)}")
    return number * _SECONDS_PER[match[2]]


def size_of(text: Text) -> int:
    """Return the bytes of `120M`: units are powers of 1024; a fraction of a byte is dropped."""
    match = _SIZE.fullmatch(text.value)
    if match is None:
        raise ValueError(f"must be a size such as 120M, with B, K, M, G, T or no unit: {_shown(text.value)}")
    whole, part, unit = match[1].lstrip("0") or "0", (match[2] or "")[:_MAX_DIGITS], match[3]
    if not unit and "." in text.value:
        raise ValueError(f"must be a whole number, or have a unit such as K or M: {_shown(text.value)}")
    scale = _BYTES_PER[unit]
    size = int(whole[: _MAX_DIGITS + 1]) * scale + int(int(part or "0") * scale // 10 ** len(part))
    if size > MAX_STORAGE_LIMIT_BYTES:
        raise ValueError(f"must be less than 8388608T ({MAX_STORAGE_LIMIT_BYTES + 1} bytes): {_shown(text.value)}")
    return size


def truth_of(text: Text) -> bool:
    """Return the boolean of `True` or `False`; unquoted, also of the other spellings of YAML 1.1."""
    if text.value in ({"True"} if text.style == "quoted" else _TRUE):
        return True
    if text.value in ({"False"} if text.style == "quoted" else _FALSE):
        return False
    raise ValueError(f"must be True or False: {_shown(text.value)}")


def target_of(text: Text) -> str:
    """Return a target: `service` or `version.service`."""
    return _matched(_TARGET, text, "must be a service, or version.service, in lower case")


def application_of(text: Text) -> str:
    """Return an application's id, with its partition and domain."""
    return _matched(_APPLICATION, text, "must be an application's id, such as my-app")


def email_of(text: Text) -> str:
    """Return an email address; App Engine accepts any text."""
    limit = f"must be an address of 1 to {MAX_EMAIL_CHARACTERS} visible characters"
    email = _matched(_EMAIL, text, limit)
    if not email.isprintable():
        raise ValueError(f"{limit}: {email[:60]!a}")
    return email


def _matched(pattern: re.Pattern[str], text: Text, limit: str) -> str:
    words = _TRUE | _FALSE
    if text.style == "plain" and (text.value in words or _NUMBER_UNLIKE_ITSELF.fullmatch(text.value)):
        raise ValueError(f"without quotes App Engine reads it as a number or a boolean: {_shown(text.value)}")
    if pattern.fullmatch(text.value) is None:
        length = f" ({len(text.value)} characters)" if len(text.value) > 60 else ""
        raise ValueError(f"{limit}: {_shown(text.value)}{length}")
    return text.value


def _float(text: str) -> float | None:
    """Python's idea of a number, as App Engine's reader has; None for no number, and for an endless one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


MAX_RATE_PER_SECOND: Final = 500  # gcloud
MAX_BUCKET_SIZE: Final = 500  # gcloud
MAX_REPORTED: Final = 100
"""Problems that are listed one by one; the rest is counted."""

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
    "bucket_size": integer_value,
    "max_concurrent_requests": integer_value,
    "target": target_of,
    "retry_parameters": None,
    "acl": None,
}
_RETRY: Final[_Readers] = {
    "task_retry_limit": integer_value,
    "task_age_limit": age_of,
    "min_backoff_seconds": number_of,
    "max_backoff_seconds": number_of,
    "max_doublings": integer_value,
}
_ACL: Final[_Readers] = {"user_email": email_of, "writer_email": email_of}

# gcloud's own phrases, so that they can be searched for.
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


def entries_of(root: Node, *, problems: Sequence[tuple[Place, str]], name: str, spelling: Spelling) -> QueueFileEntries:
    """Return the entries of the file called `name`.

    Raises `DocumentError` with a line for each problem, including `problems` of the reader, in the file's order.
    """
    rules = _Rules(spelling, list(problems))
    entries = rules.entries(root)
    if rules.problems:
        raise DocumentError(problem_lines(rules.problems, name=name))
    return entries


def problem_lines(problems: Sequence[tuple[Place, str]], *, name: str) -> tuple[str, ...]:
    """Return a line such as `queue.yaml:3:5: ...` for each problem, in the file's order, up to `MAX_REPORTED`."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem[0])
    lines = [line_at(name, place, message) for place, message in ordered]
    more = (
        f"{lines[MAX_REPORTED].split(' ')[0]} and {len(lines) - MAX_REPORTED} more mistakes from here"
        if lines[MAX_REPORTED:]
        else ""
    )
    return (*lines[:MAX_REPORTED], more) if more else tuple(lines)


@dataclass(frozen=True, slots=True)
class _Settings:
    """A validated mapping: its members by key, the values of its valid scalars, and its place."""

    path: str
    place: Place
    members: Mapping[str, MappingItem]
    values: Mapping[str, Value]

    def has(self, key: str) -> bool:
        """Return whether the key has a value, valid or not."""
        return key in self.members and not isinstance(self.members[key].value, EmptyItem)

    def number(self, key: str) -> float | None:
        """Return the value of a number; None when it is absent or invalid."""
        value = self.values.get(key)
        return value if isinstance(value, int | float) else None


class _Rules:
    """The validation of one tree; methods collect problems and continue."""

    def __init__(self, spelling: Spelling, problems: list[tuple[Place, str]]) -> None:
        self.problems = problems
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
        """Return the name, or "" if it is invalid."""
        if not queue.has("name"):
            self._report(queue.place, queue.path, "a queue must have a name")
        name = str(queue.values.get("name", ""))
        if name in self._names:
            message = f"there are two queues '{name}', the first in line {self._names[name].line}: keep one of them"
            self._report_at(queue, "name", message)
        elif name:
            self._names[name] = queue.members["name"].place
        return name

    def _acl(self, queue: _Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return users and writers, without duplicates."""
        found: dict[str, dict[str, None]] = {key: {} for key in _ACL}
        for index, item in enumerate(self._items(queue, "acl")):
            path = self._path(queue.path, "acl")
            entry = self._settings(item, f"{path}[{index}]" if self._spelling == "yaml" else path, _ACL)
            for key, email in entry.values.items() if entry else ():
                found[key][str(email)] = None
        for key, emails in found.items():
            if len(emails) > MAX_EMAILS:
                word = shown_key(key, self._spelling)
                self._report_at(queue, "acl", f"at most {MAX_EMAILS} of {word} in one queue: {len(emails)}")
        return tuple(found["user_email"]), tuple(found["writer_email"])

    def _retry(self, queue: _Settings) -> _Settings | None:
        if not queue.has("retry_parameters"):
            return None
        value = queue.members["retry_parameters"].value
        retry = self._settings(value, self._path(queue.path, "retry_parameters"), _RETRY)
        for key, phrase in _NOT_NEGATIVE.items() if retry else ():
            number = retry.number(key) if retry else None
            if retry and number is not None and number < 0:
                self._report_at(retry, key, f"{phrase}: {number:g}")
        return retry

    def _check_pull(self, queue: _Settings, retry: _Settings | None) -> int | None:
        """Return the number of leases after which a task is deleted."""
        for settings in (queue, retry) if retry else (queue,):
            for key, phrase in _PULL_FORBIDS.items():
                if settings.has(key):
                    self._report_at(settings, key, f"{phrase}: leave it out")
        limit = retry.number("task_retry_limit") if retry else None
        if retry is None or limit is None:
            return None
        if limit == 0:
            message = "a pull queue's limit is how often a task is leased before it is deleted, so 0 would lease none"
            self._report_at(retry, "task_retry_limit", f"{message}: write 1 or more, or leave it out for no limit")
        if limit > MAX_LEASES:
            self._report_at(retry, "task_retry_limit", f"must be at most {MAX_LEASES}, or left out: {limit}")
        return int(limit)

    def _check_push(self, queue: _Settings, retry: _Settings | None) -> None:
        if not queue.has("rate"):
            fix = "write a rate such as 5/s; or, for a pull queue, the mode"
            self._report(queue.place, queue.path, f"Refill rate must be specified for push-based queue: {fix}")
        rate = queue.number("rate") or 0
        if rate > MAX_RATE_PER_SECOND:
            message = f"Refill rate must not exceed {MAX_RATE_PER_SECOND} per second (is {rate:g})"
            self._report_at(queue, "rate", message)
        size = queue.number("bucket_size") or 0
        if size < 0:
            self._report_at(queue, "bucket_size", f"must be 0 or more, or the queue rate is invalid: {size}")
        if size > MAX_BUCKET_SIZE:
            self._report_at(queue, "bucket_size", f"Maximum bucket size is {MAX_BUCKET_SIZE}: {size}")
        if self._spelling == "xml" and "acl" in queue.members:
            self._report_at(queue, "acl", "is not defined for push queues: leave it out, or write <mode>pull</mode>")
        if retry is None:
            return
        age = retry.number("task_age_limit")
        if age is not None and age < 1:
            self._report_at(retry, "task_age_limit", f"Task age limit must be greater than zero: {age:g} s")
        low, high = retry.number("min_backoff_seconds"), retry.number("max_backoff_seconds")
        if low is not None and high is not None and low > high:
            message = f"Min backoff sec must not be greater than max backoff sec: {low:g} > {high:g}"
            self._report_at(retry, "min_backoff_seconds", message)

    # -- the tree -------------------------------------------------------------------------------------------------

    def _settings(self, node: Node, path: str, readers: _Readers) -> _Settings | None:
        if not isinstance(node, Group):
            if not isinstance(node, UnreadableItem):
                known = ", ".join(shown_key(key, self._spelling) for key in readers)
                self._report(node.place, path, f"must be a mapping of settings ({known})")
            return None
        members: dict[str, MappingItem] = {}
        values: dict[str, Value] = {}
        for member in node.members:
            inner = self._path(path, member.key if member.key.isprintable() else ascii(member.key))
            if member.key not in readers:
                known_keys = [shown_key(key, self._spelling) for key in readers]
                meant = did_you_mean(shown_key(member.key, self._spelling), known_keys)
                self._report(member.place, inner[:200], f"unknown setting{meant}")
            elif member.key in members:
                first = members[member.key].place
                self._report(member.place, inner, f"is given twice; first in line {first.line}: keep one of them")
            else:
                members[member.key] = member
                reader = readers[member.key]
                value = None if reader is None else self._scalar(member.value, inner, reader)
                if value is not None:
                    values[member.key] = value
        return _Settings(path, node.place, members, values)

    def _scalar(self, node: Node, path: str, reader: Callable[[Text], Value]) -> Value | None:
        if isinstance(node, EmptyItem | UnreadableItem):
            return None
        if not isinstance(node, Text):
            self._report(node.place, path, "must be one value, not a list or a mapping")
            return None
        try:
            return reader(node)
        except ValueError as error:
            self._report(node.place, path, str(error))
            return None

    def _items(self, settings: _Settings, key: str) -> Sequence[Node]:
        if not settings.has(key):
            return ()
        value = settings.members[key].value
        if isinstance(value, Items):
            return value.items
        if not isinstance(value, UnreadableItem):
            self._report(value.place, self._path(settings.path, key), "must be a list, each item after a '- '")
        return ()

    def _path(self, path: str, key: str) -> str:
        return f"{path}{'.' if path else ''}{shown_key(key, self._spelling)}"

    def _report_at(self, settings: _Settings, key: str, message: str) -> None:
        self._report(settings.members[key].place, self._path(settings.path, key), message)

    def _report(self, place: Place, path: str, message: str) -> None:
        self.problems.append((place, f"{path}: {message}" if path else message))
