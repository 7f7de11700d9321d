#!/usr/bin/env bash
# notices.sh PROGRAM [--packages]: the licence notices of everything that the program is linked with, as
# Debian's packages state them; --packages: the names of those packages alone.
set -euo pipefail
program=$1
# Libraries of which headers alone are compiled in, and what the linker finds.
headers=(nlohmann-json3-dev libtomlplusplus-dev libcpp-httplib-dev libhwy-dev libfmt-dev libdnnl-dev)
command -v dpkg-query >/dev/null || { echo "See the licences of the libraries of this system."; exit 0; }
packages_of() {
  # dpkg knows files below /usr; the loader may find them by the link /lib.
  ldd "$program" | awk '$3 ~ /^\// {print $3}' | while read -r file; do
    real=$(readlink -f "$file")
    dpkg-query -S "$real" 2>/dev/null || dpkg-query -S "${real#/usr}" 2>/dev/null || true
  done | sed 's/:.*//' | sort -u
}
mapfile -t packages < <({ packages_of; printf '%s\n' "${headers[@]}"; } | sort -u)
[[ ${2-} != --packages ]] || { printf '%s\n' "${packages[@]}"; exit 0; }
echo "Brrr is linked with, or contains code of, these packages of Debian. Their notices follow."
echo
printf '  %s\n' "${packages[@]}"
declare -A seen=()
licences=()
for package in "${packages[@]}"; do
  notice=/usr/share/doc/$package/copyright
  [[ -r $notice ]] || continue
  sum=$(sha256sum <"$notice")
  [[ -z ${seen[$sum]-} ]] || continue  # several packages of one source
  seen[$sum]=1
  printf '\n======== %s ========\n\n' "$package"
  cat "$notice"
  mapfile -t -O "${#licences[@]}" licences < <(grep -oE '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$notice")
done
# The licences that those refer to.
printf '%s\n' "${licences[@]}" | sort -u | while read -r licence; do
  [[ -r $licence ]] || continue
  printf '\n======== %s ========\n\n' "$(basename "$licence")"
  cat "$licence"
done
