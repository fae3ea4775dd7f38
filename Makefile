# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Two processes test at a time, each with one thread: the same bits every time.
ONE    := OMP_NUM_THREADS=1

.PHONY: demo test test-all pytest lint types bench kills paper format clean browser

demo: $(READY)  ## three invented hospitals, from scans to a report; three to five minutes
	$(BIN)/canal demo

# What waits for the network and what computes, side by side.
TOGETHER := --no-print-directory --jobs 3 types pytest

test:  ## lint, type-check, test
	@$(MAKE) $(TOGETHER) SOME='-m "not slow and not data"'

test-all:  ## everything, the slow and the data-dependent tests too
	@$(MAKE) $(TOGETHER)

pytest: browser lint
	$(ONE) $(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder $(SOME)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# Tests open the pages in a real browser, and are skipped where there is none: nothing here fails.
browser:  ## Chromium, from Debian where we may install it
	@command -v chromium >/dev/null || { \
	  echo "no Chromium yet; the tests open the pages in one"; \
	  if [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
	    { timeout 120 apt-get -qq update && DEBIAN_FRONTEND=noninteractive timeout 300 \
	      apt-get -qq install --yes --no-install-recommends chromium fonts-liberation; } \
	      >/dev/null 2>&1 || echo "Chromium could not be installed; its tests are skipped"; \
	  else echo "its tests are skipped; install it with apt-get as root"; fi; }

bench: $(READY)  ## speed, as ratios against named rivals in one run
	$(BIN)/python -m bench

kills: $(READY)  ## kill commands that charge a ledger, until results/kills.jsonl has a thousand
	$(ONE) PYTHONPATH=tests $(BIN)/python -m kills

paper: $(READY)  ## every table and figure of the documents, from paper/results
	$(BIN)/python -m paper tables

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Python compiles what it imports; pip would compile all that there is, for twenty seconds.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "canal needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) canal-demo .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
