# `make demo` and `make test` do all their own set-up; see README.md.
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help setup demo test coverage compiled lint evaluation bench clean
help:
	@echo 'make demo    a real model trained through a real Slurm on this machine, in minutes (KEEP=1 leaves the cluster up)'
	@echo 'make test    everything this machine can test'
	@echo 'make coverage  those tests, and which modules they ran little of; takes half as long again'
	@echo 'make evaluation  the tests with EleutherAI'"'"'s lm-eval, in an environment of its own; minutes, and half a gigabyte'
	@echo 'make bench   ratios against peers and limits, measured in one run'
	@echo 'make lint    ruff and mypy'
	@echo 'make setup   only the virtual environment and the packages'

setup:
	@.ci/setup dev

demo:
	@.ci/setup trainer
	@$(PY) -m opsctl.demo $(if $(KEEP),--keep)

TESTS := $(PY) -m pytest -n 2 --dist loadgroup --max-worker-restart 0

test: setup lint compiled
	@$(TESTS)

coverage: setup compiled
	@$(TESTS) -p tests.measure

# Tests start some thousand commands, as other Unix users too, and each would compile what it imports for itself.
compiled: setup
	@$(PY) -m compileall -q -x '/test_' opsctl trainer tests

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

# No part of `make test`: lm-eval brings forty packages, and reads 14,000 tasks whenever it starts.
evaluation: setup
	@.ci/lm-eval
	@$(PY) -m pytest tests/unit/evaluation/test_real_lm_eval.py

bench: setup
	@$(PY) -m benchmarks

clean:
	rm -rf .venv .venv.log build dist demo bench-results
