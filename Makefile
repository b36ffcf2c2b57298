# `make` shows what there is. Nothing is written outside of build/ and $(CACHE), except while a cluster is up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY    ?= python3
CACHE := $(if $(GPUSHARE_CACHE),$(GPUSHARE_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/gpushare)
NAME  ?= test
# The tests wait more than they compute, so more of them than cores run at once; whoever is done takes over from others.
JOBS     ?= 6
CLUSTERS ?= auto
# Nothing needs another try; RERUNS=2 is for a machine that stalls for seconds at times, and lists them as RERUN.
RERUNS   ?= 0
# A test that hangs fails after five minutes, and says where it stood.
NO_HANG  := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
CYCLES   ?= 100
MINUTES  ?= 60
SECONDS  ?= 60
NODES    ?= 100 1000 5000
# One environment per clone (it is an editable install) and lock file.
LOCKS := requirements.lock requirements/build.lock requirements/release.lock
VENV  := $(CACHE)/venv-$(shell (pwd; $(PY) --version; cat pyproject.toml $(LOCKS) 2>/dev/null) | sha256sum | cut -c1-16)
BIN   := $(VENV)/bin
# The tools of `make docs` and `make audit` are apart, so that `make venv` stays small.
DOCS  := $(CACHE)/docs-$(shell (pwd; $(PY) --version; cat requirements/docs.lock 2>/dev/null) | sha256sum | cut -c1-16)
AUDIT := $(CACHE)/audit-$(shell (pwd; $(PY) --version; cat requirements/audit.lock 2>/dev/null) | sha256sum | cut -c1-16)
# What is measured has the packages of the image and no others: kopf imports what it finds.
OPERATOR := $(CACHE)/operator-$(shell ($(PY) --version; cat pyproject.toml requirements/operator.lock requirements/build.lock 2>/dev/null) | sha256sum | cut -c1-16)
LOCAL := $(PY) -m localcluster
# An MPS daemon for several users takes UID 0 alone, also a simulated one: without root, that of a user namespace.
AS_ROOT = $(if $(filter 0,$(shell id -u)),,$(shell unshare --map-root-user --map-auto true 2>/dev/null && echo unshare --map-root-user --map-auto --))
UV    := uv==0.13.8
COMPILE := $(CACHE)/uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header

export GPUSHARE_CACHE := $(CACHE)
# Compiling all modules and their assertions anew is half of the time that each worker needs before its first test.
unexport PYTHONDONTWRITEBYTECODE
# Also for another clone: mypy knows files by their content.
export MYPY_CACHE_DIR := $(CACHE)/mypy

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# $(call install,FOLDER,WHAT,LOCK FILES,COMMAND AND ;): a Python environment. One at a time: two `make` at once would
# install into one folder.
define install
	@mkdir -p $(CACHE)
	@$(if $(shell command -v flock),flock $(CACHE)/install.lock) $(SHELL) $(.SHELLFLAGS) '\
	test ! -e $(1)/.complete || exit 0; \
	echo "installing $(2) into $(1)"; \
	$(PY) -m venv --clear $(1); \
	$(1)/bin/pip install --quiet --disable-pip-version-check --require-hashes $(addprefix -r ,$(3)); \
	$(4) touch $(1)/.complete'
endef

$(VENV)/.complete:
	@test -f requirements.lock || { echo "requirements.lock is missing: run make lock" >&2; exit 1; }
	@$(PY) -c 'import ensurepip' 2>/dev/null || $(LOCAL) packages
	$(call install,$(VENV),the Python dependencies,$(LOCKS),$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .;)

.PHONY: venv
venv: $(VENV)/.complete ## the Python environment, from requirements.lock

.PHONY: bin
bin:
	@$(MAKE) --no-print-directory -s venv >&2
	@echo $(BIN)

.PHONY: doctor
doctor: ## what this machine lacks for a cluster
	@$(LOCAL) doctor

.PHONY: cluster-build
cluster-build: ## build and cache Kubernetes, containerd and Helm (10 to 20 min once)
	@$(LOCAL) build

.PHONY: cluster-up
cluster-up: ## start the cluster NAME (test) and print the exports for a shell
	@$(LOCAL) up --name $(NAME)

.PHONY: cluster-down
cluster-down: ## end the cluster NAME (test)
	@$(LOCAL) down --name $(NAME)

.PHONY: images
images: ## build the images; REGISTRY=HOST/PATH pushes them and prints how to install, CUPY=cupy-cuda12x is for real GPUs
	@$(LOCAL) images $(if $(REGISTRY),--push $(REGISTRY)) $(if $(CUPY),--cupy $(CUPY)) $(if $(PLAIN_HTTP),--plain-http)

.PHONY: image-size
image-size: venv ## measure the images by layer and package, into measurements/results/image-size.json
	@$(BIN)/python -m release.image_size $(if $(BEFORE),--before $(BEFORE))

.PHONY: kubectl
kubectl: venv ## the kubectl plugin as one file, build/kubectl-gpushare; PLATFORM=linux-arm64 for another machine
	@$(BIN)/python -m release.plugin $(if $(PLATFORM),--platform $(PLATFORM))

.PHONY: release
release: venv ## images, chart, plugin, bills of materials and checksums in dist/, for REGISTRY=HOST/PATH; PREVIEW=1 from a changed tree
	@$(BIN)/python -m release $(if $(PREVIEW),--preview) $(if $(REGISTRY),--registry $(REGISTRY))

.PHONY: demo
demo: ## the whole path with simulated GPUs; KEEP=1 leaves the cluster up, KUBECONFIG uses yours
	@test -n "$${KUBECONFIG:-}" || { $(LOCAL) doctor >/dev/null && $(LOCAL) estimate --environment $(VENV) && $(LOCAL) packages; }
	@# Programs compute, images and Python packages are mostly loaded: beside one another they take as long as the first.
	@test -n "$${KUBECONFIG:-}" || { \
		trap 'kill $$(jobs -p) 2>/dev/null || true' EXIT; \
		$(LOCAL) build >/dev/null 2> >(cat >&2) & programs=$$!; \
		$(LOCAL) images >/dev/null 2> >(cat >&2) & images=$$!; \
		$(MAKE) --no-print-directory -s venv; \
		wait $$images; wait $$programs; }
	@$(MAKE) --no-print-directory -s venv
	@$(BIN)/python -m localcluster.demo $(if $(KEEP),--keep)

.PHONY: down
down: ## end the demo's cluster, and remove its traces; ALL=1 ends those of the tests, too
	@$(LOCAL) down --name demo
	@test -z "$(ALL)" || { $(LOCAL) down --name test; $(LOCAL) down --name 'test-*'; }

.PHONY: test
test: venv ## lint, types, layers, unit tests, tests on a real cluster: all but test-long
	@# The types are checked on one core: meanwhile another one builds what the clusters need.
	@trap 'kill $$(jobs -p) 2>/dev/null || true' EXIT; \
	($(LOCAL) build && $(LOCAL) images) >/dev/null & built=$$!; \
	$(MAKE) --no-print-directory lint; \
	wait $$built
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory cluster-test
	@$(MAKE) --no-print-directory audit IF_REACHABLE=1

.PHONY: lint
lint: venv ## formatting, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@env -u PYTHONPATH $(BIN)/mypy
	@$(BIN)/lint-imports

$(AUDIT)/.complete:
	$(call install,$(AUDIT),pip-audit,requirements/audit.lock)

# Not a part of `make lint`: that says the same of the same tree on every day, and without a network.
.PHONY: audit
audit: venv $(AUDIT)/.complete ## known vulnerabilities of the locked packages; IF_REACHABLE=1 passes without a network
	@$(BIN)/python -m release.audit $(if $(IF_REACHABLE),--if-reachable) $(AUDIT)/bin/pip-audit

.PHONY: unit
unit: venv ## the tests that need no cluster, JOBS=6 at once
	@$(AS_ROOT) $(BIN)/python -m pytest tests/unit tests/contract -n $(JOBS) --dist worksteal $(NO_HANG) --reruns $(RERUNS) --reruns-delay 2 -raR --durations=40

.PHONY: test-measurements
test-measurements: venv ## the tests of what measures, of its results and of its pages: they need no cluster, JOBS=6 at once
	@$(AS_ROOT) $(BIN)/python -m pytest measurements/tests -n $(JOBS) --dist worksteal --reruns $(RERUNS) --reruns-delay 2 -raR --durations=40

.PHONY: cluster-test
cluster-test: venv cluster-build ## the tests on real clusters (root), CLUSTERS=auto at once; RECORD=1 writes tests/cluster/durations.json
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster -m 'not long' $(if $(RECORD),--record-durations) -v -n $(CLUSTERS) --reruns $(RERUNS) --reruns-delay 5 -raR --durations=40

.PHONY: test-long
test-long: venv cluster-build ## properties with new examples, rare accidents and other projects' suites, an hour (root); writes tests/cluster/long-run.json
	@$(AS_ROOT) $(BIN)/python -m pytest tests/unit -m hypothesis --hypothesis-profile=anew -n $(JOBS) $(NO_HANG)
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m tests.cluster.long_run $(if $(RECORD),--record-durations) -v -n $(CLUSTERS) --reruns $(RERUNS) --reruns-delay 5 -raR --durations=40

.PHONY: conformance-test
conformance-test: venv cluster-build ## what other projects' suites test of GPU sharing, case by case (root), CLUSTERS=auto at once
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster/conformance -v -n $(CLUSTERS) --reruns $(RERUNS) --reruns-delay 5 -raR --durations=40

.PHONY: soak
soak: venv cluster-build ## random life and accidents for longer: CYCLES=100, SEED= a new one
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster/clients/test_random_cycles.py -s --cycles $(CYCLES) $(if $(SEED),--seed $(SEED))

.PHONY: long-life
long-life: venv cluster-build ## does anything grow: MINUTES=60 more of random life, added to measurements/pages/endurance.md; PAUSE=10 seconds after each step, KEEP=1 leaves the cluster up
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m measurements.long_life --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(PAUSE),--pause $(PAUSE)) $(if $(KEEP),--keep-cluster)

