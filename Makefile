# The one door for commands. Plain `make` prints this help; each target's `##` text is its line.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check format lock audit simulate soak bench bench-peers clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV := $(BIN)/uv
DEMO ?= examples/demo.sql
ARGS ?=
SEEDS ?= 1000

help: ## Print this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[36m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Install Headrace and its tools into .venv (quick when nothing changed)

# A name on PATH may be a shim that fails, or a Python without venv: only one that really runs is taken.
# `make setup PYTHON=/path/to/python` chooses one by hand.
$(UV):
	@for candidate in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Headrace needs Python 3.11 or newer with venv; tried: $(or $(PYTHON),python3.13 python3.12 python3.11 python3)" >&2; \
	  echo "  Debian, Ubuntu: sudo apt install python3 python3-venv    macOS: brew install python" >&2; \
	  echo "  or name one: make setup PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'

$(STAMP): requirements.lock pyproject.toml | $(UV)
	@echo "installing the packages of requirements.lock …"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Run a real pipeline on local Spark and watch it
	@$(BIN)/headrace run $(DEMO) --epoch-rows 500 $(ARGS)

# Tests that start Spark or another server wait much: three files at a time, Spark's between those of servers, the
# longest first. They live shortly: Java should start quickly rather than compile well.
WAITING := tests/recovery tests/spark/test_connectors_on_spark.py tests/servers/test_kafka_sink.py \
  tests/spark/test_sql_on_spark.py tests/servers/test_kafka_source.py tests/spark/test_cli_on_spark.py \
  tests/servers/test_kills_brokers.py tests/servers/test_kafka_contract.py tests/spark tests/servers
test test-fast: export SPARK_SUBMIT_OPTS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

test: $(STAMP) ## Run every test (ARGS="-k name" to choose)
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest --numprocesses 2 --ignore=tests/recovery --ignore=tests/servers --ignore=tests/spark
	@$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(WAITING)
else
	@$(BIN)/python -m pytest $(ARGS)
endif

test-fast: $(STAMP) ## Run the tests that do not start Spark
	@$(BIN)/python -m pytest --numprocesses 2 -m "not spark" $(ARGS)

simulate: $(STAMP) ## Run the engine in simulations with faults (SEEDS=1000; ARGS="--seed 7" replays one)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

check: $(STAMP) ## Lint, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP) ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lock: | $(UV) ## Resolve pyproject.toml anew into requirements.lock (ARGS="--upgrade" for the newest)
	@$(UV) pip compile pyproject.toml --python $(BIN)/python --quiet --universal --generate-hashes \
	  --all-extras --group dev --no-emit-index-url --no-header --no-annotate \
	  --output-file requirements.lock $(ARGS)
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -m audit sbom

audit: $(STAMP) ## Check dependencies: known vulnerabilities, licences, bill of materials
	@$(BIN)/python -m audit

soak: $(STAMP) ## Run for long on Spark and watch for growth, or under faults (ARGS="epochs" or ARGS="faults --minutes 60")
	@$(BIN)/python -m tests.soak $(ARGS)

bench: $(STAMP) ## Measure speed beside other engines and write its pages (ARGS="nexmark q5" for a part)
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(STAMP) ## Install PyFlink, Bytewax, Pathway and dora for the benchmark, each in an environment of its own
	@$(BIN)/python -m bench.peers install

clean: ## Remove the environment, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
