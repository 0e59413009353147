# make demo and make test each build .venv by themselves: a machine with Python 3.11+ and make is enough.

SHELL := /bin/bash
BIN := .venv/bin
WORKERS ?= 2

# The first Python that runs and is new enough; another one: make PYTHON=/path/to/python
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)

# One thread per process keeps results the same on every machine; nothing may reach for a model hub.
ENVIRONMENT := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(ENVIRONMENT) $(BIN)/pytest -q -n $(WORKERS) --dist loadscope --hypothesis-profile=ci

.PHONY: help demo test check lint format clean

help:
	@echo "make demo    train the quickstart recipe (CPU, no downloads) and say where the results are"
	@echo "make test    all tests: what CI runs"
	@echo "make check   formatter, linter, types, then all tests, stopping at the first that fails"
	@echo "make format  let ruff rewrite what it can"
	@echo "make clean   remove .venv and caches; runs/ and models/ stay"

demo: .venv/.train
	@$(ENVIRONMENT) $(BIN)/steprl train --overwrite recipes/quickstart.toml
	@echo "results: runs/quickstart (curves.png to look at, summary.json and metrics.jsonl for scripts)"

test: .venv/.dev
	@$(PYTEST)

# tests/test_quality.py is the three commands of lint again, for make test and CI.
check: lint
	@$(PYTEST) --ignore tests/test_quality.py

lint: .venv/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: .venv/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.train: EXTRAS := train
.venv/.dev: EXTRAS := train,dev
.venv/.train .venv/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing steprl[$(EXTRAS)] into .venv (the first time takes minutes)"
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' >.venv/install.log 2>&1 \
		|| { cat .venv/install.log >&2; exit 1; }
	@touch $@ .venv/.train  # dev includes train

# Debian ships venv in a package of its own: root installs it, anyone else is told.
$(BIN)/pip:
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 or newer found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv --clear .venv >/dev/null 2>&1 \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing python3-venv" \
			&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null \
			&& $(PYTHON) -m venv --clear .venv; } \
		|| { rm -rf .venv; echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu:" \
			"apt-get install python3-venv. Or name another Python: make PYTHON=/path/to/python" >&2; exit 1; }
