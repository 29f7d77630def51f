"""The `store:` of a settings file: a URL, or a URL and where to read its password, which is never in the file."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer
from pydantic.config import JsonDict

from queue_core.config.messages import SettingProblem, did_you_mean
from queue_core.config.store_urls import SCHEMES, has_password, is_shared, masked, scheme_of, sqlite_flaw
from queue_core.errors import InvalidSettingError

DEFAULT_STORE: Final = "sqlite:///towline.db"
ENVIRONMENT_NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
_STORE_FORMS: Final = f"{DEFAULT_STORE}, postgresql://user@host/database, redis://host:6379/0 or memory:"


def _store_url(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: write a store's URL, such as {DEFAULT_STORE}")  # noqa: TRY004
    scheme, shown = scheme_of(value), masked(value)
    if scheme not in SCHEMES:
        raise ValueError(f"{shown}: there is no store {scheme!r}{did_you_mean(scheme, SCHEMES)}; write {_STORE_FORMS}")
    if scheme == "memory" and value != "memory:":
        raise ValueError(f"{shown}: write memory:, with nothing after it")
    if scheme == "sqlite" and (flaw := sqlite_flaw(value)):
        raise ValueError(f"{shown}: {flaw}")
    if is_shared(value) and "://" not in value:
        raise ValueError(f"{shown}: write {scheme}://host, with two slashes")
    if scheme.startswith("redis"):
        _check_redis(value)
    return value


def _check_redis(url: str) -> None:
    from queue_core.config.redis_url import parse_url

    try:
        parse_url(url)
    except InvalidSettingError as error:
        raise ValueError(str(error)) from None


def _store(value: object) -> object:
    """Accept a URL alone in place of the settings."""
    return value if isinstance(value, Mapping | BaseModel) else {"url": _store_url(value)}


class StoreSettings(BaseModel):
    """The store: a URL and, for a store that several hosts share, the source of its password."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, BeforeValidator(_store_url)] = Field(description="The store's URL.", repr=False)
    password_file: str | None = Field(default=None, min_length=1, description="A file that holds the password.")
    password_env: str | None = Field(
        default=None,
        pattern=ENVIRONMENT_NAME,
        examples=["REDIS_PASSWORD"],
        description="An environment variable that holds the password.",
    )

    @model_serializer
    def _shown(self) -> str | dict[str, str]:
        """Serialize as in the file, with a password hidden."""
        given = {"password_file": self.password_file, "password_env": self.password_env}
        places = {name: place for name, place in given.items() if place is not None}
        return {"url": masked(self.url), **places} if places else masked(self.url)


Store = Annotated[StoreSettings, BeforeValidator(_store)]


def allow_url_text(schema: JsonDict) -> None:
    """Allow a URL as text in the JSON Schema."""
    whole: JsonDict = {"$ref": schema.pop("$ref")}
    schema["anyOf"] = [{"type": "string", "examples": [DEFAULT_STORE, "postgresql://user@host/database"]}, whole]


def store_relations(store: Mapping[str, object]) -> list[SettingProblem]:
    """Return problems between the settings of the store."""
    url = store.get("url")
    places = [name for name in ("password_file", "password_env") if store.get(name) is not None]
    if len(places) == 2:
        return [SettingProblem(("store", "password_env"), "give either password_file or password_env")]
    if places and isinstance(url, str) and not is_shared(url):
        return [SettingProblem(("store", places[0]), f"a {scheme_of(url)}: store has no password: leave it out")]
    if places and isinstance(url, str) and has_password(url):
        return [SettingProblem(("store", places[0]), "the URL has a password already: give it in one place")]
    return []
