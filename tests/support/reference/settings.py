"""The page of settings: every key of the settings file with what it takes, its default, its bounds and an example."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast, get_args

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.settings_file import _SettingsDocument, json_schema
from queue_core.config.units import format_bytes, format_seconds
from queue_core.process.wording import format_rate
from tests.support.reference.markdown import code, page, sentence, table

Schema = Mapping[str, object]

DURATION: Final = "(?:ms|s|m|h|d))+$"
SIZE: Final = "[KMGT]iB)$"
RATE: Final = "(s|m|min|h|d)$"
PERCENT: Final = "%$"
FOREVER_SECONDS: Final = 1e8

NAMES: Final = {"queues": "NAME", "schedules": "NAME", "pools": "NAME"}
"""Sections whose keys are names of the reader's own."""

INTRODUCTION: Final = """\
Everything that `towline.yaml` may say. `towline check` reads a file and names each mistake with its line, `towline
config` prints what is in force and where it comes from, and `towline schema` prints this page's source as JSON
Schema, for editors. A flag goes before an environment variable (`TOWLINE_...`), that before the file, the file before
the default.

A **duration** is written `500ms`, `30s`, `1m30s`, `6h`, `2d`, or a number of seconds; a **size** `64KiB`, `512MiB`,
`1GB`, or a number of bytes; a **rate** `10/s`, `600/min`, `5/h`."""

