# `make demo` and `make test` do all their own set-up; see README.md.
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help setup demo test lint bench clean
help:
	@echo 'make demo    a real model trained through a real Slurm on this machine, in minutes (KEEP=1 leaves the cluster up)'
	@echo 'make test    everything this machine can test'
	@echo 'make bench   ratios against peers and limits, measured in one run'
	@echo 'make lint    ruff and mypy'
	@echo 'make setup   only the virtual environment and the packages'

setup:
	@.ci/setup dev

demo:
	@.ci/setup trainer
	@$(PY) -m opsctl.demo $(if $(KEEP),--keep)

test: setup lint
	@$(PY) -m pytest -n 2 --dist loadgroup --max-worker-restart 0 -p tests.measure

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: setup
	@$(PY) -m benchmarks

clean:
	rm -rf .venv .venv.log build dist demo bench-results
