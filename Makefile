# Tasks of a developer. `run.py` does the work, and makes .venv when it is not there yet.
.DEFAULT_GOAL := help
.PHONY: help test lint demo docs reference tours faults bench tutorial release

help: ## list these tasks
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ /' | awk '{name = $$1; $$1 = ""; printf "%-8s %s\n", name, $$0}'

test: ## run every check and all but slow tests, or what ARGS name
	python3 run.py test $(or $(ARGS),--quick)

lint: ## run ruff, mypy and import-linter
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports

demo: ## watch a fleet at work for a minute
	python3 run.py demo --for 60s $(ARGS)

docs: ## build the manual that servers show at /docs/
	python3 run.py docs $(ARGS)

reference: ## write the reference pages anew from the program
	.venv/bin/python -m tests.support.reference

tours: ## follow an add, an exchange and a turn file by file
	.venv/bin/python -m tests.tours

faults: ## kill servers and stores under load for a minute
	.venv/bin/python -m tests.faults --store sqlite --for 60s

bench: ## measure, with the sections named in ARGS
	.venv/bin/python -m tests.bench.peers $(ARGS)

tutorial: ## type the tutorial on a bare Debian 12, and tell how long it took
	.venv/bin/python -m tests.tutorial

release: ## try a release: all but the tag and the upload
	python3 run.py release --dry-run $(ARGS)
