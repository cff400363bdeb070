# Every target sets up what it needs: on a fresh clone, `make demo` or `make test` is all there is to type.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TWO    := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # two processes of one thread each

.PHONY: help setup demo test test-long test-studies test-integrations coverage mutants check bench bench-full docs reproduce clean

setup: $(READY)      ## the environment in .venv, which the other targets make as well

help:                ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' Makefile

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, or say make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,federated,data,dev]'
	$(BIN)/pip check
	@touch $@

demo: $(READY)       ## four mechanisms on digits at two privacy budgets; writes demo/report.html
	$(BIN)/antiphase demo --output demo

test: $(READY)       ## all tests that take seconds (under 12 minutes on two cores); prints what they measure
	$(TWO) -q -m "not long and not alone" --dist worksteal --durations=10
	$(BIN)/python -m pytest -q -m "not long and alone" --durations=5

test-long: $(READY)  ## the tests that take minutes (under 30 minutes on two cores)
	$(TWO) -q -m "long and not study and not alone" --dist loadfile --durations=10
	$(BIN)/python -m pytest -q -m "long and not study and alone" --durations=10

test-studies: $(READY)  ## what takes longer: the paper's experiments, peers, Opacus' own tests, mutants, coverage
	$(BIN)/python -m pytest -m study -s

test-integrations: $(READY)  ## Lightning, Hugging Face, Flower's simulation engine, which are extras: installs them first
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lightning,huggingface,simulation]'
	$(BIN)/python -m pytest -q tests/torch/test_integrations.py tests/federated/test_simulation.py tests/planted

coverage: $(READY)   ## which lines of the core the tests of `make test` execute; fails below 95 %
	$(TWO) -q -m "not long and not alone" --dist worksteal --cov --cov-report=term

mutants: $(READY)    ## 600 small changes, one at a time, in what privacy rests on: do the tests notice? Fails below 90 %
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.mutation

check: $(READY)      ## format, lint, types and the fast tests, in under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(TWO) -q -m "not long and not slow"

bench: $(READY)      ## beside the peers, which get environments of their own in .bench the first time; 14 minutes
	$(BIN)/python -m benchmarks

bench-full: $(READY) ## larger sizes: hours, nearly all of them the peers'
	$(BIN)/python -m benchmarks --full

docs: $(READY)       ## the documentation, as pages in site
	$(BIN)/mkdocs build --strict --site-dir site

reproduce: $(READY)  ## the paper's figures and tables, in results; continues where it was stopped
	$(BIN)/python -m experiments all --output results

clean:               ## remove all that these made
	rm -rf $(VENV) .bench site demo results build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
