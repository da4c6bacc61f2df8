# The two commands for a newcomer are `make run` and `make test`; both set up what a fresh machine lacks.
# The work is done in scripts/, one file each.

.PHONY: help run build release image test test-core test-live test-instructions test-reliability test-valgrind test-servers test-docker test-examples plots bench bench-core bench-curves bench-publish bench-instructions fuzz lint deny clean

help: # this list
	@awk -F ': # ' '/^[a-z-]+: # / { printf "make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: # a server with the module, a short session shown, then its prompt
	@scripts/run.sh

build: # the module for this machine: target/release/libredis_cell.so
	@scripts/build.sh

release: # target/dist: the portable module, glibc 2.17 and newer, a tarball, a .deb, their checksums
	@scripts/package.sh

image: # the Docker image redis-cell: a server with the portable module
	@scripts/image.sh

test: # all down to test-examples, then one line that counts
	@scripts/test.sh

test-core: # the algorithms, without a server
	@scripts/test.sh core

test-live: # the module in this machine's redis-server
	@scripts/test.sh live

test-instructions: # the instructions of each command, compared with bench/instructions.tsv
	@scripts/test.sh instructions

test-reliability: # failover, cluster, crash, clock and hostile input; REDIS_CELL_LONG=1 takes its time
	@scripts/test.sh reliability

test-servers: # the portable module in Redis 6.2 and 8.2
	@scripts/test.sh servers

test-docker: # the portable module in containers: docker/matrix.tsv, the image, the packages, Prometheus
	@scripts/test.sh docker

test-examples: # the programs of examples/; all but Rust in a container
	@scripts/test.sh examples

test-valgrind: # the live suite with every access to memory checked, a quarter of an hour
	@scripts/test-valgrind.sh

plots: # the pictures of docs/choosing.md: the same traffic through every limiter, recorded and drawn
	@scripts/plots.sh

bench: # the speed of each command against the server's own; PEER=other.so compares with that module, too
	@scripts/bench.sh

bench-core: # the core's decisions alone, in nanoseconds; make bench has them as well
	@scripts/bench.sh core

bench-curves: # what a call costs with 10 to 1,000,000 entries, callers in line, or keys
	@scripts/bench.sh curves

bench-publish: # puts what was measured last into docs/benchmarks.md
	@scripts/bench.sh publish

bench-instructions: # counts the instructions of each command anew: bench/instructions.tsv
	@scripts/bench-instructions.sh

fuzz: # the core under libFuzzer, then a million random commands against a server; another seed each time
	@scripts/fuzz.sh

deny: # the dependencies: licences, sources, known vulnerabilities
	@scripts/deny.sh

lint: # formatting and lints, shell scripts and dependencies included
	@scripts/lint.sh

clean: # everything built or fetched
	@rm -rf target