$(OPERATOR)/.complete:
	$(call install,$(OPERATOR),the packages of the operator image,requirements/operator.lock requirements/build.lock,rm -rf build/lib; $(OPERATOR)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation .;)

.PHONY: scale
scale: scale-fleet ## all of measurements/pages/scale.md, as root: how cost grows with the fleet, and the cost of webhook and agents
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m measurements.scale.operator.start --python $(OPERATOR)/bin/python --out measurements/results/scale/start.json
	@$(BIN)/python -m measurements.scale.operator.memory --python $(OPERATOR)/bin/python --out measurements/results/scale/operator-memory.json
	@$(BIN)/python -m measurements.scale.webhook.users --out measurements/results/scale/webhook-users.json
	@$(BIN)/python -m measurements.scale.webhook.bursts --out measurements/results/scale/webhook-bursts.json
	@$(BIN)/python -m measurements.scale.webhook.kill --out measurements/results/scale/webhook-kill.json
	@$(BIN)/python -m measurements.scale.agent.watches --out measurements/results/scale/watches.json
	@$(BIN)/python -m measurements.scale.agent.load --python $(OPERATOR)/bin/python --out measurements/results/scale/agent-load.json

.PHONY: scale-fleet
scale-fleet: venv cluster-build $(OPERATOR)/.complete ## of that the decisions and the operator: fleets of NODES="100 1000 5000"; BEFORE= measures that commit too
	@$(BIN)/python -m measurements.scale.decisions $(if $(BEFORE),--before $(BEFORE)) --out measurements/results/scale/decisions.json
	@$(BIN)/python -m measurements.scale.decisions.plot
	@for nodes in $(NODES); do \
	  $(BIN)/python -m measurements.scale.operator.fleet --nodes $$nodes --python $(OPERATOR)/bin/python $(if $(BEFORE),--before $(BEFORE)) \
	    --out measurements/results/scale/fleet-$$nodes.json || exit; \
	done

