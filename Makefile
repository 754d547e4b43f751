# `make sandbox` sets up and runs the main job; `make test` runs every test. See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
BIN := $(CURDIR)/.venv/bin
SCENARIO := molecule/cluster
# The sandbox's own AWS API and settings. A real cluster needs none of them.
RUN := $(SUDO) env PATH=$(BIN):$(PATH) AWS_ENDPOINT_URL=http://10.115.0.3:5000 AWS_ACCESS_KEY_ID=sandbox AWS_SECRET_ACCESS_KEY=sandbox \
  ANSIBLE_CONFIG=$(CURDIR)/$(SCENARIO)/ansible.cfg
SANDBOX := $(RUN) python $(SCENARIO)/sandbox.py

help:  ## Show what there is
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Prepare .venv from the locked requirements
	@scripts/setup.sh

sandbox: | sandbox-setup  ## Boot the sandbox (once) and run the main job on it
	@$(RUN) molecule converge --scenario-name cluster --no-command-borders
	@echo && echo "The sandbox runs:" && $(SANDBOX) status
	@echo "  make node NODE=head CMD='sinfo'                 run a command on a node (AS=ubuntu as that user)"
	@echo "  make play PLAYBOOK=site ARGS='--tags fsx'       run a playbook of the collection again"
	@echo "  make sandbox-down                               remove it"
	@$(SANDBOX) summary

sandbox-down:  ## Remove the sandbox (cached images stay; `make clean` removes those too)
	@$(SANDBOX) destroy
	@$(RUN) molecule reset --scenario-name cluster > /dev/null 2>&1 || echo "molecule had no state to forget"

sandbox-setup:
	@scripts/setup.sh --sandbox

node:  ## Run one command on a node: NODE=head CMD='sinfo' [AS=ubuntu]
	@$(SANDBOX) exec --user '$(or $(AS),root)' '$(NODE)' "$$CMD"
node play: export CMD := $(value CMD)

play:  ## Run a playbook of the collection on the sandbox: PLAYBOOK=site [ARGS='--check']
	@$(RUN) ansible-playbook --inventory .sandbox/inventory pcluster.postboot.$(PLAYBOOK) $(ARGS)

.PHONY: help setup sandbox sandbox-down sandbox-setup node play
