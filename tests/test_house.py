"""The house is kept: unique names of the field, plain docstrings, cited decisions, linked pages.

See CONTRIBUTING.md. A test that fails here says which name, file or page it is.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("queue_core", "orchestrator")
FOREIGN_WORDS = frozenset(
    (  # noqa: SIM905 - a list would take seventy lines
        "acts adding administering also appetite appetites arriving ask asked builder building bury circumstances "
        "crew custody door doors ear ears errand errands gate greeting guardians hands heard hearing hot kept_adds "
        "knee link links looking managed marking mistake mistakes morgue obituary orders paper peeking pulse "
        "returning rollcall safety seeing settle settling shift showcase suspects swapping tell telling tells tidying "
        "told unheard upkeep ward warden working"
    ).split()
)
"""Words that the glossary has another one for, by which no module, class, function or parameter is named."""

HEADLESS = re.compile(
    r"(?:What|Who|Whom|Whose|Whoever|Whatever|Which|Whichever|Whether|Where|Wherever|That|Those|It|They|So many)\b"
)
"""Beginnings of a docstring whose sentence has no thing as its subject, and no verb that says what is done."""

FOREIGN_SUBJECT = re.compile(
    r"(?!.*\?$)(?:(?:What(?! if\b)|Who|Whom|Whose|Whoever|Whatever|Which|Whichever|So many)\b"
    r"|.*?(?:[;:] (?:what|who|whom|whose|whoever|whatever|whichever)\b|\bwhoever\b|\bwhatever (?:happen|went|is|was)))"
)
"""A sentence or a clause whose subject is such a word: its reader waits for the thing that it is about."""

DECISIONS = {"queue_core": ROOT / "docs/adr/queue", "orchestrator": ROOT / "docs/adr/fleet"}
"""The pages of the decisions about each package."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module of the product, by its path within the repository."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in paths}


def definitions() -> Iterator[tuple[Path, Definition]]:
    """Every class and function."""
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, Definition):
                yield path, node


def pages() -> list[Path]:
    """Every page of documentation."""
    folders = ("docs", "examples")
    return sorted(page for folder in folders for page in (ROOT / folder).rglob("*.md"))


def words(name: str) -> set[str]:
    """The words of an identifier, in lower case."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_"))


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes = defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_names_are_words_of_the_field() -> None:
    found = {f"{path}: the module" for path in modules() if words(path.stem) & FOREIGN_WORDS}
    for path, node in definitions():
        names = [node.name]
        if not isinstance(node, ast.ClassDef):
            every = node.args
            names += [argument.arg for argument in (*every.posonlyargs, *every.args, *every.kwonlyargs)]
        found |= {f"{path}:{node.lineno}: {name}" for name in names if words(name) & FOREIGN_WORDS}
    assert sorted(found) == []


def test_a_docstring_begins_with_a_thing_or_a_verb() -> None:
    found = []
    for path, tree in modules().items():
        for node in [tree, *(node for node in ast.walk(tree) if isinstance(node, Definition))]:
            text = ast.get_docstring(node) or ""
            if HEADLESS.match(text):
                found.append(f"{path}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_decision_is_named_in_the_code_it_explains(package: str) -> None:
    texts = [path.read_text() for kind in ("py", "sql", "lua") for path in (ROOT / package).rglob(f"*.{kind}")]
    cited = {
        int(number)
        for text in texts
        for run in re.findall(r"\bADRs? ([0-9][0-9, and to]*)", text)
        for number in numbers_of(run)
    }
    decisions = {int(page.name[:4]): page.name for page in DECISIONS[package].glob("*.md")}
    assert {name for number, name in decisions.items() if number not in cited} == set()


def numbers_of(run: str) -> set[str]:
    """The numbers in `3`, `3 and 4`, `3, 4` or `3 to 5`."""
    numbers = set(re.findall(r"[0-9]+", run))
    for first, last in re.findall(r"([0-9]+) to ([0-9]+)", run):
        numbers |= {str(number) for number in range(int(first), int(last))}
    return numbers


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        todo += [page.parent.joinpath(link).resolve() for link in links if "://" not in link]
    assert [str(page.relative_to(ROOT)) for page in pages() if page not in reached] == []


def test_every_link_leads_to_a_file() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in [*ROOT.glob("*.md"), *pages()]
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in link and not page.parent.joinpath(link).exists()
    ]
    assert broken == []


def test_the_core_imports_no_wing() -> None:
    wings = {f"queue_core.{name}" for name in ("celery", "google", "kombu")}
    above = {"__init__.py", "celery", "cli", "google", "kombu"}
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        if path.parts[0] == "queue_core" and path.parts[1] not in above
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if ".".join(name.split(".")[:2]) in wings
    ]
    assert found == []


@cache
def prose(page: Path) -> str:
    """The text of a page without its blocks and comments, line by line."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2 *$", _only_lines, page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", _only_lines, text, flags=re.DOTALL)


def _only_lines(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings that GitHub and zensical make alike, and those that it writes itself."""
    headings = re.findall(r"^#{1,6} (.*?)(?: \{#([\w-]+)\})?$", prose(page), re.MULTILINE)
    found = {given for _, given in headings if given}
    for text, _ in headings:
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "").strip().lower()
        of_github = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        of_zensical = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", shown.encode("ascii", "ignore").decode()).strip())
        found |= {of_github} & {of_zensical}
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text()))


def test_every_anchor_is_a_heading() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}#{anchor}"
        for page in [*ROOT.glob("*.md"), *pages()]
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
        if "://" not in link and (link or page.name).endswith(".md")
        if anchor not in anchors(page.parent.joinpath(link).resolve() if link else page)
    ]
    assert broken == []


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """The sentences of a page's paragraphs, items and tables, each with the line at which its paragraph begins."""
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=\|)|\n(?=#))", prose(page)):
        if part.strip() and not part.lstrip().startswith("#"):
            for cell in part.split("|") if part.lstrip().startswith("|") else [part]:
                text = " ".join(re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", cell).split())
                yield from ((line, sentence) for sentence in re.split(r"(?<=[.!?])\s+|(?<=[.:!?]\*\*)\s+", text))
        line += part.count("\n")


def test_a_sentence_of_a_page_has_a_thing_as_its_subject() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{line}: {sentence}"
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *pages()]
        if ROOT / "docs" / "adr" not in page.parents
        for line, sentence in sentences(page)
        if FOREIGN_SUBJECT.match(sentence) and "](adr/" not in sentence
    ]
    assert found == []


def test_every_path_that_the_guides_name_is_there() -> None:
    guides = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "explanation" / "architecture.md", ROOT / "SECURITY.md"]
    named = {
        path
        for guide in guides
        for path in re.findall(r"`((?:queue_core|orchestrator|tests|docs|examples)/[\w./]*)`", guide.read_text())
    }
    assert len(named) > 10
    assert sorted(path for path in named if not (ROOT / path).exists()) == []
