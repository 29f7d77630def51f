"""A block that does not do what its page says fails the test, with its page and line, what came and what should."""

from pathlib import Path

import psutil
import pytest

from tests.docs.blocks import Block, PageError, read_page
from tests.docs.conftest import RunPage
from tests.docs.runner import BlockError

NAME = "docs/page.md"


def fenced(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```", ""])


def refused(run_page: RunPage, *blocks: str) -> str:
    """Return why a page fails."""
    with pytest.raises((BlockError, PageError)) as caught:
        run_page("# A page\n\n" + "\n".join(blocks), NAME)
    return str(caught.value)


@pytest.mark.parametrize("command", ["towline nonsense", "false", "python -c 'raise SystemExit(3)'", "no-such-program"])
def test_a_command_that_fails_is_told_with_its_place(run_page: RunPage, command: str) -> None:
    told = refused(run_page, fenced("console", "$ true", f"$ {command}"))
    assert told.startswith(f"{NAME}:5: $ {command}\n--- came:\n")
    assert told.endswith("--- expected:\nexit status 0")


def test_output_that_is_not_shown_so_is_told(run_page: RunPage) -> None:
    told = refused(run_page, fenced("console", "$ echo one", "one", "$ echo two; echo three", "two", "four"))
    assert told == f"{NAME}:6: $ echo two; echo three\n--- came:\ntwo\nthree\n--- expected:\ntwo\nfour"


def test_a_command_that_should_fail_and_does_not_is_told(run_page: RunPage) -> None:
    assert "exit status 0\n--- expected:\nexit status 66" in refused(run_page, fenced("console", "$ true   # exits 66"))


def test_a_command_that_should_fail_and_does_is_fine(run_page: RunPage) -> None:
    shown = "error: not a server's URL: nonsense; ..."
    run_page(fenced("console", "$ towline logs --url nonsense   # exits 78", shown), NAME)


def test_a_program_that_raises_is_told(run_page: RunPage) -> None:
    told = refused(run_page, fenced("python", "import nothing_here"))
    assert told.startswith(f"{NAME}:3: ```python\n") and "No module named 'nothing_here'" in told


def test_a_session_whose_answer_is_another_is_told(run_page: RunPage) -> None:
    told = refused(run_page, fenced("pycon", ">>> 1 + 1", "3"))
    assert "Expected:\n    3\nGot:\n    2" in told


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (fenced("yaml", "queues: {thumbs: {lease: 1x}}"), "lease"),
        (fenced("yaml", "pools: {resize: {queue: thumbs, app: 'a:b', slow: 1s}}"), "slow"),
        (fenced('yaml title="towline.yaml"', "queues: {thumbs: {lease: 1x}}"), "lease"),
        (fenced("yaml", "apiVersion: apps/v1", "kind: Deployment", "metadata: {nam: x}"), "nam"),
        (fenced("yaml", "a: [1"), "expected"),
        (fenced("json", "{a: 1}"), "double quotes"),
        (fenced("toml", "a = "), "Invalid value"),
        (fenced('python title="x.py"', "def f(:"), "invalid syntax"),
        (fenced("shell", "ls"), "use console"),
        (fenced("console", "output without a command"), "begins with a command"),
        (fenced("console", "$ true && sleep 1"), "no page sleeps"),
        (fenced('python title="x.py" append', "1"), "no x.py yet"),
        (fenced('python title="../x.py"', "1"), "outside"),
        ("<!-- run: nonsense -->", "no order"),
        ("<!-- run: needs oracle -->", "may need"),
        ('<!-- run: until "x" -->\ntext', "on the line before it"),
        ("```python\n1\n", "no end"),
    ],
)
def test_a_block_that_is_not_right_is_told(run_page: RunPage, block: str, why: str) -> None:
    assert why in refused(run_page, block)


def test_settings_may_lack_what_the_pages_file_has(run_page: RunPage) -> None:
    pools = "pools: {r: {queue: thumbs, app: 'a:b', slo: 1s}}"
    file = fenced('yaml title="towline.yaml"', "queues: {thumbs: {}}", pools)
    run_page(file + fenced("yaml", "pools: {r: {workers: {max: 3}}}"), NAME)


