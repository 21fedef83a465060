# make demo: from a fresh machine to a trained comparison, its figure and its report. make test: everything the tests need, then all tests.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e
LIBRARY := .venv/.library
SITE := .venv/.site
STAMP := .venv/.installed

.PHONY: venv demo docs browser test lint mutants campaign

venv: $(STAMP)

# what the demo needs, and what the tests need beside it
$(LIBRARY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $(LIBRARY)

$(SITE): $(LIBRARY)
	$(INSTALL) ".[docs]"
	touch $(SITE)

$(STAMP): $(LIBRARY)
	$(INSTALL) ".[test]"
	touch $(STAMP)

demo: $(LIBRARY)
	rm -rf runs/demo
	$(BIN)/lmc compare products-like --scale 0.01 --model gcn:layers=3:norm=layer --parts 40 --clusters 4 \
		--methods full,cluster,gas,lmc,cmc,imc --lr 0.003 --epochs 15 --error-every 15 --run-dir runs/demo
	$(BIN)/lmc report runs/demo

# the site, with every tutorial executed; make test builds it without executing them
docs: $(SITE)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

lint: $(STAMP)
	$(BIN)/ruff format --check src tests experiments examples docs
	$(BIN)/ruff check src tests experiments examples docs
	$(BIN)/mypy

# Chromium for the test of the report page: root on Debian gets the package, everybody else a line
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release && \
		{ timeout 60 apt-get update -qq; DEBIAN_FRONTEND=noninteractive timeout 240 \
		apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1; } || \
		echo "chromium is missing: the test of the report page in a browser is skipped"

# one process a core, with one thread each: most tests are too small to gain from a second thread
test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# faults in the rules, each of which a test has to find: about 20 minutes, so it is not part of the tests
mutants: $(STAMP)
	$(BIN)/python tests/campaigns/mutants.py

# kills, faults, damaged files, generated inputs, misuse, ranks and the wheel; the tests run a fixed share of most of it
campaign: $(STAMP)
	$(BIN)/python tests/campaigns/campaign.py --write
	$(BIN)/python tests/campaigns/campaign.py --only ranks
	$(BIN)/python tests/campaigns/wheel.py
