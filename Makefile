PYTHON ?= python3
BIN = .venv/bin

PYTEST = $(BIN)/python -m pytest
EXAMPLES = $(addprefix tests/test_, docstrings.py tutorials.py examples.py large.py)  # docstrings, notebooks, scripts
WORKBENCH = tests/tools $(wildcard tests/test_*benchmark*.py)  # tests of tools/ and benchmarks/
APART = $(EXAMPLES) $(WORKBENCH) tests/papers tests/properties tests/standin tests/torture  # with targets of their own

.PHONY: demo demo-photos test papers drawn standin workbench slow examples torture properties fuzz mutants check audit docs wheel bench gpu clean

demo: .venv/installed
	rm -rf runs/demo
	$(BIN)/nearfar demo --out runs/demo

demo-photos: .venv/installed
	@test -n "$(DATA)" || { echo "name a folder of photographs: make demo-photos DATA=folder"; exit 2; }
	rm -rf runs/demo-photos
	$(BIN)/nearfar demo "$(DATA)" --out runs/demo-photos

test papers drawn standin workbench slow examples: export PYTHONDONTWRITEBYTECODE =  # hundreds of processes would compile the same modules

test: .venv/tested
	OMP_NUM_THREADS=1 $(PYTEST) -n auto --dist loadfile $(APART:%=--ignore=%) tests

papers: .venv/tested
	OMP_NUM_THREADS=1 $(PYTEST) -n auto --dist loadfile tests/papers

drawn: .venv/tested
	OMP_NUM_THREADS=1 $(PYTEST) -n auto tests/properties

standin: .venv/tested
	OMP_NUM_THREADS=1 $(PYTEST) -n auto --dist loadfile tests/standin

workbench: .venv/tested
	OMP_NUM_THREADS=1 $(PYTEST) -n auto --dist loadfile $(WORKBENCH)

slow: .venv/tested
	OMP_NUM_THREADS=1 $(PYTEST) -n auto --dist loadfile -m slow $(TESTS)

examples: .venv/tested
	OMP_NUM_THREADS=1 $(PYTEST) -n auto $(EXAMPLES)

torture: .venv/tested
	$(PYTEST) tests/torture -m torture

properties: .venv/tested
	NEARFAR_PROPERTIES=hours NEARFAR_EXAMPLES=$(or $(COUNT),5000) $(PYTEST) tests/properties

fuzz: .venv/tested
	$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60) --count $(or $(COUNT),-1) --out fuzz-findings.json

mutants: .venv/mutated
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants $(FILE)

check: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: .venv/audited
	$(BIN)/zizmor --offline --persona pedantic .github
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r constraints.txt

wheel: .venv/tested
	$(BIN)/python -m tools.check_wheel

docs: .venv/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: .venv/benchmarks
	$(BIN)/python benchmarks/views.py --out docs/results/views.json
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/scaling.py

gpu: .venv/tested
	$(BIN)/python benchmarks/gpu.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@ .venv/documented  # the extra has what the docs need

.venv/mutated: .venv/tested
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt mutmut
	touch $@

.venv/audited: constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt zizmor pip-audit
	touch $@

.venv/benchmarks: .venv/installed
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[benchmarks]"
	touch $@

.venv/documented: .venv/installed
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf .venv runs site
