#!/usr/bin/env bash
# build.sh [release | sanitize] [TARGET]: installs what is missing, configures and builds build/<kind>;
# "sanitize" (clang) holds the sanitized tests and the fuzzers. With BRRR_DEPS_DIR nothing is installed
# (scripts/pack_dependencies.sh). Calls at the same time wait for each other. One line of progress; on
# failure the compiler's messages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kind=${1:-release}
target=${2:-all}
options=(-DCMAKE_BUILD_TYPE=Release)
purposes=(build run test)
# GoogleTest is asked for only when tests are built: `./brrr train` does not need it.
case $kind in
  release) if [[ $target == brrr || $target == brrr_installed ]]; then purposes=(build run); fi ;;
  sanitize)
    options=(-DCMAKE_BUILD_TYPE=Debug -DBRRR_SANITIZE=ON -DCMAKE_CXX_COMPILER=clang++-14)
    purposes+=(sanitize)
    ;;
  *) say "build: expected release or sanitize; got '$kind'"; exit 2 ;;
esac
need "${purposes[@]}"
if [[ ! " ${purposes[*]} " == *" test "* ]]; then
  # Without GoogleTest the same folder is configured without tests, and again with them later.
  [[ -e ${BRRR_DEPS_DIR:-/usr}/include/gtest/gtest.h ]] || options+=(-DBRRR_TESTS=OFF)
fi
[[ " ${options[*]} " == *BRRR_TESTS* ]] || options+=(-DBRRR_TESTS=ON)
if [[ -n ${BRRR_DEPS_DIR-} ]]; then
  options+=("-DBRRR_DEPS_DIR=$(cd "$BRRR_DEPS_DIR" && pwd)")
fi

build=$root/build/$kind
log=$build/build.log
mkdir -p "$build"
exec {lock}>"$build/.lock"
if ! flock -n "$lock"; then
  say "waiting for another build"
  flock "$lock"
fi
# The stamp takes the time before the build: what changes during it is built next time.
stamp=$build/.built-$target
printf '%s' "$HOSTNAME" >"$stamp.new"

fail() {
  progress_line ""
  tail -n 60 "$log" >&2
  rm -f "$root"/build/.packages-* "$stamp.new"
  die "$1; the whole log is $log"
}
# Configured again when the options or the packages changed, or the last configuration failed.
key="${options[*]} $([[ -n ${BRRR_DEPS_DIR-} ]] || present_packages)"
if [[ ! -e $build/build.ninja || ! -e $build/.configured || $(<"$build/.configured") != "$key" ]]; then
  progress_line "brrr: configuring build/$kind"
  # Without the cache, because CMake drops options where the compiler is another one than before.
  rm -f "$build/.configured" "$build/CMakeCache.txt"
  cmake -S "$root" -B "$build" -G Ninja "${options[@]}" >"$log" 2>&1 || fail "configuring failed"
  printf '%s' "$key" >"$build/.configured"
fi

# What ccache asks for where headers are precompiled.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
[[ -t 2 ]] || say "building build/$kind ($target)"
started=$SECONDS
# Memory, not cores, limits small machines: up to 1.3 GB per compiler, for files that are joined.
jobs=${BRRR_JOBS:-$(nproc)}
memory_gb=$(awk '/MemAvailable/ {print int($2 / 1363149)}' /proc/meminfo 2>/dev/null || echo "$jobs")
[[ -n ${BRRR_JOBS-} ]] || ((memory_gb < 1 || memory_gb >= jobs)) || jobs=$memory_gb
show() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    [[ $line == \[* ]] && progress_line "brrr: building ${line:0:100}"
  done
  progress_line ""
}
: >"$log"
ninja -C "$build" -j "$jobs" "$target" 2>&1 | show || fail "the build failed"
((SECONDS - started < 3)) || say "built in $((SECONDS - started)) s"
mv "$stamp.new" "$stamp"