.PHONY: week
week: venv ## a simulated week of 10,000 GPUs, into measurements/pages/planning.md; TRACE= has the CSV files that measurements/scale/week/trace.py names
	@test -n "$(TRACE)" || { echo "TRACE= is missing: the directory of openb_pod_list_default.csv and openb_node_list_gpu_node.csv" >&2; exit 1; }
	@$(BIN)/python -m measurements.scale.week --trace $(TRACE) --out measurements/results/scale/week.json --page

.PHONY: faults
faults: venv cluster-build ## ends each part at each of its writes, for hours; goes on where it stopped (MINUTES=600, AFRESH=1)
	@$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),600) $(if $(AFRESH),--afresh)

.PHONY: cert-manager-test
cert-manager-test: venv cluster-build ## the chart with cert-manager's certificates (builds its controllers once)
	@$(BIN)/python -m pytest tests/cluster/tools/test_cert_manager.py -v --cert-manager

.PHONY: kueue-test
kueue-test: venv cluster-build ## Kueue's own controller over slots and claims (builds it once)
	@$(BIN)/python -m pytest tests/cluster/tools/test_kueue.py -v --kueue

.PHONY: jupyterhub-test
jupyterhub-test: venv cluster-build ## notebooks that a real JupyterHub starts wait for places; HUB= is a Python environment with jupyterhub-kubespawner
	@test -n "$(HUB)" || { echo "HUB= is missing: python3 -m venv HUB && HUB/bin/pip install jupyterhub-kubespawner" >&2; exit 2; }
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster/tools/test_notebooks.py -v --jupyterhub $(abspath $(HUB))

