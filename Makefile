# The two commands for a newcomer are `make run` and `make test`; both set up what a fresh machine lacks.
# The work is done in scripts/, one file each.

.PHONY: help run build check functions release publish site site-serve image image-alpine image-envoy test test-all test-core test-models test-simulator test-live test-container test-functions test-clients test-proofs test-libraries test-adapters test-apps test-instructions test-reliability test-hours test-valgrind test-servers test-platforms test-docker test-shipping test-examples plots bench bench-core bench-curves bench-waiting bench-scale bench-publish bench-instructions fuzz simulate verify lint deny clean

.DEFAULT_GOAL = help

## Try, build and release

run: # a server with a plain build of the module, a short session shown, then its prompt
	@scripts/run.sh

build: # the module for this machine: target/release/libredis_cell.so
	@scripts/build.sh

functions: # the function library: target/functions/redis_cell.lua
	@scripts/functions.sh

release: # target/dist: modules for x86_64 and aarch64, glibc 2.17 and musl; tarballs, .debs, checksums
	@scripts/release.sh x86_64 aarch64 x86_64-musl aarch64-musl
	@scripts/package.sh

publish: # target/publish: the crates and the Python packages, built and checked; all but the upload
	@scripts/publish.sh

image: # the Docker image redis-cell: a server with the portable module
	@scripts/image.sh

image-alpine: # the same on Alpine Linux, as redis-cell:alpine; a registry must have the base image
	@scripts/image.sh alpine

image-envoy: # the Docker image redis-cell-envoy: the rate limit service for Envoy
	@scripts/image.sh envoy

site: # target/site/html: the pages and the playground as a site with search, every link checked
	@scripts/site.sh

site-serve: # the same, shown on a free port of this machine
	@scripts/site.sh --serve

## Before a pull request

check: # the quick loop: formatting, lints, the core, CL.THROTTLE in a server; a minute, without the network
	@scripts/check.sh

test: # what a contributor runs: core, models, every command live, the function library, both clients; ten minutes
	@scripts/test.sh

lint: # formatting and lints, shell scripts and dependencies included
	@scripts/lint.sh

## What CI runs, and its parts

test-all: # everything, as CI runs it: make test, then test-proofs to test-shipping; forty minutes
	@scripts/test.sh all

test-core: # the algorithms, without a server
	@scripts/test.sh core

test-models: # every state of small worlds in which clients call the core
	@scripts/test.sh models

test-simulator: # the module in a simulated server: kept histories, and those of fixed seeds
	@scripts/test.sh simulator

test-proofs: # proofs about the core
	@scripts/test.sh proofs

test-live: # the module in this machine's redis-server, or in another: make test-live SERVER=path/to/redis-server
	@REDIS_CELL_SERVER="$(or $(SERVER),$(REDIS_CELL_SERVER))" scripts/test.sh live

test-clients: # the clients for Python and Rust, with the newest libraries
	@scripts/test.sh clients

test-adapters: # Python frameworks, pages and types, LiteLLM's proxy, the oldest redis-py, the library limits, Node
	@scripts/test.sh adapters

test-functions: # the function library, held to the module in this machine's redis-server
	@scripts/test.sh functions

test-libraries: # the same in Redis 8.2 and in Valkey 8.1
	@scripts/test.sh libraries

test-instructions: # the instructions of each command, compared with bench/instructions.tsv
	@scripts/test.sh instructions

test-apps: # the planner and the service for Envoy, with this machine's server; the site's links; the playground in a browser
	@scripts/test.sh apps

test-reliability: # failover, cluster, crash, clock and hostile input; REDIS_CELL_LONG=1 takes its time
	@scripts/test.sh reliability

test-servers: # the portable module in Redis 6.2, 7.4 and 8.2
	@scripts/test.sh servers

test-platforms: # the modules for musl and for the other processor, in servers built for them, under qemu
	@scripts/test.sh platforms

test-container: # the documented transcripts in a container, with a plain build; part of make test
	@scripts/test.sh container

test-docker: # the portable module in the servers of docker/matrix.tsv, each in a container
	@scripts/test.sh docker

test-shipping: # what users get: the image, the compose file, the packages, Prometheus, the programs of examples/
	@scripts/test.sh shipping

test-examples: # Celery and Django of examples/; part of test-shipping
	@scripts/test.sh examples

## Search for defects, for hours

fuzz: # the core under libFuzzer, then a million random commands against a server; another seed each time
	@scripts/fuzz.sh

simulate: # random histories in the simulated server; SEED=n repeats one, TRACE=1 shows it, FILE=name replays a file
	@scripts/simulate.sh $(FILE)

verify: # the long forms of what a machine checks, and mutants: docs/verification.md; hours
	@scripts/verify.sh

test-hours: # tests that read a clock, begun around the ends of an hour, a day, a week, a month, a year and a leap day
	@scripts/test-hours.sh

test-valgrind: # the live suite with every access to memory checked, a quarter of an hour
	@scripts/test-valgrind.sh

## Measure

bench: # the speed of each command against the server's own; PEER=other.so compares with that module, too
	@scripts/bench.sh

bench-core: # the core's decisions alone, in nanoseconds; make bench has them as well
	@scripts/bench.sh core

bench-curves: # what a call costs with 10 to 1,000,000 entries, queued clients, or keys
	@scripts/bench.sh curves

bench-waiting: # clients that wait in CL.BMTAKE: admissions, shares of flows, and what a queue costs others
	@scripts/bench.sh waiting

bench-scale: # the cost of each kind of limiter, and the ways to fewer calls: measured tables of docs/scaling.md
	@scripts/bench-scale.sh

bench-publish: # keeps what was measured last in bench/results.tsv, and writes it into the pages
	@scripts/bench.sh publish

bench-instructions: # counts the instructions of each command again: bench/instructions.tsv
	@scripts/bench-instructions.sh

plots: # the pictures of docs/choosing.md: the same traffic through every limiter, recorded and drawn
	@scripts/plots.sh

## Other

help: # this list
	@awk -F ': # ' '/^## / { print "\n" substr($$0, 4) } /^[a-z-]+: # / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deny: # the dependencies: licences, sources, known vulnerabilities
	@scripts/deny.sh

clean: # everything built or fetched
	@rm -rf target
