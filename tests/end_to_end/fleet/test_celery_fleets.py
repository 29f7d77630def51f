"""A small crowd at Redis and at RabbitMQ, under one supervisor that has a queue of its own as well."""

from pathlib import Path

import pytest

from tests.celery.fleets import BROKERS, SMALL_CROWD, site_of
from tests.support.stores.engine_process import EngineUnavailableError


def test_fleets_at_two_brokers_go_from_nothing_to_nothing(tmp_path: Path) -> None:
    try:
        with site_of(BROKERS, tmp_path, most=2) as site:
            figures = site.run(SMALL_CROWD)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    for figure in figures:
        assert (figure.lost, figure.twice, figure.left, figure.busy_signalled) == (0, 0, 0, 0), figure.line
        assert figure.peak > 0
