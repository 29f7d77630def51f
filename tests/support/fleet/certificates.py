"""Self-signed certificates for tests."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for `localhost`, and its key."""

    certificate: Path
    key: Path


def a_certificate(folder: Path, *, kind: Sequence[str] = ("rsa:2048",)) -> Certificate:
    """Make one with a key of this kind, in place of one that is there; skip the test where no program does so."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl: not installed (Debian: apt-get install openssl)")
    made = Certificate(folder / "server.pem", folder / "server.key")
    command = [program, "req", "-x509", "-newkey", *kind, "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return made
