# Two commands matter to a newcomer: `make demo` and `make test`. Everything lands in .venv, .cache and build; nothing elsewhere.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The newest Python >= 3.11 that actually runs (a version manager's shim may exist and not run).
PYTHON ?= $(shell for v in 3.14 3.13 3.12 3.11; do python$$v -c 'import venv, ensurepip' 2>/dev/null && { echo python$$v; break; }; done)
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
COLLECTION := build/collections/ansible_collections/agentic/gpu_fleet
HOSTS := $(BIN)/python tests/support/hosts/hosts.py

.PHONY: help venv machine artifacts demo demo-down test test-long bench clean

help:  ## What can be asked for
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.venv/.complete: requirements-dev.txt
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv and ensurepip found; install python3.11 and python3.11-venv, or set PYTHON=." >&2; exit 1; }
	@echo "Installing the tools of the controller and the tests into .venv ($$($(PYTHON) --version))"
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(COLLECTION):
	@mkdir -p $(dir $@) && ln -sfn $(CURDIR) $@

venv: .venv/.complete $(COLLECTION)

machine:  ## Install what simulated hosts need on this machine (apt, as root)
	@tests/tools/prepare_machine.sh

artifacts: venv  ## Fetch the demo's model, build its stand-in miner and projector
	@$(BIN)/python -m tests.support.demo_artifacts

demo: machine venv artifacts  ## Two simulated hosts, the real rollout, acceptance, and a table of what happened
	@$(HOSTS) up
	ansible-playbook -i inventories/demo playbooks/site.yml
	ansible-playbook -i inventories/demo playbooks/acceptance.yml
	ansible-playbook -i inventories/demo playbooks/status.yml
	@cat docs/demo.txt

demo-down:  ## Remove the simulated hosts and all that belongs to them
	@test -x $(BIN)/python || { echo "nothing to remove: there is no .venv"; exit 0; }
	$(HOSTS) down

test: machine venv artifacts  ## The whole test suite, stage by stage, with times
	@$(BIN)/python tests/tools/stages.py

test-long: machine venv artifacts  ## What needs longer: mutation tables, long storms, ten repeats of every kill
	@$(BIN)/python tests/tools/stages.py --long

bench: venv  ## The pool's cost beside a plain forwarder and a direct connection; the cold path by phase, the idle pool's memory and CPU
	@$(BIN)/python -m tests.bench
	@$(BIN)/python -m tests.bench.cold

clean: demo-down  ## Remove everything that was built or cached
	rm -rf build .cache .venv
