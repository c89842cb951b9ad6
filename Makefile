# Everything runs inside .venv, which `install` makes from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# One torch thread a process: on small machines two threads a process fight each other.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_DISABLE_TELEMETRY ?= 1

.PHONY: install test test-slow test-faults lint format docs demo demo-forget desk clean

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

# Kills, failing disks and broken inputs: an hour or more.
test-faults: install
	nice -n 10 $(BIN)/python -m pytest -m faults --timeout 7200 tests/faults

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in outputs/site; a broken link or anchor is an error. It asks for the extra `docs` when it is first built.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open outputs/site/index.html in a browser"

.venv/.docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

# A robot that the shipped model has never seen: simulate a few episodes, fine-tune, roll out on others, report.
DEMO := outputs/demo
demo: install demo-forget
	@echo "1/4 simulate 40 episodes of the new robot to learn from, and 24 of two tasks to be judged on"
	$(BIN)/worldmodel collect --task place_a2b_left --embodiment finch --episodes 40 --size 64 64 --out $(DEMO)/target
	$(BIN)/worldmodel collect --task place_a2b_left place_a2b_right --embodiment finch --episodes 12 --seed 100000 --size 64 64 --out $(DEMO)/held_out
	@echo "2/4 fine-tune the shipped model with MCL (progress with time left below)"
	OMP_NUM_THREADS=2 $(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no --cpu -m worldmodel train configs/desk/demo.yaml --resume
	@echo "3/4 roll out under true and wrong actions"
	$(BIN)/worldmodel rollout $(DEMO)/run/model $(DEMO)/held_out output=$(DEMO) held_out.split=all num_inference_steps=1 locator=worldmodel/weights/locator
	@echo "4/4 done: open $(DEMO)/report.html in a browser"

# A demo that was cut off goes on; one of other weights or settings starts again, on the same episodes.
demo-forget:
	@mkdir -p $(DEMO)
	@cksum Makefile configs/desk/demo.yaml $$(find worldmodel/evaluation worldmodel/weights -name '*.py' -o -name '*.safetensors' | sort) > $(DEMO)/made_from.new
	@cmp -s $(DEMO)/made_from.new $(DEMO)/made_from || rm -rf $(addprefix $(DEMO)/,run clips.jsonl results.json report.html report.md curves.png videos)
	@mv $(DEMO)/made_from.new $(DEMO)/made_from

# The shipped desk model from nothing, some hours. Called again it goes on where it was cut off.
desk: install
	@BIN=$(BIN) training/desk.sh

clean:
	rm -rf .venv outputs build *.egg-info
