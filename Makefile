# `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WITH_CLUSTERS := tests/integration tests/attacks $(wildcard tests/test_*.py)

.PHONY: demo test test-slow lint unit cluster-tests bench soak storm clean

demo: $(READY)
	$(BIN)/grid demo

test: lint unit cluster-tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Real clusters, servers and terminals on a machine that others use, too: what fails is shown, and run once more, by
# itself. What fails twice has failed; what passes only then is listed as flaky at the end.
AGAIN = || { test $$? -eq 1 && echo "Failed once; again:" && \
	$(BIN)/pytest $(1) --last-failed --last-failed-no-failures none; }

unit: $(READY)
	$(BIN)/pytest -m "not cluster and not slow" -n 3 --dist loadfile --no-loadscope-reorder \
		$(call AGAIN,-m "not cluster and not slow")

cluster-tests: $(READY)
	$(BIN)/pytest -m "cluster and not slow" $(WITH_CLUSTERS) --durations=20 \
		$(call AGAIN,-m "cluster and not slow" $(WITH_CLUSTERS))

# Storms: kills, partitions, fuzzing.
test-slow: $(READY)
	$(BIN)/pytest -m slow --durations=10 $(call AGAIN,-m slow)

bench: $(READY)
	$(BIN)/python -m bench

soak: $(READY)
	$(BIN)/python -m bench.soak

storm: $(READY)
	GRID_TEST_KILLS=100 $(BIN)/pytest -m cluster tests/integration/test_kills.py
	GRID_TEST_KILLS=300 $(BIN)/pytest -m cluster tests/integration/test_team_storm.py

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,all]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
