# `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start hundreds of processes that import grid. None of them compiles it anew, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow lint unit cluster-tests bench soak storm clean

demo: $(READY)
	$(BIN)/grid demo

test: lint
	$(call PYTEST,-m "not slow",$(BOTH_AT_ONCE))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests on clusters mostly wait for processes, and the others compute: run together, they take as long as the
# work of all of them needs. Four processes with clusters, and a fifth that computes meanwhile, keep two cores busy.
AT_ONCE = -n 4 --no-loadscope-reorder
BOTH_AT_ONCE = -n 5 --no-loadscope-reorder

# Real clusters, servers and terminals on a machine that others use, too: what fails is shown, and run once more, by
# itself. What fails twice has failed; what passes only then is listed as flaky at the end.
PYTEST = $(BIN)/pytest $(1) $(2) --durations=10 || { test $$? -eq 1 && echo "Failed once; again:" && \
	$(BIN)/pytest $(1) --last-failed --last-failed-no-failures none; }

unit: $(READY)
	$(call PYTEST,-m "not cluster and not slow",$(AT_ONCE))

cluster-tests: $(READY)
	$(call PYTEST,-m "cluster and not slow",$(AT_ONCE))

# Storms (kills, partitions, fuzzing, sixty processes at once), and four times as many examples of every property.
test-slow: export HYPOTHESIS_PROFILE = thorough
test-slow: $(READY)
	$(call PYTEST,-m "slow and cluster")
	$(call PYTEST,-m "(slow or hypothesis) and not cluster" --timeout 900,$(AT_ONCE))

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
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache
