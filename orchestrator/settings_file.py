"""Read the whole settings file: queues, pools, and the relations between them. All problems are reported at once."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from orchestrator.base.errors import ConfigError
from orchestrator.config.placeholders import near_misses
from orchestrator.config.pools import PoolSpec, SupervisorSettings, parse_pools, parse_supervisor
from orchestrator.runtimes.docker.create import is_out_of_reach, unreachable
from orchestrator.runtimes.kubernetes import body
from orchestrator.state.directory import StateDir
from queue_core.config.celery_names import label_of, store_name
from queue_core.config.listen import is_private
from queue_core.config.messages import SettingProblem, did_you_mean, home_problems
from queue_core.config.settings import (
    Override,
    QueueFile,
    QueueSettings,
    absolute_store,
    document_error,
    environment_overrides,
    overlay,
    parse_queue_file,
    refuse_empty,
)
from queue_core.config.store_urls import has_password, scheme_of
from queue_core.config.units import format_seconds
from queue_core.config.yaml_document import Document, DocumentError, read_document, shown_path
from queue_core.limits import CELERY_MESSAGE_BYTES, FARTHEST_ETA_SECONDS
from queue_core.schedules.schedule import Schedule

DEFAULT_FILE: Final = "towline.yaml"
FLEET_VARIABLES: Final = {
    ("supervisor", "state_dir"): "TOWLINE_STATE_DIR",
    ("supervisor", "orphan_grace"): "TOWLINE_ORPHAN_GRACE",
    ("supervisor", "lead"): "TOWLINE_SUPERVISOR_LEAD",
    ("supervisor", "listen"): "TOWLINE_SUPERVISOR_LISTEN",
}
POOL_VARIABLES: Final = "TOWLINE_POOL_VARIABLES"
"""The variable with values of pools' `env`, as JSON by pool and name: for files that others may read (ADR 127)."""
SAFE_RETENTION_SECONDS: Final = 300.0
"""How long names of deleted tasks refuse a second add, at least, where a tick is not noted as it is added (ADR 38)."""
_POOL_VARIABLES: Final = TypeAdapter(dict[str, dict[str, str]])
_FLEET_KEYS: Final = ("pools", "supervisor")
_NOT_PATHS: Final = frozenset({"env", "command", "labels", "tags", "constraints"})
"""Settings whose values are free text, so a leading ~ in them is not taken for a home folder."""
_LIBPQ_SCHEMES: Final = frozenset({"postgresql", "postgres"})


class _SettingsDocument(QueueFile):
    """The model from which the file's JSON Schema is made."""

    pools: dict[str, PoolSpec] = Field(default={}, description="Pools of workers, by name.")
    supervisor: SupervisorSettings = SupervisorSettings()


@dataclass(frozen=True, slots=True)
class Project:
    """A valid settings file, with the changes that environment variables and flags make.

    Relative paths in it start from `directory`. `origins` says where each setting that is not a default was given:
    `towline.yaml:12:5`, `TOWLINE_STORE`, `--store`. `notes` are warnings for its owner, `name` is the file's.
    """

    queue_file: QueueFile
    pools: Mapping[str, PoolSpec]
    supervisor: SupervisorSettings
    directory: Path
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    name: str = DEFAULT_FILE

    @property
    def store(self) -> str:
        """The store's URL with an absolute path."""
        return absolute_store(self.queue_file.store.url, self.directory)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedules of the file."""
        return tuple(one.schedule(name, origin=self.name) for name, one in self.queue_file.schedules.items())

    def secret_variables(self, environment: Mapping[str, str], *, url: str) -> frozenset[str]:
        """Return the names of environment variables that hold secrets of the server and its store.

        Args:
            environment: the supervisor's own; its `TOWLINE_STORE` is a secret only if it contains a password.
            url: the server or store that workers lease from. `PGPASSWORD` is not withheld if that is PostgreSQL.
        """
        named = {
            text
            for part in (self.queue_file, self.supervisor)
            for text in _named_variables(part.model_dump(mode="json"))
        }
        named.add(POOL_VARIABLES)
        if scheme_of(url) not in _LIBPQ_SCHEMES:
            named.add("PGPASSWORD")
        if has_password(environment.get("TOWLINE_STORE", "")):
            named.add("TOWLINE_STORE")
        return frozenset(named)


def state_of(project: Project) -> StateDir:
    """Return the supervisor's state directory."""
    return StateDir(project.directory / project.supervisor.state_dir)


