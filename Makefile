# A fresh clone needs Python 3.11 or newer, make and git: the targets set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run cluster demo demo-spark test test-fast test-all test-rest test-lowest attacks fuzz check audit format proto messages reference docs \
    wheel bench bench-kafka clean

help:  ## list the targets
	@awk '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z-]+:.*## / { split($$0, part, /:.*## /); printf "  %-14s%s\n", part[1], part[2] }' $(MAKEFILE_LIST)

$(BIN)/.pixy: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pixy needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing pixy into $(VENV), which takes a minute or two, once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: "setuptools>=78.1.1" wheel
	@$(BIN)/pip uninstall --yes -qq pixy  # as earlier checkouts call the distribution
	@# As grpcio-tools of the extra dev needs it: otherwise that would change it below a running daemon.
	@$(BIN)/pip install --quiet --disable-pip-version-check --prefer-binary --no-build-isolation --editable . 'protobuf<7'
	@touch $@

$(BIN)/.pixy-dev: $(BIN)/.pixy
	@echo "installing what checks and tests need into $(VENV): about 1 GB, which takes a few minutes, once"
	@$(BIN)/pip install --quiet --disable-pip-version-check --prefer-binary --no-build-isolation --editable '.[dev]'
	@touch $@

$(BIN)/.pixy-docs: $(BIN)/.pixy-dev
	@echo "installing what the pages need into $(VENV), once"
	@$(BIN)/pip install --quiet --disable-pip-version-check --prefer-binary --no-build-isolation --editable '.[docs]'
	@touch $@

##@ Run it

run: $(BIN)/.pixy  ## start the daemon with config.yaml; data goes to ./pixy-data
	@$(BIN)/pixy serve --config config.yaml $(ARGS)

cluster: $(BIN)/.pixy  ## three nodes on this machine, data in ./pixy-data/cluster-1 to 3; Ctrl-C ends them
	@$(BIN)/python examples/cluster.py $(ARGS)

demo: $(BIN)/.pixy  ## produce, consume, ack and offsets on a temporary daemon
	@$(BIN)/python examples/demo.py

demo-spark: $(BIN)/.pixy-dev  ## a Spark pipeline on generated data, stopped and started again
	@$(BIN)/python examples/demo_spark.py

##@ Test it

# The checks and the tests run in parallel lanes (tests/lanes.py). ARGS may select few tests or none of a lane, so with ARGS one
# process of pytest runs what they select.
test: $(BIN)/.pixy-dev  ## all checks, and the tests of every layer
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m tests.lanes test
else
	$(BIN)/pytest $(ARGS)
endif

# Bytecode is written whatever the environment says: compiling every module takes ten seconds of each core.
test-fast: $(BIN)/.pixy-dev  ## unit tests only: no processes, nothing slow
	PYTHONDONTWRITEBYTECODE= PIXY_HYPOTHESIS=quick $(BIN)/pytest --numprocesses auto --dist worksteal -m "not process and not slow and not long" $(ARGS)

test-all: $(BIN)/.pixy-dev  ## everything, also many seeds, all attacks, failover, every client language
	@$(BIN)/python -m tests.lanes all

test-rest: $(BIN)/.pixy-dev  ## only what test-all has beyond test
	@$(BIN)/python -m tests.lanes rest

test-lowest: $(BIN)/.pixy-dev  ## the tests that use dependencies, with the lowest version of each
	@$(BIN)/python -m tests.lowest

attacks: $(BIN)/.pixy-dev  ## attack a real gRPC server (part of test-all)
	@$(BIN)/python -m pytest tests/judges/test_attacks.py $(ARGS)

TIME ?= 60
FUZZ := tests.http1.fuzz_http1 tests.http2.fuzz_hpack tests.http2.fuzz_connection tests.rpc.fuzz_grpc tests.peers.fuzz_frames tests.consume.fuzz_batches tests.api.kafka.fuzz_kafka
fuzz: $(BIN)/.pixy-dev  ## fuzz each parser of client input, TIME=60 seconds each
	@for target in $(FUZZ); do $(BIN)/python -m $$target --time $(TIME) $(ARGS) || exit 1; done