.PHONY: hpa-test
hpa-test: venv cluster-build ## a HorizontalPodAutoscaler scales clients by a metric (builds Prometheus and its adapter once)
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster/tools/autoscaling/test_pod_autoscaler.py -v --hpa

.PHONY: autoscaler-test
autoscaler-test: venv cluster-build ## nodes that come and go with cluster-autoscaler; SOURCE= is its folder in a copy of kubernetes/autoscaler
	@test -n "$(SOURCE)" || { echo "SOURCE= is missing: the folder cluster-autoscaler of github.com/kubernetes/autoscaler" >&2; exit 2; }
	@$(BIN)/python -m pytest tests/cluster/tools/autoscaling/test_autoscaler.py -v --autoscaler $(abspath $(SOURCE))

.PHONY: dcgm-test
dcgm-test: venv cluster-build ## which pods dcgm-exporter names; SOURCE= is a copy of NVIDIA/dcgm-exporter, GO_DCGM= one of NVIDIA/go-dcgm
	@test -n "$(SOURCE)" || { echo "SOURCE= is missing: a copy of github.com/NVIDIA/dcgm-exporter" >&2; exit 2; }
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster/monitoring/test_dcgm_exporter.py -v --dcgm-exporter $(abspath $(SOURCE)) $(if $(GO_DCGM),--go-dcgm $(abspath $(GO_DCGM)))

.PHONY: otel-test
otel-test: venv cluster-build ## what an OpenTelemetry Collector makes of our metrics by examples/opentelemetry (builds one once)
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster/monitoring/test_opentelemetry.py -v --opentelemetry

.PHONY: upgrade-test
upgrade-test: venv cluster-build ## from the release before to this one, halfway, and back; BEFORE=COMMIT names another
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m pytest tests/cluster/upgrade -v --upgrade $(if $(BEFORE),--before $(BEFORE))

