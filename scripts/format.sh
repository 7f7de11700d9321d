#!/usr/bin/env bash
# format.sh [--check]: clang-format 14 over the sources; with --check it changes nothing, lists the
# files that differ and exits 1 when there are any.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1-} in
  '') mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  *) say "format: expected nothing or --check; got '$1'"; exit 2 ;;
esac
need format
# Another version lays out differently.
program=$(command -v clang-format-14 || true)
[[ -n $program ]] || die "format: clang-format-14 is not there"
mapfile -t files < <(cd "$root" && find src include examples tests bench -name '*.cpp' -o -name '*.h' -o -name '*.cuh' | sort)
cd "$root"
# Many files to a call; the first word of a complaint is "FILE:LINE:COLUMN:".
status=0
output=$(printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 40 "$program" "${mode[@]}" 2>&1) || status=$?
mapfile -t differing < <(sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: .*/\1/p' <<<"$output" | sort -u)
if ((status != 0 && ${#differing[@]} == 0)); then
  printf '%s\n' "$output" >&2
  die "format: clang-format failed"
fi
if ((${#differing[@]} > 0)); then
  printf 'not formatted: %s\n' "${differing[@]}"
  say "format: ${#differing[@]} of ${#files[@]} files differ; run ./brrr format"
  exit 1
fi