def _named_variables(settings: object) -> Iterator[str]:
    """Yield the environment variables that the settings name: the value of every key `..._env`."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if isinstance(value, str) and str(key).endswith("_env"):
                yield value
            else:
                yield from _named_variables(value)
    elif isinstance(settings, list):
        for item in settings:
            yield from _named_variables(item)


def read_settings(file: str | Path = DEFAULT_FILE, *, environment: Mapping[str, str] | None = None) -> Project:
    """Read a settings file and apply the `TOWLINE_...` variables to it.

    Args:
        environment: contains those variables; the process's own by default.

    Raises `OSError`, `UnicodeDecodeError`, or `DocumentError` with every problem.
    """
    path = Path(file)
    overrides = overrides_of(os.environ if environment is None else environment)
    return parse_at(path.read_text(encoding="utf-8-sig"), path, overrides=overrides)


def overrides_of(environment: Mapping[str, str]) -> list[Override]:
    """Return the overrides that `TOWLINE_...` variables make."""
    fleet = [Override(path, environment[name], name) for path, name in FLEET_VARIABLES.items() if environment.get(name)]
    return [*environment_overrides(environment), *fleet, *_pool_variables(environment.get(POOL_VARIABLES, ""))]


def _pool_variables(text: str) -> list[Override]:
    """Return the overrides of pools' `env`. Raises `DocumentError` if the text is no JSON of texts by pool and name."""
    if not text:
        return []
    try:
        by_pool = _POOL_VARIABLES.validate_json(text)
    except ValidationError:
        raise DocumentError((f"{POOL_VARIABLES}: write JSON such as " + '{"resize": {"API_KEY": "..."}}',)) from None
    return [
        Override(("pools", pool, "env", name), value, POOL_VARIABLES)
        for pool, variables in by_pool.items()
        for name, value in variables.items()
    ]


def parse_at(text: str, path: Path, *, overrides: Sequence[Override]) -> Project:
    """Parse the text of the file at `path`. Raises `DocumentError`."""
    folder = path.parent.absolute()
    target = path.resolve().parent if path.is_symlink() else folder
    return parse(
        text,
        name=str(path),
        directory=folder,
        target=target if target != folder.resolve() else None,
        overrides=overrides,
    )


def parse(
    text: str, *, name: str, directory: Path, target: Path | None = None, overrides: Sequence[Override] = ()
) -> Project:
    """Parse a settings file.

    Args:
        directory: the folder from which relative paths start.
        target: the folder of the file itself if `directory` only has a link to it: handlers may lie there as well.

    Raises `DocumentError` with a line per problem: `towline.yaml:12:9: pools.resize.slo: ...`.
    """
    document = read_document(text, name=name, repeats="kept")
    refuse_empty(document)
    overrides = [one for one in overrides if one.origin != POOL_VARIABLES or _is_there(one.path[:2], document.data)]
    data = overlay(document.data, overrides)
    queue_file, problems = parse_queue_file(data, other_keys=_FLEET_KEYS)
    mapping = data if isinstance(data, Mapping) else {}
    pools: dict[str, PoolSpec] = {}
    supervisor = SupervisorSettings()
    try:
        pools = parse_pools(mapping.get("pools", {}))
    except ConfigError as error:
        problems += error.problems
    try:
        supervisor = parse_supervisor(_or_empty(mapping.get("supervisor")))
    except ConfigError as error:
        problems += error.problems
    problems += _relations(mapping)
    fleet = {key: mapping[key] for key in _FLEET_KEYS if key in mapping}
    problems += home_problems(fleet, leave_out=_NOT_PATHS)
    if queue_file is not None and not queue_file.server.tokens and not is_private(supervisor.listen or "unix:"):
        why = "other machines could reach it without a token: give server.tokens, or listen on 127.0.0.1"
        problems.append(SettingProblem(("supervisor", "listen"), f"{supervisor.listen}: {why}"))
    placed: dict[str, PoolSpec] = {}
    for key, pool in pools.items():
        try:
            placed[key] = _in_folder(pool, directory, target)
        except ValueError as error:  # a file that the pool names can't be read
            problems.append(SettingProblem(("pools", key, "runtime", pool.runtime_kind, "template"), str(error)))
    if problems or document.repeats or queue_file is None:
        raise document_error(document, problems, overrides)
    notes = tuple(_notes(document, queue_file, pools, directory))
    queue_file = _with_celery_queues(queue_file, pools)
    return Project(
        queue_file,
        placed,
        supervisor,
        directory,
        origins=_origins(document, overrides),
        notes=notes,
        name=Path(name).name,
    )


