# Everything runs inside .venv, which `install` makes from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# One torch thread a process: on small machines two threads a process fight each other.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_DISABLE_TELEMETRY ?= 1

.PHONY: install test test-slow lint format demo clean

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[sim,dev]"
	@touch $@

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: install
	$(BIN)/python -m pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: install
	$(BIN)/worldmodel collect --task place_a2b_left --embodiment finch --episodes 4 --size 64 64 --out outputs/demo/episodes
	$(BIN)/worldmodel inspect outputs/demo/episodes

clean:
	rm -rf .venv outputs build *.egg-info
