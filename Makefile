# make demo   the main job on a real memcached, with its result
# make test   lints and all tests
# make bench  every experiment, quickly; BENCH=name for one of them
# make lint   formatting and lints only
# make install-capi   the C library, into PREFIX=/usr/local (DESTDIR=... for packages)
# make packages  Debian packages in target/packages
# make setup  the Debian packages that the others need (they call it themselves; the demo needs fewer)

CARGO   ?= cargo
BENCH   ?=
DEMO    ?=
PREFIX  ?= /usr/local
DESTDIR ?=
TARGET  := $(or $(CARGO_TARGET_DIR),target)
LAB     := $(TARGET)/dist/spillway-lab
BUILD_DIST := $(CARGO) build --profile dist -p spillway-cli -p spillway-shim

.PHONY: demo test bench lint bare setup setup-demo setup-build build dist install-capi packages clean

demo: dist
	$(LAB) demo $(DEMO)

test: setup lint bare build
	$(CARGO) test --release --workspace --no-fail-fast

bench: setup dist
	$(if $(BENCH),$(LAB) bench $(BENCH),$(LAB) bench all --quick)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

# Parts of core that need no operating system are built without one.
bare:
	@CARGO='$(CARGO)' tools/check-bare

# The preload library is no dependency of the command, so a build of everything comes before tests that use it.
build:
	$(CARGO) build --release --workspace

dist: setup-demo
	$(BUILD_DIST) -p spillway-lab-cli

install-capi:
	$(CARGO) build --profile dist -p spillway-capi
	tools/install-capi --from '$(TARGET)/dist' --prefix '$(PREFIX)' --destdir '$(DESTDIR)'

# Without what the demo needs: a host that builds packages is to get no memcached that runs.
packages: setup-build
	$(BUILD_DIST)
	tools/packages '$(TARGET)/dist' target/packages

setup:
	@tools/setup all

setup-demo:
	@tools/setup demo

setup-build:
	@tools/setup build

clean:
	$(CARGO) clean
