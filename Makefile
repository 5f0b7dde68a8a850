PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PINS := pyproject.toml constraints.txt
NODE := .cache/node
AGENTS := .cache/agents
# mypy refuses a folder without Python in it.
TYPED := $(foreach folder,src tests bench,$(if $(shell find $(folder) -name '*.py' 2>/dev/null),$(folder)))

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo up test test-unit test-integration test-e2e test-chaos test-web test-agents test-conformance installed screenshots check bench

# Put before a command: says what runs, and afterwards how long it took.
step = @echo '==> $(1)'; TIMEFORMAT='    $(1): %1R s'; time
install = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## /\1\t/p' Makefile | awk -F '\t' '{printf "make %-16s %s\n", $$1, $$2}'

demo: .venv/.installed-all  ## the main job end to end, no key needed (ARGS=--exit to end afterwards)
	@$(BIN)/quarterdeck demo $(ARGS)

up: .venv/.installed-all  ## start Quarterdeck (ARGS='--port 7411 …')
	@$(BIN)/quarterdeck up $(ARGS)

test: .venv/.installed  ## all checks and all tests (ARGS for pytest)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check test-unit
	@$(MAKE) --no-print-directory test-integration test-e2e test-chaos test-web

# $(call pytest,NAME,FOLDERS,OPTIONS). A test that failed beside others is run once more, alone: one that only
# lacked CPU passes then, and is named; one that fails twice fails the run.
define pytest
	$(call step,$(1)) $(BIN)/pytest -o cache_dir=.cache/pytest/$(1) $(2) $(3) $(ARGS) || { \
	  echo '==> failed beside others, once more alone'; \
	  $(BIN)/pytest -o cache_dir=.cache/pytest/$(1) --last-failed --last-failed-no-failures none -v $(2) $(ARGS); }
endef

test-unit: .venv/.installed
	$(call pytest,unit,tests/unit,-n auto --maxprocesses 4)

test-integration: .venv/.installed
	$(call pytest,integration,tests/integration,-n 3 --dist loadfile)

test-e2e: .venv/.installed
	$(call pytest,e2e,tests/e2e,-n 2 --dist loadfile)

# One at a time: these kill processes and wait for what becomes of the rest.
test-chaos: .venv/.installed
	$(call pytest,chaos,tests/chaos)

test-web: .venv/.installed
	$(if $(wildcard tests/web),$(call pytest,web,tests/web))

test-agents: .venv/.installed $(AGENTS)/.installed  ## the real Codex, Gemini CLI, OpenCode and ACP agents (needs npm)
	$(call pytest,agents,tests/agents,-n 2)
test-agents: export AGENT_PROGRAMS := $(CURDIR)/$(AGENTS)

test-conformance: .venv/.installed $(NODE)/.installed  ## the official MCP suite and Inspector (needs npm)
	$(call pytest,conformance,tests/conformance,-n auto --maxprocesses 4)
test-conformance: export CONFORMANCE_TOOLS := $(CURDIR)/$(NODE)

installed: .venv/.installed $(NODE)/.installed $(AGENTS)/.installed

screenshots: .venv/.installed  ## the pictures of the README, from the demo
	@$(BIN)/python docs/images/make.py

check: .venv/.installed  ## lint, format and types
	$(call step,lint) $(BIN)/ruff check --quiet
	$(call step,format) $(BIN)/ruff format --check --quiet
	$(call step,types) $(BIN)/mypy $(TYPED)

bench: .venv/.installed  ## measure (ARGS for the benchmark)
	@$(BIN)/python -m bench $(ARGS)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Quarterdeck needs Python 3.11 or newer; name one with PYTHON=python3.11' >&2; exit 1; }
	$(call step,virtual environment) $(PYTHON) -m venv .venv

.venv/.installed: $(PINS) | .venv/bin/python
	$(call step,install with development tools) $(install) '.[dev]'
	@touch .venv/.installed .venv/.installed-all

.venv/.installed-all: $(PINS) | .venv/bin/python
	$(call step,install) $(install) '.[all]'
	@touch .venv/.installed-all

$(AGENTS)/.installed: tests/agents/package.json
	@mkdir -p $(AGENTS)
	@cp tests/agents/package.json $(AGENTS)/package.json
	$(call step,install the agents) \
	  npm install --prefix $(AGENTS) --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $(AGENTS)/.installed

$(NODE)/.installed: tests/conformance/package.json
	@mkdir -p $(NODE)
	@cp tests/conformance/package.json $(NODE)/package.json
	$(call step,install the conformance suite) \
	  npm install --prefix $(NODE) --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $(NODE)/.installed
