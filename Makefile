# Hindcast. `make` prints what there is to make.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

VENV ?= .venv
BIN := $(VENV)/bin
UV := uv==0.13.8
export HINDCAST_HOME ?= $(CURDIR)/.hindcast
export HINDCAST_JARS_DIR ?= $(HINDCAST_HOME)/jars/spark

# The first Python that is new enough; the version the project is tested with comes first.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)

# uv reads none of pip's settings, neither variables nor pip.conf: hand it those that pip was given. An empty value is no value
# to uv. Like pip it trusts the machine's own certificates.
define as_pip
settings="$$($(BIN)/python -m pip config list 2>/dev/null || true)"; \
setting() { sed -nE "s/^(global|install)\.$$1='(.*)'$$/\2/p" <<<"$$settings" | tail -n 1; }; \
export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$(setting index-url)}}"; \
export UV_INDEX="$${UV_INDEX:-$${PIP_EXTRA_INDEX_URL:-$$(setting extra-index-url)}}"; \
export UV_FIND_LINKS="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-$$(setting find-links)}}"; \
export UV_INSECURE_HOST="$${UV_INSECURE_HOST:-$${PIP_TRUSTED_HOST:-$$(setting trusted-host)}}"; \
export UV_HTTP_TIMEOUT="$${UV_HTTP_TIMEOUT:-$${PIP_DEFAULT_TIMEOUT:-60}}"; \
export UV_SYSTEM_CERTS=true; \
cert="$${SSL_CERT_FILE:-$${PIP_CERT:-$$(setting cert)}}"; if [ -n "$$cert" ]; then export SSL_CERT_FILE="$$cert"; fi
endef

.PHONY: help
help: ## print this list
	@echo "Hindcast: supervised exactly-once streams, their batch replays, and a verdict on every difference."
	@echo
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make demo ONCE=1          stop everything after the verdict; exit 0 only where it passes"
	@echo "  make demo PIPELINE=name   another pipeline of include/pipelines"
	@echo "  make simulate EXAMPLES=10000   so many histories; SEED=... repeats a run, SEED=.../17 one history, DEPTH=9 searches deeper"
	@echo "  make demo SECONDS=60      how long to stream before the first verdict"
	@echo "  make mutants MODULE=shards/coordinator one module; JOBS=1 one mutant at a time, KEEP=folder keeps the scratch tree"
	@echo "  make faults ROW=F5 REPEAT=20 SEED=7   one row of the matrix, with the seeds 7 to 26; SHAPE=upsert fixes the pipeline's shape"
	@echo "  make faults-quick RECORD=1            a test of each row; adds what ran to tests/faults/runs.jsonl and docs/runs.md"
	@echo "  make nemesis SECONDS=60 SEED=7        the run of that seed again"

.PHONY: env
env: $(VENV)/.installed ## make .venv from requirements-dev.txt (nothing to do if nothing changed)

