"""A private nginx before a server: TLS with a certificate of its own, and a prefix."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tests.support.eventually import eventually
from tests.support.stores.engines import free_port

NAME: Final = "queues.example.org"
PREFIX: Final = "/towline"
_SETTINGS: Final = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
{user}events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} ssl;
    server_name {name};
    ssl_certificate {folder}/cert.pem;
    ssl_certificate_key {folder}/key.pem;
{login}{location}
  }}
}}
"""
_LOCATION: Final = """
    location {prefix}/ {{
      proxy_pass http://127.0.0.1:{upstream}/;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Connection "";
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_read_timeout 1h;
      proxy_buffering off;
    }}
"""


@dataclass(frozen=True, slots=True)
class PrivateNginx:
    """A proxy that runs: its port, and the TLS settings that accept its certificate."""

    port: int
    context: ssl.SSLContext

    @property
    def origin(self) -> str:
        """What a browser sends as `Origin`."""
        return f"https://{self.host}"

    @property
    def host(self) -> str:
        """What a browser sends as `Host`."""
        return f"{NAME}:{self.port}"


@contextmanager
def a_proxy(
    folder: Path, upstream: int, *, location: str = "", people: Mapping[str, str] = MappingProxyType({})
) -> Iterator[PrivateNginx]:
    """Run nginx before the server at port `upstream`; skips the test where there is none.

    Args:
        location: what takes the place of the usual block with the prefix.
        people: the passwords of those whom nginx itself logs in; none: it lets everybody through.
    """
    program, openssl = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"), shutil.which("openssl")
    if program is None or openssl is None:
        pytest.skip("no nginx, or no openssl: apt install nginx-light openssl")
    port, key, certificate = free_port(), folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2", "-nodes"]
    command = [openssl, "req", "-x509", *made, *subject, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    settings = folder / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    location = location or _LOCATION.format(prefix=PREFIX, upstream=upstream)
    login = f"auth_basic x; auth_basic_user_file {folder}/people;\n" if people else ""
    (folder / "people").write_text("".join(f"{name}:{{PLAIN}}{password}\n" for name, password in people.items()))
    filled = {"folder": folder, "port": port, "name": NAME, "user": user, "login": login, "location": location}
    settings.write_text(_SETTINGS.format(**filled))
    process = subprocess.Popen([program, "-c", str(settings), "-e", str(folder / "error.log"), "-p", str(folder)])
    try:
        eventually((folder / "pid").exists)
        yield PrivateNginx(port, ssl.create_default_context(cafile=str(certificate)))
    finally:
        process.terminate()
        process.wait(20)
