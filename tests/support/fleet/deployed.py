"""Images and programs for `deploy/` on a machine without a registry: a base, PostgreSQL, a compose program."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import docker

from tests.support.commands import ROOT
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.image import Image, Placed, ensure_image, image_of
from tests.support.docker.image_files import PROGRAMS, library_files, tree
from tests.support.docker.images import base_image
from tests.support.stores.engine_process import EngineUnavailableError

BASE: Final = "towline-deploy-base:latest"
REVISION: Final = "0123abc"
TOWLINE: Final = "towline-deploy:latest"
POSTGRES: Final = "towline-deploy-postgres:latest"
_POSTGRES_FILES: Final = "towline-deploy-postgres-files:latest"
_CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
_USUAL_LIBRARIES: Final = (
    *("librt.so.1", "libdl.so.2", "libpthread.so.0", "libm.so.6", "libutil.so.1", "libgcc_s.so.1"),
    "libstdc++.so.6",
)
_SECONDS: Final = 180

# As much of the official image as compose.yaml relies on: it makes a cluster with user, password and database.
_START_POSTGRES: Final = """\
#!/bin/sh
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  "$bin/initdb" --pgdata "$PGDATA" --username "$POSTGRES_USER" --pwfile "$POSTGRES_PASSWORD_FILE" --auth-local trust \\
    --encoding UTF8 --locale C --no-sync $POSTGRES_INITDB_ARGS
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_DB" | "$bin/postgres" --single -D "$PGDATA" postgres
fi
exec "$bin/postgres" -D "$PGDATA" -c listen_addresses='*' -k /var/run/postgresql
"""
_POSTGRES_DOCKERFILE: Final = f"""\
FROM {_POSTGRES_FILES}
RUN mkdir -p /var/lib/postgresql/data /var/run/postgresql \\
 && chown 999:999 /var/lib/postgresql/data /var/run/postgresql && chmod 3777 /var/run/postgresql \\
 && for program in /usr/lib/postgresql/*/bin/*; do ln -s $program /usr/local/bin/; done
CMD ["start-postgres"]
"""
SERVER: Final = "towline-exported-server:latest"
_SERVER_DOCKERFILE: Final = """\
FROM BASE
RUN ["python3", "-c", "import os; os.makedirs('/var/lib/towline'); os.chmod('/var/lib/towline', 0o1777)"]
WORKDIR /app
USER 10001:10001
ENTRYPOINT ["towline"]
CMD ["up"]
"""


def local_base(engine: PrivateDockerEngine) -> str:
    """Return an image for `ARG BASE_IMAGE` from which a build reaches the package index as this machine does."""
    with base_image() as image:
        files = [Placed(str(path), path) for path in _libraries()]
        trusting = {"SSL_CERT_FILE": _CERTIFICATES, "PIP_CERT": _CERTIFICATES} if Path(_CERTIFICATES).is_file() else {}
        unique = {placed.path: placed for placed in [*image.files, *files]}
        _ensure(engine, replace(image, files=tuple(unique.values()), environment=trusting), name=BASE)
    return BASE


def local_postgres(engine: PrivateDockerEngine) -> str:
    """Return an image of this machine's PostgreSQL that starts as the official one does.

    Raises `EngineUnavailableError`.
    """
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not homes:
        raise EngineUnavailableError("postgresql: not installed (Debian: apt-get install postgresql)")
    version = homes[-1].parts[-3]
    home, shared = Path(f"/usr/lib/postgresql/{version}"), Path(f"/usr/share/postgresql/{version}")
    programs = [
        Placed(str(home / "bin" / name), home / "bin" / name) for name in ("initdb", "postgres", "pg_isready", "psql")
    ]
    libraries = [
        Placed(str(path), path) for path in sorted((home / "lib").glob("*.so")) if not path.name.startswith("llvmjit")
    ]
    zones = [Placed(str(path), path) for path in (Path("/usr/share/zoneinfo/UTC"),) if path.is_file()]
    files = [*programs, *libraries, *zones, *tree(shared, at=str(shared), leave_out=frozenset({"man"}))]
    texts = {
        "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\npostgres:x:999:999::/var/lib/postgresql:/bin/sh\n",
        "/etc/group": "root:x:0:\npostgres:x:999:\n",
        "/usr/local/bin/start-postgres": _START_POSTGRES,
    }
    image = image_of(files, programs=(*PROGRAMS, "chown", "chmod", "ln"), texts=texts)
    _ensure(engine, image, name=_POSTGRES_FILES)
    with engine.client() as client:
        steps = client.build(fileobj=io.BytesIO(_POSTGRES_DOCKERFILE.encode()), tag=POSTGRES, rm=True, decode=True)
        built(steps)
    return POSTGRES


def build_towline(engine: PrivateDockerEngine, *, base: str) -> str:
    """Build `deploy/Dockerfile` with the classic builder and return the image's name; fail with the build's output."""
    with docker.APIClient(base_url=engine.url, timeout=_SECONDS) as client:
        steps = client.build(
            path=str(ROOT),
            dockerfile="deploy/Dockerfile",
            tag=TOWLINE,
            buildargs={"BASE_IMAGE": base, "REVISION": REVISION},
            network_mode="host",
            rm=True,
            decode=True,
        )
        built(steps)
    return TOWLINE


def exported_server(engine: PrivateDockerEngine) -> str:
    """Return an image for `export --server-image`: the test image as `deploy/Dockerfile` would finish it."""
    with engine.client() as client:
        recipe = _SERVER_DOCKERFILE.replace("BASE", engine.image())
        built(client.build(fileobj=io.BytesIO(recipe.encode()), tag=SERVER, network_mode="none", rm=True, decode=True))
    return SERVER


def built(steps: object) -> None:
    """Read a build to its end. Raises `AssertionError` with its last lines when it failed."""
    told: list[str] = []
    assert hasattr(steps, "__iter__")
    for step in steps:
        told.append(str(step.get("stream", "")))
        assert "error" not in step, "".join([*told[-20:], str(step.get("error"))])


@dataclass(frozen=True, slots=True)
class Compose:
    """`docker compose` (or `docker-compose`) on the file of `deploy/` or another, as a separate project."""

    program: tuple[str, ...]
    project: str
    environment: Mapping[str, str]
    override: Path | None = None
    file: Path = ROOT / "deploy/compose.yaml"

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Return the command's output. Raises `AssertionError` with all output when it fails."""
        files = [self.file, self.override] if self.override is not None else [self.file]
        command = [*self.program, *(f"--file={file}" for file in files), "--project-name", self.project]
        done = subprocess.run(
            [*command, *arguments],
            env={**os.environ, **self.environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout


def compose_program() -> tuple[str, ...]:
    """Return the compose command of this machine. Raises `EngineUnavailableError`."""
    client = shutil.which("docker")
    if client is not None:
        asked = subprocess.run([client, "compose", "version"], capture_output=True, check=False)
        if asked.returncode == 0:
            return (client, "compose")
    older = shutil.which("docker-compose")
    if older is None:
        raise EngineUnavailableError("docker compose: not installed (Debian: apt-get install docker-compose)")
    return (older,)


def _ensure(engine: PrivateDockerEngine, image: Image, *, name: str) -> None:
    with engine.client() as client:
        ensure_image(client, image, name=name)


def _libraries() -> list[Path]:
    """Return common system libraries that programs or packages of a build may be linked to."""
    probe = [Placed(sys.executable, Path(os.path.realpath(sys.executable)))]
    libc = next(placed for placed in library_files(probe) if placed.path.endswith("/libc.so.6"))
    folder = Path(libc.path).parent
    return [folder / name for name in _USUAL_LIBRARIES if (folder / name).is_file()]
