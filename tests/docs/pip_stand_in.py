"""In place of pip: the environment of the tests is not changed, but what is to be installed must be there.

Exits 1 for a distribution that is absent or has another version, and for an extra that Towline does not have.
"""

import sys
from importlib import metadata

from packaging.requirements import Requirement

TOWLINE = "towline"


def problem_of(text: str) -> str:
    """Return why a requirement is not met; "" where it is."""
    requirement = Requirement(text)
    try:
        found = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name}: not installed here, so this page's program can't be tried"
    if not requirement.specifier.contains(found.version, prereleases=True):
        return f"{requirement}: {found.version} is installed here"
    extras = requirement.extras - set(found.metadata.get_all("Provides-Extra") or ())
    return f"{requirement.name} has no extra {', '.join(sorted(extras))}" if extras else ""


def main(arguments: list[str]) -> int:
    """Check what `pip install` is given."""
    verb, *rest = [argument for argument in arguments if not argument.startswith("-")]
    if verb != "install":
        sys.exit(f"pip {verb}: only install is known here")
    problems = [problem_of(text) for text in rest if text != "."]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems if problem))
    return 1 if any(problems) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
