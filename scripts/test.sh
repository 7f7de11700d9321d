#!/usr/bin/env bash
# test.sh [FILTER] [--long] [--sanitize] [--bare] [--fuzz SECONDS]: builds and runs the tests. FILTER is a
# test folder ("data"), part of a test's name, or a GoogleTest pattern. --long: proofs of which other runs
# take a sample run whole, an hour or more. --bare: the faster tests as a fresh, busy machine runs them:
# without network, test data, models and caches, beside two busy loops. Failures are printed with their
# output and a command that repeats them; the last line is "N passed, N failed, N skipped". Exit 1 when
# any failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kind=release filter= fuzz_seconds= bare= arguments=("$@")
while (($# > 0)); do
  case $1 in
    --sanitize) kind=sanitize ;;
    --long) export BRRR_TEST_LONG=1 ;;
    --bare) bare=${bare:-outside} ;;
    --no-network) bare=inside ;; # --bare calls this script again with it
    --fuzz)
      kind=sanitize
      fuzz_seconds=${2-}
      [[ $fuzz_seconds =~ ^[1-9][0-9]*$ ]] ||
        { say "test: --fuzz needs seconds; got '${2-}'"; exit 2; }
      shift
      ;;
    -h | --help) sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) say "test: unknown option '$1'; expected --long, --sanitize, --bare or --fuzz SECONDS"; exit 2 ;;
    *) [[ -z $filter ]] || { say "test: one filter at most; got '$filter' and '$1'"; exit 2; }
      filter=$1 ;;
  esac
  shift
done

# Test data beside the checkout.
if [[ -n $bare ]]; then
  unset BRRR_DATA BRRR_MODELS BRRR_CACHE XDG_CACHE_HOME HF_HOME HF_HUB_CACHE HF_TOKEN HF_ENDPOINT
elif [[ -z ${BRRR_DATA-} && -d $root/../shared/data ]]; then
  BRRR_DATA=$(cd "$root/../shared/data" && pwd)
  export BRRR_DATA
fi
# Threads that wait must not spin while other tests run.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY-passive}
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS-print_stacktrace=1}

build=$root/build/$kind
stamp=$build/.built-all
if [[ ! -e $stamp || $(<"$stamp") != "$HOSTNAME" ]] || [[ -n $(find "$root/src" "$root/cmake" \
  "$root/tests" "$root/CMakeLists.txt" "$root/scripts/packages" -newer "$stamp" -print -quit) ]]; then
  "$root/scripts/build.sh" "$kind"
fi

# A network of its own that has the loopback device alone: tests talk to servers of their own.
if [[ $bare == outside ]]; then
  isolated=(unshare --net)
  ((EUID == 0)) || isolated=(unshare --map-root-user --net)
  if ! "${isolated[@]}" true 2>/dev/null; then
    say "test: --bare needs a network namespace, which this machine does not allow"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
  fi
  exec "${isolated[@]}" "${BASH_SOURCE[0]}" "${arguments[@]}" --no-network
fi

