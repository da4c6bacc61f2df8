# The two commands for a newcomer are `make run` and `make test`; both set up what a fresh machine lacks.
# The work is done in scripts/, one file each.

.PHONY: help run build release image test test-core test-live test-servers test-docker plots lint clean

help: # this list
	@awk -F ': # ' '/^[a-z-]+: # / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: # a server with the module, a short session shown, then its prompt
	@scripts/run.sh

build: # the module for this machine: target/release/libredis_cell.so
	@scripts/build.sh

release: # the portable module, glibc 2.17 and newer: target/dist/libredis_cell.so
	@scripts/release.sh

image: # the Docker image redis-cell: a server with the portable module
	@scripts/image.sh

test: # all four of the following, then one line that counts
	@scripts/test.sh

test-core: # the algorithms, without a server
	@scripts/test.sh core

test-live: # the module in this machine's redis-server
	@scripts/test.sh live

test-servers: # the portable module in Redis 6.2 and 8.2
	@scripts/test.sh servers

test-docker: # the portable module in containers: docker/matrix.tsv, and the image redis-cell
	@scripts/test.sh docker

plots: # the pictures of docs/choosing.md: the same traffic through every limiter, recorded and drawn
	@scripts/plots.sh

lint: # formatting and lints, shell scripts included
	@scripts/lint.sh

clean: # everything built or fetched
	@rm -rf target