##@ Change it

check: $(BIN)/.pixy-dev  ## format, lint, types, import contracts, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy --no-error-summary
	@$(MAKE) --no-print-directory proto OUT=$(CACHE)/proto
	@cmp kafkapixy.proto pixy/proto/kafkapixy.proto || { echo "pixy/proto/kafkapixy.proto is a link to ../../kafkapixy.proto: restore it"; exit 1; }
	@diff -r -x '*.proto' -x '__init__.py' -x __pycache__ pixy/proto $(CACHE)/proto || { echo "the generated stubs are out of date: run make proto"; exit 1; }
	@$(BIN)/python -m pixy.kafka_messages.compiler $(CACHE)/messages
	@diff -r -x __pycache__ pixy/kafka_messages/generated $(CACHE)/messages || { echo "Kafka's messages are out of date: run make messages"; exit 1; }
	@$(BIN)/python -m docs.generate --check

# Not part of the checks: it asks a service that a build machine may not reach. With ARGS=--if-reachable that is no failure.
audit: $(BIN)/.pixy-dev  ## known vulnerabilities of all dependencies; needs the JSON API of pypi.org
	@$(BIN)/python -m tests.audit $(ARGS)

format: $(BIN)/.pixy-dev  ## format the code and sort the imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

OUT ?= pixy/proto
proto: $(BIN)/.pixy-dev  ## generate the protobuf stubs
	@rm -rf $(CACHE)/proto-raw && mkdir -p $(CACHE)/proto-raw $(OUT)
	@PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc -I . -I pixy/proto --python_out=$(CACHE)/proto-raw \
	    --grpc_python_out=$(CACHE)/proto-raw --mypy_out=quiet:$(CACHE)/proto-raw --mypy_grpc_out=quiet:$(CACHE)/proto-raw kafkapixy.proto pixy_topics.proto pixy_log.proto pixy_cluster.proto
	@PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc -I pixy/proto --python_out=$(CACHE)/proto-raw \
	    --mypy_out=quiet:$(CACHE)/proto-raw state.proto raft.proto peers.proto node_calls.proto consumer_calls.proto copies.proto
	@# The stubs live in a package, so their imports of each other are made absolute.
	@sed -i -E 's/^import ([a-z_]+_pb2) as/from pixy.proto import \1 as/' $(CACHE)/proto-raw/*.py $(CACHE)/proto-raw/*.pyi
	@# Of its own, because stubs of kafka-pixy's clients have the same names in the default pool.
	@sed -i 's/^DESCRIPTOR = _descriptor_pool.Default()/DESCRIPTOR = _descriptor_pool.DescriptorPool()/' $(CACHE)/proto-raw/kafkapixy_pb2.py
	@cp $(CACHE)/proto-raw/* $(OUT)/

messages: $(BIN)/.pixy-dev  ## generate the code of Kafka's messages
	@$(BIN)/python -m pixy.kafka_messages.compiler

reference: $(BIN)/.pixy-dev  ## generate docs/cli.md, configuration.md, api.md and the diagrams
	@$(BIN)/python -m docs.generate

clean:  ## remove what the targets made, except data
	rm -rf $(VENV) $(CACHE) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

##@ Measure it

bench: $(BIN)/.pixy-dev  ## the table of docs/performance.md, side by side in one run
	$(BIN)/python -m bench $(ARGS)

bench-kafka: $(BIN)/.pixy-dev  ## the same in front of a real Kafka, beside aiokafka
	$(BIN)/python -m bench.kafka $(ARGS)

##@ Ship it

docs: $(BIN)/.pixy-docs reference  ## build the site in .cache/site; warnings and broken links are errors
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -d $(CACHE)/doctrees docs $(CACHE)/site
	@echo "open $(CACHE)/site/index.html"

wheel: $(BIN)/.pixy  ## build the wheel in dist
	@rm -rf build dist
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@rm -rf build && ls dist
