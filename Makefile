# `make` shows what there is. Everything happens in .venv, which the first target creates.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; \
	done; echo python3)
BIN := .venv/bin
PACKAGES := adapters engine proxy

# What would send pip elsewhere than into .venv, or change what Python imports. A mirror, a proxy and
# certificates stay as they are.
unexport PIP_BREAK_SYSTEM_PACKAGES PIP_CONSTRAINT PIP_DRY_RUN PIP_EDITABLE PIP_IGNORE_INSTALLED
unexport PIP_NO_BINARY PIP_NO_BUILD_ISOLATION PIP_NO_DEPS PIP_ONLY_BINARY PIP_PLATFORM PIP_PREFIX
unexport PIP_PYTHON PIP_QUIET PIP_REQUIRE_HASHES PIP_REQUIREMENT PIP_ROOT PIP_SRC PIP_TARGET
unexport PIP_UPGRADE PIP_USER PIP_VERBOSE
unexport PYTHONHOME PYTHONPATH PYTHONSTARTUP PYTHONWARNINGS PYTEST_ADDOPTS PYTEST_PLUGINS
unexport COVERAGE_FILE COVERAGE_PROCESS_START VIRTUAL_ENV

.PHONY: help install demo test check fuzz bench live-vllm constraints clean FORCE
.DEFAULT_GOAL := help

help: ## show this
	@awk -F ': .*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

install: .venv/.installed ## create .venv with the pinned dependencies and the project, editable

demo: install ## a real llama.cpp and an old vLLM's answers, raw and through the proxy
	@$(BIN)/python -m tests.demo

test: install ## run the tests
	@$(BIN)/python -m pytest $(ARGS)

check: install ## ruff, mypy, import rules, tests, and the two coverage gates
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest --cov --cov-report= $(ARGS)
	$(BIN)/coverage report --include='adapters/*' --fail-under=97
	$(BIN)/coverage report --omit='adapters/*' --fail-under=90

fuzz: install ## the property tests with new and many examples
	@FUZZ_EXAMPLES=400 $(BIN)/python -m pytest tests/adapters/test_properties.py

bench: install ## microseconds per event, MB/s of bodies, and the proxy beside a bare pass-through
	@$(BIN)/python -m tests.bench $(ARGS)

live-vllm: ## the tests in front of a real vLLM (not yet)
	@echo "make live-vllm: not yet; the vLLM engine and its live tests come with their own issue."

constraints: ## pin every dependency anew, with hashes
	$(PYTHON) -m venv .venv-pin
	.venv-pin/bin/pip install --quiet uv
	echo setuptools | .venv-pin/bin/uv pip compile --quiet --universal --upgrade \
		--python-version 3.11 --extra llamacpp --extra test --extra dev --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --output-file constraints.txt \
		pyproject.toml -

clean: ## remove what was built, .venv included
	rm -rf .venv .venv-* build dist *.egg-info .coverage .coverage.* .hypothesis \
		.mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "wellspoken needs Python 3.11 or newer, and $(PYTHON) is not: install one," \
			"then make PYTHON=python3.12 (its name)."; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) has no venv module: apt-get install python3-venv (Debian, Ubuntu)," \
			"then make again."; exit 1; } >&2
	@echo "creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/.dependencies: constraints.txt | .venv/bin/python
	@echo "installing the pinned dependencies"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--only-binary :all: -r constraints.txt || { \
		echo "The dependencies could not be installed; pip says why above. No network or no" \
			"index: set PIP_INDEX_URL or HTTPS_PROXY. No matching distribution: there is no" \
			"wheel for this platform; use CPython 3.11 to 3.13 on Linux (glibc) or macOS." \
			; exit 1; } >&2
	@$(BIN)/python -c 'import xllamacpp' 2>.venv/import-error || { tail -n 1 .venv/import-error; \
		echo "The embedded llama.cpp does not load. If libgomp is missing: apt-get install" \
			"libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora), then make again." \
			; exit 1; } >&2
	@touch $@

# The strict editable install is a tree of links: a changed file is seen, a new or removed one needs
# the install again.
.venv/.tree: FORCE | .venv/bin/python
	@find $(PACKAGES) -type f ! -name '*.pyc' | sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.venv/.installed: .venv/.dependencies .venv/.tree pyproject.toml
	@echo "installing wellspoken"
	@rm -rf build
	@$(BIN)/python -W ignore -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --config-settings editable_mode=strict -e . 2>.venv/install-error \
		|| { cat .venv/install-error; exit 1; } >&2
	@touch $@
