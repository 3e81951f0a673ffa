# Two commands for a newcomer: make run, make test.
PYTHON ?= python3
PORT ?= 8501
BIN := .venv/bin

.PHONY: run test check clean screenshots

run: .venv/.installed
	@echo "RouteSparse: http://127.0.0.1:$(PORT) (Ctrl-C stops web and worker)"
	@$(BIN)/honcho start -p $(PORT)

test: .venv/.installed
	$(BIN)/python -m pytest

check: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p .mypy_cache/named/routesparse
	@for folder in app engine kernels; do ln -sfn $(CURDIR)/$$folder .mypy_cache/named/routesparse/$$folder; done
	$(BIN)/mypy

screenshots: .venv/.installed
	$(BIN)/python tests/e2e/screenshots.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache routesparse.egg-info

# The stamp is newer than what it was made from, or the environment is made again.
.venv/.installed: requirements.txt pyproject.toml
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@
