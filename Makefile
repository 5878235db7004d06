# Every target sets up what it needs: a virtual environment in .venv with the locked packages.
#
#   make demo    stream bundled messages through a pipeline on Spark, while subscriptions change
#   make test    all tests, in as many processes as there are cores
#   make soak    thousands of damaged states, kills and full disks; takes half an hour
#   make check   format, lint, types
#   make docs    the generated parts of the documents
#   make bench   the benchmark's smoke profile
#   make wheel   a wheel in dist/ with compiled kernels, of what is committed; takes minutes
#   make lock    pin the newest versions of all packages anew

# Any Python from 3.11 on; the oldest one first, which the packages are locked with.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; \
	done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test soak check docs bench wheel lock clean

demo: $(READY)
	$(BIN)/earshot demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto

soak: $(READY)
	$(BIN)/python tests/saved_states.py --damages 5000 --kills 100 --full 20

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python docs/generate.py

bench: $(READY)
	$(BIN)/earshot bench --profile smoke

# From a clean copy: what an earlier build left would go into the wheel as well.
wheel: $(READY)
	rm -rf .cache/wheel && mkdir -p .cache/wheel
	git archive HEAD | tar -x -C .cache/wheel
	$(BIN)/python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .cache/wheel

# Byte-compiled on install, whatever the environment says: an import of Numba from source takes
# three times as long.
$(READY): requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Earshot needs Python 3.11 or later, and finds none." \
		"Install one, or say where it is: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pip install --quiet --require-hashes \
		--disable-pip-version-check -r requirements/dev.txt
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation \
		--disable-pip-version-check --editable .
	$(BIN)/python -m compileall -q $(VENV)/lib || true
	touch $@

lock: $(READY)
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header \
		--output-file requirements/dev.txt requirements/dev.in

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
