"""What strangers wrote is text on a page: escaped as markup, and its control characters written out."""

import unicodedata
from html.parser import HTMLParser

import pytest

from queue_core.console.rendering import MAX_SHOWN_CHARACTERS, environment, harmless
from tests.console.texts import FOREIGN


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("<b>", "<b>"),
        ("a\nb\tc", "a\nb\tc"),
        ("a\rb", "a\\x0db"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("\u200b\ufeff\u2028\u2029", "\\u200b\\ufeff\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("Grüße 🐴 e\u0301", "Grüße 🐴 e\u0301"),
        (42, "42"),
    ],
)
def test_control_characters_are_written_out(text: object, shown: str) -> None:
    assert harmless(text) == shown


@pytest.mark.parametrize("text", FOREIGN)
def test_nothing_that_is_written_out_commands_anything(text: str) -> None:
    assert not {unicodedata.category(one) for one in harmless(text)} & {"Cf", "Cs", "Zl", "Zp"}
    assert not {one for one in harmless(text) if unicodedata.category(one) == "Cc"} - {"\n", "\t"}


def test_a_text_is_cut_at_its_bound() -> None:
    shown = harmless("<" * 100_000)
    assert shown == "<" * MAX_SHOWN_CHARACTERS + " ... (100,000 characters)"


class _Read(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", FOREIGN)
def test_a_text_makes_no_element_and_leaves_no_attribute(text: str) -> None:
    page = _Read()
    template = (
        "<p title=\"{{ text }}\">{{ text }}</p><input value='{{ text }}'><a href='?q={{ text | urlencode }}'></a>"
    )
    page.feed(environment().from_string(template).render(text=text))
    assert [(name, sorted(values)) for name, values in page.elements] == [
        ("p", ["title"]),
        ("input", ["value"]),
        ("a", ["href"]),
    ]
    assert page.text == page.elements[0][1]["title"] == page.elements[1][1]["value"] == harmless(text)
