# `make demo` and `make test` do everything that is needed themselves, the first time and every time.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/unstuck
export UNSTUCK_TINY ?= $(CACHE)/images/tiny
BIN := .venv/bin
ARGS ?=
# Many tests wait for processes: more of them than there are processors run at once.
PYTEST := scripts/in-netns $(BIN)/pytest -n 4 --dist loadgroup
# Every test starts processes of ours: without bytecode each would compile all of its modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup s3 mariadb demo test test-all bytecode sim sim-long bench contract check lint types layers format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: ## system packages, Python packages, guest image; fast when all is there
	@scripts/setup

s3: setup
	@scripts/s3-server build

mariadb: setup ## the image of MariaDB, which only the long tests need
	@$(BIN)/python -m unstuck.host.dbimage --datastore mariadb $(CACHE)/images/mariadb

demo: setup ## the main job on a real cloud, killed at the worst moment
	@scripts/in-netns $(BIN)/unstuck demo

test: setup ## lint, types, layers, all tests but the slow ones, and beside them the simulation (10 minutes)
	@$(MAKE) --no-print-directory -o setup --output-sync -j s3 lint types layers bytecode
	@log=$$(mktemp); (exec nice -n 19 $(MAKE) --no-print-directory -o setup sim) > $$log 2>&1 & sim=$$!; \
	trap 'kill $$sim 2> /dev/null || true; rm -f $$log' EXIT; code=0; \
	$(PYTEST) -m "not slow" $(ARGS) || code=$$?; \
	echo "the simulation goes on ..."; wait $$sim || code=1; cat $$log; exit $$code

test-all: setup s3 mariadb check sim-long contract ## the long simulation, requests of all kinds, then every test
	@$(PYTEST) $(ARGS)

# Once, and not in each of the processes that run tests: rewriting their assertions takes longer than many tests.
bytecode: setup
	@$(BIN)/pytest --collect-only -q > .cache/collected.log || { tail -n 40 .cache/collected.log; exit 1; }

sim: setup ## a fixed part of the crashes at every effect, then 500 random schedules
	@$(BIN)/unstuck sim exhaustive --every 29 --setbacks-every 17 --databases-every 901
	@$(BIN)/unstuck sim random --schedules 500

sim-long: setup ## a crash at every effect, every pair of faults, a million random schedules: hours; goes on where it was ended
	@for mode in "exhaustive --databases-every 1" pairs "random --schedules 1000000"; do \
	  $(BIN)/unstuck sim $$mode --resume .cache/sim-long.jsonl || exit 1; done

bench: setup ## measured ratios (ARGS=--json for the machine's form)
	@scripts/in-netns $(BIN)/python -m bench.run $(ARGS)

contract: setup ## 100000 requests made from the OpenAPI documents: no 5xx, no hang, nothing unsettled (needs a while)
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[dev,contract]' && scripts/in-netns $(BIN)/python -m tests.contract $(ARGS)

check: lint types layers ## lint, strict types, import layers

lint: setup
	@$(BIN)/ruff check && $(BIN)/ruff format --check

types: setup
	@$(BIN)/mypy

layers: setup
	@$(BIN)/lint-imports --no-cache | sed -n '/^Contracts/,$$p'

format: setup ## format and repair what can be repaired
	@$(BIN)/ruff format && $(BIN)/ruff check --fix

clean: ## remove what set-up and tests made here (the guest image's cache stays)
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +
