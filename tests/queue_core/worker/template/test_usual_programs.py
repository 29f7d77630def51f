"""Programs as most applications are: what they import and make leaves no hazard, so their workers are forked."""

import importlib.util
from pathlib import Path
from typing import Final

import pytest

from tests.queue_core.worker.template.test_hazards import hazards_after

USUAL: Final = (
    (
        "import logging, re, threading\nlogging.basicConfig(filename='log'); lock = threading.Lock()\n"
        "pattern = re.compile('a')"
    ),
    "import requests\nsession = requests.Session()\nsession.mount('http://a', requests.adapters.HTTPAdapter())",
    "import httpx\nclient = httpx.Client()",
    "import urllib3\npool = urllib3.PoolManager()\nhost = urllib3.HTTPConnectionPool('127.0.0.1')",
    "import redis\nclient = redis.Redis()\nlock = client.lock('a')",
    "import psycopg",
    "import sqlalchemy\nengine = sqlalchemy.create_engine('postgresql+psycopg://localhost/a')",
    "import boto3\nclient = boto3.client('s3', region_name='eu-west-1')",
    "import celery\napp = celery.Celery('shop', broker='redis://127.0.0.1:1')\n@app.task\ndef work(): ...",
    (
        "import django\nfrom django.conf import settings\nsettings.configure(DATABASES={'default': {\n"
        "    'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'a'}})\ndjango.setup()\nfrom django.db import connection"
    ),
    "import pydantic\nclass A(pydantic.BaseModel):\n    a: int\na = A(a=1)",
    "import structlog\nstructlog.configure()\nlog = structlog.get_logger()",
    "import numpy\ntable = numpy.ones((9, 9)); table @ table",
    "import pandas\ntable = pandas.DataFrame({'a': [1, 2]})",
    "import PIL.Image\nimage = PIL.Image.new('RGB', (9, 9))",
    "import jinja2\npage = jinja2.Environment().from_string('{{ a }}'); page.render(a=1)",
    "import docker\nclient = docker.DockerClient('tcp://127.0.0.1:1', version='1.41')",
    "import fastapi\napp = fastapi.FastAPI()",
    "import prometheus_client\ncounter = prometheus_client.Counter('a', 'b')",
    "import opentelemetry.sdk.trace",
    "import lxml.etree\ntree = lxml.etree.fromstring('<a/>')",
    "import cryptography.fernet\nkey = cryptography.fernet.Fernet(b'A' * 43 + b'=')",
    "import google.cloud.tasks",
    "import rich.console\nconsole = rich.console.Console()",
)


@pytest.mark.parametrize("application", [pytest.param(each, id=each.split()[1].strip(",")) for each in USUAL])
def test_usual_programs_can_be_forked(tmp_path: Path, application: str) -> None:
    library = application.split()[1].strip(",").partition(".")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert hazards_after(tmp_path, application) == []
