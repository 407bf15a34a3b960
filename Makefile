# make setup, make quickstart, make test; see CONTRIBUTING.md.
# PYTHON picks the interpreter for a new .venv; OUT is where the quickstart writes; ARGS goes to pytest or the quickstart.

PYTHON ?= python3
OUT ?= quickstart
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup quickstart test lint format docs clean

setup: $(STAMP)

# torch goes first and pinned, so that nothing installed later brings another build of it.
$(STAMP): pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Eyas needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make setup PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints-cpu.txt torch
	$(PIP) install --quiet --constraint constraints-cpu.txt --editable '.[dev,plots]'
	@touch $@

quickstart: setup
	$(BIN)/eyas quickstart --out $(OUT) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Two workers of one thread each are faster than one worker of two: the tests' models are tiny.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python -m eyas.cli.reference docs/cli.md

clean:
	rm -rf $(VENV) quickstart build dist .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
