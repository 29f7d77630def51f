"""The settings of a pool whose work waits somewhere else: at the broker of a Celery fleet (`source: celery`)."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, field_serializer, field_validator, model_validator

from orchestrator.config.model import FleetSettingsModel
from queue_core.config.store_urls import masked, scheme_of

DEFAULT_QUEUE: Final = "celery"
LABEL: Final = "celery:"
"""The beginning of the shown name of such a pool's work; no queue of ours has a colon in its name."""
MAX_QUEUES: Final = 50
MAX_NAME_CHARS: Final = 255

_OURS: Final = frozenset({"towline", "http", "https", "unix", "sqlite", "memory", "postgresql", "postgres"})
# A passive declare of these transports creates the queue, or says nothing of its size.
_UNREADABLE: Final[Mapping[str, str]] = {
    "sqs": "a passive declare of kombu's SQS transport creates the queue",
    "gcpubsub": "kombu can't tell how many messages wait at Pub/Sub",
    "azureservicebus": "a passive declare of kombu's Service Bus transport creates the queue",
    "azurestoragequeues": "a passive declare of kombu's transport for Azure storage queues creates the queue",
    "confluentkafka": "kombu can't tell how many messages wait in Kafka",
    "kafka": "kombu can't tell how many messages wait in Kafka",
    "memory": "a broker in memory belongs to one process",
}

QueueName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class CelerySource(FleetSettingsModel):
    """The broker of a Celery fleet: its backlog is read, and nothing of the fleet is changed."""

    broker: str | None = Field(
        default=None,
        min_length=1,
        repr=False,
        examples=["redis://127.0.0.1/0", "amqp://user:password@host/vhost"],
        description="The app's broker_url: redis://, amqp://, or another that kombu knows.",
    )
    broker_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*$",
        examples=["CELERY_BROKER_URL"],
        description="The environment variable that has it instead, as it contains a password.",
    )
    queues: tuple[QueueName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_QUEUES,
        description="The Celery queues that the workers take; left out: those of the pool's celery, or celery.",
    )
    broker_transport_options: dict[str, str | int | float | bool | list[int] | None] = Field(
        default_factory=dict,
        description="The app's setting of that name, as far as it names keys: global_keyprefix, ...",
    )
    management: str | None = Field(
        default=None,
        pattern=r"^https?://",
        repr=False,
        examples=["http://user:password@host:15672"],
        description="RabbitMQ's management API: tells messages that workers hold, and the time of the oldest one.",
    )
    control_exchange: QueueName = Field(default="celery", description="The app's control_exchange.")
    event_exchange: QueueName = Field(default="celeryev", description="The app's event_exchange.")
    adopt: bool = Field(
        default=False,
        strict=True,
        description="Whether nodes of these queues count that others have started; external ones always do.",
    )
    restore_lost: bool = Field(
        default=False,
        strict=True,
        description="Whether the tasks of a dead worker are put back into their queue at once. Redis only; it writes.",
    )

    @field_serializer("broker", "management")
    def _masked(self, url: str | None) -> str | None:
        """Hide passwords wherever settings are written: on screens, in snapshots, in recorded decisions."""
        return None if url is None else masked(url)

    @field_validator("broker")
    @classmethod
    def _readable(cls, url: str | None) -> str | None:
        if url is not None and (flaw := broker_flaw(url)):
            raise ValueError(flaw)
        return url

    @model_validator(mode="after")
    def _agrees(self) -> "CelerySource":
        if (self.broker is None) == (self.broker_env is None):
            raise ValueError("give broker, or broker_env: the variable that has its URL")
        return self

    def url(self, environment: Mapping[str, str]) -> str:
        """Return the broker's URL. Raises `ValueError` for a variable that is not set, or a URL of no use."""
        if self.broker is not None:
            return self.broker
        url = environment.get(self.broker_env or "", "")
        if not url:
            raise ValueError(f"{self.broker_env} is not set: it must hold the broker's URL")
        if flaw := broker_flaw(url):
            raise ValueError(f"{self.broker_env}: {flaw}")
        return url


class SourceChoice(FleetSettingsModel):
    """The place where a pool's work waits, when that is no queue of ours."""

    celery: CelerySource = Field(description="At the broker of a Celery fleet.")


def broker_flaw(url: str) -> str:
    """Return what is wrong with a broker's URL, and what to do; "" for one that can be read. Names no password."""
    scheme = scheme_of(url).partition("+")[0].lower()
    if scheme in _OURS and scheme not in _UNREADABLE:
        return f"{masked(url)}: these are queues of Towline's own: leave source out, and name the queue"
    if scheme in _UNREADABLE:
        return f"{masked(url)}: {_UNREADABLE[scheme]}, so its backlog can't be read without changing it"
    if ":" not in url:
        return f"{masked(url)}: write the whole URL, as in redis://127.0.0.1/0 or amqp://user:password@host/vhost"
    return ""


def names_of(queues: object) -> tuple[str, ...]:
    """Return the names in a setting `queues`, with or without options for each."""
    return tuple(str(name) for name in queues) if isinstance(queues, list | tuple | Mapping) else ()


def label_of(source: object, celery: object) -> str:
    """Return the shown name of the work of a pool with a source: `celery:default,images`; "" without one."""
    return LABEL + ",".join(celery_queues(source, celery)) if isinstance(source, SourceChoice) else ""


def celery_queues(source: object, celery: object) -> tuple[str, ...]:
    """Return the Celery queues of a pool: those of its source, else those of its workers' command, else `celery`."""
    own = source.celery.queues if isinstance(source, SourceChoice) else None
    return own or names_of(getattr(celery, "queues", None)) or (DEFAULT_QUEUE,)
