#!/usr/bin/env bash
# package.sh [FOLDER] [--check]: builds Brrr and writes its packages into FOLDER (dist/): a Debian package,
# a Python wheel, a tarball that runs where it is unpacked, and SHA256SUMS. The same sources in
# the same folder give the same bytes; --check links and packs a second time and compares.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parts=$root/scripts/packaging
folder=$root/dist is_checked=
for word in "$@"; do
  case $word in
    --check) is_checked=1 ;;
    -*) say "package: expected a folder or --check; got '$word'"; exit 2 ;;
    *) folder=$word ;;
  esac
done
need build run package
build=$root/build/release
version=$(sed -n 's/^project(brrr VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
# The time that everything bears: that of the last commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
export TZ=UTC LC_ALL=C.UTF-8
umask 022

pack() ( # FOLDER: all packages
  local to=$1 stage name
  stage=$(mktemp -d)
  trap 'rm -rf "$stage"' EXIT
  "$root/scripts/build.sh" release brrr_installed
  name=brrr-$version-linux-x86_64
  cmake --install "$build" --prefix "$stage/$name" --strip >/dev/null
  "$parts/bundled.sh" "$stage/$name/lib/libbrrr.so" "$stage/libraries" >"$stage/needs"
  local glibc glibcxx
  glibc=$(awk '$1 == "GLIBC" {print $2}' "$stage/needs")
  glibcxx=$(awk '$1 == "GLIBCXX" {print $2}' "$stage/needs")
  "$parts/deb.sh" "$root/python/brrr" "$stage/$name" "$version" "$to"
  python3 "$parts/wheel.py" "$root/python/brrr" "$stage/$name" "$stage/libraries" "$version" \
    "$glibc" "$glibcxx" "$to" >/dev/null
  cp "$stage/libraries"/* "$stage/$name/lib/"
  mkdir -p "$stage/$name/python"
  cp -r "$root/python/brrr" "$stage/$name/python/"
  rm -rf "$stage/$name/python/brrr/__pycache__"
  ln -s ../../lib "$stage/$name/python/brrr/lib"
  ln -s ../../bin "$stage/$name/python/brrr/bin"
  tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go-w \
    --mtime="@$SOURCE_DATE_EPOCH" -c "$name" | xz -T1 -6 >"$to/$name.tar.xz"
  say "the wheel and the tarball need glibc $glibc and libstdc++ with GLIBCXX_$glibcxx"
)

mkdir -p "$folder"
rm -f "$folder"/brrr[_-]*.{deb,whl,tar.xz} "$folder/SHA256SUMS"
pack "$folder"
(cd "$folder" && sha256sum -- *.deb *.whl *.tar.xz >SHA256SUMS)
if [[ -n $is_checked ]]; then
  again=$(mktemp -d)
  trap 'rm -rf "$again"' EXIT
  rm -f "$build"/src/libbrrr.so* "$build/installed/brrr"
  pack "$again"
  (cd "$again" && sha256sum --quiet --check "$folder/SHA256SUMS") || die "package: the second packages differ"
  say "packed twice: the same bytes"
fi
for file in "$folder"/*.deb "$folder"/*.whl "$folder"/*.tar.xz; do
  printf '%5.1f MB  %s\n' "$(stat -c %s "$file" | awk '{print $1 / 1e6}')" "$file"
done
