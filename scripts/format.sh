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
mapfile -t files < <(cd "$root" && find src tests bench -name '*.cpp' -o -name '*.h' -o -name '*.cuh' | sort)
cd "$root"
differing=0
for file in "${files[@]}"; do
  if ! "$program" "${mode[@]}" "$file" >/dev/null 2>&1; then
    differing=$((differing + 1))
    echo "not formatted: $file"
  fi
done
if ((differing > 0)); then
  say "format: $differing of ${#files[@]} files differ; run ./brrr format"
  exit 1
fi
