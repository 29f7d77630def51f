"""Run a page from top to bottom in a folder of its own, as a reader would who types it."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.docs.addresses import Addresses
from tests.docs.blocks import Block, Command, Page, PageError
from tests.docs.expected import matches, readable
from tests.docs.settings_blocks import SettingsError, check_file, check_yaml, settings_keys
from tests.docs.shell import Background, Shell, goes_on
from tests.support.commands import ROOT
from tests.support.eventually import eventually

UNTIL_SECONDS: Final = 30.0
SHOWN_SECONDS: Final = 3.0
"""How long the lines that a page shows of a command that goes on are waited for before the page goes on itself."""
SHOWN: Final = frozenset({"", "text", "diff", "go", "java", "html", "xml", "dockerfile", "Dockerfile", "mermaid"})
"""Languages that are shown only, unless they have a title."""
_HERE: Final = 'PYTHONPATH="$PWD:$PYTHONPATH"'
"""Modules of the page's folder can be imported, as by a program that lies in it."""
_DOCTEST: Final = """\
import doctest, sys
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
sys.path.insert(0, "")
sys.exit(bool(doctest.testfile(sys.argv[1], module_relative=False, optionflags=flags).failed))
"""
_NGINX: Final = """\
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{text}
}}
"""


class BlockError(AssertionError):
    """A block that does not do what its page says: where it stands, what came, and what was expected."""

    def __init__(self, page: Page, line: int, what: str, *, came: str, expected: str) -> None:
        parts = [f"{page.path}:{line}: {what}", "--- came:", came.rstrip(), "--- expected:", expected.rstrip()]
        super().__init__("\n".join(parts))


@dataclass(frozen=True, slots=True)
class NotHere:
    """A block that can't run on a machine for tests, and why."""

    page: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.reason}"


