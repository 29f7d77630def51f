"""The console's story, told by a browser on a real `towline up`: an error is seen, mended and redriven; a worker dies.

Nothing here is awaited by time: each step waits for what a person would wait for on the page.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect

from tests.support.commands import program_environment
from tests.support.eventually import eventually

LETTERS: Final = 312
SETTINGS: Final = """\
store: sqlite:///queue.db
server: {listen: "127.0.0.1:0"}
console: {writes: on}
queues:
  letters: {max_leases: 3, retry: {min: 10ms, max: 10ms}}
  invoices: {max_leases: 3}
pools:
  printers: {queue: letters, app: "tasks:app", slo: 3s, workers: {min: 1, max: 4}}
schedules:
  month-end: {queue: invoices, tag: month, cron: "0 6 1 * *", timezone: Europe/Berlin}
"""
APP: Final = """\
from pathlib import Path
from time import sleep

from queue_core import App

app = App("towline.yaml")


@app.function(queue="letters")
def print_letter(name: str, number: int) -> None:
    letter = Path("letter.txt").read_text()
    if "{name}" not in letter:
        raise ValueError("letter.txt has no {name} to fill in")
    sleep(0.2)
    print(f"letter {number}:", letter.format(name=name).strip())


@app.function(queue="letters")
def print_catalogue(pages: int) -> None:
    print(f"printing {pages} pages")
    while not Path("printed").exists():
        sleep(0.05)


@app.function(queue="letters", tag="month")
def send_invoice() -> None:
    print("sent")
"""
PRODUCER: Final = f"""\
import tasks

for number in range({LETTERS}):
    tasks.print_letter.add("Ann", number=number)
"""
ARCHIVE: Final = """\
from queue_core import NewTask, QueueSpec
from queue_core.client.connect import open_queues

queues = open_queues("sqlite:///old.db")
queues.put_queue(QueueSpec("archive"))
queues.queue("archive").add([NewTask(b"x") for _ in range(500)])
queues.close()
"""
CATALOGUE: Final = "import tasks; print(tasks.print_catalogue.with_(priority=9).add(pages=480).name)"

Camera = Callable[[str, Page], None]
"""Takes the pictures of a page, under a name."""


@contextmanager
def an_up(folder: Path) -> Iterator[str]:
    """Run `towline up` in a folder; yields the console's address."""
    for name, text in (("towline.yaml", SETTINGS), ("tasks.py", APP), ("letter.txt", "Dear {nmae},")):
        (folder / name).write_text(text)
    said = folder / "said.txt"
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up"],
            cwd=folder,
            env=program_environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        (url, *_) = eventually(lambda: re.findall(r"http://127\.0\.0\.1:\d+", said.read_text()))
        yield f"{url}/console/"
    finally:
        process.terminate()
        process.wait(timeout=60)