def test_files_commands_and_programs_share_a_folder_and_a_shell(run_page: RunPage) -> None:
    made = run_page(
        fenced('python title="greeting/words.py"', "WORD = 'good'")
        + fenced('python title="greeting/words.py" append', "WORD += ' day'")
        + fenced("python", "from greeting.words import WORD", "print(WORD, file=open('said', 'w'))")
        + fenced("console", "$ NAME=ann", "$ mkdir sub && cd sub", "$ cat ../said; echo $NAME", "good day", "ann")
        + fenced("console", "$ cat > x <<'EOF'", "one", "EOF", "$ echo a \\", "  b", "a b", "$ cat x", "one"),
        NAME,
    )
    assert (made.folder / "sub" / "x").read_text() == "one\n"


def test_a_command_that_goes_on_is_ended_with_the_page_and_its_lines_are_waited_for(run_page: RunPage) -> None:
    made = run_page(
        fenced("console", "$ python -c 'print(1); input; import time; time.sleep(99)' &", "1", "$ echo $! > pid")
        + fenced("console", "$ python -c 'import time; print(2)", "time.sleep(99)' &", "Ctrl-C", "KeyboardInterrupt"),
        NAME,
    )
    assert not psutil.pid_exists(int((made.folder / "pid").read_text()))
    assert made.shell.running == []


def test_lines_of_a_command_that_goes_on_and_never_come_are_told(
    run_page: RunPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.runner.UNTIL_SECONDS", 0.1)
    monkeypatch.setattr("tests.docs.runner.SHOWN_SECONDS", 0.1)
    command = "python -c 'import time; print(1); time.sleep(99)'"
    told = refused(run_page, fenced("console", f"$ {command} &", "two"))
    assert told == f"{NAME}:4: $ {command}\n--- came:\n1\n--- expected:\ntwo"


def test_a_command_that_goes_on_and_ends_at_once_is_told(run_page: RunPage) -> None:
    assert "a command that goes on" in refused(run_page, fenced("console", "$ towline serve --store nonsense &"))


def test_a_command_is_repeated_until_its_output_has_the_text(run_page: RunPage) -> None:
    run_page('<!-- run: until "xxx" -->\n' + fenced("console", "$ echo -n x >> y; cat y", "xxx"), NAME)


def test_output_that_never_has_the_text_is_told(run_page: RunPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.runner.UNTIL_SECONDS", 0.1)
    assert "output with 'yes'" in refused(run_page, '<!-- run: until "yes" -->\n' + fenced("console", "$ echo no"))


def test_a_block_that_cant_run_here_is_counted_with_its_reason_and_not_run(
    run_page: RunPage, request: pytest.FixtureRequest
) -> None:
    made = run_page("<!-- run: not here, it needs a cluster -->\n" + fenced("console", "$ touch made"), NAME)
    assert [str(block) for block in made.not_here] == [f"{NAME}:2: it needs a cluster"]
    assert not (made.folder / "made").exists()
    request.node.user_properties.clear()


def test_addresses_are_the_pages_own(run_page: RunPage) -> None:
    settings = ("store: sqlite:///q.db", "server: {listen: 127.0.0.1:7878}")
    made = run_page(
        fenced('yaml title="towline.yaml"', *settings)
        + fenced("console", "$ towline serve &", "$ curl -s --fail http://127.0.0.1:7878/livez")
        + fenced("console", "$ echo At http://127.0.0.1:7878 | cat", "At http://127.0.0.1:7878"),
        NAME,
    )
    assert "127.0.0.1:7878" not in (made.folder / "towline.yaml").read_text()
    assert made.addresses.shown(made.addresses.replaced("http://127.0.0.1:7878")) == "http://127.0.0.1:7878"


def test_what_pip_is_to_install_must_be_there(run_page: RunPage) -> None:
    installed = fenced("console", "$ pip install 'towline[redis]' celery")
    told = refused(run_page, installed, fenced("console", "$ pip install 'towline[x]' y"))
    assert "came:\ntowline has no extra x\ny: not installed here" in told


def test_blocks_of_a_list_lose_their_indent() -> None:
    page = read_page(Path("x.md"), '1. First\n\n   ```python title="a.py"\n   if True:\n       1\n   ```\n')
    assert page.blocks == (Block(3, "python", "if True:\n    1\n", title="a.py"),)