EXAMPLES: Final[Mapping[str, object]] = {
    "store": "redis://cache:6379/0",
    "server": {"listen": "0.0.0.0:7878", "tokens": [{"role": "worker", "token_file": "worker.token"}]},
    "server.tls": {"cert": "tls/cert.pem", "key": "tls/key.pem"},
    "server.auth": {"header": "X-Forwarded-User", "trust": ["10.0.0.7"]},
    "console": {"writes": True},
    "queues": {"thumbs": {"lease": "30s", "max_leases": 5}},
    "queues.NAME.acl": {"users": ["worker@example.com"], "writers": ["shop@example.com"]},
    "schedules": {"report": {"queue": "reports", "cron": "0 3 * * *"}},
    "pools": {"resize": {"queue": "thumbs", "app": "tasks:app", "slo": "30s"}},
    "supervisor": {"state_dir": "/var/lib/towline"},
    "store.url": "postgresql://app@db/towline",
    "store.password_file": "/run/secrets/db-password",
    "log": "/var/log/towline.log",
    "server.listen": "0.0.0.0:7878",
    "server.tokens": [{"role": "worker", "token_file": "worker.token"}],
    "server.tokens[].role": "worker",
    "server.tokens[].email": "worker@example.com",
    "server.tokens[].token_file": "/run/secrets/worker-token",
    "server.tokens[].token_env": "WORKER_TOKEN",
    "server.grpc.listen": "127.0.0.1:7879",
    "server.grpc.certificate": "tls/cert.pem",
    "server.grpc.key": "tls/key.pem",
    "server.tls.cert": "tls/cert.pem",
    "server.tls.key": "tls/key.pem",
    "server.auth.trust": ["10.0.0.7"],
    "server.auth.roles": {"ann@example.com": "admin"},
    "console.redact": ["password", "*.token"],
    "total_storage_limit": "10GiB",
    "queues.NAME.max_in_flight": 50,
    "queues.NAME.burst": 20,
    "queues.NAME.max_lease": "10m",
    "queues.NAME.max_leases": 5,
    "queues.NAME.retry": {"min": "1s", "max": "5m"},
    "queues.NAME.retry.min": "5s",
    "queues.NAME.retry.max": "1h",
    "queues.NAME.name_retention": "1d",
    "queues.NAME.label": "Thumbnails",
    "queues.NAME.acl.users": ["worker@example.com"],
    "queues.NAME.acl.writers": ["shop@example.com"],
    "queues.NAME.history": {"keep": 50000, "for": "7d"},
    "queues.NAME.history.keep": 50000,
    "queues.NAME.history.for": "7d",
    "queues.NAME.per_tag": {"max_in_flight": 2, "fair": True},
    "queues.NAME.per_tag.max_in_flight": 2,
    "queues.NAME.per_tag.rate": "60/min",
    "queues.NAME.per_tag.burst": 5,
    "queues.NAME.max_payload": "8MiB",
    "queues.NAME.max_eta": "365d",
    "schedules.NAME.queue": "reports",
    "schedules.NAME.every": "10m",
    "schedules.NAME.payload": {"report": "daily"},
    "schedules.NAME.tag": "nightly",
    "schedules.NAME.headers": {"source": "schedule"},
    "pools.NAME.source": {"celery": {"broker": "redis://127.0.0.1/0"}},
    "pools.NAME.source.celery": {"broker": "redis://127.0.0.1/0"},
    "pools.NAME.source.celery.queues": ["default", "images"],
    "pools.NAME.source.celery.broker_transport_options": {"global_keyprefix": "shop:"},
    "pools.NAME.source.celery.control_exchange": "shop-celery",
    "pools.NAME.source.celery.event_exchange": "shop-celeryev",
    "pools.NAME.celery.queues": ["default", "images"],
    "pools.NAME.celery.namespace": "shop",
    "pools.NAME.tags": ["resize", "crop"],
    "pools.NAME.command": ["python3", "worker.py", "--name", "{worker}"],
    "pools.NAME.runtime.kubernetes": {"image": "registry.example/thumbs:1.4.2"},
    "pools.NAME.runtime": {"docker": {"image": "thumbs:1", "memory": "512MiB"}},
    "pools.NAME.runtime.docker": {"image": "thumbs:1", "memory": "512MiB"},
    "pools.NAME.runtime.swarm": {"image": "registry.internal/thumbs:1"},
    **{
        f"pools.NAME.runtime.{name}.{key}": value
        for name in ("docker", "swarm")
        for key, value in {
            "memory": "512MiB",
            "cpus": 1.5,
            "network": "backend",
            "volumes": ["thumbs:/var/thumbs", "/srv/fonts:/fonts:ro"],
            "stop_signal": "SIGINT",
            "labels": {"team": "images"},
            "python": "/venv/bin/python",
        }.items()
    },
    "pools.NAME.runtime.docker.secrets": {"api-key": "secrets/api-key"},
    "pools.NAME.runtime.swarm.nodes": {"node-2": "tcp://node-2:2375"},
    "pools.NAME.runtime.swarm.secrets": {"api-key": "thumbs_api_key"},
    "pools.NAME.workers": {"min": 1, "max": 20},
    "pools.NAME.workers.min": 1,
    "pools.NAME.workers.max": 20,
    "pools.NAME.grace": "2m",
    "pools.NAME.concurrency": 4,
    "pools.NAME.recycle": {"tasks": 1000, "memory": "512MiB", "age": "6h"},
    "pools.NAME.recycle.tasks": 1000,
    "pools.NAME.recycle.memory": "512MiB",
    "pools.NAME.recycle.age": "6h",
    "pools.NAME.env": {"MODEL": "small"},
    "pools.NAME.cwd": "/srv/thumbs",
    "pools.NAME.churn": "1m",
    "pools.NAME.eps": "1%",
    "pools.NAME.max_step_up": 4,
    "pools.NAME.spawn_parallelism": 2,
    "pools.NAME.schedule": [{"cron": "0 8 * * 1-5", "for": "10h", "workers": {"min": 4}}],
    "pools.NAME.schedule[].for": "10h",
    "pools.NAME.schedule[].workers": {"min": 4, "max": 20},
    "pools.NAME.schedule[].workers.min": 4,
    "pools.NAME.schedule[].workers.max": 20,
    "pools.NAME.surge": 2,
    "pools.NAME.min_billing": "1h",
    "pools.NAME.fallback": 2,
    "supervisor.orphan_grace": "5m",
    "supervisor.lead": "30s",
    "supervisor.state_dir": "/var/lib/towline",
    "supervisor.listen": "127.0.0.1:7880",
}
"""Examples of settings whose schema has none, and for which none can be made up."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the file."""

    path: str
    takes: str
    default: str
    text: str
    example: str
    example_value: object
    schema: Schema
    field: FieldInfo | None
    is_section: bool

    @property
    def key(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]


def settings() -> list[Setting]:
    """Return every setting, in the order of the file."""
    schema = json_schema()
    return list(_settings("", schema, _SettingsDocument, schema["$defs"]))  # type: ignore[arg-type]


def settings_page() -> str:
    """Return the page."""
    found = settings()
    parts: list[str] = [INTRODUCTION]
    groups: dict[str, list[Setting]] = {}
    for one in found:
        groups.setdefault(one.path.rpartition(".")[0], []).append(one)
    sections = {one.path: one for one in found if one.is_section}
    for path in ["", *sections]:
        inner = _heading(path, groups)
        if inner is None:
            continue
        parts.append("## The file" if not path else f"{'##' if '.' not in path else '###'} {code(inner)}")
        if path:
            parts.append(sections[path].text)
        parts.append(
            table(
                ("setting", "takes", "default", "meaning"),
                [_row(one, _heading(one.path, groups)) for one in groups[inner]],
            )
        )
    return page("Settings", "the JSON Schema of the settings file", *parts)