def _is_there(path: Sequence[str], data: object) -> bool:
    """Return whether the data has a value at this path."""
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True


def _celery_queues(queue_file: QueueFile, pools: Mapping[str, PoolSpec]) -> dict[str, str]:
    """Return the queues of Celery's pools that the file doesn't have, each with its first pool."""
    found: dict[str, str] = {}
    for name, pool in pools.items():
        if pool.celery is not None and not pool.has_foreign_broker:
            for queue in pool.queues:
                if queue not in queue_file.queues:
                    found.setdefault(queue, name)
    return found


def _with_celery_queues(queue_file: QueueFile, pools: Mapping[str, PoolSpec]) -> QueueFile:
    """Return the file with the queues that Celery's pools work on: none has to be written down to be made.

    They have the settings of queues that Celery's programs declare.
    """
    labels = {
        store_name(queue, namespace=celery.namespace): label_of(queue, namespace=celery.namespace)
        for celery in (pool.celery for pool in pools.values())
        if celery is not None
        for queue in celery.queues
    }
    made = {
        queue: QueueSettings(max_payload=CELERY_MESSAGE_BYTES, max_eta=FARTHEST_ETA_SECONDS, label=labels[queue])
        for queue in _celery_queues(queue_file, pools)
    }
    return queue_file.model_copy(update={"queues": {**queue_file.queues, **made}}) if made else queue_file


