# `make demo` and `make test` install what they need; see README.md.
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help setup page-library pictures demo test nightly golden examples coverage compiled lint evaluation sanitize sanitize-gpu matrix bench bench-gpu docs release clean
help:
	@echo 'make demo                  train a small model through a real Slurm on this machine, in minutes; KEEP=1 keeps the cluster running'
	@echo 'make test                  lint, and the tests that every change must pass: 15 minutes'
	@echo 'make nightly               all tests that this machine can run'
	@echo 'make lint                  ruff, mypy, and proselint for the docs'
	@echo 'make golden                write the golden files again; read the diff before you commit it'
	@echo 'make coverage              make test with coverage per module; takes half as long again'
	@echo 'make bench                 ratios against peers and limits, measured in one run'
	@echo 'make docs                  build the site of docs/ in site/; it opens from disk'
	@echo 'make evaluation            the tests with lm-eval, in a separate environment of half a gigabyte; minutes'
	@echo 'make sanitize              all CUDA kernels under memory and race sanitizers; minutes'
	@echo 'make matrix                the tests of both Slurm backends on Slurm 22.05, 24.11 and 26.05; needs root'
	@echo 'make bench-gpu             CUDA kernels and trainings compared with torch and transformers, on this GPU'
	@echo 'make sanitize-gpu          the GPU tests under compute-sanitizer; about an hour'
	@echo 'make examples              write the output of the console examples into docs/; read the diff before you commit it'
	@echo 'make pictures              make the pictures of the README from a run of the demo'
	@echo 'make page-library          fetch the libraries of the report and of the site from npm'
	@echo 'make release VERSION=x.y.z check, build, test and tag a release from a clean checkout; pushes nothing'
	@echo 'make setup                 create the virtual environment and install the packages'
	@echo 'make clean                 remove what make built'

setup:
	@.ci/setup dev

# Fetched when its version changes, and committed, so that installing opsctl needs no npm.
page-library:
	@.ci/npm-files uplot@1.6.32 opsctl/ui/report/page package/dist/uPlot.iife.min.js package/dist/uPlot.min.css package/LICENSE:uPlot.LICENSE
	@cd opsctl/ui/report/page && sha256sum --check checksums.txt
	@.ci/npm-files iframe-worker@1.0.4 docs/assets package/shim/index.js:iframe-worker.min.js package/LICENSE:iframe-worker.LICENSE

# Made when a screen has changed, and committed.
pictures: setup
	@$(PY) docs/pictures/make.py
	@$(PY) docs/pictures/draw.py

demo:
	@.ci/setup trainer
	@$(PY) -m opsctl demo $(if $(KEEP),--keep)

# More workers than cores, because tests with Slurm mostly wait. tests/conftest.py starts the long ones first.
TESTS := $(PY) -m pytest -n 4 --dist loadscope --no-loadscope-reorder --max-worker-restart 0

test: setup lint compiled
	@$(TESTS) --durations 10 --durations-min 1

nightly: setup lint compiled
	@$(TESTS) -m '' --hypothesis-profile nightly --durations 30 --durations-min 1

golden: setup
	@$(TESTS) -m golden --write-golden

# Types every console example of docs/ on a local Slurm: some minutes.
examples: setup
	@$(PY) -m pytest -m '' --write-golden tests/cluster/test_docs_sessions.py

coverage: setup compiled
	@$(TESTS) -p tests.measure

# Tests start thousands of commands, also as other Unix users, and each would compile the modules it imports.
compiled: setup
	@$(PY) -m compileall -q -x '/test_' opsctl trainer tests

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m proselint check README.md CONTRIBUTING.md CHANGELOG.md docs/*.md docs/*/*.md

# Not in `make test`: lm-eval has forty dependencies, and reads 14,000 tasks at each start.
evaluation: setup
	@.ci/lm-eval
	@$(PY) -m pytest tests/unit/jobs/evaluation/test_real_lm_eval.py

# Not in `make test`: compiling every kernel for two sanitizers takes minutes.
sanitize: setup
	@OPSCTL_SANITIZE=1 $(PY) -m pytest -n 2 --dist loadscope tests/unit/trainer/kernels/test_sanitized.py

# Not in `make test`: the root folders need hundreds of megabytes from Debian. Prefixes in OPSCTL_SLURM_PREFIXES are tested too.
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