def _row(one: Setting, heading: str | None) -> tuple[str, str, str, str]:
    takes = re.sub(r"\bsections?\b", rf"[\g<0>](#{_anchor(heading)})", one.takes, count=1) if heading else one.takes
    return code(one.key), takes, one.default, f"{one.text} Example: {code(one.example)}"


def _heading(path: str, groups: Mapping[str, object]) -> str | None:
    """Return the heading under which the keys of a section are; None: it has none of its own."""
    return next((one for one in (path, f"{path}.NAME", f"{path}[]") if one in groups), None)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w-]", "", heading).lower()


def _settings(prefix: str, schema: Schema, model: type[BaseModel] | None, defs: Schema) -> Iterator[Setting]:
    required: list[str] = schema.get("required", [])  # type: ignore[assignment]
    properties: Mapping[str, Schema] = schema["properties"]  # type: ignore[assignment]
    for key, of_key in properties.items():
        path = f"{prefix}{key}"
        field = _field(model, key)
        sections = _sections(of_key, defs)
        default = "" if key in required else _default(of_key, field)
        text = sentence(
            str(of_key.get("description") or next((one.get("description") for one, _ in sections), "") or "")
        )
        example = EXAMPLES.get(path, _example(of_key, defs, key))
        shown = "" if example is None else f"{key}: {_yaml(example)}"
        takes = _takes(of_key, field, defs)
        if key in required and model is not None:
            takes += "; required"
        yield Setting(path, takes, default, text, shown, example, of_key, field, bool(sections))
        for inner, suffix in sections:
            name = f".{NAMES[path]}" if path in NAMES else suffix
            yield from _settings(f"{path}{name}.", inner, _model(inner), defs)


def _field(model: type[BaseModel] | None, key: str) -> FieldInfo | None:
    if model is None:
        return None
    return next((one for name, one in model.model_fields.items() if key in (name, one.alias)), None)


def _models() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}

    def walk(kind: object) -> None:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ not in found:
            found[kind.__name__] = kind
            for one in kind.model_fields.values():
                walk(one.annotation)
        for inner in get_args(kind):
            walk(inner)

    walk(_SettingsDocument)
    return found


MODELS: Final = _models()


def _model(schema: Schema) -> type[BaseModel] | None:
    return MODELS.get(str(schema.get("title")))


def _alternatives(schema: Schema, defs: Schema) -> list[Schema]:
    """Return what a value may be, without null."""
    if "$ref" in schema:
        named: Schema = defs[str(schema["$ref"]).rpartition("/")[2]]  # type: ignore[assignment]
        return _alternatives(named, defs) if "anyOf" in named or "oneOf" in named else [named]
    many = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(many, list):
        return [inner for one in many for inner in _alternatives(one, defs)]
    return [] if schema.get("type") == "null" else [schema]


def _sections(schema: Schema, defs: Schema) -> list[tuple[Schema, str]]:
    """Return the objects that a setting may contain, each with what stands between its path and the keys."""
    found: list[tuple[Schema, str]] = []
    for one in _alternatives(schema, defs):
        if "properties" in one:
            found.append((one, ""))
        for inner, between in ((one.get("items"), "[]"), (one.get("additionalProperties"), ".NAME")):
            if isinstance(inner, Mapping):
                found += [(section, between) for section, _ in _sections(inner, defs)]
    return found


def _takes(schema: Schema, field: FieldInfo | None, defs: Schema) -> str:
    kinds = list(dict.fromkeys(filter(None, (_kind(one, field, schema, defs) for one in _alternatives(schema, defs)))))
    if any(kind.startswith(("duration", "size", "share")) for kind in kinds):
        kinds = [kind for kind in kinds if not kind.startswith(("number", "whole number"))]
    return ", or ".join(kinds)


def _kind(one: Schema, field: FieldInfo | None, whole: Schema, defs: Schema) -> str:
    pattern = str(one.get("pattern", ""))
    if pattern.endswith(DURATION):
        return f"duration{_bounds(field, whole, format_seconds)}"
    if pattern.endswith(SIZE):
        return f"size{_bounds(field, whole, lambda size: format_bytes(int(size)))}"
    if pattern.endswith(RATE):
        return f"rate{_bounds(field, whole, format_rate)}"
    if pattern.endswith(PERCENT):
        return "share, 0 % to 100 %"
    if "const" in one:
        return code(json.dumps(one["const"]))
    if "enum" in one:
        return " ".join(code(str(value)) for value in one["enum"])  # type: ignore[attr-defined]
    if "properties" in one:
        return "a section"
    kind = one.get("type")
    if kind == "array":
        items = one.get("items", {})
        inner = _takes(items, None, defs) if isinstance(items, Mapping) else "text"
        return f"list of {'sections' if inner.startswith('a section') else inner}"
    if kind == "object":
        values = one.get("additionalProperties")
        inner = _takes(values, None, defs) if isinstance(values, Mapping) else "text"
        return f"names, each with {inner}"
    if kind in ("integer", "number"):
        return f"{'whole number' if kind == 'integer' else 'number'}{_numbers(one)}"
    if kind == "boolean":
        return "`true` `false`"
    return f"text{_lengths(one)}"


