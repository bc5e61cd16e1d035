# Everything from a fresh clone, with nothing but Python >= 3.11.
PYTHON ?= python3
VENV := .venv
PEER := .peer
BIN := $(VENV)/bin
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 2)')# most tests wait for processes half of the time
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

unexport PYTHONDONTWRITEBYTECODE# else every start compiles everything again, 0.2 s

.PHONY: serve test long check lint format bench bench-core bench-wire bench-scale bench-before bench-outgoing bench-peer memory profile prove rules clean

serve: $(VENV)/.runtime  ## run the gateway on http://127.0.0.1:8420
	@exec $(BIN)/legato serve

test: $(VENV)/.dev  ## every test, on SQLite and on a real PostgreSQL
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

long: $(VENV)/.dev  ## the same with more examples and longer drills
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --long

check: lint test  ## what must be green before a change lands

lint: $(VENV)/.dev  ## format, style, directions of imports, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the code into its one form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: bench-core bench-wire  ## speed, as ratios to a baseline measured in the same run

bench-core: $(VENV)/.dev  ## the store and the engine
	$(BIN)/python bench/core.py
	$(BIN)/python bench/memory.py

bench-before: $(VENV)/.dev  ## this version beside an earlier one, in turn: COMMIT=…
	$(BIN)/python bench/before.py $(COMMIT)

bench-outgoing: $(VENV)/.dev  ## what asking a provider costs, beside a general client
	$(BIN)/python bench/outgoing.py

memory: $(VENV)/.dev  ## what is left of a long talk after many compactions
	$(BIN)/python bench/memory.py

bench-wire: $(VENV)/.dev  ## a whole gateway between a client and a provider
	$(BIN)/python bench/wire.py

bench-scale: $(VENV)/.dev  ## a store of 100,000 conversations against one of 1,000 (half an hour, 30 GB of disk)
	$(BIN)/python bench/scale.py

bench-peer: $(PEER)/.hermes $(PEER)/.legato  ## a whole gateway beside Hermes Agent, in one run; writes docs/benchmarks.md
	cd bench && ../$(PEER)/legato/bin/python -m peer ../$(PEER)/hermes $(ARGS)

prove: $(VENV)/.runtime  ## kill gateways for a minute while clients talk, and count what is lost
	@exec $(BIN)/legato prove

profile: $(VENV)/.dev  ## a flame graph of turns, profile.svg, and where most of their CPU goes
	$(BIN)/python bench/flame.py

rules: $(VENV)/.dev  ## remove each rule of the design once and see its test go red
	$(BIN)/python tests/rules.py

clean:
	rm -rf $(VENV) $(PEER) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Legato needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Legato into $(VENV) (once) ..."
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Legato and its test tools into $(VENV) (once) ..."
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

# What `bench-peer` compares stands in two environments of its own, so that their sizes can be compared, too.
$(PEER)/.hermes:
	@echo "Installing Hermes Agent into $(PEER)/hermes (once) ..."
	$(PYTHON) -m venv $(PEER)/hermes
	$(PEER)/hermes/bin/python -m pip install --quiet --disable-pip-version-check 'hermes-agent[homeassistant,cli]==0.19.0'
	@touch $@

$(PEER)/.legato: pyproject.toml constraints.txt
	@echo "Installing Legato into $(PEER)/legato (once) ..."
	$(PYTHON) -m venv $(PEER)/legato
	$(PEER)/legato/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@
