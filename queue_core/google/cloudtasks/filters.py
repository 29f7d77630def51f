"""Parse the filters of LeaseTasks and ListQueues. Pure."""

import re
from collections.abc import Mapping

from queue_core import limits
from queue_core.google.cloudtasks.failures import CloudTasksError, invalid
from queue_core.google.cloudtasks.messages import ENUMS, STATE
from queue_core.task import ANY, TagFilter

OLDEST_TAG_FUNCTION = "oldest_tag()"
_LEASE = re.compile(r"\s*(tag|tag_function)\s*=(.*)", re.DOTALL)
_QUOTED = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_TERM = re.compile(
    r"\s*(?P<not>NOT\s+|-)?(?P<field>[A-Za-z_.]+)\s*(?P<operator><=|>=|!=|=|<|>|:)\s*"
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s"()]+))\s*(?P<and>AND\b\s*)?'
)
_TARGETS = ("app_engine_http_target", "http_target")
_FIELDS = ("name", "state", "pull_target", "retry_config.max_attempts", *_TARGETS)


def lease_filter(text: str) -> TagFilter:
    """Parse `tag=x`, `tag="x"` or `tag_function=oldest_tag()`; empty: any task. Raises `CloudTasksError`."""
    if not text.strip():
        return ANY
    match = _LEASE.fullmatch(text)
    if match is None:
        raise invalid(f'filter must be tag=TAG, tag="TAG" or tag_function={OLDEST_TAG_FUNCTION}: {text[:100]!r}')
    if match[1] == "tag_function":
        if match[2].strip() != OLDEST_TAG_FUNCTION:
            raise invalid(f"the only tag_function is {OLDEST_TAG_FUNCTION}: {text[:100]!r}")
        return TagFilter.oldest()
    tag = _tag(match[2])
    if not tag:
        raise invalid("tag= needs a tag: untagged tasks can't be filtered; omit the filter for any task")
    limits.check_tag(tag)
    return TagFilter.of(tag)


def _tag(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        return _ESCAPE.sub(r"\1", quoted[1])
    if text.lstrip().startswith('"'):
        raise invalid(f'a quoted tag must end with a quote; write a quote inside it as \\": {text[:100]!r}')
    return text.strip()


class QueueFilter:
    """A ListQueues filter: terms that must all hold."""

    def __init__(self, text: str) -> None:
        """Parse `FIELD OPERATOR VALUE [AND ...]`. Raises `CloudTasksError`."""
        self._terms: list[tuple[str, str, str, bool]] = []
        at = 0
        while text[at:].strip():
            match = _TERM.match(text, at)
            if match is None:
                raise _bad_filter(text[at:])
            field = re.sub(r"([A-Z])", lambda letter: f"_{letter[1].lower()}", match["field"])
            if field not in _FIELDS:
                raise _bad_filter(text[at:])
            value = _ESCAPE.sub(r"\1", match["quoted"]) if match["quoted"] is not None else match["word"]
            self._terms.append((field, match["operator"], value, bool(match["not"])))
            at = match.end()
            if match["and"] and not text[at:].strip():
                raise _bad_filter(match["and"])

    def accepts(self, queue: Mapping[str, object]) -> bool:
        """Return whether a queue (the values of its message) matches. Raises `CloudTasksError`."""
        return all(_holds(queue, field, operator, value) != negated for field, operator, value, negated in self._terms)


def _holds(queue: Mapping[str, object], field: str, operator: str, value: str) -> bool:
    if field in _TARGETS or field == "pull_target":
        if operator not in (":", "=") or value != "*":
            raise _bad_filter(f"{field}{operator}{value}")
        return field == "pull_target"
    if field == "retry_config.max_attempts":
        config = queue.get("retryConfig")
        assert isinstance(config, dict)
        if value == "*" and operator == ":":
            return "maxAttempts" in config
        if not re.fullmatch(r"[0-9]{1,9}", value):
            raise _bad_filter(f"{field}{operator}{value}")
        return _compares(int(config.get("maxAttempts", 0)), operator, int(value))
    if field == "state":
        number = queue["state"]
        assert isinstance(number, int)
        return _matches(ENUMS[STATE][number], operator, value)
    return _matches(str(queue["name"]), operator, value)


def _matches(text: str, operator: str, value: str) -> bool:
    if operator == ":":
        return value == "*" or value.rstrip("*").lower() in text.lower()
    return _compares(text, operator, value)


def _compares(left: int | str, operator: str, right: int | str) -> bool:
    if operator in ("=", ":"):
        return left == right
    if operator == "!=":
        return left != right
    assert type(left) is type(right)
    below = left < right  # type: ignore[operator]
    return {"<": below, "<=": below or left == right, ">": not below and left != right, ">=": not below}[operator]


def _bad_filter(text: str) -> CloudTasksError:
    return invalid(
        f"filter must be terms FIELD OPERATOR VALUE, joined by AND, with a field of {', '.join(_FIELDS)}: "
        f"{text[:100]!r}"
    )