def run(code: str, folder: Path) -> str:
    """Run a producer's program in the folder, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def tell(page: Page, console: str, folder: Path, camera: Camera) -> None:
    """Tell the story: all that a person does in it is a click, a form, a file that is fixed."""
    _an_error_is_seen(page, console, folder, camera)
    _it_is_mended_and_redriven(page, console, folder, camera)
    _the_pool_grows_and_says_why(page, console, camera)
    _a_worker_is_killed(page, console, folder, camera)
    _a_worker_says_where_it_is(page, console, folder, camera)
    _all_else(page, console, camera)
    _queues_are_moved_in(page, console, folder, camera)


def _an_error_is_seen(page: Page, console: str, folder: Path, camera: Camera) -> None:
    page.goto(console)
    expect(page.get_by_role("row").filter(has_text="printers")).to_be_visible()
    run(PRODUCER, folder)
    page.get_by_role("link", name=f"letters: {LETTERS} dead tasks").click(timeout=60_000)
    group = page.get_by_role("row").filter(has_text="ValueError")
    expect(group).to_contain_text("letter.txt has no {name} to fill in")
    expect(group).to_contain_text(str(LETTERS))
    page.goto(console)
    expect(page.get_by_role("row").filter(has_text="printers")).to_be_visible()
    camera("fleet-dead", page)
    page.get_by_role("link", name=f"letters: {LETTERS} dead tasks").click()
    page.get_by_role("link", name="ValueError", exact=True).click()
    expect(page.get_by_role("heading", name=f"ValueError: {LETTERS} dead tasks")).to_be_visible()
    camera("dead", page)
    page.locator("#redrive").get_by_role("link").first.click()
    expect(page.locator(".timeline li.failure").filter(has_text="failed")).to_have_count(3)
    expect(page.locator(".timeline li").last).to_contain_text("dead")
    expect(page.locator(".timeline")).to_contain_text("tasks.py:13")
    camera("task", page)


def _it_is_mended_and_redriven(page: Page, console: str, folder: Path, camera: Camera) -> None:
    (folder / "letter.txt").write_text("Dear {name},")
    page.goto(f"{console}queues/letters/matching?change=redrive&error=ValueError")
    expect(page.get_by_role("heading", name=f"{LETTERS} tasks would be ready again")).to_be_visible()
    camera("matching", page)
    page.goto(f"{console}queues/letters/dead?error=ValueError")
    page.get_by_role("button", name=f"Redrive all {LETTERS}").click()
    said = f"{LETTERS} of {LETTERS} dead tasks of ValueError in letters are ready again."
    expect(page.get_by_role("status")).to_have_text(said)
    expect(page.locator("main")).to_contain_text("No task is dead.")
    camera("redriven", page)


def _the_pool_grows_and_says_why(page: Page, console: str, camera: Camera) -> None:
    page.goto(f"{console}pools/printers")
    why = page.locator("main p").filter(has_text=re.compile(r"\b[2-4] workers: .|Limited by host headroom"))
    expect(why.first).to_be_visible(timeout=60_000)  # a busy host has no room for more, and then that is why
    expect(page.get_by_role("region", name="Workers").locator("tbody tr").first).to_be_visible()
    page.locator("figure canvas").wait_for()
    camera("pool", page)
    page.goto(f"{console}workers")
    expect(page.locator("tbody tr").first).to_be_visible()
    camera("workers", page)
    page.goto(f"{console}queues")
    camera("queues", page)
    page.goto(f"{console}queues/letters")
    expect(page.locator("dl.figures")).to_contain_text("Completed")
    camera("queue", page)


def _a_worker_is_killed(page: Page, console: str, folder: Path, camera: Camera) -> None:
    name = run(CATALOGUE, folder)
    page.goto(f"{console}queues/letters/tasks/{name}")
    worker = page.locator(".timeline li").filter(has_text="leased").get_by_role("link")
    worker.wait_for(timeout=60_000)
    worker.click()
    expect(page.get_by_role("region", name="Output")).to_contain_text("printing 480 pages")
    camera("worker", page)
    reference = page.get_by_role("row", name="Process").locator("td").text_content() or ""
    found = re.match(r"pid:(\d+)", reference)
    assert found
    os.kill(int(found[1]), signal.SIGKILL)
    page.goto(f"{console}queues/letters/tasks/{name}")
    died = page.locator(".timeline li.failure").filter(has_text="worker died")
    expect(died).to_be_visible(timeout=60_000)
    (folder / "printed").touch()
    died.get_by_role("link").click()
    expect(page.get_by_role("region", name="How it ended")).to_contain_text("SIGKILL")
    expect(page.get_by_role("region", name="How it ended").get_by_role("link").first).to_contain_text(name)
    camera("certificate", page)
    page.goto(f"{console}deaths")
    expect(page.locator("tbody tr").filter(has_text="SIGKILL")).to_have_count(1)
    camera("deaths", page)


def _a_worker_says_where_it_is(page: Page, console: str, folder: Path, camera: Camera) -> None:
    (folder / "printed").unlink()
    name = run(CATALOGUE, folder)
    page.goto(f"{console}queues/letters/tasks/{name}")
    worker = page.locator(".timeline li").filter(has_text="leased").get_by_role("link")
    worker.last.wait_for(timeout=60_000)
    worker.last.click()
    page.get_by_text("Kill…").click()
    expect(page.locator("details.confirm[open]")).to_contain_text("It is running 1 task")
    page.get_by_role("link", name="Show its stack").click()
    expect(page.locator("main pre").first).to_contain_text("in print_catalogue")
    camera("stack", page)
    (folder / "printed").touch()


def _queues_are_moved_in(page: Page, console: str, folder: Path, camera: Camera) -> None:
    """Move the queue of another store into this one: its progress is shown here too."""
    run(ARCHIVE, folder)
    subprocess.run(
        [sys.executable, "-m", "orchestrator", "migrate", "--from", "sqlite:///old.db", "--to", "sqlite:///queue.db"],
        cwd=folder,
        env=program_environment(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    page.goto(f"{console}moves")
    expect(page.locator("main tbody tr").first).to_contain_text("archive")
    camera("moves", page)


def _all_else(page: Page, console: str, camera: Camera) -> None:
    for address in (
        "hosts",
        "schedules",
        "events",
        "queues/letters/tags",
        "queues/letters/leases",
        "queues/letters/settings",
    ):
        page.goto(console + address)
        expect(page.locator("main table").first).to_be_visible()
        camera(address.replace("queues/letters/", "queue-"), page)
    page.goto(f"{console}settings")
    expect(page.locator("main table").first).to_be_visible()
    camera("settings", page)
    page.goto(f"{console}pools/printers/what-if")
    page.get_by_label("at most").fill("8")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("heading", name="For the settings file")).to_be_visible(timeout=60_000)
    page.get_by_role("heading", name="For the settings file").scroll_into_view_if_needed()
    camera("what-if", page)