.PHONY: alerts-test
alerts-test: venv ## the chart's rules in Prometheus' own rule engine, and a week of charges (builds Prometheus and Helm once)
	@$(BIN)/python -m pytest tests/alerts -v

.PHONY: recommend-test
recommend-test: venv cluster-build ## kubectl gpushare recommend with a week in a real Prometheus, and an API server
	@$(BIN)/python -m pytest tests/prometheus -v

.PHONY: dashboard
dashboard: venv cluster-build ## does every panel show something, and does no alert fire falsely: MINUTES=60 of random life, a real Prometheus
	@$(LOCAL) images >/dev/null
	@$(BIN)/python -m measurements.dashboard --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: browser-test
browser-test: venv ## kubectl gpushare ui and the report in a real browser (chromium, chromium-driver)
	@$(BIN)/python -m pytest tests/browser -v

.PHONY: skew-samples
skew-samples: venv ## what this release writes, for the tests of the next one: tests/unit/skew/before
	@PYTHONPATH=operator:. $(BIN)/python tests/unit/skew/write_samples.py tests/unit/skew/before

.PHONY: format
format: venv ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: fuzz
fuzz: ## the front libraries under libFuzzer, SECONDS=60 for each (clang with its runtime); inputs are kept in build/fuzz
	@for name in cuda classes nvml; do \
	  mkdir -p build/fuzz/$$name; \
	  clang -std=gnu11 -O1 -g -D_DEFAULT_SOURCE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    -o build/fuzz/fuzz_$$name tests/native/fuzz_$$name.c; \
	  build/fuzz/fuzz_$$name -max_len=1024 -max_total_time=$(SECONDS) -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/$$name; \
	done

.PHONY: crds
crds: venv ## generate crds/ and docs/api.md from the API models
	@$(BIN)/gpushare crds --output crds --output charts/gpushare/files/crds --reference docs/api.md

$(DOCS)/.complete:
	$(call install,$(DOCS),Sphinx,requirements/docs.lock)

.PHONY: docs
docs: $(DOCS)/.complete ## the documentation as a site in build/site; a dead link, image or reference or an orphan page fails it
	@rm -rf build/site
	@$(DOCS)/bin/sphinx-build --quiet --fail-on-warning --nitpicky --fresh-env -d build/doctrees -c docs . build/site
	@echo "build/site/index.html"

.PHONY: lock
lock: ## resolve requirements.lock and requirements/*.lock anew, for every supported Python
	@$(PY) -m venv --clear $(CACHE)/uv
	@$(CACHE)/uv/bin/pip install --quiet $(UV)
	@$(COMPILE) $(addprefix --extra ,operator webhook agent workload report demo test lint) -o requirements.lock pyproject.toml
	@$(COMPILE) $(addprefix --extra ,operator webhook agent) -c requirements.lock -o requirements/operator.lock pyproject.toml
	@$(COMPILE) --extra workload --extra report -c requirements.lock -o requirements/workload.lock pyproject.toml
	@echo 'cupy-cuda12x[ctk]' | $(COMPILE) --extra workload --extra report --extra cupy-cuda12x -c requirements.lock -o requirements/cupy-cuda12x.lock pyproject.toml -
	@echo 'cupy-cuda13x[ctk]' | $(COMPILE) --extra workload --extra report --extra cupy-cuda13x -c requirements.lock -o requirements/cupy-cuda13x.lock pyproject.toml -
	@$(COMPILE) --extra docs -c requirements.lock -o requirements/docs.lock pyproject.toml
	@$(COMPILE) --extra workload --extra torch -c requirements.lock -o requirements/torch.lock pyproject.toml
	@echo 'setuptools>=77' | $(COMPILE) -o requirements/build.lock -
	@echo 'ziglang>=0.17' | $(COMPILE) -o requirements/native.lock -
	@echo 'cyclonedx-python-lib>=11' | $(COMPILE) -c requirements.lock -o requirements/release.lock -
	@echo 'pip-audit>=2.10' | $(COMPILE) -c requirements.lock -o requirements/audit.lock -
