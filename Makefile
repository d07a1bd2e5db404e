# make demo   the whole pipeline in small, on a CPU
# make test   the test suite
# make bench  ours and SpecForge's step in turn; make bench BENCH="--threads 1 --save"
# make lint   formatting, lint and types
# make setup  .venv; the others do it themselves when it is missing or stale
# make clean  remove what the above made

PYTHON ?= python3
VENV ?= .venv
# On a machine without a GPU. Another index: make setup TORCH="torch --index-url URL"
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
STAMP := $(VENV)/.ready

.PHONY: setup demo test bench lint clean

setup: $(STAMP)

$(STAMP): setup.py pyproject.toml requirements-cpu.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "specforge-dstill needs Python 3.11 or newer; name one: make setup PYTHON=python3.12")'
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@if nvidia-smi >/dev/null 2>&1; then \
	  set -ex; $(PIP) -e ".[dev]"; \
	else \
	  set -ex; \
	  $(PIP) $(TORCH); \
	  $(PIP) -r requirements-cpu.txt; \
	  $(PIP) --no-deps "specforge>=0.2,<0.3"; \
	  $(PIP) --no-deps -e .; \
	fi
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo/run.py

test: $(STAMP)
	$(BIN)/python -m pytest -q

bench: $(STAMP)
	$(BIN)/python examples/bench/run.py $(BENCH)

lint: $(STAMP)
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
