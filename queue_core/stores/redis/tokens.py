"""Tokens as numbers: what a lease's fence is made of."""

import re
from collections.abc import Sequence

from queue_core.stores.redis.packing import pack_instants
from queue_core.task import parse_token

_TOKENS = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(?: [0-9]{1,18}\.[0-9]{1,18})*")


def numbers_of(tokens: Sequence[str]) -> list[int]:
    """Task id and instant of the grant of each token, in turn. Raises `InvalidTokenError` as `parse_token` does."""
    joined = " ".join(tokens)
    if _TOKENS.fullmatch(joined):
        numbers = list(map(int, joined.replace(".", " ").split(" ")))
        if len(numbers) == 2 * len(tokens):
            return numbers
    return [number for token in tokens for number in parse_token(token)]


def pack_tokens(tokens: Sequence[str]) -> bytes:
    """Tokens as the functions take them."""
    return pack_instants(numbers_of(tokens))
