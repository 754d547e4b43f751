# `make sandbox` sets up and runs the main job; `make test` runs every test. See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# A container's Python may be told to keep no bytecode. Ansible, which is started hundreds of times, would be compiled each time.
unexport PYTHONDONTWRITEBYTECODE

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
BIN := $(CURDIR)/.venv/bin
SCENARIO := molecule/cluster
# The sandbox's own AWS API and settings. A real cluster needs none of them.
RUN := $(SUDO) env PATH=$(BIN):$(PATH) AWS_ENDPOINT_URL=http://10.115.0.3:5000 AWS_ACCESS_KEY_ID=sandbox AWS_SECRET_ACCESS_KEY=sandbox \
  ANSIBLE_CONFIG=$(CURDIR)/$(SCENARIO)/ansible.cfg
ENV := env PATH=$(BIN):$(PATH) ANSIBLE_COLLECTIONS_PATH=$(CURDIR)/.venv/collections
LINT := nice $(ENV)
# What newer nodes run the collection with. Where this machine's own Python is that new, .venv is it, and there is no other.
NODE_ENV := env PATH=$(CURDIR)/.venv/node/bin:$(PATH) ANSIBLE_COLLECTIONS_PATH=$(CURDIR)/.venv/collections
PYTEST := python -m pytest --numprocesses=2 --dist=loadfile
SANDBOX := $(RUN) python $(SCENARIO)/sandbox.py
# Benchmarks that need no sandbox: tests/bench/<name>.py
SIMULATED := inventory containers cloudwatch metrics dashboards downloads push verify fleet

help:  ## Show what there is
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Prepare .venv from the locked requirements
	@scripts/setup.sh

setup-node: | setup
	@scripts/setup.sh --node

sandbox: | sandbox-setup  ## Boot what of the sandbox does not run, and run the main job on it
	@# Molecule would take its own word that everything runs.
	@$(RUN) molecule reset --scenario-name cluster > /dev/null 2>&1 || echo "molecule had no state to forget"
	@$(RUN) molecule converge --scenario-name cluster --no-command-borders 2>&1 | tee .converge.log
	@echo && echo "The sandbox runs:" && $(SANDBOX) status
	@echo "  make node NODE=head CMD='sinfo'                 run a command on a node (AS=ubuntu as that user)"
	@echo "  make play PLAYBOOK=site ARGS='--tags fsx'       run a playbook of the collection again"
	@echo "  make sandbox-down                               remove it"
	@grep '^pcluster.postboot: ' .converge.log | tail -n 1; rm -f .converge.log

sandbox-down:  ## Remove the sandbox (cached images stay; `make clean` removes those too)
	@$(SANDBOX) destroy
	@$(RUN) molecule reset --scenario-name cluster > /dev/null 2>&1 || echo "molecule had no state to forget"

sandbox-setup:
	@scripts/setup.sh --sandbox

node:  ## Run one command on a node: NODE=head CMD='sinfo' [AS=ubuntu]
	@[ -n '$(NODE)' ] && [ -n "$$CMD" ] || { echo "usage: make node NODE=head CMD='sinfo' [AS=ubuntu]"; exit 2; }
	@$(SANDBOX) exec --user '$(if $(filter command line environment,$(origin AS)),$(AS),root)' '$(NODE)' "$$CMD"
export override CMD := $(value CMD)

play:  ## Run a playbook of the collection on the sandbox: PLAYBOOK=site [ARGS='--check']
	@[ -n '$(PLAYBOOK)' ] || { echo "usage: make play PLAYBOOK=site [ARGS='--check']"; exit 2; }
	@$(RUN) ansible-playbook --inventory .sandbox/inventory pcluster.postboot.$(PLAYBOOK) $(ARGS)

test:  ## Run every test but the longest fault tests, which soak runs
	@$(MAKE) --no-print-directory unit
	@# The scenario waits for nodes often enough for the linters to run beside it.
	@$(MAKE) --no-print-directory --jobs=2 lint cluster

lint: | setup  ## Run the linters and the repository's own checks
	@$(LINT) yamllint --strict .
	@$(LINT) ansible-lint --strict
	@$(LINT) ruff check .
	@$(LINT) mypy
	@$(LINT) python scripts/check_roles.py
	@$(LINT) python scripts/render_role_docs.py --check
	@$(LINT) scripts/check_collection.sh

unit: | setup-node  ## Run the unit tests, and those that import ansible once more with the ansible-core of newer nodes
	@$(ENV) $(PYTEST) tests/unit
	@[ ! -e .venv/node ] || $(NODE_ENV) $(PYTEST) $$(grep -rlE --include='test_*.py' '^(from|import) ansible[. ]' tests/unit)

cluster: | sandbox-setup  ## Run the Molecule scenario: check, converge, idempotence, verify, on a fresh sandbox
	@$(RUN) molecule test --scenario-name cluster --no-command-borders

soak: | setup-node  ## Run all unit tests on newer nodes' ansible-core, and the long fault tests (ROUNDS=500; needs the sandbox for a tenth of them)
	@[ ! -e .venv/node ] || $(NODE_ENV) $(PYTEST) tests/unit
	@$(ENV) python tests/soak/artifact.py --rounds $(or $(ROUNDS),500)
	@$(ENV) python tests/soak/shared_build.py --rounds $$(( $(or $(ROUNDS),500) / 5 ))
	@$(SUDO) $(ENV) python -m pytest -m long molecule/cluster/tests
	@$(SUDO) $(ENV) python tests/soak/site.py --rounds $$(( $(or $(ROUNDS),500) / 10 ))

bench: | setup  ## Measure; prints figures and ratios from one run and writes bench-*.json (needs the sandbox)
	@# First what many nodes need, simulated; then what is timed on the sandbox. All are run, and a missed reach is told last.
	@failed=; for name in $(SIMULATED); do $(ENV) python tests/bench/$$name.py --json bench-$$name.json || failed="$$failed $$name"; done; \
	  for name in site pull; do $(SUDO) $(ENV) python tests/bench/$$name.py --json bench-$$name.json || failed="$$failed $$name"; done; \
	  [ -z "$$failed" ] || { echo "missed a reach:$$failed"; exit 1; }

pins: | setup  ## Fetch what the roles pin, verify it, and record its sha256 (needs the internet)
	@$(ENV) python scripts/pins.py

docs: | setup  ## Render the roles' README tables from their argument specs
	@$(ENV) python scripts/render_role_docs.py

lock: | setup  ## Resolve requirements/*.in anew
	@for name in node dev uv cookbook daemons-3.13 daemons-3.16 parallelcluster-3.13 parallelcluster-3.16; do $(ENV) uv pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' requirements/$$name.in \
	  --output-file requirements/$$name.txt; done

clean: sandbox-down  ## Remove the sandbox, its cached images, and .venv
	@$(SANDBOX) purge
	@rm -rf .venv .sandbox .ansible

.PHONY: help setup setup-node sandbox sandbox-down sandbox-setup node play test lint unit cluster soak bench pins docs lock clean