def _in_folder(pool: PoolSpec, directory: Path, target: Path | None) -> PoolSpec:
    """Make the pool's paths absolute, so that they do not depend on where the supervisor was started.

    Workers start in the file's folder, where `tasks:app` lies; if the file is a link, `tasks:app` is searched beside
    the link first, then beside its target. A container starts in its image's folder; its volumes and secrets start from
    the file's folder.
    """
    if pool.runtime.image is None:
        placed = pool.model_copy(update={"cwd": str((directory / (pool.cwd or "")).resolve())})
        return placed.beside(str(target)) if target is not None and pool.app is not None else placed
    return pool.model_copy(update={"runtime": pool.runtime.beside(directory)})


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12) of the file, for editors."""
    schema = _SettingsDocument.model_json_schema()
    pool = schema["$defs"]["PoolSpec"]  # a pool is named by its key
    pool["properties"].pop("name")
    pool["required"].remove("name")
    schema["properties"]["queues"]["additionalProperties"] = {
        "anyOf": [{"$ref": "#/$defs/QueueSettings"}, {"type": "null"}]
    }
    schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "towline.yaml"}
    schema.pop("description", None)
    return schema


def effective(project: Project) -> list[tuple[str, object, str]]:
    """Return every setting in force: its path, its value as the file would write it, and its origin."""
    leaves = _leaves((), project.queue_file)
    for name, pool in project.pools.items():
        leaves += [leaf for leaf in _leaves(("pools", name), pool) if leaf[0][-1] != "name"]
    leaves += _leaves(("supervisor",), project.supervisor)
    return [(shown_path(path), value, project.origins.get(shown_path(path), "default")) for path, value in leaves]


def _leaves(prefix: tuple[str | int, ...], value: object) -> list[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping) and value:
        return [leaf for key, inner in value.items() for leaf in _leaves((*prefix, key), inner)]
    return [(prefix, value)]


def _origins(document: Document, overrides: Sequence[Override]) -> dict[str, str]:
    origins = {
        shown_path(path): f"{document.name}:{place.line}:{place.column}" for path, place in document.places.items()
    }
    return origins | {shown_path(override.path): override.origin for override in overrides}


def _or_empty(value: object) -> object:
    return {} if value is None else value


def _relations(data: Mapping[str, object]) -> list[SettingProblem]:
    """Return the problems between pools and queues; it works on raw data, as the rest of the file may be invalid."""
    queues, pools = data.get("queues"), data.get("pools")
    known = [str(name) for name in queues] if isinstance(queues, Mapping) else []
    problems: list[SettingProblem] = []
    for name, pool in pools.items() if isinstance(pools, Mapping) else ():
        queue = pool.get("queue") if isinstance(pool, Mapping) else None
        if isinstance(queue, str) and queue not in known:
            meant = did_you_mean(queue, known)
            fix = "" if meant else f"; write it there: `queues: {{{queue}: {{}}}}`"
            path = ("pools", str(name), "queue")
            problems.append(SettingProblem(path, f"there is no queue '{queue}' under queues{meant}{fix}"))
    return problems


def _out_of_reach(pool: PoolSpec, url: str) -> str:
    """Return why the pool's workers can't reach the queue, where that is certain; else ""."""
    boxes, pods = pool.containers, pool.runtime.kubernetes
    if boxes is not None and is_out_of_reach(boxes.url or url, boxes):
        return unreachable(boxes.url or url, pool=pool.name)
    if pods is not None and body.is_out_of_reach(pods.url or url):
        return body.unreachable(pods.url or url, pool=pool.name)
    return ""


def _notes(document: Document, queue_file: QueueFile, pools: Mapping[str, PoolSpec], directory: Path) -> list[str]:
    """Return warnings about settings that are valid but may not be intended."""
    notes = []
    for name, queue in queue_file.queues.items():
        path = ("queues", name)
        if pools and name not in {queue for pool in pools.values() for queue in pool.queues}:
            notes.append(document.line_about(path, "no pool works on this queue"))
        if queue.max_leases is None:
            notes.append(document.line_about(path, "without max_leases a task that always fails is tried for ever"))
    for celery_queue, name in _celery_queues(queue_file, pools).items():
        note = "without max_leases a task that always ends its worker's process is tried for ever"
        fix = f"queues: {{{celery_queue}: {{max_leases: 5}}}}"
        notes.append(document.line_about(("pools", name, "celery"), f"{note}: {fix}"))
    for name, schedule in queue_file.schedules.items():
        retention = queue_file.queues[schedule.queue].name_retention
        if scheme_of(queue_file.store.url).startswith("redis") and retention < SAFE_RETENTION_SECONDS:
            note = f"a tick may be added twice on Redis, as queues.{schedule.queue}.name_retention is "
            note += f"{format_seconds(retention)}: give it {format_seconds(SAFE_RETENTION_SECONDS)} or more"
            notes.append(document.line_about(("schedules", name), note))
    for name, pool in pools.items():
        url = queue_file.server.url(directory)
        if found := _out_of_reach(pool, url):
            notes.append(document.line_about(("pools", name, "runtime"), found))
        for place, why in near_misses(pool.command, pool.env):
            notes.append(document.line_about(("pools", name, *place), why))
        if pool.celery is not None or pool.source is not None:
            continue
        lease = queue_file.queues[pool.queue].lease
        if pool.grace > lease:
            note = f"is longer than the queue's lease, which is {format_seconds(lease)}"
            notes.append(document.line_about(("pools", name, "grace"), f"{note}: only a renewed lease lasts that long"))
    return notes
