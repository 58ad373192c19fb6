# Everything works from a fresh clone with Python 3.11 or newer, make and git: the targets set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-rest test-fast test-lowest check format demo demo-spark bench bench-kafka fuzz attacks proto clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/.pixy: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pixy needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: "setuptools>=77" wheel
	$(BIN)/pip install --quiet --disable-pip-version-check --prefer-binary --no-build-isolation --editable .
	@touch $@

$(BIN)/.pixy-dev: $(BIN)/.pixy
	$(BIN)/pip install --quiet --disable-pip-version-check --prefer-binary --no-build-isolation --editable '.[dev]'
	@touch $@

run: $(BIN)/.pixy  ## start the daemon with config.yaml, data under ./pixy-data
	@$(BIN)/pixy serve --config config.yaml $(ARGS)

# Lanes of tests run beside each other (tests/lanes.py), the checks among them. With ARGS, which may choose few tests or none of a lane, all
# that they choose run in turn.
test: $(BIN)/.pixy-dev  ## all checks, and the tests of every layer
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m tests.lanes test
else
	$(BIN)/pytest $(ARGS)
endif

test-all: $(BIN)/.pixy-dev  ## the same and the long rest: many seeds, all attacks, failover, every client language
	@$(BIN)/python -m tests.lanes all

test-rest: $(BIN)/.pixy-dev  ## what make test-all has beyond make test
	@$(BIN)/python -m tests.lanes rest

# The modules are compiled once, whatever the environment says: for all of them that takes each of the cores ten seconds.
test-fast: $(BIN)/.pixy-dev  ## the tests that start no processes and take no time
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses auto --dist worksteal -m "not process and not slow and not long" $(ARGS)

test-lowest: $(BIN)/.pixy-dev  ## the tests that meet each dependency, with its lowest version
	@$(BIN)/python -m tests.lowest

check: $(BIN)/.pixy-dev  ## format, lint, types, import rules, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy --no-error-summary
	@$(MAKE) --no-print-directory proto OUT=$(CACHE)/proto
	@diff -r -x '*.proto' -x '__init__.py' -x __pycache__ pixy/proto $(CACHE)/proto || { echo "the generated stubs are out of date: run make proto"; exit 1; }

format: $(BIN)/.pixy-dev  ## format the code and sort the imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

demo: $(BIN)/.pixy  ## a daemon on free ports: produce, consume, ack, offsets
	@$(BIN)/python examples/demo.py

demo-spark: $(BIN)/.pixy-dev  ## a Spark pipeline on generated data, stopped and started again
	@$(BIN)/python examples/demo_spark.py

bench: $(BIN)/.pixy-dev  ## the table of speeds, side by side in one run
	$(BIN)/python -m bench $(ARGS)

bench-kafka: $(BIN)/.pixy-dev  ## the same in front of a real Kafka, beside aiokafka
	$(BIN)/python -m bench.kafka $(ARGS)

TIME ?= 60
FUZZ := tests.http2.fuzz_hpack tests.http2.fuzz_connection tests.rpc.fuzz_grpc
fuzz: $(BIN)/.pixy-dev  ## fuzz each parser of what clients send, TIME=60 seconds each
	@for target in $(FUZZ); do $(BIN)/python -m $$target --time $(TIME) $(ARGS) || exit 1; done

attacks: $(BIN)/.pixy-dev  ## attack the gRPC door (a part of make test-all)
	@$(BIN)/python -m pytest tests/judges/test_attacks.py $(ARGS)

OUT ?= pixy/proto
proto: $(BIN)/.pixy-dev  ## generate the protobuf stubs again
	@rm -rf $(CACHE)/proto-raw && mkdir -p $(CACHE)/proto-raw $(OUT)
	@PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc -I . -I pixy/proto --python_out=$(CACHE)/proto-raw \
	    --grpc_python_out=$(CACHE)/proto-raw --mypy_out=quiet:$(CACHE)/proto-raw --mypy_grpc_out=quiet:$(CACHE)/proto-raw kafkapixy.proto pixy_topics.proto pixy_log.proto
	@PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc -I pixy/proto --python_out=$(CACHE)/proto-raw \
	    --mypy_out=quiet:$(CACHE)/proto-raw state.proto raft.proto
	@# The stubs live in a package: their imports of each other must say so.
	@sed -i -E 's/^import ([a-z_]+_pb2) as/from pixy.proto import \1 as/' $(CACHE)/proto-raw/*.py $(CACHE)/proto-raw/*.pyi
	@cp $(CACHE)/proto-raw/* $(OUT)/

clean:  ## remove what the targets made, except data
	rm -rf $(VENV) $(CACHE) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
