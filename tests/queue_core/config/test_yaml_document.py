"""Text to values: YAML 1.2's scalars, bounds, and every mistake with its place."""

import math

import pytest

from queue_core.config.yaml_document import MAX_TEXT_BYTES, DocumentError, Place, read_document, shown_path


def value_of(text: str) -> object:
    data = read_document(f"key: {text}\n", name="t.yaml").data
    assert isinstance(data, dict)
    return data["key"]


def lines_of(text: str) -> tuple[str, ...]:
    with pytest.raises(DocumentError) as caught:
        read_document(text, name="t.yaml")
    return caught.value.lines


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("12:30", "12:30", id="no sexagesimal numbers"),
        pytest.param("yes", "yes", id="yes is text"),
        pytest.param("off", "off", id="off is text"),
        pytest.param("true", True, id="true"),
        pytest.param("FALSE", False, id="false in capitals"),
        pytest.param("010", 10, id="a leading zero is no octal"),
        pytest.param("0o17", 15, id="octal"),
        pytest.param("0x1F", 31, id="hexadecimal"),
        pytest.param("1_000", "1_000", id="no underscores in numbers"),
        pytest.param("+5", 5, id="a plus sign"),
        pytest.param("1e3", 1000.0, id="an exponent without a point"),
        pytest.param("9" * 40, int("9" * 40), id="a number of forty digits"),
        pytest.param(".5", 0.5, id="a fraction"),
        pytest.param("-.inf", -math.inf, id="minus infinity"),
        pytest.param("2024-01-01", "2024-01-01", id="no dates"),
        pytest.param("~", None, id="a tilde is null"),
        pytest.param("", None, id="nothing is null"),
        pytest.param("'12'", "12", id="quotes make text"),
        pytest.param("30s", "30s", id="a duration is text here"),
    ],
)
def test_plain_scalars_are_read_as_yaml_1_2_has_them(text: str, value: object) -> None:
    assert value_of(text) == value


def test_nan_is_a_number() -> None:
    value = value_of(".nan")
    assert isinstance(value, float)
    assert math.isnan(value)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert read_document("on: 1\n12: 2\ntrue: 3\n", name="t.yaml").data == {"on": 1, "12": 2, "true": 3}


def test_every_value_knows_the_place_of_its_key_and_every_item_its_own() -> None:
    document = read_document("a:\n  b: [x, {c: 1}]\n", name="t.yaml")
    assert document.place(("a", "b")) == Place(2, 3)
    assert document.place(("a", "b", 0)) == Place(2, 7)
    assert document.place(("a", "b", 1, "c")) == Place(2, 11)


def test_what_is_missing_stands_where_it_should_be() -> None:
    document = read_document("a:\n  b: 1\n", name="t.yaml")
    assert document.line_about(("a", "missing"), "is required") == "t.yaml:1:1: a.missing: is required"


def test_every_duplicate_key_is_told() -> None:
    assert lines_of("a: 1\nb: {c: 1, c: 2}\na: 2\n") == (
        "t.yaml:2:11: b.c: is given twice; first in line 2: keep one of them",
        "t.yaml:3:1: a: is given twice; first in line 1: keep one of them",
    )


def test_duplicate_keys_can_be_kept_for_whoever_tells_them_with_other_mistakes() -> None:
    document = read_document("a: 1\nb: {c: 1, c: 2}\na: 2\n", name="t.yaml", repeats="kept")
    assert document.data == {"a": 1, "b": {"c": 1}}
    assert [flaw.place for flaw in document.repeats] == [Place(2, 11), Place(3, 1)]


def test_duplicate_keys_that_are_kept_are_told_beside_what_keeps_a_text_from_being_read() -> None:
    with pytest.raises(DocumentError) as caught:
        read_document("a: 1\na: 2\nb: !!int x\n", name="t.yaml", repeats="kept")
    assert [line.partition(" ")[0] for line in caught.value.lines] == ["t.yaml:2:1:", "t.yaml:3:4:"]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        pytest.param("a:\n\tb: 1\n", "2:1", "indent with spaces", id="a tab"),
        pytest.param("a: [1, 2\nb: 3\n", "2:2", "in line 1", id="an open bracket"),
        pytest.param("a: b: c\n", "1:5", "quotes", id="a colon in a value"),
        pytest.param("--- \na: 1\n---\nb: 2\n", "3:1", "one document", id="two documents"),
        pytest.param("a: \x01\n", "1:4", "U+0001", id="a control character"),
        pytest.param("- a\nb: 1\n", "2:1", "indented", id="a list that turns into a mapping"),
        pytest.param("a: !!python/object/apply:os.system [x]\n", "1:4", "not allowed", id="a type of Python"),
        pytest.param("a: !!int x\n", "1:4", "!!int", id="a tag that lies"),
        pytest.param(f"a: {'9' * 310}\n", "1:4", "digits", id="a number beyond all"),
        pytest.param(f"a: -{'9' * 310}\n", "1:4", "digits", id="a number below all"),
        pytest.param(f"a: 0x{'f' * 5000}\n", "1:4", "digits", id="a hexadecimal number that can't be shown"),
        pytest.param(f"a: 0o{'7' * 6000}\n", "1:4", "digits", id="an octal number that can't be shown"),
        pytest.param(f"a: !!float {'9' * 310}\n", "1:4", "digits", id="a tagged number beyond all"),
        pytest.param("<<: {a: 1}\n", "1:1", "merge keys", id="a merge key"),
        pytest.param("? [a]\n: 1\n", "1:3", "must be text", id="a list as a key"),
        pytest.param("[" * 60, "1:41", "nested deeper", id="nested too deep"),
        pytest.param("a: &x [*x]\n", "1:4", "aliases expand", id="an alias of itself"),
    ],
)
def test_what_is_no_settings_file_is_told_with_its_place(text: str, place: str, message: str) -> None:
    (line,) = lines_of(text)
    assert line.startswith(f"t.yaml:{place}: ")
    assert message in line


def test_aliases_that_multiply_are_stopped() -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    assert "aliases expand" in lines_of(bomb)[0]


def test_a_text_over_the_limit_is_refused_before_it_is_read() -> None:
    assert str(MAX_TEXT_BYTES) in lines_of("#" * (MAX_TEXT_BYTES + 1))[0]


def test_an_alias_stands_for_its_anchor() -> None:
    assert read_document("a: &x {b: 1}\nc: *x\n", name="t.yaml").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_nothing_at_all_is_none() -> None:
    assert read_document("# only a comment\n", name="t.yaml").data is None


def test_a_path_is_shown_with_its_positions() -> None:
    assert shown_path(("server", "tokens", 0, "role")) == "server.tokens[0].role"
