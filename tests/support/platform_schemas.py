"""JSON Schemas of what KEDA and Compose accept, as far as we write it: unknown members are errors.

From KEDA's custom resource definitions (keda.sh/v1alpha1, 2.13) and the Compose specification's schema.
"""

from typing import Final

Schema = dict[str, object]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}


def _object(required: tuple[str, ...] = (), **properties: object) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_METADATA: Final = _object(
    ("name",),
    name={"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253},
    namespace={"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
    labels={"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}},
)
_RULES: Final = _object(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies={
        "type": "array",
        "items": _object(
            ("type", "value", "periodSeconds"),
            type={"enum": ["Pods", "Percent"]},
            value={"type": "integer", "minimum": 1},
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        ),
    },
)
# The scaler takes a mapping of texts: numbers are texts too.
_METRICS_API: Final = _object(
    ("url", "valueLocation", "targetValue"),
    url={"type": "string", "pattern": "^https?://"},
    valueLocation=_TEXT,
    targetValue={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
    activationTargetValue={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
    authMode={"enum": ["apiKey", "basic", "tls", "bearer"]},
)

KEDA: Final[dict[str, Schema]] = {
    "ScaledObject": _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind={"const": "ScaledObject"},
        metadata=_METADATA,
        spec=_object(
            ("scaleTargetRef", "triggers"),
            scaleTargetRef=_object(("name",), apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
            pollingInterval=_COUNT,
            cooldownPeriod=_COUNT,
            minReplicaCount=_COUNT,
            maxReplicaCount={"type": "integer", "minimum": 1},
            advanced=_object(
                horizontalPodAutoscalerConfig=_object(name=_TEXT, behavior=_object(scaleUp=_RULES, scaleDown=_RULES))
            ),
            triggers={
                "type": "array",
                "minItems": 1,
                "items": _object(
                    ("type", "metadata"),
                    type={"const": "metrics-api"},
                    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
                    metadata=_METRICS_API,
                    authenticationRef=_object(("name",), name=_TEXT, kind=_TEXT),
                ),
            },
        ),
    ),
    "TriggerAuthentication": _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind={"const": "TriggerAuthentication"},
        metadata=_METADATA,
        spec=_object(
            secretTargetRef={
                "type": "array",
                "items": _object(("parameter", "name", "key"), parameter=_TEXT, name=_TEXT, key=_TEXT),
            }
        ),
    ),
}

_NAME: Final = r"^[a-zA-Z0-9._-]+$"
_DURATION: Final[Schema] = {"type": "string", "pattern": r"^[0-9]+(ms|s|m|h)$"}
_SERVICE: Final = _object(
    ("image",),
    image=_TEXT,
    entrypoint=_TEXTS,
    command=_TEXTS,
    environment={"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
    env_file=_TEXTS,
    depends_on={
        "type": "object",
        "additionalProperties": _object(("condition",), condition={"enum": ["service_started", "service_healthy"]}),
    },
    deploy=_object(replicas=_COUNT),
    init={"type": "boolean"},
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    stop_grace_period=_DURATION,
    networks=_TEXTS,
    ports={"type": "array", "items": _TEXT, "uniqueItems": True},
    volumes={
        "type": "array",
        "items": {
            "oneOf": [_TEXT, _object(("type", "source", "target"), type={"enum": ["bind"]}, source=_TEXT, target=_TEXT)]
        },
        "uniqueItems": True,
    },
    secrets=_TEXTS,
    healthcheck=_object(
        ("test",),
        test=_TEXTS,
        interval=_DURATION,
        timeout=_DURATION,
        start_period=_DURATION,
        retries={"type": "integer", "minimum": 1},
    ),
    read_only={"type": "boolean"},
    tmpfs=_TEXTS,
    cap_drop=_TEXTS,
    group_add=_TEXTS,
    security_opt=_TEXTS,
)
COMPOSE: Final = _object(
    ("services",),
    name={"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
    services={"type": "object", "patternProperties": {_NAME: _SERVICE}, "additionalProperties": False},
    networks={"type": "object", "patternProperties": {_NAME: _object(name=_TEXT)}, "additionalProperties": False},
    volumes={"type": "object", "patternProperties": {_NAME: _object(name=_TEXT)}, "additionalProperties": False},
    secrets={
        "type": "object",
        "patternProperties": {
            _NAME: {"oneOf": [_object(("environment",), environment=_TEXT), _object(("file",), file=_TEXT)]}
        },
        "additionalProperties": False,
    },
)
