"""Export a Helm chart: the objects of the Kubernetes manifests, with images, bounds and secrets as values. Pure.

The objects are made once, by `keda.manifests`; here some of their values become expressions, and all other text is
written so that Helm's templates find nothing in it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

from orchestrator.config.kubernetes import WORKER_SECRET
from orchestrator.config.pools import PoolSpec, bounds_of
from orchestrator.export import incluster
from orchestrator.export.keda import VARIABLES_FILE, Manifests, manifests, secret_commands, variables_files
from orchestrator.export.kubernetes import CLIENT_LABEL, NAME, SECRET, Object, worker_name
from orchestrator.export.request import ExportedFiles, ExportRequest, header, yaml_of
from orchestrator.export.settings import PORT

SETTINGS: Final = "towline.yaml"
_BRACES: Final = '{{ "{{" }}'
_RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")
_COUNT: Final[Object] = {"type": "integer", "minimum": 0}
_TEXT: Final[Object] = {"type": "string", "minLength": 1}
_RESOURCES: Final[Object] = {"type": "object"}

Replaced = Callable[[tuple[str | int, ...], object], str | None]
"""Returns the expression for the value at a path of an object, or None for a value that stays."""


@dataclass(slots=True)
class _Expressions:
    """Words that stand for template expressions while values are YAML, where an expression would be quoted."""

    word: str
    found: list[str] = field(default_factory=list)

    def stand_in(self, expression: str) -> str:
        """Return a word for the expression."""
        if expression not in self.found:
            self.found.append(expression)
        return f"{self.word}{self.found.index(expression):04}"

    def written(self, text: str) -> str:
        """Return the text as a template: with expressions for the words, and braces of its own written out."""
        return re.sub(
            rf"{self.word}(\d{{4}})",
            lambda one: f"{{{{ {self.found[int(one[1])]} }}}}",
            text.replace("{{", _BRACES),
        )


def helm(request: ExportRequest) -> ExportedFiles:
    """Return the files of a chart. Raises `ExportRefusedError`.

    Its default values give the objects of `incluster` if a pool's workers are Pods, else those of `keda`.
    """
    if any(pool.runtime_kind == "kubernetes" for pool in request.project.pools.values()):
        return _of_pods(request)
    return _of_keda(request)


def _of_pods(request: ExportRequest) -> ExportedFiles:
    """Return the chart whose supervisor starts and stops the workers' Pods."""
    plain = incluster.cluster_objects(request)
    expressions = _Expressions(_unused(yaml_of(*plain.of_cluster, *plain.of_namespace)))
    namespace = expressions.stand_in(".Release.Namespace")
    found = incluster.cluster_objects(replace(request, namespace=namespace))
    settings = cast("Object", _walked(found.settings.data, (), _pool_image, expressions))
    _, *policy = found.of_cluster  # the namespace is Helm's
    values, schema = _values_of_pods(request, plain)
    notes = [
        "Once: the namespace's standard, and the secrets that the objects name:",
        f"  kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=restricted",
        *incluster.secret_commands(request, found.settings, f"--namespace {namespace}"),
        *incluster.watching_commands(namespace),
        "Removing the release ends all workers.",
    ]
    files = {
        "Chart.yaml": header(_HEAD) + yaml_of(_chart(request)),
        "values.yaml": header(_HEAD) + values,
        "values.schema.json": json.dumps(schema, indent=2) + "\n",
        SETTINGS: expressions.written(yaml_of(settings)),
        "templates/fleet.yaml": _template([*policy, *found.of_namespace], _fleet_value, expressions),
        "templates/NOTES.txt": expressions.written("\n".join(notes) + "\n"),
    }
    private = incluster.variables_files(request)
    return ExportedFiles(files | _ignored(private), found.warnings, private)


def _ignored(private: Mapping[str, str]) -> dict[str, str]:
    """Return the file that keeps private files out: they are applied by themselves, and Helm would package them."""
    return {".helmignore": f"{VARIABLES_FILE}\n"} if private else {}


def _pool_image(path: tuple[str | int, ...], _value: object) -> str | None:
    match path:
        case ("pools", str() as name, "runtime", "kubernetes", "image"):
            return f'(index .Values.pools "{name}").image | quote'
    return None