work=$(mktemp -d)
busy=()
clean_up() {
  ((${#busy[@]} == 0)) || kill "${busy[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
if [[ $bare == inside ]]; then
  # SIOCSIFFLAGS of "lo" with IFF_UP: `ip` is not on every machine.
  perl -MSocket -e 'my $request = pack("a16s", "lo", 1);
    socket(my $s, AF_INET, SOCK_DGRAM, 0) or die "no socket: $!\n";
    ioctl($s, 0x8914, $request) or die "cannot start the loopback device: $!\n"'
  export HOME=$work/home
  mkdir "$HOME"
  for _ in 1 2; do
    while :; do :; done &
    busy+=($!)
    disown # `wait` and `jobs` below are for the tests
  done
fi
passed=0 failed=0 skipped=0

if [[ -n $fuzz_seconds ]]; then
  for fuzzer in "$build"/tests/fuzz_*; do
    name=$(basename "$fuzzer")
    [[ -x $fuzzer && -f $fuzzer && (-z $filter || $name == *"$filter"*) ]] || continue
    seeds=$root/tests/fuzz/seeds/${name#fuzz_}
    mkdir -p "$work/$name"
    [[ -d $seeds ]] || seeds=
    # A fixed seed; bounded by time and by runs, whichever comes first.
    command=("$fuzzer" -seed=1 -runs=$((fuzz_seconds * 20000)) -max_total_time="$fuzz_seconds"
      -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/crash-$name-"
      "$work/$name" ${seeds:+"$seeds"})
    progress_line "brrr: $name"
    if "${command[@]}" >"$work/log" 2>&1; then
      passed=$((passed + 1))
      printf 'ok      %s (%s runs)\n' "$name" \
        "$(awk '/number_of_executed_units/ {print $2}' "$work/log")"
    else
      failed=$((failed + 1))
      printf 'FAILED  %s\n' "$name"
      tail -n 60 "$work/log"
      echo "repeat: $fuzzer $build/crash-$name-..."
    fi
  done
  progress_line ""
  ((passed + failed > 0)) || { say "test: no fuzzer matches '$filter'"; exit 1; }
  echo "$passed passed, $failed failed, $skipped skipped"
  exit $((failed > 0))
fi

# A filter that names a folder picks its binary; another is a pattern over all test names.
binaries=() pattern='*'
for binary in "$build"/tests/test_*; do
  if [[ -x $binary && -f $binary ]]; then binaries+=("$binary"); fi
done
if [[ -n $filter ]]; then
  if [[ -x $build/tests/test_${filter#test_} ]]; then
    binaries=("$build/tests/test_${filter#test_}")
  elif [[ $filter == *[*.:-]* ]]; then
    pattern=$filter
  else
    pattern="*$filter*"
  fi
fi
# Measurements want the machine for themselves, and the threads' usual way to wait.
lonely=(measured)
leave_out() { # PATTERN: adds to what the filter excludes
  if [[ $pattern == *-* ]]; then pattern+=":$1"; else pattern+="-$1"; fi
}
if [[ $kind == sanitize ]]; then
  while read -r line; do
    [[ -z $line || $line == \#* ]] || leave_out "$line"
  done <"$root/tests/left_out_when_sanitized.txt"
  # One source is compiled for every instruction set: where the processor has AVX-512, that one runs.
  if grep -q -m 1 avx512f /proc/cpuinfo; then leave_out '*/avx2*'; fi
fi
# --bare leaves out tests whose results depend on no network, data or neighbours and that only take long
# beside busy loops: kernels, passes, models, sessions, plans, and packages, which compile examples. Of
# the whole runs it takes those that communicate and wait; a bare machine has no browser.
heavy=(amx architecture calibration backend backend_cuda backend_cuda_cudnn backend_cuda_device conformance hosts infer insight
  measured models modules ops optim packages passes runtime)
whole_runs='Live.*:RunFolder.*:FirstHour.*:RunChoice.*:Hub*-*Browser*'
if [[ -n $bare && -z $filter ]]; then
  for part in 'DerivedWeights.*' 'WeightsInPanels.*' 'Fit.*' 'OptimizerGolden.*' 'Sessions.*' 'Freeze.*' \
    'EveryOption.*'; do
    leave_out "$part"
  done
fi
# Those that take longest begin first, so that both cores have work until the end.
longest=(backend backend_cuda insight e2e amx ops cli backend_cuda_device)
if [[ $kind == sanitize ]]; then longest=(backend infer train text models runtime passes ops insight); fi

most_seconds=1500
[[ -z ${BRRR_TEST_LONG-} ]] || most_seconds=infinity
run_one() { # BINARY: output and exit code into $work
  local name
  name=$(basename "$1")
  local status=0
  if [[ $name == test_measured ]]; then local -x OMP_WAIT_POLICY=active; fi
  local filter_here=$pattern
  if [[ -n $bare && -z $filter && $name == test_e2e ]]; then filter_here=$whole_runs; fi
  # A binary that hangs fails, instead of holding up the others.
  (cd "$work" && exec timeout --signal=ABRT --kill-after=30 "$most_seconds" \
    "$1" --gtest_filter="$filter_here" --gtest_color=no --gtest_print_time=1) \
    >"$work/$name.log" 2>&1 </dev/null || status=$?
  echo "$status" >"$work/$name.rc"
}

report() { # BINARY: prints what failed and adds to the counts
  local name log rc ok bad skip
  name=$(basename "$1") log=$work/$name.log rc=$(<"$work/$name.rc")
  ok=$(grep -c '^\[       OK \]' "$log" || true)
  bad=$(grep -c '^\[  FAILED  \] .* ms)$' "$log" || true)
  skip=$(grep -c '^\[  SKIPPED \] .* ms)$' "$log" || true)
  # A binary that ended without its summary died in the test that it ran last.
  if ! grep -q '^\[==========\] .* ran\.' "$log" || { ((rc != 0)) && ((bad == 0)); }; then
    bad=$((bad + 1))
    printf 'FAILED  %s ended with status %s\n' "$name" "$rc"
    tail -n 60 "$log"
    echo "repeat: $1 --gtest_filter='$(grep '^\[ RUN      \]' "$log" | tail -n 1 | cut -c 14-)'"
  elif ((bad > 0)); then
    # Each failed test with its output: from its RUN line to its FAILED line.
    awk -v binary="$1" '
      /^\[ RUN      \] / { text = ""; inside = 1 }
      inside { text = text $0 "\n" }
      /^\[  FAILED  \] .* ms\)$/ {
        printf "%s", text
        name = $4; sub(/,.*/, "", name)
        printf "repeat: %s --gtest_filter=%s%s%s\n\n", binary, "\x27", name, "\x27"
        inside = 0
      }
      /^\[       OK \]/ || /^\[  SKIPPED \]/ { inside = 0 }' "$log"
  fi
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
  if ((ok + bad + skip > 0)); then
    printf '%-7s %-28s %4d passed, %d failed, %d skipped, %s\n' \
      "$( ((bad == 0)) && echo ok || echo FAILED)" "$name" "$ok" "$bad" "$skip" \
      "$(sed -n 's/.* ran\. (\(.*\) total)$/\1/p' "$log")"
  fi
  # Why tests were skipped, once per reason.
  awk '/^\[ RUN      \] / { reason = "" }
       /: Skipped$/ { getline; reason = $0 }
       /^\[  SKIPPED \] .* ms\)$/ { count[reason]++ }
       END { for (r in count) printf "skipped %d: %s\n", count[r], r }' "$log"
}

parallel=() alone=()
for binary in "${binaries[@]}"; do
  name=$(basename "$binary")
  if [[ -n $bare && -z $filter && " ${heavy[*]} " == *" ${name#test_} "* ]]; then
    continue
  elif [[ " ${lonely[*]} " == *" ${name#test_} "* ]]; then
    alone+=("$binary")
  else
    parallel+=("$binary")
  fi
done

jobs=$(nproc)
ordered=()
for name in "${longest[@]}"; do
  for binary in "${parallel[@]}"; do
    if [[ $binary == */test_$name ]]; then ordered+=("$binary"); fi
  done
done
for binary in "${parallel[@]}"; do
  if [[ " ${ordered[*]} " != *" $binary "* ]]; then ordered+=("$binary"); fi
done
reported=" "
report_finished() { # reports the binaries that have ended since the last call
  local binary name
  for binary in "${ordered[@]}"; do
    name=$(basename "$binary")
    if [[ -e $work/$name.rc && $reported != *" $name "* ]]; then
      progress_line ""
      report "$binary"
      reported+="$name "
    fi
  done
}
for binary in "${ordered[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
  report_finished
  progress_line "brrr: $(basename "$binary")"
  run_one "$binary" &
done
while (($(jobs -rp | wc -l) > 0)); do
  wait -n || true
  report_finished
done
report_finished
progress_line ""
for binary in "${alone[@]}"; do
  progress_line "brrr: $(basename "$binary")"
  run_one "$binary"
  progress_line ""
  report "$binary"
done

if ((passed + failed + skipped == 0)); then
  say "test: no test matches '${filter:-*}'"
  echo "0 passed, 0 failed, 0 skipped"
  exit 1
fi
echo "$passed passed, $failed failed, $skipped skipped"
exit $((failed > 0))
