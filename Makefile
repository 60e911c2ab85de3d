# The tasks of this repository. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The Python that makes the virtual environments (3.11 or newer).
PYTHON ?= python3

.PHONY: help
help:  ## List the tasks
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sort \
		| awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

.PHONY: check-python
check-python:
	@command -v $(PYTHON) > /dev/null \
		|| { echo "$(PYTHON): not found. Choose a Python: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
			"Choose another: make PYTHON=python3.11 ..." >&2; exit 1; }

# ---- demo: a JAX trainer refits a PyTorch engine (docs/demo.md)

# The demo uses this port and the next one.
PORT ?= 29600
CHECKPOINT := build/demo/checkpoint
PACKAGE_SOURCES := $(wildcard pyproject.toml CMakeLists.txt native/CMakeLists.txt) \
	$(shell find reshard reshard_jax reshard_torch native/bindings native/include native/src \
		-type f -not -name '*.pyc')

.PHONY: demo
demo: ## Refit a PyTorch engine from a JAX trainer
demo: .venv-trainer/.reshard .venv-engine/.reshard $(CHECKPOINT)/model.safetensors
	@.venv-trainer/bin/python examples/grpo/demo.py --port $(PORT)

.venv-trainer/.requirements: examples/grpo/requirements-trainer.txt | check-python
	@echo "setting up .venv-trainer (JAX, Tunix; 1.7 GB, about a minute)"
	@test -x .venv-trainer/bin/pip || $(PYTHON) -m venv .venv-trainer
	@.venv-trainer/bin/pip install -qq -r $<
	@touch $@

.venv-engine/.requirements: examples/grpo/requirements-engine.txt | check-python
	@echo "setting up .venv-engine (PyTorch, transformers; 1.2 GB or more, about a minute)"
	@test -x .venv-engine/bin/pip || $(PYTHON) -m venv .venv-engine
	@.venv-engine/bin/pip install -qq -r $<
	@touch $@

# One wheel for both environments.
dist/.demo-wheel: $(PACKAGE_SOURCES) | .venv-engine/.requirements
	@echo "building the reshard wheel"
	@rm -rf dist/demo
	@.venv-engine/bin/pip wheel -qq --no-deps --wheel-dir dist/demo .
	@touch $@

# The version does not change with every edit, hence the forced re-installation; the second command
# adds what reshard depends on.
.venv-%/.reshard: .venv-%/.requirements dist/.demo-wheel
	@echo "installing reshard into .venv-$*"
	@.venv-$*/bin/pip install -qq --no-deps --force-reinstall dist/demo/reshard-*.whl
	@.venv-$*/bin/pip install -qq dist/demo/reshard-*.whl
	@touch $@

$(CHECKPOINT)/model.safetensors: examples/grpo/make_checkpoint.py examples/grpo/task.py \
		| .venv-engine/.requirements
	@.venv-engine/bin/python examples/grpo/make_checkpoint.py $(CHECKPOINT)
	@touch $@
