# make help says what there is. PYTHON=python3.12 make test chooses another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install compare test check bench test-gpu clean

help:  ## show this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

install: $(STAMP)  ## make .venv with all that development needs

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "elbowroom needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
	         "name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

compare: $(STAMP)  ## the main job: cross-entropy and ours side by side; ARGS="texts/ --seeds 6"
	$(BIN)/elbowroom compare --resume $(ARGS)

test: $(STAMP)  ## run the tests with coverage; ARGS="-k margin" chooses some
	$(BIN)/python -m pytest -q -n 2 --cov --cov-report=term $(ARGS)

check: $(STAMP)  ## style, types, and that documents keep their word
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 0 tests/test_docs.py

bench: $(STAMP)  ## run the benchmarks; they write to evidence/
	set -e; gpu=$$($(BIN)/python -c 'import torch; print(torch.cuda.is_available())'); \
	for file in benchmarks/bench_*.py; do \
	  case "$$gpu $$file" in False*_cuda.py | False*paper_setting.py) \
	    echo "$$file: left out, for want of a GPU" >&2; continue;; esac; \
	  $(BIN)/python $$file; done

test-gpu: $(STAMP)  ## run the tests that need a GPU
	@test -d tests/gpu || { echo "there are no tests in tests/gpu" >&2; exit 1; }
	$(BIN)/python -m pytest -q -n 0 tests/gpu $(ARGS)

clean:  ## remove what these commands made
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
