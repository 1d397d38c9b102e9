# Everything runs in .venv, which the first target that needs it makes.
# Needs only make and Python 3.11 or newer; another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
# Written last, so an install that was stopped has no stamp and the next run completes it.
STAMP := .venv/.installed
# torch must never be resolved without its constraint: every pip call goes through this.
PIP_INSTALL := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq -c constraints.txt

.PHONY: help demo test test-slow ratchet coverage lint format bench docs install
.DELETE_ON_ERROR:

help:
	@echo "make demo       ResNet-50 training: estimated, measured, predicted, explained: demo/report.html"
	@echo "make test       the tests, but for the slow ones; 8 minutes on two cores"
	@echo "make test-slow  the slow ones: full-size studies, Slurm, browsers, the documentation, the package; then the ratchet"
	@echo "make ratchet    every figure of benchmarks/ratchet.toml again: none may be worse; 7 minutes on two cores"
	@echo "make coverage   all of them, and what of the code they reach"
	@echo "make lint       ruff, import-linter, mypy and the ceilings of size"
	@echo "make format     let ruff rewrite the code"
	@echo "make docs       the documentation site, into docs/_build/html"
	@echo "make bench      the benchmarks; writes docs/benchmarks.md and docs/memory-errors.md"
	@echo "make install    only make .venv; the others do it themselves"

demo: $(STAMP)
	@$(BIN)/python examples/demo.py demo

# Two processes, each with half of the files in random order; the one that is done first takes from the end of the
# other's half. The tests of a file, which share what they load, mostly stay together. Bytecode is kept, whatever the
# machine's habit: programs that tests start would compile everything anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(STAMP)
	@$(PYTEST) -m "not slow"

test-slow: $(STAMP)
	@$(PYTEST) -m slow
	@$(MAKE) --no-print-directory ratchet

# After the tests and not beside them: it also takes times.
ratchet: $(STAMP)
	@$(BIN)/python benchmarks/ratchet.py

coverage: $(STAMP)
	@$(PYTEST) --cov

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/python benchmarks/sizes.py
	@$(BIN)/python benchmarks/raised.py

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# A warning is a mistake: a link that leads nowhere, a page that no list names.
docs: $(STAMP)
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: $(STAMP) .venv-bench/.installed
	@.venv-bench/bin/python benchmarks/estimate.py --write
	@.venv-bench/bin/python benchmarks/memory.py --peers --write
	@$(BIN)/python benchmarks/memory.py --write

# The tools that rooflight is compared with stay out of .venv. DeepSpeed is built from source, with the torch that is
# there and none of its own kernels; where that fails, the page says so.
.venv-bench/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt benchmarks/requirements-deepspeed.txt
	@echo "installing the other tools into .venv-bench (once)"
	@$(PYTHON) -m venv --clear .venv-bench
	@echo '*' >.venv-bench/.gitignore
	@PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-bench/bin/python -m pip install -qq -c constraints.txt -e . \
		setuptools wheel -r benchmarks/requirements.txt
	@PIP_DISABLE_PIP_VERSION_CHECK=1 DS_BUILD_OPS=0 .venv-bench/bin/python -m pip install -qq -c constraints.txt \
		--no-build-isolation -r benchmarks/requirements-deepspeed.txt || echo "DeepSpeed did not install: left out" >&2
	@touch $@

install: $(STAMP)
	@:

# pip writes INSTALLER when a package is complete. Metadata without it, and the ~names of a half-done upgrade, are what
# a stopped install leaves behind; without them pip installs those packages again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "rooflight needs Python 3.11 or newer, and $(PYTHON) is not: try make PYTHON=python3.11" >&2; exit 1; }
	@echo "installing into .venv (once; torch is large: this takes a minute or two)"
	@rm -f $@
	@for metadata in .venv/lib/python*/site-packages/*.dist-info; do \
		test -f "$$metadata/INSTALLER" || rm -rf "$$metadata"; \
	done
	@rm -rf .venv/lib/python*/site-packages/~*
	@$(BIN)/python -m pip show -q pip >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@