def _numbers(one: Schema) -> str:
    low, high = one.get("minimum", one.get("exclusiveMinimum")), one.get("maximum")
    if isinstance(high, int | float) and high >= 2**31 - 1:
        high = None
    return _range(None if low is None else f"{low:,}", None if high is None else f"{high:,}")


def _lengths(one: Schema) -> str:
    most = one.get("maxLength")
    return f", at most {most} characters" if most else ""


def _bounds(field: FieldInfo | None, whole: Schema, shown: Callable[[float], str]) -> str:
    low: str | None = None
    high: str | None = None
    found: list[object] = list(field.metadata) if field is not None else []
    for inner in get_args(field.annotation) if field is not None else ():
        found += getattr(inner, "__metadata__", ())
    for one in [part for item in found for part in (getattr(item, "metadata", None) or [item])]:
        if isinstance(one, Ge | Gt):
            bound = cast("float", one.ge if isinstance(one, Ge) else one.gt)
            low = f"{'above ' if isinstance(one, Gt) else ''}{shown(bound)}"
        if isinstance(one, Le | Lt):
            bound = cast("float", one.le if isinstance(one, Le) else one.lt)
            high = shown(bound) if bound < 2**62 else None
    least = whole.get("ge")
    if low is None and isinstance(least, int | float):
        low = shown(least)
    return _range(low, high)


def _range(low: str | None, high: str | None) -> str:
    if low in ("0", "0s", "0B") and high is None:
        return ""
    if low and low.startswith("above "):
        return f", {low}, at most {high}" if high else f", {low}"
    if low and high:
        return f", {low} to {high}"
    if low:
        return f", at least {low}"
    return f", at most {high}" if high else ""


def _default(schema: Schema, field: FieldInfo | None) -> str:
    value = schema.get("default")
    if value is None or value in ([], {}) or isinstance(value, dict):
        return ""
    takes = json.dumps(schema)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if DURATION.replace("\\", "\\\\") in takes:
            return code(format_seconds(value))
        if SIZE in takes:
            return code(format_bytes(int(value)))
        if field is not None and "%" in takes:
            return code(f"{value * 100:g}%")
    return code(_yaml(value))


def _example(schema: Schema, defs: Schema, key: str) -> object:
    if schema.get("examples"):
        return _best(schema["examples"], schema)  # type: ignore[arg-type]
    default = schema.get("default")
    for one in _alternatives(schema, defs):
        if one.get("examples"):
            return _best(one["examples"], schema)  # type: ignore[arg-type]
        if "enum" in one:
            values: list[object] = one["enum"]  # type: ignore[assignment]
            return next((value for value in values if value != default), values[0])
        pattern = str(one.get("pattern", ""))
        if pattern.endswith(DURATION):
            return "30s"
        if pattern.endswith(SIZE):
            return "64MiB"
        if pattern.endswith(RATE):
            return "10/s"
        if one.get("type") == "boolean":
            return default is not True
        if one.get("type") == "integer":
            return _integer(one, default)
    return None


def _best(examples: list[object], schema: Schema) -> object:
    """Return the first example; of durations one that is neither the shortest nor the default."""
    return examples[1] if examples[0] == "500ms" and len(examples) > 1 else examples[0]


def _integer(one: Schema, default: object) -> int:
    low = one.get("minimum", 0)
    assert isinstance(low, int)
    high = one.get("maximum", 2**31)
    assert isinstance(high, int)
    wanted = default * 2 if isinstance(default, int) and default else 10
    return max(low, min(high, wanted))


def _yaml(value: object) -> str:
    """Return a value as the file has it, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(_yaml(one) for one in value)}]"
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value)
    return json.dumps(value)


def _is_plain(value: str) -> bool:
    """Return whether YAML reads a text as itself without quotes, also inside of brackets."""
    try:
        return value.isascii() and yaml.safe_load(f"[{value}]") == [value]
    except yaml.YAMLError:
        return False
