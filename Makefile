# `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
IDLE := $(shell command -v chrt > /dev/null && echo chrt --idle 0)
ITS_CACHE := -o cache_dir=.pytest_cache/clusters
WITH_CLUSTERS := tests/integration $(wildcard tests/test_*.py)

.PHONY: demo test lint unit cluster-tests bench soak storm clean

demo: $(READY)
	$(BIN)/grid demo

# Tests on clusters wait much of their time, so the others run meanwhile, on what is idle of the machine. What fails
# there for want of time may try again when it has the machine for itself.
test: lint
	@log=$$(mktemp); \
	$(MAKE) --no-print-directory unit BESIDE="$(IDLE)" > $$log 2>&1 & beside=$$!; \
	trap 'kill $$beside 2> /dev/null; exit 130' INT TERM; \
	$(MAKE) --no-print-directory cluster-tests; clusters=$$?; \
	wait $$beside; units=$$?; cat $$log; rm -f $$log; \
	test $$units -eq 0 || { \
		echo "Failed beside clusters; again, alone:"; \
		$(MAKE) --no-print-directory unit AGAIN="--last-failed --last-failed-no-failures none"; units=$$?; }; \
	echo "Unit tests ended with $$units, tests on clusters with $$clusters."; \
	test $$units -eq 0 -a $$clusters -eq 0

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BESIDE) $(BIN)/pytest -m "not cluster" -n 2 --dist loadfile --no-loadscope-reorder \
		-o cache_dir=.pytest_cache/unit $(AGAIN)

# Real clusters on a machine that others use, too: what fails is shown, and run once more on clusters of its own.
# What fails twice has failed.
cluster-tests: $(READY)
	$(BIN)/pytest -m cluster $(WITH_CLUSTERS) --durations=20 $(ITS_CACHE) || { \
		test $$? -eq 1 && echo "Failed once; again, on new clusters:" && \
		$(BIN)/pytest -m cluster $(WITH_CLUSTERS) --last-failed --last-failed-no-failures none $(ITS_CACHE); }

bench: $(READY)
	$(BIN)/python -m bench

soak: $(READY)
	$(BIN)/python -m bench.soak

storm: $(READY)
	GRID_TEST_KILLS=100 $(BIN)/pytest -m cluster tests/integration/test_kills.py

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,all]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
