"""Secrets in a text, as far as they look like some: passwords in URLs, tokens by form, values by name. Pure.

Each pattern is linear in the text: none begins with a repeat, and no two repeats in a row take the same characters.
"""

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
"""What is shown in place of a secret."""
_KEYS: Final = (
    "password|passwd|passphrase|passcode|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key"
    "|client[_-]?key|encryption[_-]?key|signing[_-]?key|credentials?|signature|session[_-]?id|csrf"
)
_SECRET_NAME: Final = re.compile(
    rf"(?i:{_KEYS})|(?i:(?:^|[._-])(?:key|keys|pass|pw|auth|authorization|dsn|sig|cookie)$)|[a-z](?:Key|Auth)$"
)
_NO_SECRET_NAME: Final = re.compile(r"(?i)^(?:old)?pwd$|_(?:file|path|dir|folder|env|name|id)$|^ssh_auth_sock$")
_RANDOM: Final = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+_-][A-Za-z0-9+/_-]{15,}={0,2}")
_OPTION: Final = re.compile(rf"(?i)^--?(?:[a-z][a-z0-9._-]{{0,40}}[._-])?(?:{_KEYS}|pass|pw|auth|key|sig)$")
_OPTION_OF: Final = {
    "-p": ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump", "mariadb-admin", "sshpass"),
    "-a": ("redis-cli", "valkey-cli"),
    "-P": ("sqlcmd", "bcp"),
    "-w": ("ldapsearch", "ldapmodify", "ldapadd"),
}
"""Short options that take a password, and the programs where they do."""
_USER: Final = re.compile(r"^([^:/\s]{1,100}:)\S+$")
_TOKENS: Final = (
    r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"  # JSON Web Token
    r"|gh[opsru]_\w{20,}|github_pat_\w{20,}"  # GitHub
    r"|gl(?:pat|ptt|dt|rt|cbt|soat|agent|oas)-[\w-]{16,}"  # GitLab
    r"|[srp]k_(?:live|test)_\w{10,}|whsec_\w{16,}"  # Stripe
    r"|sk-[\w-]{20,}"  # OpenAI, Anthropic
    r"|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}"  # Slack
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"  # AWS
    r"|AIza[\w-]{30,}|ya29\.[\w-]{10,}|GOCSPX-[\w-]{16,}|1//0[\w-]{20,}"  # Google
    r"|npm_\w{30,}|pypi-[\w-]{16,}|rubygems_\w{30,}|dckr_pat_[\w-]{16,}"  # registries
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|(?:AC|SK)[0-9a-f]{32}|key-[0-9a-f]{32}"  # SendGrid, Twilio, Mailgun
    r"|hf_\w{20,}|do[opr]_v1_\w{32,}|shp(?:at|ca|pa|ss)_\w{20,}|dapi[0-9a-f]{32}"  # HuggingFace, DigitalOcean, Shopify
    r"|hvs\.[\w-]{20,}|hvb\.[\w-]{20,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}"  # Vault, age
    r"|ATATT[\w=-]{20,}|lin_api_\w{20,}|PMAK-[\w-]{20,}|NRAK-\w{20,}|sq0\w{3}-[\w-]{20,}|EAA[A-Z]\w{30,}"
    r"|\d{8,10}:AA[\w-]{30,}"  # Telegram
)
_OPTIONS: Final = rf"{_KEYS}|pass|pw|auth|key|sig|code"
_QUOTED: Final = r"(?P<quote>\\{0,8}['\"])(?:(?!(?P=quote))(?:\\.|[^\\]))*"
_SUFFIX: Final = r"(?:[_-]?(?:key|value|base|hash|text|string))?s?\d{0,2}"
# A password with an unescaped slash goes up to the `@`; a port before a path is no password. What is masked already
# keeps its user, and what our own texts have for an example stays.
_LOGIN: Final = re.compile(
    r"(?<=://)(?![^\s/?#@:]{0,200}:\*\*\*@|user:password@host)"
    r"(?:[^\s/?#'\"<>]{1,500}|[^\s/?#@:\[]{0,200}:(?!\d+[/?#,\s])[^\s@]{1,300})(?=@)"
    r"|(?<=://)[^\s/?#@:\[,]{0,200}:(?!\d|port\b|memory:|[*]|password@host)[^\s/?#@'\",;:]{3,300}"
    r"|(?<=://)(?:[^\s/?#@'\"<>]{0,200}%3[Aa][^\s/?#@'\"<>]{1,300}%40)"
)
_PATTERNS: Final = (
    (
        re.compile(
            r"-----BEGIN (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----(?:(?!-----)[\s\S])*"
            r"(?:-----END (?P=kind)-----)?"
        ),
        MASK,
    ),
    (_LOGIN, MASK),
    (
        re.compile(
            r"(?i)(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/bot)[^\s'\",;]+"
        ),
        r"\1***",
    ),
    (
        re.compile(
            r"(?i)\b((?:proxy-)?authorization['\"]?\s*[=:]\s*(?:[bu](?=['\"]))?['\"]?(?:(?:basic|bearer|digest|token|key|apikey|negotiate)\s+)?)"
            r"[^\s'\",;]+"
        ),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (re.compile(r"(?i)\b((?:set-)?cookie['\"]?\s*[=:]\s*['\"]?)[^\s'\",][^'\"\r\n]*"), r"\1***"),
    (
        re.compile(
            rf"(?i)({_KEYS})({_SUFFIX}(?:\\{{0,8}}['\"])?\s*(?:[=:]|=>)\s*(?:[bu](?=['\"]))?)"
            rf"(?:{_QUOTED}|[^\s'\",;&]+)"
        ),
        rf"\1\2\g<quote>{MASK}",
    ),
    # An option of a command line, whose value is the next word or item of a list.
    (
        re.compile(
            rf"(?i)(?<![\w-])(--?(?:[a-z]{{1,20}}[-_])?(?:{_OPTIONS})['\"]?(?:,\s*|\s+))"
            r"(?:(?P<quote>['\"])(?:(?!(?P=quote))(?:\\.|[^\\]))+|(?!-)[^\s'\",;]+)"
        ),
        rf"\1\g<quote>{MASK}",
    ),
    (re.compile(r"(?<![\w-])(-u['\"]?(?:,\s*|\s*)['\"]?[^\s:'\",/]{1,100}:)[^\s'\",]+"), r"\1***"),
    (re.compile(r"(?i)([?&;](?:key|sig|code|auth|pass|pw)=)[^\s&'\",;#]+"), r"\1***"),
    (re.compile(r"(?i)\b(identified\s+by\s+|password\s+)('[^'\n]{1,300}'|\"[^\"\n]{1,300}\")"), r"\1***"),
    (re.compile(rf"(?<![\w-])(?:{_TOKENS})"), MASK),
)


def is_secret_name(name: str) -> bool:
    """Return whether a variable, a setting or a member is a secret by its name: `password`, `API_KEY`, `authToken`."""
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


def masked_text(text: str) -> str:
    """Return a text with all that looks like a secret replaced by `***`."""
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text


def masked_logins(text: str) -> str:
    """Return a text of ours with the passwords in its URLs replaced; its other words are not secret."""
    return _LOGIN.sub(MASK, text)


def masked_value(name: str, text: str) -> str:
    """Return the value of a variable or setting: `***` if its name or its own form says that it is a secret."""
    return MASK if text and is_secret_name(name) else masked_text(text)


def may_be_secret(name: str, text: str) -> bool:
    """Return whether a variable is or may be a secret.

    That is one whose name says so, one with a password or a token in its value, and one whose value is 16 and more
    letters and digits in a row, as keys are.
    """
    return is_secret_name(name) or masked_text(text) != text or _RANDOM.fullmatch(text) is not None


def masked_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line without secrets: in each argument, and in the one after an option that names a secret."""
    program = arguments[0].rpartition("/")[2] if arguments else ""
    short = tuple(option for option, programs in _OPTION_OF.items() if program in programs)
    shown: list[str] = []
    before = ""
    for argument in arguments:
        if before == "-u" and (user := _USER.match(argument)):
            shown.append(f"{user[1]}{MASK}")
        elif not argument.startswith("-") and (before in short or _OPTION.match(before)):
            shown.append(MASK)
        elif short and argument.startswith(short) and len(argument) > 2:
            shown.append(f"{argument[:2]}{MASK}")
        else:
            shown.append(masked_text(argument))
        before = argument
    return shown
