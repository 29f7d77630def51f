"""The console behind Debian's nginx, as the manual has it: with a prefix, TLS, and people whom nginx has logged in."""

import http.client
import re
import shutil
import socket
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import orchestrator
from queue_core.server.options import AccessToken, ProxyLogin, Role, ServeOptions
from tests.support.eventually import eventually
from tests.support.fleet.certificates import a_certificate
from tests.support.servers import QUEUE, a_server

MANUAL: Final = Path(orchestrator.__file__).parents[1] / "docs" / "how-to" / "console.md"
ADMIN: Final = AccessToken(Role.ADMIN, "admin-secret-0123456789")
PROXY: Final = ProxyLogin("x-forwarded-user", ("127.0.0.1",), Role.VIEWER, {"ann": Role.OPERATOR})
LOGIN: Final = {"authorization": "Basic " + b64encode(b"ann:secret").decode()}


@dataclass(frozen=True, slots=True)
class Proxied:
    """A console behind nginx."""

    port: int
    context: ssl.SSLContext

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=10, context=self.context)
        try:
            connection.request(method, path, body, {**LOGIN, **headers})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("nginx: not installed (Debian: apt-get install nginx)")
    folder = tmp_path_factory.mktemp("nginx")
    certificate = a_certificate(folder)
    location = re.search(r"```nginx\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    assert location is not None
    with closing(socket.socket()) as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    options = ServeOptions(tokens=(ADMIN,), proxy=PROXY, console_writes=True, allowed_hosts=("localhost",))
    with a_server(options=options) as server:
        block = location[1].replace("http://127.0.0.1:7878", server.url)
        hashed = subprocess.run(
            ["openssl", "passwd", "-apr1", "secret"], capture_output=True, text=True, check=True
        ).stdout.strip()
        (folder / "people").write_text(f"ann:{hashed}\n")
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; user root;\n"
            "events {}\n"
            f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
            f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
            f"server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {certificate.certificate};\n"
            f"ssl_certificate_key {certificate.key}; auth_basic x; auth_basic_user_file {folder}/people;\n"
            f"{block}}} }}\n"
        )
        nginx = subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")])
        try:
            context = ssl.create_default_context(cafile=str(certificate.certificate))
            found = Proxied(port, context)

            def is_up() -> bool:
                try:
                    return found.ask("GET", "/ops/console/")[0] == 200
                except OSError:
                    return False

            eventually(is_up, seconds=20)
            yield found
        finally:
            nginx.terminate()
            nginx.wait(timeout=20)


def test_pages_and_forms_work_behind_the_prefix(proxied: Proxied) -> None:
    status, headers, _ = proxied.ask("GET", "/ops/", accept="text/html")
    assert (status, headers["location"]) == (302, "console/")
    status, _, html = proxied.ask("GET", f"/ops/console/queues/{QUEUE}")
    assert (status, "operator" in html, 'href="/' in html) == (200, True, False)
    form = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    origin = f"https://localhost:{proxied.port}"
    path = f"/ops/console/queues/{QUEUE}/pause"
    status, headers, _ = proxied.ask("POST", path, f"back=queues/{QUEUE}", origin=origin, **form)
    assert (status, headers["location"]) == (303, f"../../queues/{QUEUE}")
    assert proxied.ask("POST", path, "", origin="https://evil.example", **form)[0] == 403
    status, _, script = proxied.ask("GET", "/ops/console/static/console.js")
    assert (status, "use strict" in script) == (200, True)


def test_a_browsers_own_header_names_nobody(proxied: Proxied) -> None:
    _, _, html = proxied.ask("GET", "/ops/console/queues", **{"x-forwarded-user": "boss"})
    assert "operator" in html
    assert proxied.ask("GET", "/ops/v1/queues", **{"x-forwarded-user": "boss"})[0] == 401


def test_a_page_follows_what_happens_through_the_proxy(proxied: Proxied) -> None:
    connection = http.client.HTTPSConnection("localhost", proxied.port, timeout=10, context=proxied.context)
    connection.request("GET", f"/ops/console/live/queues/{QUEUE}", headers=LOGIN)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    lines = iter(answer.readline, b"")
    assert next(line for line in lines if line.startswith(b"event:")) == b"event: page\n"
    answer.close()
    connection.close()
