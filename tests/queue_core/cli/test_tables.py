"""A table at any width: what folds, what is left out, in which order, and that it says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.cli.tables import Column, columns, lay_out
from queue_core.cli.wrapping import ASCII_BLOCKS, bar, columns_of, padded, shortened, wrapped

HEADS = columns("POOL", ">WORKERS", ">READY", "RULE", "WHY", least=("RULE",), keeps=("READY",), folds=("WHY",))
WHY = "12 tasks wait and two workers are busy"
ROWS = [("resize", "2/8", 1_277, "deadline", WHY), ("thumbs", "0/1", 0, "hold", "nothing waits")]
NARROW = [("a-pool-with-a-long-name-x7q", "2/8", 1_277)]


def test_a_table_without_a_width_is_whole() -> None:
    laid_out = lay_out(HEADS, ROWS, width=None)
    assert laid_out.lines == [
        "POOL    WORKERS  READY  RULE      WHY",
        f"resize      2/8  1,277  deadline  {WHY}",
        "thumbs      0/1      0  hold      nothing waits",
    ]
    assert (laid_out.left_out, laid_out.note) == ((), "")
    assert lay_out(HEADS, ROWS, width=len(laid_out.lines[1])) == laid_out
    assert lay_out(HEADS, ROWS, width=laid_out.full_width).left_out == ()
    assert lay_out(HEADS, ROWS, width=laid_out.full_width - 1).left_out == ("RULE",)


def test_a_long_text_folds_before_a_column_is_left_out() -> None:
    laid_out = lay_out(HEADS, ROWS, width=60)
    assert laid_out.rows[0] == (
        "resize      2/8  1,277  deadline  12 tasks wait and two",
        "                                  workers are busy",
    )
    assert laid_out.left_out == ()


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        pytest.param(50, (), id="all, the text in lines of sixteen"),
        pytest.param(49, ("RULE",), id="the least important first"),
        pytest.param(39, ("RULE", "WHY"), id="then from the right"),
        pytest.param(21, ("WORKERS", "RULE", "WHY"), id="but not those that stay"),
    ],
)
def test_columns_are_left_out_in_their_order(width: int, left_out: tuple[str, ...]) -> None:
    laid_out = lay_out(HEADS, ROWS, width=width)
    assert laid_out.left_out == left_out
    assert all(columns_of(line) <= width for line in laid_out.lines)
    assert bool(laid_out.note) == bool(left_out)
    assert all(name in laid_out.note for name in left_out)


def test_a_name_is_cut_in_its_middle_before_a_column_that_stays_goes() -> None:
    heads = columns("POOL", ">WORKERS", ">READY", keeps=("WORKERS", "READY"))
    assert lay_out(heads, NARROW, width=34).lines[1] == "a-pool-with-…e-x7q      2/8  1,277"
    assert lay_out(heads, NARROW, width=10).lines == ["POOL", "a-pool…x7q"]
    assert lay_out(heads, NARROW, width=10).left_out == ("WORKERS", "READY")


def test_a_column_without_any_text_goes_unsaid() -> None:
    heads = columns("POOL", "RULE", "IN FORCE")
    laid_out = lay_out(heads, [("resize", "deadline", "")], width=18)
    assert laid_out.lines == ["POOL    RULE", "resize  deadline"]
    assert laid_out.note == ""


def test_a_cell_is_shown_as_people_read_it_and_never_obeyed() -> None:
    heads = columns("A", "B", "C", "D")
    assert (
        lay_out(heads, [(None, True, 1_000_000, "a\x1b[2Jb\n")], width=None).lines[1]
        == "-  yes  1,000,000  a\\x1b[2Jb\\n"
    )


def test_a_cell_is_painted_after_it_was_padded() -> None:
    def paint(row: int, column: int, text: str) -> str:
        return f"<{row}{column}{text}>"

    assert lay_out(columns("A", ">NN"), [("a", 1)], width=None, paint=paint).lines == [
        "<-10A>  <-11NN>",
        "<00a>  <01 1>",
    ]


def test_a_column_that_is_not_there_cant_be_the_least() -> None:
    with pytest.raises(ValueError, match="RULES: no such column; there are POOL, RULE"):
        columns("POOL", "RULE", least=("RULES",))


CELLS = st.one_of(st.text(max_size=30), st.integers(), st.none())


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS, CELLS), max_size=4), st.integers(1, 120))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[object, ...]], width: int) -> None:
    laid_out = lay_out(HEADS, rows, width=width)
    assert all(columns_of(line) <= width for line in laid_out.lines)
    assert len(laid_out.rows) == len(rows)


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(1, 60))
def test_columns_that_all_stay_are_cut_where_there_is_no_room(sides: list[bool], width: int) -> None:
    heads = [Column(f"TITLE {index}", "right" if is_right else "left") for index, is_right in enumerate(sides)]
    laid_out = lay_out(heads, [["some text"] * len(heads)], width=width)
    assert all(columns_of(line) <= width for line in laid_out.lines)


@pytest.mark.parametrize(
    ("text", "width", "prefix", "lines"),
    [
        pytest.param("one two", None, "12:04:31  ", ["12:04:31  one two"], id="a pipe has no width"),
        pytest.param("one two", 20, "12:04:31  ", ["12:04:31  one two"], id="it fits"),
        pytest.param("one two three", 20, "12:04:31  ", ["12:04:31  one two", "          three"], id="it hangs"),
        pytest.param("one two three", 18, "12:04:31  ", ["12:04:31  one two", "  three"], id="the hang is half of it"),
        pytest.param("a\nb", 20, "x  ", ["x  a", "   b"], id="two lines"),
        pytest.param(
            "so  /a/long/path/to/a/file  it is", 12, "", ["so", "/a/long/path/to/a/file", "it is"], id="a path"
        ),
        pytest.param("begun again after 59 ms", 20, "", ["begun again after", "59 ms"], id="a number keeps its unit"),
        pytest.param("a slo of 5 s: all 2 busy", 10, "", ["a slo of", "5 s: all 2", "busy"], id="with a mark"),
        pytest.param("so `kill 12` ends it", 12, "", ["so `kill 12`", "ends it"], id="a command is in one line"),
        pytest.param("or `kill 12` ends it", 10, "", ["or", "`kill 12`", "ends it"], id="also on the next"),
        pytest.param("or `kill 12345` it", 8, "", ["or `kill", "12345`", "it"], id="unless it is too long for any"),
        pytest.param("日本語 日本語", 8, "", ["日本語", "日本語"], id="ideographs"),
        pytest.param("one  (two)", 20, "", ["one  (two)"], id="spaces within a line stay"),
        pytest.param("", 20, "x  ", ["x"], id="nothing"),
    ],
)
def test_a_sentence_breaks_at_words(text: str, width: int | None, prefix: str, lines: list[str]) -> None:
    assert wrapped(text, width=width, prefix=prefix) == lines


def test_marks_of_colours_take_no_columns() -> None:
    assert wrapped("one two three", width=20, prefix="\x1b[2m12:04:31\x1b[0m  ")[1] == "          three"


@given(st.text(st.sampled_from("ab é日\u0301 ")), st.integers(1, 40), st.integers(0, 50))
def test_a_wrapped_sentence_keeps_its_words_and_breaks_none(text: str, width: int, hang: int) -> None:
    lines = wrapped(text, width=width, hang=hang)
    assert " ".join(lines).split() == text.split()
    too_long = [line for line in lines if columns_of(line) > width]
    assert all(len(line.split()) == 1 for line in too_long)


@given(st.text(), st.integers(1, 40))
def test_a_shortened_name_has_at_most_its_columns(text: str, width: int) -> None:
    found = shortened(text, width)
    assert columns_of(found) <= width
    assert found == text or columns_of(text) > width
    assert columns_of(padded(found, width)) == width


@pytest.mark.parametrize(
    ("value", "most", "shown"),
    [
        (0, 4, "...."),
        (0.01, 4, "#..."),
        (2, 4, "##.."),
        (3.99, 4, "###."),
        (4, 4, "####"),
        (9, 4, "####"),
        (0, 0, "...."),
    ],
)
def test_a_bar_is_full_only_at_its_end_and_empty_only_at_nothing(value: float, most: float, shown: str) -> None:
    assert bar(value, most, 4, glyphs=ASCII_BLOCKS) == shown
    assert columns_of(bar(value, most, 4)) == 4


def test_a_text_that_is_cut_gives_way_before_a_column_goes() -> None:
    heads = columns("WORKER", "TASK", ">DONE", cuts=("TASK",))
    laid_out = lay_out(heads, [("resize-d2v", "a/long/name/of/a/picture/of/a/cat.jpg", 7)], width=40)
    assert laid_out.lines[1] == "resize-d2v  a/long/name/of…cat.jpg     7"
    assert laid_out.left_out == ()
