"""The URL of a broker, as kombu hands it over, and the address of the store or server that it means. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError

DEFAULT_PORT = 7878
_PREFIX = "towline+"
_SERVERS = ("towline", "http", "https")


class Client(Protocol):
    """The attributes of a `kombu.Connection` that say where its broker is."""

    hostname: str | None
    port: int | None
    userid: str | None
    password: str | None
    virtual_host: str | None
    transport_cls: object
    transport_options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The place of a broker.

    Args:
        url: of a store or of servers, as `open_queues` takes it.
        namespace: the part of its queues; "": all others.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    namespace: str = ""


def address_of(client: Client) -> BrokerAddress:
    """Return the address that a connection means. Raises `InvalidSettingError`."""
    url = (client.hostname or "localhost").removeprefix(_PREFIX)
    if "://" not in url:
        url = _joined(client, url)
    options = client.transport_options
    found = _address(url)
    token = options.get("token", found.token)
    namespace = options.get("namespace", found.namespace)
    if not isinstance(namespace, str) or not (token is None or isinstance(token, str)):
        raise InvalidSettingError("broker_transport_options: namespace and token must be text")
    return BrokerAddress(found.url, token or None, namespace)


def url_of(address: BrokerAddress) -> str:
    """Return the URL of servers, with their token and namespace; that of a store as it is."""
    scheme, _, rest = address.url.partition("://")
    login = f":{quote(address.token, safe='*')}@" if address.token else ""
    space = f"/{quote(address.namespace, safe='')}" if address.namespace else ""
    return f"{scheme}://{login}{rest}{space}" if rest else address.url


def without_secrets(url: str) -> str:
    """Return the URL of a broker without a token or password; the name of a host as it is."""
    plain = url.removeprefix(_PREFIX)
    if "://" not in plain:
        return url
    scheme = plain.partition("://")[0]
    try:
        address = _address(plain) if scheme in _SERVERS else None
    except ValueError:
        address = None
    shown = masked(plain) if address is None else url_of(replace(address, token=None))
    if scheme == "towline":
        shown = shown.replace("http://", "towline://")
    return url.removesuffix(plain) + shown


def completed(address: BrokerAddress, environment: Mapping[str, str]) -> BrokerAddress:
    """Return the address with the token and the namespace that a supervisor gave this process for its broker.

    The address of any other broker stays as it is: a token is sent only where it belongs.
    """
    url = environment.get("TOWLINE_URL", "")
    if not url or _address(url).url != address.url:
        return address
    return replace(
        address,
        token=address.token or environment.get("TOWLINE_TOKEN") or None,
        namespace=address.namespace or environment.get("TOWLINE_NAMESPACE", ""),
    )


def _joined(client: Client, host: str) -> str:
    """Return the URL of a connection that kombu has taken to pieces, as it does when it moves on to the next broker."""
    scheme = str(client.transport_cls).removeprefix("towline").removeprefix("+") or "http"
    login = f"{quote(client.userid or '', safe='')}:{quote(client.password, safe='')}@" if client.password else ""
    if client.userid and not client.password:
        login = f"{quote(client.userid, safe='')}@"
    port = f":{client.port}" if client.port else ""
    path = (client.virtual_host or "").lstrip("/")
    if scheme in ("unix", "sqlite", "redis+unix"):
        return f"{scheme}:///{client.virtual_host or ''}"
    return f"{scheme}://{login}{host}{port}/{path}"


def _address(url: str) -> BrokerAddress:
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        return BrokerAddress("memory:", namespace=rest.strip("/"))
    if scheme in _SERVERS:
        return _servers(url.replace("towline://", "http://"))
    return BrokerAddress(url)


def _servers(url: str) -> BrokerAddress:
    """Take the token and the namespace out of the URLs of servers, joined by commas."""
    urls: list[str] = []
    token, namespace = None, ""
    for one in url.split(","):
        parts = urlsplit(one.strip())
        login, _, place = parts.netloc.rpartition("@")
        user, colon, password = login.partition(":")
        token = unquote(password if colon else user) or token
        namespace = unquote(parts.path.strip("/")) or namespace
        if not place or place.startswith(":"):
            place = f"localhost{place}"
        if ":" not in place.rpartition("]")[2] and parts.scheme == "http":
            place = f"{place}:{DEFAULT_PORT}"
        urls.append(urlunsplit((parts.scheme, place, "", "", "")))
    return BrokerAddress(",".join(urls), token, namespace)