def _fleet_value(path: tuple[str | int, ...], value: object) -> str | None:
    match path:
        case (*_, "data", "towline.yaml"):
            return f'tpl (.Files.Get "{SETTINGS}") . | quote'
        case (*_, "secret", "name") if value == WORKER_SECRET:
            return ".Values.workerSecret | quote"
        case (*_, "secret", "name"):
            return ".Values.secrets | quote"
        case _:
            return _queue_value(path, value)


def _values_of_pods(request: ExportRequest, found: incluster.ClusterObjects) -> tuple[str, Object]:
    """Return the values and their schema."""
    kinds = {str(one["kind"]): one for one in found.of_namespace}
    resources = _value_at(kinds["Deployment"], *_CONTAINER, "resources")
    server: Object = {"image": request.server_image, "resources": resources}
    known: Object = {"image": _TEXT, "resources": _RESOURCES}
    if claim := kinds.get("PersistentVolumeClaim"):
        server["storage"] = _value_at(claim, "spec", "resources", "requests", "storage")
        known["storage"] = _TEXT
    pools = {name: {"image": str(request.image_of(pool))} for name, pool in request.project.pools.items()}
    parts = [
        "# The secrets with the store's password and tokens, and with the workers' token: see NOTES.txt.\n",
        yaml_of({"secrets": SECRET, "workerSecret": WORKER_SECRET}),
        "# Queue server and supervisor. The settings are in the chart's towline.yaml.\n",
        yaml_of({"server": server}),
        "# The images of the pools' workers: a changed one replaces them, new before old.\n",
        yaml_of({"pools": pools}),
    ]
    of_pools = _closed({name: _closed({"image": _TEXT}) for name in pools})
    return "".join(parts), _whole_schema(
        {"secrets": _TEXT, "workerSecret": _TEXT, "server": _closed(known), "pools": of_pools}
    )


def _of_keda(request: ExportRequest) -> ExportedFiles:
    """Return the chart whose Deployments KEDA scales."""
    plain = manifests(request)
    expressions = _Expressions(_unused(yaml_of(*_objects(plain))))
    namespace = expressions.stand_in(".Release.Namespace")
    made = manifests(replace(request, namespace=namespace))
    files = {
        "Chart.yaml": header(_HEAD) + yaml_of(_chart(request)),
        "values.yaml": header(_HEAD) + _values(request, made),
        "values.schema.json": json.dumps(_schema(request, made), indent=2) + "\n",
        SETTINGS: yaml_of(made.settings.data),
        "templates/queue.yaml": _template(made.queue, _queue_value, expressions),
    }
    for name, objects in made.pools.items():
        begin = f'{{{{- $pool := index .Values.pools "{name}" }}}}\n'
        files[f"templates/{name}.yaml"] = begin + _template(objects, _pool_placeholders(name), expressions)
    files["templates/NOTES.txt"] = expressions.written("\n".join(_notes(request, made, namespace)) + "\n")
    private = variables_files(request)
    return ExportedFiles(files | _ignored(private), made.warnings, private)


_HEAD: Final = (
    "From `towline export --to helm`; change the settings file and export again rather than this file.",
    f"One release a namespace: the objects are called {NAME}, regardless of the release's name.",
    "",
)


def _objects(made: Manifests) -> Iterator[Object]:
    yield from made.queue
    for objects in made.pools.values():
        yield from objects


def _unused(text: str) -> str:
    """Return a word that the text does not have."""
    word = "towline-value-"
    while word in text:
        word = f"x{word}"
    return word


def _chart(request: ExportRequest) -> Object:
    release = _RELEASE.match(request.version)
    return {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Queue, supervisor and workers of Towline",
        "type": "application",
        "version": release[0] if release else "0.0.0",
        "appVersion": request.version,
    }


def _values(request: ExportRequest, made: Manifests) -> str:
    stateful = next(one for one in made.queue if one["kind"] == "StatefulSet")
    server = {
        "image": request.server_image,
        "storage": _value_at(stateful, "spec", "volumeClaimTemplates", 0, "spec", "resources", "requests", "storage"),
        "resources": _value_at(stateful, *_CONTAINER, "resources"),
    }
    parts = [
        "# The secret with the store's password and the tokens; NOTES.txt has the command that makes it.\n",
        yaml_of({"secrets": SECRET}),
        "# Queue server and supervisor. The settings are in the chart's towline.yaml.\n",
        yaml_of({"server": server}),
        "# The bounds are KEDA's: the supervisor's own are in towline.yaml, and it never exceeds them.\n",
        yaml_of({"pools": {pool.name: _pool_values(pool, made) for pool in request.project.pools.values()}}),
    ]
    return "".join(parts)


