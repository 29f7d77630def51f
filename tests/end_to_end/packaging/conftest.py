"""The artifacts of a release, built once."""

import pytest

from tests.support.built_packages import BuiltPackages, NotBuiltError, built_packages


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> BuiltPackages:
    """The wheel and the sdist of this tree."""
    try:
        return built_packages(tmp_path_factory.mktemp("packages"))
    except NotBuiltError as error:
        if "No module named hatchling" in str(error):
            pytest.skip("hatchling is not here to build the packages")
        raise
