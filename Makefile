# The one door for commands. Plain `make` prints this help; each target's `##` text is its line.
.DEFAULT_GOAL := help
.PHONY: help setup demo console check-console test test-fast test-versions check format lock audit simulate soak bench bench-peers clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV := $(BIN)/uv
DEMO ?= examples/demo.sql
ARGS ?=
SPARK ?=
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

# The console is built with Node, from the lock file. Without it the console is neither checked nor tested: a pipeline
# needs none.
NODE := Node 20.19 or newer with npm
NPM := $(shell node -e 'const [a, b] = process.versions.node.split("."); process.exit(+(a < 20 || (a == 20 && b < 19)))' \
  2>/dev/null && command -v npm 2>/dev/null)
CONSOLE := src/headrace/server/console/index.html
CONSOLE_PACKAGES := console/node_modules/.installed
CONSOLE_SOURCES := $(shell find console/src console/public -type f) $(addprefix console/,index.html vite.config.ts tsconfig.json)
CONSOLE_TESTS := $(shell find console/tests console/browser -type f) console/eslint.config.js
CONSOLE_CHECKED := build/console.checked

$(CONSOLE_PACKAGES): console/package.json console/package-lock.json console/.npmrc
	@if [ -z "$(NPM)" ]; then echo "the console is built with $(NODE), which is not installed" >&2; exit 1; fi
	@echo "installing the packages of console/package-lock.json …"
	@cd console && npm ci --silent
	@touch $@

$(CONSOLE): $(CONSOLE_PACKAGES) $(CONSOLE_SOURCES)
	@cd console && npm run --silent build -- --logLevel warn
	@touch $@

console: $(CONSOLE) ## Build the console of `headrace serve` (needs Node); wheels contain it

$(CONSOLE_CHECKED): $(CONSOLE_PACKAGES) $(CONSOLE_SOURCES) $(CONSOLE_TESTS)
	@cd console && npm run --silent check && npm run --silent test
	@mkdir -p $(@D) && touch $@

check-console: $(if $(NPM),$(CONSOLE_CHECKED)) ## Lint, types and unit tests of the console
	$(if $(NPM),,@echo "the console is not checked: there is no $(NODE)")

# Tests that start Spark or another server wait much: three files at a time, Spark's between those of servers, the
# longest first. They live shortly: Java should start quickly rather than compile well.
WAITING := tests/recovery tests/spark/test_connectors_on_spark.py tests/servers/test_kafka_sink.py \
  tests/spark/test_sql_on_spark.py tests/servers/test_kafka_source.py tests/spark/test_cli_on_spark.py \
  tests/servers/test_kills_brokers.py tests/servers/test_kafka_contract.py tests/spark tests/servers
VERSIONED := tests/recovery tests/spark/test_standalone.py tests/spark
test test-fast: export SPARK_SUBMIT_OPTS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# Every commit of an epoch waits for the disk. Where the system keeps files in memory, has 8 GB for them and runs
# programs from there, the tests write there.
IN_MEMORY := $(shell d=$$(mktemp -d /dev/shm/headrace.XXXXXX 2>/dev/null) && echo : > $$d/program && \
  chmod +x $$d/program && $$d/program && [ "$$(df -kP $$d | awk 'END {print $$4}')" -gt 8388608 ] && echo /dev/shm; \
  [ -z "$$d" ] || rm -r $$d)
ifneq ($(IN_MEMORY),)
test test-fast: export TMPDIR ?= $(IN_MEMORY)
endif

# `make test SPARK=4.0`: the tests marked `versions`, with another Spark, in an environment of its own. Before 4.2
# PySpark leaves the closing of a socket to Python's garbage collector, which warns; 3.5 imports distutils.
SPARK_VERSIONS := $(sort $(patsubst tests/spark/versions/%.txt,%,$(wildcard tests/spark/versions/*.txt)))
OTHER := build/spark-$(SPARK)
PATIENT := -W 'ignore:unclosed <socket:ResourceWarning' -W 'ignore:The distutils package:DeprecationWarning'

build/spark-%/.installed: tests/spark/versions/%.txt requirements.lock pyproject.toml | $(STAMP)
	@echo "installing the packages of requirements.lock with pyspark $* into $(@D) …"
	@$(UV) venv --quiet --clear --python $(or $(PYTHON),$(BIN)/python) $(@D)
	@awk '/^[^ ]/ {left_out = /^(pyspark|py4j)==/} !left_out' requirements.lock > $(@D)/packages.txt
	@$(UV) pip install --quiet --python $(@D)/bin/python --require-hashes -r $(@D)/packages.txt -r $<
	@$(UV) pip install --quiet --python $(@D)/bin/python --no-deps --no-build-isolation -e .
	@touch $@

ifneq ($(strip $(SPARK)),)
ifeq ($(filter $(SPARK),$(SPARK_VERSIONS)),)
$(error SPARK=$(SPARK) is not one of $(SPARK_VERSIONS))
endif
test: $(OTHER)/.installed
	@$(OTHER)/bin/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(PATIENT) -m versions \
	  $(or $(ARGS),$(VERSIONED))
else
test: $(STAMP) $(if $(NPM),$(CONSOLE)) ## Run every test (ARGS="-k name" to choose, SPARK=4.0 for those of another Spark)
	$(if $(NPM),,@echo "the console is not tested: there is no $(NODE)")
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest --numprocesses 3 --ignore=tests/recovery --ignore=tests/servers --ignore=tests/spark
	@$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(WAITING)
else
	@$(BIN)/python -m pytest $(ARGS)
endif
endif

test-versions: ## Run the tests marked `versions` with the oldest Spark and with 4.0, each in an environment of its own
	@$(MAKE) --no-print-directory test SPARK=3.5
	@$(MAKE) --no-print-directory test SPARK=4.0

test-fast: $(STAMP) ## Run the tests that do not start Spark
	@$(BIN)/python -m pytest --numprocesses 2 -m "not spark" $(ARGS)

simulate: $(STAMP) ## Run the engine in simulations with faults (SEEDS=1000; ARGS="--seed 7" replays one)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

check: $(STAMP) check-console ## Lint, formatting and types
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
	@for version in $(SPARK_VERSIONS); do \
	  echo "pyspark==$$version.*" | $(UV) pip compile - --python $(BIN)/python --quiet --universal --generate-hashes \
	    --no-emit-index-url --no-header --no-annotate --output-file tests/spark/versions/$$version.txt $(ARGS); \
	done
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
	rm -rf $(VENV) build dist console/node_modules src/headrace/server/console .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