def _pool_values(pool: PoolSpec, made: Manifests) -> Object:
    deployment = made.pools[pool.name][0]
    low, high = bounds_of(pool)
    secrets = {"secrets": f"{worker_name(pool.name)}-secrets"} if pool.containers and pool.containers.secrets else {}
    return {
        "image": _value_at(deployment, *_CONTAINER, "image"),
        "min": low,
        "max": max(1, high),
        "resources": _value_at(deployment, *_CONTAINER, "resources"),
        **secrets,
    }


def _schema(request: ExportRequest, made: Manifests) -> Object:
    """Return the JSON Schema of the values: a misspelt one is told rather than ignored."""
    pools: Object = {}
    for pool in request.project.pools.values():
        kinds: Object = {"image": _TEXT, "min": _COUNT, "max": {**_COUNT, "minimum": 1}, "resources": _RESOURCES}
        pools[pool.name] = _closed({**kinds, **({"secrets": _TEXT} if "secrets" in _pool_values(pool, made) else {})})
    server = _closed({"image": _TEXT, "storage": _TEXT, "resources": _RESOURCES})
    return _whole_schema({"secrets": _TEXT, "server": server, "pools": _closed(pools)})


def _whole_schema(values: Object) -> Object:
    whole = _closed(values)
    properties = cast("Object", whole["properties"])
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **whole,
        "properties": {**properties, "global": {}},  # Helm gives it to every chart that is a part of another
    }


def _closed(properties: Object) -> Object:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


_CONTAINER: Final = ("spec", "template", "spec", "containers", 0)


def _queue_value(path: tuple[str | int, ...], value: object) -> str | None:
    match path:
        case (*_, "data", "towline.yaml"):
            return f'.Files.Get "{SETTINGS}" | quote'
        case (*_, "containers", 0, "image"):
            return ".Values.server.image | quote"
        case (*_, "containers", 0, "resources"):
            return ".Values.server.resources | toJson"
        case (*_, "requests", "storage"):
            return ".Values.server.storage | quote"
        case (*_, "secretName") | (*_, "secretTargetRef", 0, "name") if value == SECRET:
            return ".Values.secrets | quote"
    return None


def _pool_placeholders(name: str) -> Replaced:
    secrets = f"{worker_name(name)}-secrets"

    def replaced(path: tuple[str | int, ...], value: object) -> str | None:
        match path:
            case (*_, "containers", 0, "image"):
                return "$pool.image | quote"
            case (*_, "containers", 0, "resources"):
                return "$pool.resources | toJson"
            case ("spec", "minReplicaCount"):
                return "int $pool.min"
            case ("spec", "maxReplicaCount") | (*_, "policies", 0, "value"):
                return "int $pool.max"
            case (*_, "secretName") if value == SECRET:
                return ".Values.secrets | quote"
            case (*_, "secretName") if value == secrets:
                return "$pool.secrets | quote"
        return None

    return replaced


def _template(objects: object, replaced: Replaced, expressions: _Expressions) -> str:
    """Return objects as a template."""
    made = [cast("Object", _walked(one, (), replaced, expressions)) for one in cast("list[Object]", objects)]
    return expressions.written(yaml_of(*made))


def _walked(value: object, path: tuple[str | int, ...], replaced: Replaced, expressions: _Expressions) -> object:
    expression = replaced(path, value)
    if expression is not None:
        return expressions.stand_in(expression)
    if isinstance(value, Mapping):
        return {key: _walked(one, (*path, key), replaced, expressions) for key, one in value.items()}
    if isinstance(value, list):
        return [_walked(one, (*path, place), replaced, expressions) for place, one in enumerate(value)]
    return value


def _value_at(value: object, *path: str | int) -> object:
    for step in path:
        value = cast("dict[str | int, object]", value)[step]
    return value


def _notes(request: ExportRequest, made: Manifests, namespace: str) -> list[str]:
    space = f"--namespace {namespace}"
    return [
        "Once, the secrets that it names:",
        *secret_commands(request, made.settings, space),
        "See what it does:",
        f"  kubectl exec {space} statefulset/{NAME} -- towline pools",
        f"  kubectl get scaledobject,hpa,deployment {space} --selector app.kubernetes.io/part-of={NAME}",
        f'Pods that add tasks carry the label {CLIENT_LABEL}: "true" and use http://{NAME}.{namespace}.svc:{PORT}.',
    ]
