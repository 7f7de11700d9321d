# Sourced by the other scripts: messages, and the packages that a purpose needs.
root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf 'brrr: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# packages_for PURPOSE...: the packages of scripts/packages, one per line.
packages_for() {
  local purpose rest want
  while read -r purpose rest; do
    for want in "$@"; do
      [[ $purpose == "$want" ]] && tr ' ' '\n' <<<"$rest"
    done
  done <"$root/scripts/packages" || true
}

# missing_packages PACKAGE...: those that dpkg does not have installed.
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  local package
  for package in "$@"; do
    grep -q "^$package installed$" <<<"$installed" || printf '%s\n' "$package"
  done
}

# present_packages: those of scripts/packages that dpkg has installed, with their versions. CMake must look
# again when they change: a test of what it did not find would stay skipped.
present_packages() {
  local packages
  mapfile -t packages < <(packages_for build run test)
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null |
    awk '$3 == "installed" {print $1, $2}' | sort | tr '\n' ' ' || true
}

# need PURPOSE...: installs what is missing, or says how and exits. A stamp keyed on the list and the
# machine keeps the answer, so nothing is asked twice.
need() {
  local packages stamp key
  # Unpacked beside us by scripts/pack_dependencies.sh, for a machine without a package manager.
  if [[ -n ${BRRR_DEPS_DIR-} ]]; then return; fi
  mapfile -t packages < <(packages_for "$@")
  stamp=$root/build/.packages-$(IFS=-; echo "$*")
  key="$HOSTNAME ${packages[*]}"
  if [[ -e $stamp && $(<"$stamp") == "$key" ]]; then return; fi
  mkdir -p "$root/build"
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: expecting these packages' equivalents: ${packages[*]}"
    printf '%s' "$key" >"$stamp"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "${packages[@]}")
  if ((${#missing[@]} > 0)); then
    local as_root=()
    if ((EUID != 0)); then
      if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
      else
        say "these packages are missing: ${missing[*]}"
        say "install them with this command, then run again:"
        printf '  %sapt-get update && %sapt-get install -y --no-install-recommends %s\n' \
          "$(command -v sudo >/dev/null && echo 'sudo ')" \
          "$(command -v sudo >/dev/null && echo 'sudo ')" "${missing[*]}" >&2
        command -v sudo >/dev/null || say "(as root: this machine has no sudo)"
        exit 1
      fi
    fi
    say "installing ${missing[*]}"
    local log=$root/build/packages.log
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    # The lists may be absent or stale: refresh them only when installing without that fails.
    if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null; then
      if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends \
        "${missing[@]}"; } >>"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" >&2
        die "could not install the packages; the whole log is $log"
      fi
    fi
  fi
  printf '%s' "$key" >"$stamp"
}

# Text on one line of the terminal, overwritten by the next; nothing where stderr is no terminal.
progress_line() {
  [[ -t 2 ]] && printf '\r\033[K%s' "$*" >&2
  return 0
}
