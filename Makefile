# Needs GNU make and Python >= 3.11 with venv and pip, nothing else. `make lock` and `make bench` say what more they want.
#
#   make demo     start Forebay with no configuration (embedded model if no engine is found)
#   make test     set up .venv and run every test
#   make test-installed   run those that start Forebay against the installed, compiled build
#   make check    lint, format, types
#   make bench    measure the data plane against nginx (docs/benchmarks.md), under 6 minutes
#   make bench-collapse   short against long prompts on real llama.cpp, direct against through, about 35 minutes
#   make bench-fairness   limits, and one tenant that floods, about 25 minutes
#   make bench-nodes      limits and a flood over two nodes with a shared store, about 55 minutes
#   make bench-classes    how often `high` meets its target at full load, about 15 minutes
#   make bench-deaths     engines that die in the middle of answers
#   make bench-faults     the gateway's own faults under load, needs root for two of them, about 11 minutes
#   make bench-ladder     the ladder in a surge and in health, on a virtual clock, under a minute
#   make bench-tenants    one of a hundred tenants goes bad, on a virtual clock, about 4 minutes
#   make docs     test the documentation against the code
#   make lock     pin the newest releases that are at least 7 days old (UPGRADE= keeps the pins it can)
#   make clean    remove .venv, caches and build output
#
# PYTHON chooses the interpreter for a new .venv; ARGS is handed to pytest, forebay or the benchmark.

PYTHON ?= python3
ARGS ?=
UPGRADE ?= --upgrade

VENV := .venv
SOURCES := $(shell find src -name '*.py')
BIN := $(VENV)/bin
REQ := requirements
# The locks are complete, so pip resolves nothing: --no-deps keeps it to what is written and hashed there.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q
LOCKED := install --no-deps --require-hashes

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo test test-installed check bench bench-collapse bench-fairness bench-classes bench-deaths bench-faults bench-ladder bench-nodes bench-tenants docs lock clean

demo: $(VENV)/.demo
	exec $(BIN)/forebay serve $(ARGS)

test: $(VENV)/.demo $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

# Those that mostly wait (stores, resume, ladder, ill replicas, take-over) run once, on the sources.
test-installed: $(VENV)/.demo $(VENV)/.dev
	FOREBAY_TEST_INSTALLED=1 $(BIN)/python -m pytest tests/cases tests/faults tests/conformance \
	  --ignore-glob='tests/faults/test_[ilrst]*' $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy bench

bench: $(VENV)/.demo
	$(BIN)/python -m bench.run $(ARGS)

bench-collapse bench-classes bench-deaths bench-faults bench-ladder bench-nodes bench-tenants: $(VENV)/.demo
	$(BIN)/python -m bench.$(@:bench-%=%) $(ARGS)

bench-fairness: $(VENV)/.demo $(VENV)/.dev
	$(BIN)/python -m bench.fairness $(ARGS)

docs: $(VENV)/.dev
	$(BIN)/python -m pytest $(wildcard tests/docs) tests/test_repository.py tests/test_architecture.py $(ARGS)

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 or newer" \
	  "(Debian: apt-get install python3 python3-venv), or run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is" \
	  "$$($(PYTHON) -V 2>&1), Forebay needs 3.11 or newer: run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) cannot make a virtual environment" \
	  "with pip: install its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.locked: $(VENV)/.python $(REQ)/demo.txt $(REQ)/build.txt
	$(PIP) $(LOCKED) -r $(REQ)/demo.txt -r $(REQ)/build.txt
	@touch $@

# The request path is compiled here when there is a C compiler (hatch_build.py); the tests run the sources.
$(VENV)/.demo: $(VENV)/.locked pyproject.toml hatch_build.py $(SOURCES)
	$(PIP) install --no-deps --no-build-isolation --force-reinstall .
	@touch $@

$(VENV)/.dev: $(VENV)/.python $(REQ)/dev.txt
	$(PIP) $(LOCKED) -r $(REQ)/dev.txt
	@touch $@

# One resolver for all locks. Each lock follows the one before it, so that the sets can be installed together.
UV ?= build/lock/bin/uv
COMPILE = $(UV) pip compile --quiet $(UPGRADE) --generate-hashes --universal --python-version 3.11 \
  --exclude-newer "7 days" --no-emit-index-url --no-emit-find-links --no-annotate --no-header

lock: $(UV)
	$(COMPILE) -o $(REQ)/base.txt pyproject.toml
	$(COMPILE) -o $(REQ)/demo.txt pyproject.toml --extra demo --group model -c $(REQ)/base.txt
	$(COMPILE) -o $(REQ)/dev.txt pyproject.toml --group dev -c $(REQ)/base.txt
	$(COMPILE) -o $(REQ)/build.txt --group pyproject.toml:build -c $(REQ)/dev.txt
	@! grep -n '://' $(REQ)/*.txt || { echo "make: a lock names an address (see above)" >&2; exit 1; }

build/lock/bin/uv:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip --disable-pip-version-check -q install uv

clean:
	rm -rf $(VENV) build dist bench/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
