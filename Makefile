# make demo, make test: everything else is a part of one of them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KEEP ?=
SCHEDULES ?= 100000
WORLDS := --namespaces --tenancy --promises --kinds --allocations --parts --members --guarantees
MINUTES ?= 15
STORE ?= apiserver
# Processes that run tests at once. Two of them wait where the machine is busy (tests/scheduling.py).
WORKERS ?= 5
IMAGE ?= seedquota
BUILDER ?= $(firstword $(notdir $(foreach tool,docker podman buildah,$(shell command -v $(tool)))))
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
URL ?= https://github.com/seedquota/seedquota/releases/download/v$(VERSION)
REVISION = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
UV := uv==0.13.9
COMPILE := $(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --no-header --no-strip-extras $(if $(UPGRADE),--upgrade)
EXAMPLES ?= 5000
SCRIPTS := master/page/static/vendor
TESTED_WITH := etcd kube-apiserver kube-controller-manager kubectl cluster-api-controller-manager helm prometheus promtool
PYTEST_ARGUMENTS := -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Programs that are started again and again are compiled once, wherever that is switched off.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.PHONY: demo test lint-beside every-test unit coverage lint fmt bench fuzz sim chaos e2e clean lock wheel wheels plugin image charts charts-sync scripts help

help:
	@echo "make demo         the whole way on real control planes, narrated (KEEP=1 leaves it running)"
	@echo "make test         every check and test, in WORKERS=$(WORKERS) processes"
	@echo "make unit         the unit and property tests"
	@echo "make coverage     which lines of the product the unit and property tests run"
	@echo "make lint         ruff, mypy --strict, import-linter"
	@echo "make fmt          format the code"
	@echo "make bench        measure; nothing here passes or fails on a time"
	@echo "make fuzz         EXAMPLES=5000 inputs that are almost right for each reader of what comes from outside;"
	@echo "                  MINUTES=15 of a tenant's hostile API server against a real agent, and as long of a"
	@echo "                  seed's against the master, by SEED=1"
	@echo "make sim          simulate SCHEDULES=100000 worlds on all cores, then see that every broken rule is noticed"
	@echo "make chaos        real processes, killed, stopped, cut off and restored under load: MINUTES=15 STORE=apiserver|redis"
	@echo "make e2e          pods of the image on a real node, installed with Helm; needs root and Debian's packages; ONLY=two_clusters, ONLY=power_cut, ONLY=runbooks, ONLY=ingress"
	@echo "make lock         compute requirements.lock and requirements-dev.lock again from pyproject.toml; UPGRADE=1 takes newer versions"
	@echo "make scripts      copy the scripts of the page into $(SCRIPTS), as devcluster/page-scripts/package-lock.json has them"
	@echo "make wheel        build the wheel of the programs in dist"
	@echo "make plugin       build what krew installs as kubectl seedquota in dist: archives, and a manifest that names them below URL=..."
	@echo "make wheels       see that each package of requirements.lock has a wheel for amd64 and for arm64"
	@echo "make image        build the image IMAGE=$(IMAGE) with docker, podman or buildah; BASE=... PLATFORM=linux/arm64"
	@echo "make charts       package the Helm charts in dist"
	@echo "make charts-sync  copy charts/common, charts/crds and charts/rbac into the charts that have them"
	@echo "make clean        remove .venv"

$(STAMP): requirements-dev.lock pyproject.toml
	@echo "installing into $(VENV) ..."
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "SeedQuota needs Python 3.11 or newer; set PYTHON=..."'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m devcluster.demo $(if $(KEEP),--keep)

# Lint runs beside the tests, which leave some time of the cores to it. What it finds is told at once, and again at the end.
test: $(STAMP)
	@rm -f $(VENV)/lint.failed
	@$(MAKE) --no-print-directory --jobs=2 lint-beside every-test || \
	  { test ! -e $(VENV)/lint.failed || { cat $(VENV)/lint.log; echo "make lint failed"; }; exit 1; }

lint-beside:
	@nice $(MAKE) --no-print-directory lint > $(VENV)/lint.log 2>&1 || \
	  { touch $(VENV)/lint.failed; cat $(VENV)/lint.log; echo "make lint failed; the tests go on"; exit 1; }

# Also what few tests need: a test that builds it would take as long as a test may.
every-test:
	@$(BIN)/python -m devcluster build $(TESTED_WITH)
	@$(BIN)/python -m pytest $(PYTEST_ARGUMENTS) --durations=10

# The property tests first, since one of them may take as long as hundreds of others.
unit: $(STAMP)
	@$(BIN)/python -m pytest $(PYTEST_ARGUMENTS) tests/property tests/unit

# No condition of anything: what no test here runs may be run by one with real API servers.
coverage: $(STAMP)
	@COVERAGE_FILE=$(VENV)/coverage $(BIN)/python -m pytest $(PYTEST_ARGUMENTS) $(addprefix --cov=,common master seed cli) \
	  --cov-report=markdown-append:$(VENV)/coverage.md --cov-report=term:skip-covered tests/property tests/unit

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }

fmt: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)
	@$(BIN)/python -m devcluster build
	@$(BIN)/python -m tests.bench

# A few minutes, and then MINUTES of each hostile API server; `make test` tries some of each.
fuzz: $(STAMP)
	@EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -n 2 --timeout=0 tests/fuzz --ignore=tests/fuzz/test_hostile_api.py
	@$(BIN)/python -m devcluster build
	@MINUTES=$(MINUTES) $(if $(SEED),SEED=$(SEED)) $(BIN)/python -m pytest -q -s --timeout=0 tests/fuzz/test_hostile_api.py

sim: $(STAMP)
	@for world in '' $(WORLDS); do $(BIN)/python -m tests.sim $$world --schedules $(SCHEDULES) || exit 1; done
	@$(BIN)/python -m tests.sim --mutants

chaos: $(STAMP)
	@$(BIN)/python -m devcluster build
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) --store $(STORE) $(if $(SEED),--seed $(SEED))

# It says in one line what is missing where no node can run.
e2e: $(STAMP)
	@$(BIN)/python -m tests.e2e $(ONLY)

# The programs' lock first: the one for development has the same versions of what is in both.
lock:
	@$(PYTHON) -m venv $(VENV)/lock && $(VENV)/lock/bin/pip install --quiet --disable-pip-version-check $(UV)
	@$(COMPILE) pyproject.toml --output-file requirements.lock
	@$(COMPILE) --group dev --constraint requirements.lock pyproject.toml --output-file requirements-dev.lock

# The scripts of the page are checked in, so that a wheel is built without npm. npm compares what it fetches with its lock.
scripts:
	@cd devcluster/page-scripts && npm ci --silent --ignore-scripts --no-audit --no-fund
	@cd $(SCRIPTS) && cp $(addprefix $(CURDIR)/devcluster/page-scripts/node_modules/,htmx.org/dist/htmx.min.js \
	  idiomorph/dist/idiomorph-ext.min.js) . && sha512sum *.js > SHA512SUMS

# The same content gives the same file: hatchling takes its times from here.
export SOURCE_DATE_EPOCH ?= 315532800

wheel: $(STAMP)
	@rm -f dist/seedquota-*.whl
	@$(BIN)/python -m hatchling build --target wheel

plugin: wheel
	@$(BIN)/python -m devcluster.plugin $(VERSION) $(URL)

# That the image can be built for both machines, without building it: it takes wheels alone.
wheels: $(STAMP)
	@for machine in x86_64 aarch64; do scratch=$$(mktemp -d); \
	  $(BIN)/python -m pip download --quiet --disable-pip-version-check --dest $$scratch --no-deps --only-binary=:all: \
	    --require-hashes --python-version 3.13 --platform manylinux2014_$$machine --platform manylinux_2_28_$$machine \
	    --requirement requirements.lock; status=$$?; rm -rf $$scratch; test $$status = 0 || exit 1; done

image: wheel
	@test -n "$(BUILDER)" || { echo "make image needs docker, podman or buildah"; exit 1; }
	@$(BUILDER) build --file Containerfile --tag $(IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) \
	  $(if $(PLATFORM),--platform $(PLATFORM)) $(if $(PIP_INDEX_URL),--build-arg PIP_INDEX_URL) \
	  --build-arg SOURCE_DATE_EPOCH --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) .

charts: $(STAMP)
	@mkdir -p dist; helm=$$($(BIN)/python -m devcluster build helm) && \
	  for chart in seedquota-crds seedquota-master seedquota-seed; do $$helm package charts/$$chart --destination dist || exit 1; done

# Each chart has copies of what the charts share.
charts-sync: $(STAMP)
	@$(BIN)/python -m devcluster.charts

clean:
	rm -rf $(VENV)
