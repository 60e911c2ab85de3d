# The tasks of this repository. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Where it is set, every start of a program would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

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
	$(shell find reshard reshard_jax reshard_torch native/bindings native/include \
		native/kernels native/src \
		-type f -not -name '*.pyc')

.PHONY: demo
demo: ## Refit a PyTorch engine from a JAX trainer
demo: .venv-trainer/.reshard .venv-engine/.reshard $(CHECKPOINT)/model.safetensors
	@.venv-trainer/bin/python examples/grpo/demo.py --port $(PORT)

# --no-compile: the demo uses a part of these packages, which the first start compiles.
.venv-trainer/.requirements: examples/grpo/requirements-trainer.txt | check-python
	@echo "setting up .venv-trainer (JAX, Tunix; 1.7 GB, about a minute)"
	@test -x .venv-trainer/bin/pip || $(PYTHON) -m venv .venv-trainer
	@.venv-trainer/bin/pip install -qq --no-compile -r $<
	@touch $@

.venv-engine/.requirements: examples/grpo/requirements-engine.txt | check-python
	@echo "setting up .venv-engine (PyTorch, transformers; 1.2 GB or more, about a minute)"
	@test -x .venv-engine/bin/pip || $(PYTHON) -m venv .venv-engine
	@.venv-engine/bin/pip install -qq --no-compile -r $<
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

# ---- development: one virtual environment with both frameworks

BIN := .venv/bin
NATIVE_SOURCES := pyproject.toml $(shell find native -type f -not -path '*/build/*')

.venv/.requirements: tests/requirements.txt | check-python
	@echo "setting up .venv (PyTorch, JAX, NCCL and the tools; 2.5 GB, one to two minutes)"
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	@.venv/bin/pip install -qq -r $<
	@touch $@

.venv/.built: .venv/.requirements $(NATIVE_SOURCES)
	@echo "building reshard into .venv (editable)"
	@.venv/bin/pip install -qq -e .
	@touch $@

.PHONY: setup build
setup: .venv/.requirements ## Make the development environment
build: .venv/.built ## Build the native library, editable
build: setup

# Tests that start processes run on one of them, one after the other; the others share the rest.
WORKERS ?= 2

.PHONY: test test-unit test-processes
test: build native-test ## Run all tests that need no GPU
	@RESHARD_REQUIRE=torch,jax,nvrtc,nccl,cuda_headers,ray $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

test-unit: build ## Run the tests of single modules, and the laws over random layouts
	@$(BIN)/python -m pytest tests/unit tests/property tests/architecture tests/abi

test-processes: build ## Run the tests that start several processes
	@$(BIN)/python -m pytest -m processes

# ---- ready-made forms against the trainers themselves (docs/trainers.md); not part of the tests

# MaxText needs Python 3.12.
PYTHON_MAXTEXT ?= python3.12

.venv-maxtext/.requirements: tests/trainers/requirements-maxtext.txt
	@command -v $(PYTHON_MAXTEXT) > /dev/null && $(PYTHON_MAXTEXT) --version > /dev/null 2>&1 \
		|| { echo "$(PYTHON_MAXTEXT): not found, and MaxText needs Python 3.12." \
			"Choose one: make PYTHON_MAXTEXT=... check-trainers" >&2; exit 1; }
	@echo "setting up .venv-maxtext (JAX, MaxText; 1.5 GB, a few minutes)"
	@test -x .venv-maxtext/bin/pip || $(PYTHON_MAXTEXT) -m venv .venv-maxtext
	@.venv-maxtext/bin/pip install -qq --no-compile -r $<
	@touch $@

.PHONY: check-tunix check-maxtext check-trainers
CHECK_TRAINER = .venv-engine/bin/python tests/trainers/check.py --engine .venv-engine/bin/python
check-tunix: .venv-trainer/.reshard .venv-engine/.reshard ## Compare logits of Tunix and transformers
	@$(CHECK_TRAINER) --library tunix --python .venv-trainer/bin/python

check-maxtext: .venv-maxtext/.reshard .venv-engine/.reshard ## The same with MaxText (Python 3.12)
	@$(CHECK_TRAINER) --library maxtext --python .venv-maxtext/bin/python

check-trainers: check-tunix check-maxtext ## Both

# ---- with a GPU (docs/gpu.md); without one both say so and do nothing

HAS_GPU := $(PYTHON) -c 'import ctypes; cuda = ctypes.CDLL("libcuda.so.1"); n = ctypes.c_int(); \
	exit(cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(n)) or n.value == 0)' 2> /dev/null
NO_GPU := no NVIDIA GPU is visible here (see nvidia-smi), so there is nothing to run

