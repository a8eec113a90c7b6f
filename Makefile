# Everything a contributor runs. Each target sets up .venv first when it has to; `make` alone lists the targets.
PYTHON  ?= python3
WORKERS ?= 2
BIN     := .venv/bin
READY   := .venv/.ready
READY_BENCH := .venv/.ready-bench
READY_TIMM := .venv/.ready-timm
READY_DOCS := .venv/.ready-docs
FAST    := -m "not slow and not models and not gpu"
TOPICS  ?= $(sort $(wildcard benchmarks/*.py))
# What `make bench` measures; nothing given means all of it, with one thread.
MODELS     ?=
SETTINGS   ?=
CONTENDERS ?=
THREADS    ?= 1
RUNS       ?=
MINUTES    ?=
CLOCK      ?=
QUICK      ?=
PUBLISH    ?=
JSON       ?=
# How long `make fuzz` looks for failures, from which seed on (nothing given: a random one), and other options of it.
SECONDS ?= 300
SEED    ?=
FUZZ    ?=
# How many cases `make fuzz-files` tries, from which number on, with the seed above; WORKERS of them at a time.
FILES  ?= 100000
ARRAYS ?= 10000
CALLS  ?= 10000
FIRST  ?= 0
HOSTILE = OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.run --files $(FILES) --arrays $(ARRAYS) --calls $(CALLS) \
	--seed $(or $(SEED),0) --first $(FIRST) --workers $(WORKERS)

# What `make test-torch` runs, and under which torch: a release such as 2.11, or the newest there is.
SHORT      ?= tests/test_torch_versions.py $(addprefix tests/,autograd export native/backend native/operators packaging models)
VERSION    ?= newest
TORCH_VENV := .venv-torch-$(VERSION)

# Tests run side by side: more threads in each would only make them wait for one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)
# Tests of one file share what it compiles for them: another worker would compile it again. In the order of the folders,
# the last files are small ones, so that no worker waits long for another.
BY_FILE := --dist loadfile --no-loadscope-reorder

# $(call need,command,advice): stop with one line of advice when the command fails.
need = @$(1) >/dev/null 2>&1 || { echo 'error: $(2)' >&2; exit 1; }
say  = @echo '==> $(1)'
flag = --$(shell echo $(1) | tr A-Z a-z)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

.PHONY: test
test: compiler lint ## check the style, then run the doctests and the fast tests
	$(call say,fast tests)
	@$(PYTEST) $(BY_FILE) $(FAST)

.PHONY: test-all
test-all: compiler lint $(READY_DOCS) ## the same with every test that needs no GPU, every snippet, the site and the examples (long)
	$(call say,all tests but those for a GPU)
	@$(PYTEST) -m "not gpu"

.PHONY: test-torch
test-torch: compiler $(TORCH_VENV)/.ready ## the tests that depend on torch most, with VERSION=2.11 or another, in an environment of its own
	$(call say,short tests under torch $(shell $(TORCH_VENV)/bin/python -c 'import torch; print(torch.__version__)'))
	@OMP_NUM_THREADS=1 $(TORCH_VENV)/bin/pytest -n $(WORKERS) $(BY_FILE) $(FAST) $(SHORT)

.PHONY: test-gpu
test-gpu: $(READY) ## is code for GPUs right on this machine's: operators, models, recordings; skips itself without one
	@$(BIN)/python -m benchmarks.gpu.check --out $(or $(OUT),gpu-results)

.PHONY: bench-gpu
bench-gpu: $(READY) ## training and inference on a GPU beside torch.compile: MODELS= CONTENDERS= PUBLISH=1
	@$(BIN)/python -m benchmarks.gpu.bench --out $(or $(OUT),gpu-results) $(if $(PUBLISH),--publish) \
		$(if $(MODELS),--models $(MODELS)) $(if $(CONTENDERS),--contenders $(CONTENDERS))

.PHONY: fuzz-files
fuzz-files: compiler $(READY) ## hostile files, arrays, calls from C, operators (long): FILES=100000 ARRAYS=10000 CALLS=10000 SEED=0 FIRST=0 WORKERS=16
	$(call say,hostile files and arrays and calls from C)
	@$(HOSTILE)
	$(call say,the same with sanitizers)
	@$(HOSTILE) --sanitized
	$(call say,operators that files may call)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.export.operator_attacks 150 $(or $(SEED),0)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.export.made_up_calls 150 $(or $(SEED),0) $(WORKERS)

.PHONY: fuzz
fuzz: compiler $(READY) ## random programs against eager: SECONDS=300 SEED= FUZZ="--sanitize"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(FUZZ)

.PHONY: fuzz-gpu
fuzz-gpu: $(READY) ## the same as code for GPUs, in Triton's interpreter, needing none: SECONDS=300 SEED= FUZZ="--cubins 5"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.native.cuda.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(FUZZ)

.PHONY: demo
demo: compiler $(READY) ## the whole story: compile, train, package, run without torch
	$(call say,demo)
	@$(BIN)/python examples/demo.py
	$(call say,train a small GPT: with torch; without torch; from C)
	@$(BIN)/python examples/train/gpt.py

.PHONY: docs
docs: $(READY_DOCS) ## the documentation as a site, in build/site
	$(call say,site)
	@report=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict 2>&1) || { echo "$$report" >&2; exit 1; }
	@echo 'open build/site/index.html'

.PHONY: dist
dist: $(READY_DOCS) ## sdist and wheel in dist/, each checked by installing it into an empty environment
	$(call say,building)
	@rm -rf dist && $(BIN)/python -m build --quiet
	$(call say,checking)
	@$(BIN)/python -m tests.repository.check_dist dist

.PHONY: architectures
architectures: compiler $(READY_TIMM) ## judge every architecture of transformers and timm (hours; goes on where it ended), write the page
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.models.sweep $(if $(MODELS),--only $(MODELS))
	@$(BIN)/python -m tests.models.sweep --table docs/architectures.md

.PHONY: timm
timm: $(READY_TIMM) ## install timm, for the tests of its models

.PHONY: bench
bench: compiler $(READY_BENCH) ## compare with the peers: MODELS= SETTINGS= CONTENDERS= THREADS= RUNS= MINUTES= QUICK=1 PUBLISH=1
	@$(BIN)/python -m benchmarks.peers --threads $(THREADS) $(if $(QUICK),--quick) $(if $(PUBLISH),--publish) \
	  $(foreach option,MODELS SETTINGS CONTENDERS RUNS MINUTES CLOCK JSON,$(if $($(option)),$(call flag,$(option)) $($(option))))

.PHONY: bench-topics
bench-topics: compiler $(READY) ## the benchmarks of single parts, or TOPICS=benchmarks/one.py
	@set -e; for script in $(TOPICS); do echo "==> $$script"; $(BIN)/python -m $$(echo $${script%.py} | tr / .); done

.PHONY: lint
lint: $(READY) ## check style, formatting, types and the direction of imports
	$(call say,ruff)
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo 'error: the files above are not formatted; run: make format' >&2; exit 1; }
	$(call say,mypy)
	@$(BIN)/mypy --no-error-summary
	$(call say,import-linter)
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report"; exit 1; }

.PHONY: format
format: $(READY) ## format the code and mend what ruff can mend by itself
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

.PHONY: clean
clean: ## remove the environment and every cache
	@rm -rf build .venv .venv-torch-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: compiler
compiler:
	$(call need,command -v $(firstword $(CXX)),no C++ compiler called $(CXX); install g++ (Debian: apt install g++) or set CXX)

%/bin/python:
	$(call need,command -v $(PYTHON),no $(PYTHON) here; install Python 3.11 or newer or set PYTHON=/path/to/python)
	$(call need,$(PYTHON) -c 'import sys; sys.exit(sys.hexversion < 0x30b0000)',$(PYTHON) is older than 3.11; set PYTHON=/path/to/a/newer/python)
	$(call need,$(PYTHON) -c 'import venv; import ensurepip',$(PYTHON) has no venv module; install it (Debian: apt install python3-venv))
	$(call say,creating $*)
	@$(PYTHON) -m venv $*

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(call say,installing the packages of constraints.txt (minutes the first time: torch is large))
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The versions of constraints.txt, but for torch itself. Some builds bring 5 GB of CUDA along; torch's index of CPU builds, given
# to pip by PIP_INDEX_URL, has those that do not.
$(TORCH_VENV)/.ready: pyproject.toml constraints.txt | $(TORCH_VENV)/bin/python
	$(call say,installing torch $(VERSION) and the packages of constraints.txt (minutes the first time: torch is large))
	@sed '/^torch==/d' constraints.txt > $(TORCH_VENV)/constraints.txt
	@$(TORCH_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-compile -c $(TORCH_VENV)/constraints.txt \
	  'torch$(if $(filter-out newest,$(VERSION)),==$(VERSION).*)' -e '.[dev]'
	@touch $@

$(READY_BENCH): $(READY)
	$(call say,installing the peers to compare with)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

$(READY_DOCS): $(READY)
	$(call say,installing what makes the site and what the examples use)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,docs,examples]'
	@touch $@

# Without what it asks for: torchvision would bring another torch.
$(READY_TIMM): $(READY)
	$(call say,installing timm)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -c constraints.txt timm
	@touch $@
