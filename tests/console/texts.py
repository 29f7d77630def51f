"""Texts that strangers may write wherever the program lets them, and how a page must show them."""

from typing import Final

MARK: Final = "foreign"
"""The attribute of every element, and the name of every variable, that one of the texts tries to make."""
_RUN: Final = f"window.{MARK}=1"

FOREIGN: Final = (
    f"<script {MARK}>{_RUN}</script>",
    f'"><img {MARK} src=x onerror="{_RUN}">',
    f"' {MARK} onmouseover='{_RUN}' x='",
    f"</code></pre></td></table></main><svg {MARK} onload={_RUN}>",
    f'<a {MARK} href="javascript:{_RUN}">click</a>',
    f"javascript:{_RUN}",
    f"</title></style></textarea></noscript><iframe {MARK} srcdoc='<script>parent.{MARK}=1</script>'>",
    f'<div {MARK} hx-get="logout" hx-trigger="load" hx-on::load="{_RUN}">',
    f'<form {MARK} action="https://elsewhere.example/"><button autofocus>',
    f'<meta {MARK} http-equiv="refresh" content="0;url=https://elsewhere.example/">',
    f'<base {MARK} href="https://elsewhere.example/">',
    "{{ 7 * 7 }}{% raise %}${7*7}#{7*7}",
    f"&lt;b {MARK}&gt;&#60;b {MARK}&#62;",
    f"one\r\rdata: <b {MARK}>x</b>\r\revent: page",
    f"two\n\nevent: page\ndata: <b {MARK}>y</b>\n\n",
    "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x1b[0m \x9b31m \x7f",
    "\u202egnp.exe \u2066\u2067\u200f\u200b \ufeff \u2028\u2029",
    "../../login?back=//elsewhere.example",
    "%3Cscript%3E%00%0d%0a",
    "Ж" * 150 + "\u0301" * 30 + "🐴",
)
"""Markup, templates, lines of streams, escapes of terminals, changes of direction, and what has no place to break."""