$(VENV)/.installed: requirements-dev.txt pyproject.toml
	@if ! command -v "$(PYTHON)" >/dev/null; then \
		echo "make: Python 3.11 or newer is needed and $(if $(PYTHON),$(PYTHON) is not there,none was found); install one, or name it: make env PYTHON=/path/to/python3.11" >&2; exit 2; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: $(PYTHON) is not Python 3.11 or newer; name one that is: make env PYTHON=/path/to/python3.11" >&2; exit 2; }
	@[ -x $(BIN)/python ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV) || { \
		echo "make: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu install its python3-venv package" >&2; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(UV)"
	@$(as_pip); \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --requirement requirements-dev.txt; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@$(no_second_package)
	@touch $@

# A build leaves the package's metadata in include/, which is on Python's path: Airflow would find the plugin of two packages.
no_second_package = rm -rf include/hindcast.egg-info

PINS = --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url --generate-hashes

.PHONY: pins
pins: env ## resolve pyproject.toml's ranges again: requirements.txt (to run) and requirements-dev.txt (to test as well)
	@$(as_pip); \
	$(BIN)/uv pip compile pyproject.toml $(PINS) --upgrade --extra sandbox --extra registry --extra deploy --extra dev --output-file requirements-dev.txt; \
	$(BIN)/uv pip compile pyproject.toml $(PINS) --extra sandbox --extra registry --extra deploy --constraint requirements-dev.txt --output-file requirements.txt

.PHONY: wheel
wheel: env ## build the package that others install into dist/
	@rm -f dist/*.whl
	@$(as_pip); $(BIN)/uv build --quiet --wheel --out-dir dist .
	@$(no_second_package)

.PHONY: another-house
another-house: env jars ## the package in another house: Kafka with accounts, an object store, a Spark cluster, an Airflow; kill -9 of each; the first verdict (KEEP=1 keeps the folder)
	@PYTHONPATH=include:tests $(BIN)/python tests/acceptance/another_house.py $(if $(KEEP),--keep)

.PHONY: bare
bare: wheel ## a virtual environment in the folder BARE that holds the built package and what it needs, and nothing else
	@"$(PYTHON)" -m venv --clear "$(BARE)"
	@$(as_pip); wheel="$$(ls dist/hindcast-*.whl)"; \
	$(BIN)/uv pip install --quiet --python "$(BARE)/bin/python" --constraint requirements.txt "hindcast[sandbox] @ file://$(CURDIR)/$$wheel"

.PHONY: jars
jars: env ## fetch Spark's and Kafka's jars with Maven (needs a JDK 17+ and Maven; looks only, once they are there)
	@$(require_jdk)
	@$(BIN)/hindcast jars

define require_jdk
java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
version="$$("$$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p')" || true; \
if [ -z "$$version" ] || [ "$$version" -lt 17 ]; then \
	echo "make: a JDK 17 or newer is needed; '$$java' is $${version:+version }$${version:-not there}. Install one and set JAVA_HOME, or put it on PATH" >&2; exit 2; fi
endef

.PHONY: lint
lint: env ## ruff, mypy and the import rules
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: env ## put every Python file into the one form
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

.PHONY: test-fast
test-fast: env ## unit tests and the short simulation: seconds, no JVM
	@HISTORIES=100 $(BIN)/python -m pytest tests/unit tests/simulation --timeout 60

.PHONY: simulate
simulate: env ## the lease core, then the streams' protocols, in EXAMPLES random histories each (SEED repeats a run), and with faults built in
	@PYTHONPATH=include:tests $(BIN)/python -m simulation.run $(if $(EXAMPLES),--examples "$(EXAMPLES)") $(if $(SEED),--seed "$(SEED)") $(if $(DEPTH),--depth "$(DEPTH)")
	@PYTHONPATH=include:tests $(BIN)/python -m protocols.run $(if $(EXAMPLES),--examples "$(EXAMPLES)") $(if $(SEED),--seed "$(SEED)")

.PHONY: mutants
mutants: env ## small changes in the protocols' code, one at a time: each is caught by a test or has its reason (about 20 minutes)
	@PYTHONPATH=tests $(BIN)/python -m mutants.run $(if $(MODULE),--module "$(MODULE)") $(if $(JOBS),--jobs "$(JOBS)") $(if $(KEEP),--keep "$(KEEP)")

# MINUTES counts from the start of make. No test with a JVM begins later.
LIMIT := $(if $(MINUTES),--until "$(shell echo $$(($$(date +%s) + 60 * $(MINUTES))))")

# An acceptance test runs many processes by itself, so those come one after the other; all else is shared between two processes.
TESTS = $(BIN)/python -m pytest --durations 30 $(if $(ALL),,--draw) $(LIMIT)

.PHONY: test
test: ## all tests: unit, integration, acceptance; of a few with many cases a draw, ALL=1 takes every case; MINUTES=60 begins no long one later
	@$(MAKE) --keep-going --jobs 1 test-acceptance test-shared

# If an acceptance test fails, the others still have their say.
.PHONY: test-acceptance
test-acceptance: env jars
	@$(TESTS) tests/acceptance

.PHONY: test-shared
test-shared: env jars
	@$(TESTS) --numprocesses 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder tests/unit tests/simulation tests/protocols tests/integration

.PHONY: cluster
cluster: env jars ## every example on a real Spark cluster of this machine: stream, rehearsal, rebuild and verdict
	@$(BIN)/python -m pytest tests/integration/test_cluster.py

# A lease in the store of the tests is as long as the product's own by default.
FAULTS = $(if $(STORE),TEST_LEASE_SECONDS=10) $(BIN)/python -m pytest tests/faults tests/integration tests/acceptance -p no:randomly --timeout 900 \
	$(if $(SEED),--seed "$(SEED)") $(if $(REPEAT),--repeat "$(REPEAT)") $(if $(SHAPE),--shape "$(SHAPE)") $(if $(RECORD),--record) $(if $(AGED),--aged) $(if $(STORE),--store)

.PHONY: faults
faults: env jars ## the matrix of faults against real processes (ROW=F5 SHAPE=upsert REPEAT=20 SEED=7 choose; AGED=1 on old tables; STORE=1 on an object store; RECORD=1 keeps count)
	@$(FAULTS) $(if $(ROW),--row "$(ROW)")

.PHONY: faults-quick
faults-quick: env jars ## one test of each row, drawn by SEED, with few records; MINUTES=10 begins none later
	@$(FAULTS) --quick $(if $(ROW),--row "$(ROW)") $(LIMIT)

.PHONY: runs
runs: env ## docs/runs.md from the recorded runs (ROW=F5 SEED=7 CAUSE="..." first notes why one failed)
	@PYTHONPATH=tests $(BIN)/python tests/support/fault_runs.py $(if $(CAUSE),--cause "$(CAUSE)" --row "$(ROW)" --seed "$(SEED)")

.PHONY: reference
reference: env ## docs/reference: declarations, the public object, settings, tables, events and errors, from the code
	@PYTHONPATH=include:tests $(BIN)/python tests/support/reference_pages.py

.PHONY: nemesis
nemesis: env jars ## faults drawn at random for SECONDS=60, then every oracle (SEED=7 replays a run)
	@$(FAULTS) --row nemesis $(if $(SECONDS),--nemesis-seconds "$(SECONDS)")

.PHONY: backfill
backfill: env jars ## a backfill of INTERVALS=24 under a real Airflow, everything killed in the middle, resumed: equal to one uninterrupted
	@$(FAULTS) --row backfill $(if $(INTERVALS),--intervals "$(INTERVALS)")

.PHONY: failover
failover: env jars ## kill -9 of an owner to the next owner's commit, TIMES=20 times at leases of 3 and 10 s: the distribution
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/failover.py $(if $(TIMES),--times "$(TIMES)") $(if $(SEED),--seed "$(SEED)") $(if $(LEASE),--lease "$(LEASE)")

.PHONY: bench-leases
bench-leases: env ## what leasing costs, on real tables: minutes, no JVM
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/lease_cost.py

.PHONY: bench-age
bench-age: env ## what a month of commits adds to a commit, a take-over, a renewal and a plan: minutes, no JVM (COMMITS, TAIL)
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/age_cost.py $(if $(COMMITS),--commits "$(COMMITS)") $(if $(TAIL),--tail "$(TAIL)")

.PHONY: bench
bench: env jars ## latency and CPU of a supervised stream beside the jobs that people run, by turns on the same load (SIDE, JOB, RATE, PARTITIONS, PAIRS; QUICK=1 takes eight minutes, RECORD=1 writes docs/performance.md)
	@PYTHONPATH=include:tests $(BIN)/python -m benchmarks.speed.run $(if $(SIDE),--side "$(SIDE)") $(if $(JOB),--job "$(JOB)") $(if $(RATE),--rate "$(RATE)") $(if $(PARTITIONS),--partitions "$(PARTITIONS)") $(if $(PAIRS),--pairs "$(PAIRS)") $(if $(QUICK),--quick) $(if $(RECORD),--record)

.PHONY: bench-store
bench-store: env ## requests an hour of leases, and those of a batch, on an object store of this machine; no JVM
	@PYTHONPATH=include:tests $(BIN)/python tests/benchmarks/store_requests.py

.PHONY: bench-shards
bench-shards: env ## 500 shards of 50 pipelines on two workers, one of which is killed: how long until all are taken, and the memory; no JVM (PIPELINES)
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/many_shards.py $(if $(PIPELINES),--pipelines "$(PIPELINES)")

.PHONY: bench-intervals
bench-intervals: env jars ## ten hourly verdicts of each example while its topic loses the beginning: flat, and a planted error found in its hour (PIPELINE, HOURS, ROWS)
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/interval_cost.py $(if $(PIPELINE),--pipeline "$(PIPELINE)") $(if $(HOURS),--hours "$(HOURS)") $(if $(ROWS),--rows "$(ROWS)")

.PHONY: bench-pipelines
bench-pipelines: env jars ## each example's replay beside a batch by hand, and its re-execution beside the live stream (PIPELINE, ROWS)
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/pipeline_cost.py $(if $(PIPELINE),--pipeline "$(PIPELINE)") $(if $(ROWS),--rows "$(ROWS)")

.PHONY: bench-catch-up
bench-catch-up: env jars ## a new version's way through a backlog, beside a job by hand (ROWS; ARCHIVED=1 begins in the archive)
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/catch_up.py $(if $(ROWS),--rows "$(ROWS)") $(if $(ARCHIVED),--archived)

.PHONY: bench-start
bench-start: env jars ## from the start of a worker to its first commit, beside a job by hand, and what reading the DAGs costs (PAIRS)
	@PYTHONPATH=include:tests $(BIN)/python tests/benchmarks/start_cost.py $(if $(PAIRS),--pairs "$(PAIRS)")

.PHONY: bench-cold
bench-cold: env jars ## a replay and its verdict of one hour in a process of its own, beside one batch by hand of the same records (PAIRS)
	@PYTHONPATH=include:tests $(BIN)/python tests/benchmarks/cold_verdict.py $(if $(PAIRS),--pairs "$(PAIRS)")

.PHONY: bench-scale
bench-scale: env jars ## what a replay of ten million records (ROWS) costs beside one of a tenth, and by 1, 2 and 4 executors of a Spark cluster on this machine
	@PYTHONPATH=include:tests $(BIN)/python tests/benchmarks/replay_scale.py $(if $(ROWS),--rows "$(ROWS)")

.PHONY: bench-many
bench-many: env jars ## eight pipelines of 500 records a second in two workers, Airflow beside them: latency and memory
	@PYTHONPATH=include:tests $(BIN)/python tests/benchmarks/eight_pipelines.py

.PHONY: bench-long
bench-long: env jars ## ten thousand batches (BATCHES) of one worker: the time of a batch and its memory against those of its first minutes, most of an hour
	@PYTHONPATH=include:tests $(BIN)/python tests/benchmarks/long_stream.py $(if $(BATCHES),--batches "$(BATCHES)")

.PHONY: bench-compare
bench-compare: env jars ## what comparing two whole tables costs beside reading both once (ROWS, PAIRS)
	@PYTHONPATH=include:tests $(BIN)/python tests/benchmarks/compare_cost.py $(if $(ROWS),--rows "$(ROWS)") $(if $(PAIRS),--pairs "$(PAIRS)")

.PHONY: bench-raising
bench-raising: env jars ## how long a shard stands still for one record of 100,000 (ROWS) on which its function raises
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/raising_record.py $(if $(ROWS),--rows "$(ROWS)")

.PHONY: ratios
ratios: env jars ## online algorithms against the batch in hindsight: competitive ratios, printed and drawn
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/competitive_ratios.py $(if $(SEED),--seed "$(SEED)")

.PHONY: demo
demo: env jars ## broker, load, Airflow, stream, replay and verdict on this machine; runs until `make down`
	@$(BIN)/hindcast demo $(if $(ONCE),--once) $(if $(PIPELINE),--pipeline "$(PIPELINE)") $(if $(SECONDS),--seconds "$(SECONDS)")

.PHONY: demo-reprocess
demo-reprocess: env jars ## version 2 of stock_stats beside version 1: caught up, proved, promoted, backed out; ONCE=1 stops all at the end
	@$(BIN)/python -m hindcast_sandbox.demo_reprocess $(if $(ONCE),--once) $(if $(SECONDS),--seconds "$(SECONDS)")

.PHONY: down
down: env ## stop all that `make demo` or `hindcast up` started
	@$(BIN)/hindcast down

.PHONY: status
status: env ## what is running, and where
	@$(BIN)/hindcast status

.PHONY: doctor
doctor: env ## check the prerequisites and say what is missing
	@$(BIN)/hindcast doctor

.PHONY: clean
clean: ## stop everything and remove .venv, .hindcast and caches
	@if [ -x $(BIN)/hindcast ]; then $(BIN)/hindcast down || true; fi
	@rm -rf $(VENV) .hindcast .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	@find include spark_apps dags plugins tests -name __pycache__ -type d -prune -exec rm -rf {} +