@dataclass
class PageRun:
    """One page that is run; `run` does all of it. Raises `BlockError` or `PageError`."""

    page: Page
    shell: Shell
    addresses: Addresses
    not_here: list[NotHere] = field(default_factory=list)
    _shown_later: list[tuple[Command, Background]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder that the page's files are written to."""
        return self.shell.folder

    def run(self) -> None:
        """Run all blocks, then look for what the page shows of commands that went on."""
        for block in self.page.blocks:
            self._run(block)
        for command, running in self._shown_later:
            self._await_shown(command, running, seconds=UNTIL_SECONDS)

    def _run(self, block: Block) -> None:
        for name, source in block.files:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, self.folder / name)
        if block.not_here:
            self.not_here.append(NotHere(self.page.path, block.line, block.not_here))
            if block.language in ("yaml", "json", "toml"):
                self._by_language(block)
        elif block.title:
            self._write(block)
        else:
            self._by_language(block)

    def _by_language(self, block: Block) -> None:
        rules: dict[str, Callable[[Block], None]] = {
            "console": self._console,
            "python": self._python,
            "pycon": self._doctest,
            "yaml": self._yaml,
            "json": self._json,
            "toml": self._toml,
            "sql": self._sql,
            "nginx": self._nginx,
        }
        rule = rules.get(block.language)
        if rule is not None:
            rule(block)
        elif block.language not in SHOWN:
            raise PageError(
                f"{self.page.path}:{block.line}: no rule for ```{block.language} without a title: "
                f"use console for what is typed, text for what is shown"
            )

    def _write(self, block: Block) -> None:
        path = self.folder / block.title
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise PageError(f"{self.page.path}:{block.line}: {block.title} lies outside the page's folder")
        if block.appends and not path.is_file():
            raise PageError(f"{self.page.path}:{block.line}: there is no {block.title} yet that could be appended to")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.addresses.replaced(block.text)
        with path.open("a" if block.appends else "w") as file:
            file.write(text)
        if block.text.startswith("#!"):
            path.chmod(0o755)
        self._check_written(block, path)

    def _check_written(self, block: Block, path: Path) -> None:
        try:
            if path.suffix == ".py":
                compile(path.read_text(), block.title, "exec")
            elif path.suffix in (".yaml", ".yml"):
                self._check_written_yaml(path)
            elif path.suffix in (".json", ".toml"):
                (json.loads if path.suffix == ".json" else tomllib.loads)(path.read_text())
            elif path.suffix == ".service" and shutil.which("systemd-analyze"):
                self._verify_unit(block, path)
        except (SyntaxError, ValueError, SettingsError) as error:
            raise self._error(block.line, f'title="{block.title}"', str(error), "a valid file") from error

    def _check_written_yaml(self, path: Path) -> None:
        text = path.read_text()
        if path.name == "towline.yaml" or (self.addresses.ports and _has_only(text, settings_keys())):
            check_file(text, path.name, path.parent)
        else:
            check_yaml(text, path.parent)

    def _verify_unit(self, block: Block, path: Path) -> None:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
        )
        told = [line for line in done.stderr.splitlines() if path.name in line and "is not executable" not in line]
        if told:
            raise self._error(block.line, "systemd-analyze verify", "\n".join(told), "no complaint")

    def _console(self, block: Block) -> None:
        commands = block.commands
        for number, command in enumerate(commands):
            is_last = number == len(commands) - 1
            if command.is_interrupt:
                self._interrupt(command)
            elif command.is_background or goes_on(command.text):
                self._start(command)
            elif block.until and is_last:
                self._repeat(command, block.until)
            else:
                outcome = self.shell.run(self.addresses.replaced(command.text))
                if command.text.startswith("towline init"):
                    self._move_project()
                self._compare(command, outcome.code, self.addresses.shown(outcome.output))

    def _move_project(self) -> None:
        """Give the settings that `towline init` has written the page's own ports."""
        settings = self.shell.current / "towline.yaml"
        if settings.is_file():
            settings.write_text(self.addresses.replaced(settings.read_text()))

    def _start(self, command: Command) -> None:
        running = self.shell.start(self._on_own_port(command.text), self.addresses.ports.values())
        if running.has_ended and running.process.returncode != command.code:
            came = f"{running.printed}\nexit status {running.process.returncode}"
            raise self._error(command.line, f"$ {command.text}", came, "a command that goes on")
        if re.search(r"towline (?:serve|up)\b", command.text) and self._needs_url():
            port = self.addresses.ports["7878"]
            self.shell.environment.setdefault("TOWLINE_URL", f"http://127.0.0.1:{port}")
        if command.expected and not self._await_shown(command, running, seconds=SHOWN_SECONDS, fails=False):
            self._shown_later.append((command, running))

    def _needs_url(self) -> bool:
        """Return whether commands or programs would look for the server at its usual port, for want of a file."""
        here = self.shell.current
        programs = [path.read_text() for path in here.glob("*.py")]
        return not (here / "towline.yaml").is_file() or any("connect_appengine()" in text for text in programs)

    def _on_own_port(self, text: str) -> str:
        """Return a command with private addresses, also where it would listen on a port that it does not name."""
        replaced = self.addresses.replaced(text)
        if re.match(r"towline console\b", text) and "--listen" not in text:
            return f"{replaced} --listen 127.0.0.1:{self.addresses.ports['7880']}"
        return replaced

    def _await_shown(self, command: Command, running: Background, *, seconds: float, fails: bool = True) -> bool:
        try:
            eventually(
                lambda: matches(command.expected, self.addresses.shown(running.printed), may_go_on=True),
                seconds=seconds,
            )
        except AssertionError:
            if fails:
                came = readable(self.addresses.shown(running.printed))
                raise self._error(command.line, f"$ {command.text}", came, "\n".join(command.expected)) from None
            return False
        return True

    def _interrupt(self, command: Command) -> None:
        if not self.shell.running:
            raise PageError(f"{self.page.path}:{command.line}: {command.text}: no command goes on that it could end")
        running = self.shell.running.pop()
        before = len(running.printed)
        running.interrupt()
        printed = self.addresses.shown(running.printed[before:])
        running.close()
        if command.expected and not matches(command.expected, printed, may_go_on=True):
            raise self._error(command.line, command.text, readable(printed), "\n".join(command.expected))
        for shown, started in list(self._shown_later):
            if started is running:
                self._shown_later.remove((shown, started))
                self._await_shown(shown, running, seconds=0)

    def _repeat(self, command: Command, text: str) -> None:
        """Repeat a command until its output has the text, then compare."""
        replaced = self.addresses.replaced(command.text)
        last = self.shell.run(replaced)

        def has_it() -> bool:
            nonlocal last
            if text not in readable(self.addresses.shown(last.output)):
                last = self.shell.run(replaced)
            return text in readable(self.addresses.shown(last.output))

        try:
            eventually(has_it, seconds=UNTIL_SECONDS)
        except AssertionError:
            raise self._error(command.line, f"$ {command.text}", last.output, f"output with {text!r}") from None
        self._compare(command, last.code, self.addresses.shown(last.output))

    def _compare(self, command: Command, code: int, output: str) -> None:
        if code != command.code:
            came = f"{readable(output)}\nexit status {code}"
            raise self._error(command.line, f"$ {command.text}", came, f"exit status {command.code}")
        if command.expected and not matches(command.expected, output):
            raise self._error(command.line, f"$ {command.text}", readable(output), "\n".join(command.expected))

    def _python(self, block: Block) -> None:
        self._run_file(block, "block.py", self.addresses.replaced(block.text), f"{_HERE} python {{}}")

    def _doctest(self, block: Block) -> None:
        runner = self.shell.scratch / "run_doctest.py"
        runner.write_text(_DOCTEST)
        self._run_file(block, "block.txt", self.addresses.replaced(block.text), f"{_HERE} python {runner} {{}}")

    def _sql(self, block: Block) -> None:
        if "POSTGRESQL_URL" in self.shell.environment:
            self._run_file(
                block, "block.sql", block.text, 'psql -q -v ON_ERROR_STOP=1 "$POSTGRESQL_URL" < {} > /dev/null'
            )

    def _nginx(self, block: Block) -> None:
        text = block.text
        if re.search(r"^\s*(?:server|upstream|map)\b", text, re.MULTILINE) is None:
            text = f"server {{ listen 127.0.0.1:1; server_name example.org;\n{text}\n}}"
        filled = _NGINX.format(folder=self.shell.scratch, text=self.addresses.replaced(text))
        if shutil.which("nginx", path=self.shell.environment["PATH"]):
            self._run_file(block, "nginx.conf", filled, f"nginx -t -q -p {self.shell.scratch} -c {{}}")

    def _run_file(self, block: Block, name: str, text: str, command: str) -> None:
        """Run a block that is a file of its own, which the page's folder doesn't show."""
        file = self.shell.scratch / f"{block.line}-{name}"
        file.write_text(text)
        outcome = self.shell.run(command.format(file))
        if outcome.code:
            raise self._error(block.line, f"```{block.language}", outcome.output, "exit status 0")

    def _yaml(self, block: Block) -> None:
        settings = self.folder / "towline.yaml"
        earlier = settings.read_text() if settings.is_file() else ""
        try:
            check_yaml(self.addresses.replaced(block.text), self.folder, earlier=earlier)
        except Exception as error:
            raise self._error(block.line, "```yaml", f"{type(error).__name__}: {error}", "valid YAML") from error

    def _json(self, block: Block) -> None:
        try:
            json.loads(block.text)
        except ValueError as error:
            raise self._error(block.line, "```json", str(error), "valid JSON") from error

    def _toml(self, block: Block) -> None:
        try:
            tomllib.loads(block.text)
        except ValueError as error:
            raise self._error(block.line, "```toml", str(error), "valid TOML") from error

    def _error(self, line: int, what: str, came: str, expected: str) -> BlockError:
        return BlockError(self.page, line, what, came=came, expected=expected)


def _has_only(text: str, keys: frozenset[str]) -> bool:
    import yaml

    found = yaml.safe_load(text)
    return isinstance(found, dict) and bool(found) and set(found) <= keys