.venv-gpu/.requirements: tests/requirements-gpu.txt | check-python
	@echo "setting up .venv-gpu (PyTorch with CUDA: about 7 GB, several minutes)"
	@test -x .venv-gpu/bin/pip || $(PYTHON) -m venv .venv-gpu
	@.venv-gpu/bin/pip install -qq -r $<
	@touch $@

# PyTorch may pin an older NCCL than 2.30, from which on two ranks can share a GPU.
.venv-gpu/.built: .venv-gpu/.requirements $(NATIVE_SOURCES)
	@echo "building reshard into .venv-gpu (editable)"
	@.venv-gpu/bin/pip install -qq --config-settings=build-dir=build/gpu -e .
	@touch $@

.PHONY: test-gpu bench-gpu
test-gpu: check-python ## Run the tests that need a GPU, on as many as there are
	@if $(HAS_GPU); then $(MAKE) --no-print-directory .venv-gpu/.built \
		&& .venv-gpu/bin/python -m pytest tests/gpu -m 'gpu or not slow'; else echo "$(NO_GPU)"; fi

bench-gpu: check-python ## Measure kernels and refits on GPUs
	@if $(HAS_GPU); then $(MAKE) --no-print-directory .venv-gpu/.built \
		&& .venv-gpu/bin/python -m benchmarks.gpu_pack \
		&& .venv-gpu/bin/python -m benchmarks.gpu_refit; else echo "$(NO_GPU)"; fi

# Debian's chromium and its driver, for tests/browser; nothing is downloaded but Debian's packages.
.PHONY: browser
browser: ## Install the browser that tests/browser drives, where that is possible
	@if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then \
		echo "chromium and chromedriver are there"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install -y --no-install-recommends chromium chromium-driver > /dev/null; \
	else \
		echo "no chromium and no right to install it: tests/browser will be skipped"; \
	fi

.PHONY: native-test asan tsan
native-test: build/native/.tested ## Run the C++ tests
asan: build/asan/.tested ## Run the C++ tests under address and undefined-behaviour sanitizers
tsan: build/tsan/.tested ## Run the C++ tests under the thread sanitizer

SANITIZER_asan := -DRESHARD_ASAN=ON
SANITIZER_tsan := -DRESHARD_TSAN=ON

build/%/.tested: $(NATIVE_SOURCES) | .venv/.requirements
	@mkdir -p build
	@echo "building and running the C++ tests ($*)"
	@$(BIN)/cmake -S native -B build/$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo -DRESHARD_WERROR=ON -DRESHARD_TESTS=ON \
		$(SANITIZER_$*) > build/$*.log 2>&1 || { cat build/$*.log; exit 1; }
	@$(BIN)/cmake --build build/$* > build/$*.log 2>&1 || { cat build/$*.log; exit 1; }
	@$(BIN)/ctest --test-dir build/$* --output-on-failure --timeout 300
	@touch $@

.PHONY: lint format types generate generate-check check
lint: setup ## Check style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## Format Python and C++
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@git ls-files 'native/*.cc' 'native/*.h' 'native/*.c' 'native/*.cu' | grep -v bindings/ \
		| xargs $(BIN)/clang-format -i

types: build ## Check types
	@$(BIN)/mypy

generate: setup ## Make the generated binding anew
	@$(BIN)/python native/bindings/generate.py

generate-check: setup ## Fail if the generated binding is not up to date
	@$(BIN)/python native/bindings/generate.py --check

check: lint types generate-check ## All static checks

.PHONY: wheel
wheel: setup ## Build the wheel into dist/
	@$(BIN)/pip wheel -qq --no-deps --wheel-dir dist .

# ---- benchmarks (benchmarks/README.md)

.PHONY: bench bench-quick bench-torchstore
bench: build ## Measure refits beside their peers, plans, kills, packing (about ten minutes)
	@$(BIN)/python -m benchmarks.run_all

bench-quick: build ## The same with small workloads (about a minute)
	@$(BIN)/python -m benchmarks.run_all --quick

.venv-torchstore/.installed: benchmarks/requirements-torchstore.txt $(PACKAGE_SOURCES) | check-python
	@test -n "$(TORCHSTORE)" || { echo "name a checkout or URL of torchstore:" \
		"make bench-torchstore TORCHSTORE=... (benchmarks/README.md)" >&2; exit 1; }
	@echo "setting up .venv-torchstore"
	@test -x .venv-torchstore/bin/pip || $(PYTHON) -m venv .venv-torchstore
	@.venv-torchstore/bin/pip install -qq -r $< -e .
	@.venv-torchstore/bin/pip install -qq --no-deps "$(TORCHSTORE)"
	@touch $@

bench-torchstore: .venv-torchstore/.installed ## Refits with torchstore as one more peer
	@TORCHSTORE_LOG_LEVEL=ERROR .venv-torchstore/bin/python -m benchmarks.shm_refit \
		--methods one_copy ours torchstore
