"""The manual is executed: every code block and command of README, docs and examples, page by page."""

from typing import Final

NOT_HERE: Final = "documentation that is not run here"
"""The property of a test that has the blocks it left out, each with its reason."""
