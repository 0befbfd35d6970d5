# Every task has one command here; CONTRIBUTING.md explains them.
PYTHON ?= python3
VENV   := .venv
STAMP  := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
SEED   ?= 1

.PHONY: demo test check mutants twins soak endurance clean

# All work happens in .venv, made from pyproject.toml with the exact versions of constraints.txt.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

# Enough for the demonstration: without the developers' tools.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	touch $(DEMO_STAMP)

demo: $(DEMO_STAMP)
	$(VENV)/bin/defl demo

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest tests/test_layers.py

mutants: $(STAMP)
	$(VENV)/bin/python tests/mutants/run.py

# Every small schedule of leaders and cuts with a twin pair (some minutes), and the speed.
twins: $(STAMP)
	$(VENV)/bin/python tests/test_twins.py

soak: $(STAMP)
	$(VENV)/bin/defl sim --soak 600 --seed $(SEED)

# Real processes: killed again and again, and three hundred rounds of one model (ten minutes).
endurance: $(STAMP)
	$(VENV)/bin/python tests/endurance/kill.py
	$(VENV)/bin/python tests/endurance/long.py

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
