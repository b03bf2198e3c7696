# Two commands: `make demo` runs the main job, `make test` passes the tests. Each makes its own
# environment first; a second run reuses it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/ready
	$(BIN)/python -m awm_jax train --config=configs/tiny_world.py

test: .venv/ready lint
	$(BIN)/python -m pytest -q --numprocesses=auto --dist=loadfile

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.venv/ready: setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v[:2] <= (3, 13) \
	else f"awm_jax needs Python 3.11 to 3.13, found {v[0]}.{v[1]}. Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

clean:
	rm -rf .venv .cache runs
