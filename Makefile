# `make report` measures (or checks) and writes the report. `make test` runs the tests, `make test-all`
# also those that repeat what others show (docs/tests.md).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev$(shell test -x "$${CUDA_HOME:-/nonexistent}/bin/nvcc" || command -v nvcc >/dev/null 2>&1 || echo ,nvcc)

.PHONY: report test test-all records check docs notebooks setup clean

report: setup  ## the quick suite on a GPU (a small checked run without one), then the report
	@status=0; \
	$(BIN)/tcgemm bench --suite quick --report || status=$$?; \
	if [ -d reports/cpu ]; then $(BIN)/tcgemm simulate ladder --out reports/cpu || status=$$?; fi; \
	$(BIN)/tcgemm report && $(BIN)/python scripts/draw_ladder.py && exit $$status

# They start a hundred interpreters, which need not compile this project's modules each.
test test-all records: export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test: setup  ## those that need a GPU skip with a reason where there is none
	$(PYTEST) $(PYTEST_ARGS)

test-all: setup  ## and all that `make test` leaves out
	$(PYTEST) --all $(PYTEST_ARGS)

records: export TCGEMM_RECORDS = renew
# Tests make the records that they ask for; those that only `--all` asks for are made by their keys. With
# PYTEST_ARGS=--all they are asked for too, and what is left then nothing asks for.
records: setup  ## compiles anew what tests/compiled/ keeps: `git diff` shows what changed
	rm -rf build/records && mkdir -p build && mv tests/compiled build/records
	@status=0; \
	$(PYTEST) $$(grep -lE "records\.(triton|cuda)\b" tests/test_*.py | grep -v test_records) $(PYTEST_ARGS) || status=$$?; \
	$(if $(findstring --all,$(PYTEST_ARGS)),,$(BIN)/python tests/records.py build/records || status=$$?;) \
	exit $$status

docs: setup  ## the course as a site, docs/_build/html/index.html; a warning is an error
	$(BIN)/python scripts/pages --check
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q docs docs/_build/html

notebooks: setup  ## runs the six notebooks on this CPU and keeps what they show in them
	$(BIN)/python scripts/notebooks

check: setup  ## format, lint and types
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tcgemm needs Python 3.11 or later: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "Setting up $(VENV) from constraints.txt (once; a minute or more)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache
