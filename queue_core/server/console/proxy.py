"""People whom a trusted proxy has logged in: named by a header, which counts only from the proxy's own address."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from ipaddress import ip_address, ip_network

from queue_core.server.base.options import AccessToken, ProxyLogin
from queue_core.server.callers.auth import Authorizer, Headers, Principal
from queue_core.verbs.roles import Role

MAX_NAME_CHARACTERS = 320
_UNIX = "unix"


def proxy_login(options: ProxyLogin, authorizer: Authorizer) -> Callable[[str, Headers], str | None]:
    """Return the function that finds a person's token by the address of a request and its headers; None: nobody's."""

    def token_of(address: str, headers: Headers) -> str | None:
        name = person_of(options, address, headers)
        if name is None:
            return None
        mark = sha256(name.encode()).digest()
        return authorizer.grant(Principal(options.roles.get(name, options.role), name, mark=mark))

    return token_of


def role_login(options: ProxyLogin, tokens: Sequence[AccessToken]) -> Callable[[str, Headers], str | None]:
    """Return the same for a console over another server's API: a person gets that of `tokens` which has their role.

    A person of a role that none of them has is nobody, and is asked to log in.
    """
    by_role = tokens_by_role(tokens)

    def token_of(address: str, headers: Headers) -> str | None:
        name = person_of(options, address, headers)
        return None if name is None else by_role.get(options.roles.get(name, options.role))

    return token_of


def token_elsewhere(authorizer: Authorizer) -> Callable[[str | None], str | None]:
    """Return the function that finds the token with which another server is called for the viewer with a token.

    A token that was granted here to a person whom the proxy named is unknown there: it becomes that of their role.
    """

    def found(token: str | None) -> str | None:
        role = None if token is None else authorizer.granted_role(token)
        return token if role is None else tokens_by_role(authorizer.tokens).get(role)

    return found


def tokens_by_role(tokens: Sequence[AccessToken]) -> dict[Role, str]:
    """Return the first token of each role."""
    return {one.role: one.secret for one in reversed(tokens)}


def person_of(options: ProxyLogin, address: str, headers: Headers) -> str | None:
    """Return the person whom a trusted proxy names. A header that is there twice names nobody."""
    if not is_trusted(address, options.trust):
        return None
    header = options.header.encode()
    found = [value for name, value in headers if name.lower() == header]
    if len(found) != 1:
        return None
    name = found[0].decode("latin-1").strip()
    return name if name and name.isprintable() and len(name) <= MAX_NAME_CHARACTERS else None


def is_trusted(address: str, trust: Sequence[str]) -> bool:
    """Return whether a peer is the proxy; the address of a peer at a Unix socket is ""."""
    if not address:
        return _UNIX in trust
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    networks = [ip_network(one) for one in trust if one != _UNIX]
    return any(one in network for network in networks for one in (found, mapped) if one is not None)
