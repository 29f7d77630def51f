"""The manual is executed: every code block and command of README, docs and examples, page by page."""
