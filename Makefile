# `make demo` and `make test` do all their own set-up; see README.md.
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help setup page-library pictures demo test nightly golden coverage compiled lint evaluation sanitize sanitize-gpu matrix bench bench-gpu docs release clean
help:
	@echo 'make demo    a real model trained through a real Slurm on this machine, in minutes (KEEP=1 leaves the cluster up)'
	@echo 'make test    lint and the tests that every change has to pass'
	@echo 'make nightly everything that this machine can test'
	@echo 'make golden  write the golden files again; read the difference before you commit it'
	@echo 'make coverage  those tests, and which modules they ran little of; takes half as long again'
	@echo 'make evaluation  the tests with EleutherAI'"'"'s lm-eval, in an environment of its own; minutes, and half a gigabyte'
	@echo 'make sanitize  every CUDA kernel once more under sanitizers of memory and of races; some minutes'
	@echo 'make matrix  the contract of both backends on Slurm 22.05, 24.11 and 26.05, in root folders that are made once; as root'
	@echo 'make sanitize-gpu  the tests of kernels on the GPU of this machine under compute-sanitizer; an hour, perhaps'
	@echo 'make docs    the pages of docs/ as a site, in site/; opens from disk'
	@echo 'make bench   ratios against peers and limits, measured in one run'
	@echo 'make bench-gpu  our CUDA kernels and trainings beside torch and transformers, on the GPU of this machine'
	@echo 'make lint    ruff and mypy'
	@echo 'make page-library  the plotting library of opsctl report, from npm again, held to its checksums'
	@echo 'make release VERSION=x.y.z  commit, build, try and tag it, from a clean checkout; pushes nothing'
	@echo 'make pictures  what the README shows, taken from a run of the demo'
	@echo 'make setup   only the virtual environment and the packages'

setup:
	@.ci/setup dev

# Fetched when its version changes, and committed: who installs opsctl needs no npm.
page-library:
	@.ci/npm-files uplot@1.6.32 opsctl/ui/report/page package/dist/uPlot.iife.min.js package/dist/uPlot.min.css package/LICENSE:uPlot.LICENSE
	@cd opsctl/ui/report/page && sha256sum --check checksums.txt

# Taken when a screen has changed, and committed.
pictures: setup
	@$(PY) docs/pictures/make.py

demo:
	@.ci/setup trainer
	@$(PY) -m opsctl demo $(if $(KEEP),--keep)

# More workers than processors: the tests with a Slurm mostly wait. tests/conftest.py puts the long ones first.
TESTS := $(PY) -m pytest -n 4 --dist loadscope --no-loadscope-reorder --max-worker-restart 0

test: setup lint compiled
	@$(TESTS) --durations 10 --durations-min 1

nightly: setup lint compiled
	@$(TESTS) -m '' --hypothesis-profile nightly --durations 30 --durations-min 1

golden: setup
	@$(TESTS) -m golden --write-golden

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
	@$(PY) -m pytest tests/unit/jobs/evaluation/test_real_lm_eval.py

# No part of `make test`: compiling every kernel for two sanitizers takes minutes.
sanitize: setup
	@OPSCTL_SANITIZE=1 $(PY) -m pytest -n 2 --dist loadscope tests/unit/trainer/kernels/test_sanitized.py

# No part of `make test`: the root folders are some hundred megabytes from Debian. Prefixes of one's own are tried too.
matrix: setup
	@made=$$(.ci/slurms) && OPSCTL_SLURM_PREFIXES=$$(echo $$made $$OPSCTL_SLURM_PREFIXES | tr ' ' ':') $(PY) -m pytest tests/contract

sanitize-gpu: setup
	@$(PY) -m tests.sanitized_gpu

docs: setup
	@$(PY) -m mkdocs build -q
	@echo site/index.html

bench: setup
	@$(PY) -m benchmarks

bench-gpu:
	@$(PY) -m benchmarks.gpu

release: setup
	@$(PY) -m release $(VERSION)

clean:
	rm -rf .venv .venv.log build dist demo site bench-results
