# `make` shows what there is. Nothing is written outside of build/ and $(CACHE), except while a cluster is up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY    ?= python3
CACHE := $(if $(GPUSHARE_CACHE),$(GPUSHARE_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/gpushare)
NAME  ?= test
# One environment per clone (it is an editable install) and lock file.
VENV  := $(CACHE)/venv-$(shell (pwd; $(PY) --version; cat pyproject.toml requirements.lock requirements/build.lock 2>/dev/null) | sha256sum | cut -c1-16)
BIN   := $(VENV)/bin
LOCAL := $(PY) -m localcluster
UV    := uv==0.13.8
COMPILE := $(CACHE)/uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header

export GPUSHARE_CACHE := $(CACHE)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.complete:
	@test -f requirements.lock || { echo "requirements.lock is missing: run make lock" >&2; exit 1; }
	@$(PY) -c 'import ensurepip' 2>/dev/null || $(LOCAL) packages
	@echo "installing the Python dependencies into $(VENV)"
	@$(PY) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock -r requirements/build.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: venv
venv: $(VENV)/.complete ## the Python environment, from requirements.lock

.PHONY: doctor
doctor: ## what this machine lacks for a cluster
	@$(LOCAL) doctor

.PHONY: cluster-build
cluster-build: ## build and cache Kubernetes, containerd and Helm (10 min once)
	@$(LOCAL) build

.PHONY: cluster-up
cluster-up: ## start the cluster NAME (test) and print the exports for a shell
	@$(LOCAL) up --name $(NAME)

.PHONY: cluster-down
cluster-down: ## end the cluster NAME (test)
	@$(LOCAL) down --name $(NAME)

.PHONY: images
images: ## build the operator and workload images
	@$(LOCAL) images

.PHONY: demo
demo: ## the whole path with simulated GPUs; KEEP=1 leaves the cluster up, KUBECONFIG uses yours
	@test -n "$${KUBECONFIG:-}" || $(LOCAL) doctor >/dev/null
	@$(MAKE) --no-print-directory venv
	@$(BIN)/python -m localcluster.demo $(if $(KEEP),--keep)

.PHONY: down
down: ## end the clusters of demo and tests, and remove their traces
	@$(LOCAL) down --name demo
	@$(LOCAL) down --name test

.PHONY: test
test: lint unit cluster-test ## everything: lint, types, layers, unit tests, tests on a real cluster

.PHONY: lint
lint: venv ## formatting, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy operator workload localcluster
	@$(BIN)/lint-imports

.PHONY: unit
unit: venv ## the tests that need no cluster
	@$(BIN)/python -m pytest tests/unit tests/contract

.PHONY: cluster-test
cluster-test: venv ## the tests on a real cluster (root)
	@$(BIN)/python -m pytest tests/cluster

.PHONY: format
format: venv ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: crds
crds: venv ## generate crds/ and docs/api.md from the API models
	@$(BIN)/gpushare crds --output crds --output charts/gpushare/files/crds --reference docs/api.md

.PHONY: lock
lock: ## resolve requirements.lock and requirements/*.lock anew, for every supported Python
	@$(PY) -m venv --clear $(CACHE)/uv
	@$(CACHE)/uv/bin/pip install --quiet $(UV)
	@$(COMPILE) $(addprefix --extra ,operator webhook agent workload demo test lint) -o requirements.lock pyproject.toml
	@$(COMPILE) $(addprefix --extra ,operator webhook agent) -c requirements.lock -o requirements/operator.lock pyproject.toml
	@$(COMPILE) --extra workload -c requirements.lock -o requirements/workload.lock pyproject.toml
	@echo 'cupy-cuda12x[ctk]' | $(COMPILE) --extra workload --extra cupy-cuda12x -c requirements.lock -o requirements/cupy-cuda12x.lock pyproject.toml -
	@echo 'cupy-cuda13x[ctk]' | $(COMPILE) --extra workload --extra cupy-cuda13x -c requirements.lock -o requirements/cupy-cuda13x.lock pyproject.toml -
	@echo 'setuptools>=77' | $(COMPILE) -o requirements/build.lock -
