# Everything runs in .venv, which `make setup` builds and every other target brings up to date first.
PYTHON ?= python3
PIP := python -m pip --disable-pip-version-check
BIN := .venv/bin
STAMP := .venv/.set-up
OLDEST := .venv-oldest

.PHONY: help setup demo test check fix docs test-oldest lock clean
help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: $(STAMP) ## build .venv from constraints.txt (again only when that or pyproject.toml changes)

demo: $(STAMP) ## the headline: one pool, unbounded and windowed, on real speech (under 4 minutes)
	$(BIN)/metronome demo

test: $(STAMP) ## the suite without slow and GPU tests
	$(BIN)/pytest -m "not slow and not gpu"

check: $(STAMP) ## lint, format, types, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m metronome_cli.cli.docs --check

fix: $(STAMP) ## mend what lint and format can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## write docs/cli.md and docs/trace.schema.json again
	$(BIN)/python -m metronome_cli.cli.docs

test-oldest: $(OLDEST)/.set-up ## the suite's core on the oldest torch and transformers we allow
	$(OLDEST)/bin/pytest -m "not slow and not gpu and not assets" tests/engine tests/models tests/test_*.py

lock: $(STAMP) ## write constraints.txt from what .venv holds now
	{ echo "# Written by \`make lock\`: what \`make setup\` installs, exactly. No triton: see the Makefile."; \
	  $(BIN)/$(PIP) freeze --exclude metronome-cli | sed 's/+[a-z0-9.]*$$//; /^nvidia-\|^cuda-\|^triton/d'; } > constraints.new
	mv constraints.new constraints.txt

clean: ## remove environments, caches and builds; runs/ stays
	rm -rf .venv .venv-oldest .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# torch comes first and with its own dependencies, from wherever pip is told to look: its settings
# (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) may offer a CPU build, which then needs nothing more.
# The rest is the lock and nothing else. Without a resolver openai-whisper cannot bring triton: 1 GB that it
# only uses on a GPU, where torch has brought it already.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) install --constraint constraints.txt torch
	$(BIN)/$(PIP) install --no-deps --requirement constraints.txt
	$(BIN)/$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# Here pip's resolver decides, which also shows that the ranges in pyproject.toml can be met.
$(OLDEST)/.set-up: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/$(PIP) install "torch==2.11.*" "transformers==5.17.*" --editable ".[dev]"
	@touch $@
