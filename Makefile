# Every task has one command here; CONTRIBUTING.md explains them.
PYTHON ?= python3
VENV   := .venv
STAMP  := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
# An older release of Flower, which wants older packages; only the Flower client is tested with it.
FLOWER_OLD := .venv-flower-old
FLOWER_OLD_STAMP := $(FLOWER_OLD)/.installed
SEED   ?= 1

.PHONY: demo test test-fast coverage check mutants twins model soak endurance chaos chaos-tools browser screenshots clean

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

# After the other one: both write src/*.egg-info.
$(FLOWER_OLD_STAMP): pyproject.toml constraints-flower-old.txt | $(STAMP)
	$(PYTHON) -m venv $(FLOWER_OLD)
	$(FLOWER_OLD)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-compile -c constraints-flower-old.txt -e '.[flower]' pytest pytest-xdist scikit-learn
	touch $(FLOWER_OLD_STAMP)

test: $(STAMP) $(FLOWER_OLD_STAMP)
	$(VENV)/bin/python -m pytest -n 2
	$(FLOWER_OLD)/bin/python -m pytest -n 2 tests/clients/test_flower.py

# What most mistakes trip over, in about a minute: no real processes, no long simulations.
test-fast: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 -m "not slow"

# Lines and branches of the package that the tests run, in this process and in its children.
coverage: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 --cov --cov-report=term:skip-covered

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

# Every interleaving of restarts, timeouts and certificates to a depth (some minutes).
model: $(STAMP)
	$(VENV)/bin/python -m defl.sim.explorer

soak: $(STAMP)
	$(VENV)/bin/defl sim --soak 600 --seed $(SEED)

# Real processes: killed again and again, and three hundred rounds of one model (ten minutes).
endurance: $(STAMP)
	$(VENV)/bin/python tests/endurance/kill.py
	$(VENV)/bin/python tests/endurance/long.py

# Real nodes on networks that are slow, lossy, cut and blocked (under half an hour, needs root), and
# docs/RELIABILITY.md with what they show. One of them: make chaos ONLY=partition-2-2
chaos: $(STAMP)
	$(VENV)/bin/python -m defl.lab.chaos --page docs/RELIABILITY.md $(addprefix --only ,$(ONLY))

# The programs that it uses. Debian starts both proxies as services: here they run only in the laboratory.
chaos-tools:
	apt-get install --yes --no-install-recommends \
		iproute2 nftables squid tinyproxy faketime openssl gcc libc6-dev
	-systemctl disable --now squid tinyproxy

# Chromium for the tests of the dashboard in tests/browser; without it they are skipped.
browser:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends chromium

# The pictures in docs/dashboard/, of a real run (about a minute).
screenshots: $(STAMP)
	$(VENV)/bin/python tests/browser/screenshots.py

clean:
	rm -rf $(VENV) $(FLOWER_OLD) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
