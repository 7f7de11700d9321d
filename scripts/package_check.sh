#!/usr/bin/env bash
# package_check.sh [FOLDER]: as root, tries the packages of scripts/package.sh in FOLDER (dist/) in bare roots
# without a network: the tarball where there are the C and C++ libraries and a shell alone, the Debian
# package with what it depends on. Roots are unpacked from packages that apt has or downloads.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder=$(cd "${1:-$root/dist}" && pwd)
for tool in unshare chroot apt-get apt-cache dpkg-deb; do
  command -v "$tool" >/dev/null || { say "package_check: skipped, there is no $tool"; exit 0; }
done
((EUID == 0)) || { say "package_check: skipped, only root can make roots"; exit 0; }
(cd "$folder" && sha256sum --quiet --check SHA256SUMS)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

archive_of() { # PACKAGE: its .deb, from apt's archives or by apt-get download
  local file
  file=$(find /var/cache/apt/archives "$work" -maxdepth 1 -name "$1_*.deb" 2>/dev/null | sort -V | tail -n 1)
  if [[ -z $file ]]; then
    (cd "$work" && apt-get download "$1" >/dev/null 2>&1) || die "package_check: there is no package $1"
    file=$(find "$work" -maxdepth 1 -name "$1_*.deb" | head -n 1)
  fi
  printf '%s\n' "$file"
}
closure_of() { # PACKAGE...: with everything that they depend on
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "$@" 2>/dev/null | grep -E '^[a-z0-9]' | sort -u |
    grep -vE '^(debconf|dpkg|perl|install-info|.*:i386$)' || true
}
make_root() { # FOLDER PACKAGE...
  local to=$1 package archive
  shift
  mkdir -p "$to"/{usr/bin,usr/lib,usr/lib64,usr/sbin,tmp,proc,dev}
  for name in bin lib lib64 sbin; do ln -s "usr/$name" "$to/$name"; done
  for package in "$@"; do
    archive=$(archive_of "$package")
    dpkg-deb --fsys-tarfile "$archive" | tar -C "$to" -x --keep-directory-symlink
  done
  touch "$to/dev/null"
  for _ in $(seq 60); do echo "To be, or not to be, that is the question."; done >"$to/tmp/text.txt"
}
inside() { # ROOT COMMAND...: without a network
  local at=$1
  shift
  unshare --net --mount --pid --fork sh -c 'mount --bind /dev/null "$0/dev/null" &&
    mount -t proc proc "$0/proc" && exec env -i HOME=/tmp PATH=/usr/bin /usr/sbin/chroot "$0" "$@"' "$at" "$@"
}
base=(libc6 libgcc-s1 libstdc++6 dash)
train=(train --text /tmp/text.txt --max-steps 20 --samples 0 --output-dir /tmp/run)

make_root "$work/tarball" "${base[@]}"
tar -C "$work/tarball/tmp" -xf "$folder"/brrr-*-linux-x86_64.tar.xz
inside "$work/tarball" "/tmp/$(basename "$folder"/brrr-*-linux-x86_64.tar.xz .tar.xz)/bin/brrr" "${train[@]}" \
  >"$work/said" 2>&1 || { cat "$work/said" >&2; die "package_check: the tarball failed"; }
say "the tarball runs where there are ${base[*]} alone"

deb=$(echo "$folder"/brrr_*.deb)
mapfile -t needed < <(dpkg-deb -f "$deb" Depends | tr ',' '\n' | sed 's/^ *//; s/[ (].*//')
mapfile -t needed < <({ closure_of "${needed[@]}"; printf '%s\n' "${base[@]}"; } | sort -u)
make_root "$work/deb" "${needed[@]}"
dpkg-deb --fsys-tarfile "$deb" | tar -C "$work/deb" -x --keep-directory-symlink
inside "$work/deb" brrr "${train[@]}" >"$work/said" 2>&1 ||
  { cat "$work/said" >&2; die "package_check: the Debian package failed"; }
say "the Debian package runs with what it depends on: ${#needed[@]} packages"

if python3 -m venv "$work/venv" >/dev/null 2>&1; then
  "$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$folder"/brrr-*.whl
  (cd "$work" && env -i HOME="$work" "$work/venv/bin/brrr" --version >/dev/null &&
    env -i HOME="$work" "$work/venv/bin/python" "$root/examples/python/train.py" "$work/deb/tmp/text.txt" \
      "$work/run" >"$work/said" 2>&1) || { cat "$work/said" >&2; die "package_check: the wheel failed"; }
  say "the wheel runs in an empty environment of Python"
else
  say "the wheel was not tried: python3 makes no environments here"
fi
