# `make demo` and `make test` do all their own set-up: they need Python 3.10 or newer and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

supported = $(shell for p in $(1); do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv; sys.exit(not $(2))' 2>/dev/null && echo $$p && break; done)
PYTHON ?= $(call supported,python3.12 python3.11 python3.13 python3.10 python3,(3, 10) <= sys.version_info[:2])
# MXNet 1.9.1 needs numpy 1.23, which needs Python 3.11 or older.
MXNET_PYTHON ?= $(call supported,python3.11 python3.10 python3,(3, 10) <= sys.version_info[:2] <= (3, 11))

VENV := .venv
BIN := $(VENV)/bin
MXNET_VENV := .venv-mxnet
READY := $(VENV)/ready
PROTO_VENV := .venv-proto
KERNELS := trims/memory/cuda/checksum
LOWEST_VENV := .venv-lowest
MXNET_READY := $(MXNET_VENV)/ready
CLIENTS_VENV := .venv-clients
CLIENTS_READY := $(CLIENTS_VENV)/ready

.PHONY: help
help: ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: env ## a program as it is, by trims exec, and as a request for which no process runs; then eight processes, one copy
	$(BIN)/python -m trims_bench.demo

# Processes that run tests beside each other: more than there are cores, as most tests wait more than they compute.
JOBS ?= $(shell echo $$(( $$(nproc) + 1 )))
# Kept compiled, whatever the shell says: else each of them compiles every file of tests again, for 15 seconds.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
.PHONY: test
# Compiled first: the thousands of processes that the tests start would each compile the product where it is not kept.
test: env mxnet-env clients-env ## all tests but the long ones; ARGS="tests/unit -k door" for some, JOBS=0 for one after the other
	@$(BIN)/python -m compileall -q trims client predictors bench
	$(PYTEST) -m "not soak and not bench_smoke" $(ARGS)

.PHONY: bench-smoke
bench-smoke: env mxnet-env clients-env ## each benchmark once, with tiny sizes; before a release
	$(PYTEST) -m bench_smoke $(ARGS)

.PHONY: onnx-backend
onnx-backend: env ## every model of onnx's backend tests that ONNX Runtime passes: from its own file, and converted
	$(BIN)/python -m pytest -s -m soak tests/e2e/test_onnx_backend.py $(ARGS)

# torchvision of the release that belongs to constraints.txt's torch. Without dependencies: it would bring another torch.
ARCHITECTURES := $(CURDIR)/.venv-architectures
.PHONY: torch-architectures
torch-architectures: env ## 40 architectures of torchvision and timm: the same at every place as with torch alone
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(ARCHITECTURES) 'torchvision==0.28.*' timm
	PYTHONPATH=$(ARCHITECTURES) $(BIN)/python -m pytest -m soak tests/e2e/test_torch_architectures.py $(ARGS)

# With the oldest versions that pyproject.toml allows: what the store, the doors and the command need, no framework.
LOWEST_TESTS := tests/unit/core tests/unit/manifests tests/unit/wire tests/unit/control tests/unit/registry tests/unit/daemon tests/unit/cli \
  tests/e2e/test_cli.py tests/e2e/test_client_and_daemon.py tests/e2e/test_serving_process.py
.PHONY: lowest
lowest: ## tests of store, doors and command with the oldest versions of what they need
	$(if $(PYTHON),$(PYTHON),python3) -m venv $(LOWEST_VENV)
	$(LOWEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(LOWEST_VENV) $(LOWEST_VENV)/bin/uv pip install --quiet --resolution lowest-direct -e .
	VIRTUAL_ENV=$(LOWEST_VENV) $(LOWEST_VENV)/bin/uv pip install --quiet \
	  pytest pytest-timeout hypothesis jsonschema 'safetensors>=0.5' pip
	$(LOWEST_VENV)/bin/python -m pytest -p no:cacheprovider $(LOWEST_TESTS)

.PHONY: pythons
pythons: env ## tests of store, doors, client, command and frameworks on each Python that is installed; before a release
	$(BIN)/python tools/pythons.py $(PYTHONS)

.PHONY: lint
lint: env ## style, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: env ## let ruff rewrite what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: bench
bench: env mxnet-env clients-env ## the figures of docs/benchmarks.md, into bench/results and its database; for hours
	$(BIN)/trims bench all --out bench/results || [ $$? -ge 3 ]  # a bar was missed, or a figure cannot be taken here
	$(BIN)/python -m trims_bench.report docs/benchmarks.md

# On a bare machine with a GPU: its own Python, which has torch. What else it lacks comes as wheels, which
# `make gpu-wheels` fetches where the internet is; what is missing still is named before anything runs.
# Four stages, each below nine minutes, for a machine that is lent for minutes: `make gpu-check STAGE=sound`, then
# `answers`, `flow` and `models`; without STAGE all of them in one run.
# GPU_ARGS: `--only 1,3,a,tests`, `--limit-s 300`, `--most-bytes N`; `--fake --no-tests` to try it without a GPU.
STAGE ?= all
GPU_PYTHON ?= python3
GPU_WHEELS ?= .whl
GPU_OUT ?= bench/results/gpu-$(STAGE).json
GPU_ARGS ?=
GPU_SITE := $(CURDIR)/.gpu-site
.PHONY: gpu-check
gpu-check: ## what a GPU says of the GPU tier: tests marked gpu, experiments and figures, into bench/results/gpu-STAGE.json
	$(GPU_PYTHON) bench/trims_bench/gpu/needs.py bring $(GPU_WHEELS) $(GPU_SITE)
	PYTHONPATH=$(GPU_SITE):$(CURDIR):$(CURDIR)/client:$(CURDIR)/predictors:$(CURDIR)/bench \
	  $(GPU_PYTHON) -m trims_bench.gpu.check --stage $(STAGE) --out $(GPU_OUT) $(GPU_ARGS)

# For the Python of that machine: `make gpu-wheels GPU_VERSION=3.12 GPU_MACHINE=x86_64`.
GPU_VERSION ?= 3.12
GPU_MACHINE ?= x86_64
.PHONY: gpu-wheels
gpu-wheels: ## fetch the small packages that a bare machine with a GPU lacks, into .whl
	$(if $(PYTHON),$(PYTHON),python3) bench/trims_bench/gpu/needs.py fetch $(GPU_WHEELS) --python $(GPU_VERSION) --machine $(GPU_MACHINE)

.PHONY: proto
proto: ## generate the code of both protocols again, with an old generator: its code also runs with newer libraries
	$(if $(PYTHON),$(PYTHON),python3) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.62.3' 'setuptools<80'
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. trims/wire/trims.proto
	cd predictors && ../$(PROTO_VENV)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
	  trims_predictors/endpoint/grpc/inference.proto

.PHONY: kernels
kernels: ## translate the checksum's kernels again; needs nvcc. The PTX says what it is made of, for drivers since 2020
	(printf '// Made of checksum.cu, whose sha256 is %s, by `make kernels`.\n.version 7.0\n' \
	  "$$(sha256sum < $(KERNELS).cu | cut -d' ' -f1)" && \
	  nvcc -ptx -arch=compute_80 -o - $(KERNELS).cu | sed -e '/^\/\//d' -e '/^\.version/d' -e '/^$$/d') > $(KERNELS).ptx

.PHONY: env
env: $(READY) ## the main environment

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "trims needs Python 3.10 or newer with venv; none was found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,gpu,endpoint,otel,trace,eval,postgresql,steps]' --group dev
	@touch $@

.PHONY: mxnet-env
mxnet-env: $(MXNET_READY) ## MXNet's own environment, where a Python for it is to be had

$(MXNET_READY): pyproject.toml
	@rm -rf $(MXNET_VENV); mkdir -p $(MXNET_VENV)
	@if [ -z "$(MXNET_PYTHON)" ]; then \
	  echo "MXNet 1.9.1 needs Python 3.10 or 3.11; none was found, so the MXNet parts are left out" | tee $(MXNET_VENV)/unavailable; \
	else \
	  echo "$(MXNET_PYTHON) -m venv $(MXNET_VENV)"; \
	  $(MXNET_PYTHON) -m venv --clear $(MXNET_VENV); \
	  $(MXNET_VENV)/bin/python -m pip install --quiet --disable-pip-version-check mxnet==1.9.1 numpy==1.23.5; \
	  $(MXNET_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .; \
	fi
	@touch $@

# Clients of the inference protocol by others; one of them needs an older protobuf than we are tested with.
.PHONY: clients-env
clients-env: $(CLIENTS_READY) ## clients of others that the endpoint is tested with

$(CLIENTS_READY): Makefile tools/fetch_perf_analyzer.py
	@test -n "$(PYTHON)" || { echo "trims needs Python 3.10 or newer with venv; none was found" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  'tritonclient[http,grpc]==2.73.0' 'kserve==0.21.0' 'schemathesis==4.32.5' 'openai==3.57.0' 'huggingface_hub==2.4.0'
	@cd $(CLIENTS_VENV) && apt-get download prometheus >/dev/null 2>&1 \
	  && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && mv usr/bin/promtool bin/ \
	  && rm -r usr prometheus_*.deb || echo "promtool cannot be fetched here (Debian: prometheus); its test is left out"
	@cd $(CLIENTS_VENV) && apt-get download bubblewrap >/dev/null 2>&1 \
	  && dpkg-deb --fsys-tarfile bubblewrap_*.deb | tar -x ./usr/bin/bwrap && mv usr/bin/bwrap bin/ \
	  && rm -r usr bubblewrap_*.deb || echo "bubblewrap cannot be fetched here; without it namespaces are not tested"
	@npm install --silent --no-audit --no-fund --prefix $(CLIENTS_VENV)/node azurite@3.37.0 \
	  || echo "Azurite cannot be installed here (it needs npm); tests of Azure's signatures are left out"
	@$(CLIENTS_VENV)/bin/python tools/fetch_perf_analyzer.py $(CLIENTS_VENV)/perf_analyzer \
	  || echo "perf_analyzer cannot be fetched here; its tests are left out"
	@touch $@

.PHONY: clean
clean: ## remove environments and caches
	rm -rf $(VENV) $(MXNET_VENV) $(CLIENTS_VENV) $(PROTO_VENV) $(LOWEST_VENV) .gpu-site .whl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The same simulation as in the tests, for as long as wanted and on all cores: `make soak SOAK_SECONDS=3600`. Then the
# tests that take long: endurance, the demo, and the check of a GPU on its stand-in.
SOAK_SECONDS ?= 600
SOAK_FIRST ?= 1000000
.PHONY: soak
soak: env mxnet-env clients-env ## simulate the store on all cores, then the long tests; before a release
	$(PYTEST) -m soak $(ARGS)
	$(BIN)/python -m tests.simulation --seconds $(SOAK_SECONDS) --first $(SOAK_FIRST) --jobs $$(nproc) --coverage

.PHONY: suites
suites: env ## CPython's own tests and those of two packages alone and by trims exec
	$(PYTEST) -m soak tests/e2e/test_exec_suites.py $(ARGS)

.PHONY: others-tests
others-tests: env ## tests of numpy, joblib, safetensors and others with the loaders, and without; vLLM's and SGLang's modules
	$(BIN)/python -m pytest -s tests/e2e/test_transparent_others.py tests/e2e/test_engine_loaders.py $(ARGS)

.PHONY: mutants
mutants: env ## put known defects back, one at a time, and show that the simulation or a test finds each
	$(BIN)/python -m tests.simulation.mutants --jobs $$(nproc)

# Each child connects, runs its framework with two threads, answers a request and ends. That takes hours.
FORKS ?= 100000
FORK_ARGS ?=
.PHONY: fork-soak
fork-soak: env ## fork 100,000 predictors from one template; none may hang or leave anything behind
	$(BIN)/python tests/support/fork_soak.py --forks $(FORKS) $(FORK_ARGS)
