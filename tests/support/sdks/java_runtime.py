"""Google's Java runtime and SDK, if installed, from Google's package google-cloud-cli-app-engine-java."""

import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import psutil
import pytest

from tests.support.commands import ROOT
from tests.support.eventually import eventually
from tests.support.sdks.serving import sdk_environment

SOURCES = ROOT / "tests" / "support" / "sdks" / "java"
SDK = Path("/usr/lib/google-cloud-sdk/platform/google_appengine/google/appengine/tools/java")
API = SDK / "lib" / "impl" / "appengine-api.jar"
RUNTIME = SDK / "production"
MAIN = "com.google.apphosting.runtime.JavaRuntimeMainWithDefaults"
OPENED = ("java.base/java.lang", "java.base/java.nio.charset", "java.base/java.util.concurrent")
TICKET = "the-ticket-of-this-request"
LOG = "java.log"
SECONDS = 120.0

Client: TypeAlias = Literal["jdk", "jetty"]


def application(folder: Path) -> Path:
    """Compile the application and lay it out for the runtime; skip where Java or the SDK is absent."""
    javac = shutil.which("javac", path=f"{os.environ.get('PATH', '')}:/usr/bin")
    if javac is None or not API.is_file() or not (RUNTIME / "runtime-main.jar").is_file():
        pytest.skip("a JDK or google-cloud-cli-app-engine-java is absent: its recorded requests stand for it")
    war = folder / "war"
    (war / "WEB-INF" / "classes").mkdir(parents=True)
    (war / "WEB-INF" / "lib").mkdir()
    (war / "WEB-INF" / "lib" / API.name).symlink_to(API)
    for name in ("web.xml", "appengine-web.xml"):
        shutil.copy(SOURCES / name, war / "WEB-INF" / name)
    compiled = subprocess.run(
        [
            *(javac, "-encoding", "utf-8", "-d", str(war / "WEB-INF" / "classes")),
            *("-cp", f"{API}:{RUNTIME / 'runtime-shared-jetty9.jar'}", str(SOURCES / "Story.java")),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    return war


@contextmanager
def running(war: Path, *, api: str, folder: Path, client: Client) -> Iterator[str]:
    """Run the application in Google's runtime and yield its address.

    Args:
        api: host:port of the API, for the environment.
        folder: for its log.
        client: the HTTP client that the runtime uses for the API.
    """
    environment = sdk_environment(
        PORT="0", GAE_PARTITION="dev", LOCAL_API_HOSTPORT=api, GAE_APPLICATION="story", GAE_SERVICE="default"
    )
    if client == "jdk":
        environment["APPENGINE_API_CALLS_USING_JDK_CLIENT"] = "true"
    opened = [option for name in OPENED for option in ("--add-opens", f"{name}=ALL-UNNAMED")]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [
                *("java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", *opened),
                *("-cp", str(RUNTIME / "runtime-main.jar"), MAIN),
                *(f"--fixed_application_path={war}", "--log_json_to_var_log=false", str(RUNTIME)),
            ],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{eventually(lambda: _port(process, folder / 'java.log'), seconds=SECONDS)}"
    finally:
        process.kill()
        process.wait()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int | None:
    assert process.poll() is None, log.read_text()
    listening = (one for one in psutil.Process(process.pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return next((one.laddr.port for one in listening), None)


def version(folder: Path) -> str | None:
    """Return the SDK's version from the runtime's log."""
    found = re.search(r"runtime jars built on .*, version ([0-9.]+)", (folder / LOG).read_text())
    return found[1] if found else None


def call(url: str, *, ticket: str = TICKET) -> str:
    """Return the application's reply to a request with a ticket, as App Engine's front end adds it."""
    request = urllib.request.Request(url, headers={"X-AppEngine-API-Ticket": ticket})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            told: bytes = answer.read()
    except urllib.error.HTTPError as error:
        told = error.read()
    return told.decode()
