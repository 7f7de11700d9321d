#!/usr/bin/env bash
# package_check.sh [FOLDER]: tries the packages of scripts/package.sh in FOLDER (dist/) as their users would,
# in bare systems that debootstrap makes and that no network reaches: the tarball on Debian 12 and on
# Ubuntu 22.04; on Debian 12 the lines of README.md that install the Debian package and the wheel (in
# an empty environment of Python), the Python example, and the C and C++ examples built by find_package.
# What apt installs there is downloaded before. Skipped with a reason where that cannot be done.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder=$(cd "${1:-$root/dist}" && pwd)
for tool in unshare chroot debootstrap; do
  command -v "$tool" >/dev/null || { say "package_check: skipped, there is no $tool"; exit 0; }
done
((EUID == 0)) || { say "package_check: skipped, only root can make systems"; exit 0; }
(cd "$folder" && sha256sum --quiet --check SHA256SUMS)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
train=(train --text /root/text.txt --max-steps 20 --samples 0 --output-dir /root/run)

make_system() { # SUITE [OPTION]: $work/SUITE, from the mirror that debootstrap knows for it
  local to=$work/$1
  debootstrap --variant=minbase ${2:+"$2"} "$1" "$to" >"$log" 2>&1 || return 1
  for _ in $(seq 60); do echo "To be, or not to be, that is the question."; done >"$to/root/text.txt"
  mkdir "$to/root/dist"
  cp "$folder"/* "$to/root/dist/"
}
# A namespace of its own for whatever is mounted, and an environment that knows nothing of this machine.
enter() { # NETWORK SYSTEM COMMAND...: NETWORK is --net for none, --uts for that of this machine
  local apart=$1 at=$work/$2
  shift 2
  unshare "$apart" --mount --pid --fork sh -c 'mount -t proc proc "$0/proc" && mount -t devpts devpts "$0/dev/pts" &&
    exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
      chroot "$0" sh -c "cd /root && exec \"\$@\"" sh "$@"' "$at" "$@" >>"$log" 2>&1
}
outside() { enter --uts "$@"; } # with the network
inside() { enter --net "$@"; }
must() { # WHAT COMMAND...
  local what=$1
  shift
  : >"$log"
  "$@" || { tail -n 40 "$log" >&2; die "package_check: $what failed"; }
}
line_of_readme() { # BEGINNING: what follows it, up to a comment
  sed -n "s|^    $1\(.*[^ ]\)  *#.*|\1|p" "$root/README.md" | grep . ||
    die "package_check: README.md has no line '$1'"
}

try_tarball() { # SYSTEM
  must "unpacking the tarball" tar -C "$work/$1/root" -xf "$folder"/brrr-*-linux-x86_64.tar.xz
  must "the tarball on $1" inside "$1" sh -c '"$(echo /root/brrr-*-linux-x86_64/bin/brrr)" "$@"' sh "${train[@]}"
  rm -rf "$work/$1/root"/{run,brrr-*}
  say "the tarball trains on a bare $1"
}

make_system bookworm ||
  { tail -n 3 "$log" >&2; say "package_check: skipped, debootstrap cannot make Debian 12"; exit 0; }
try_tarball bookworm

install=$(line_of_readme 'sudo ')
must "apt-get update" outside bookworm apt-get update
must "downloading what the package depends on" outside bookworm sh -c "${install/apt install/apt-get install -y --download-only}"
must "sudo $install" inside bookworm sh -c "${install/apt install/apt-get install -y}"
must "the Debian package" inside bookworm brrr "${train[@]}"
must "its files" inside bookworm sh -c 'dpkg --verify brrr && ldconfig -p | grep -q libbrrr.so.0 && brrr --version'
rm -rf "$work/bookworm/root/run"
say "the Debian package installs with apt and trains on a bare bookworm"

must "installing compilers and Python" outside bookworm \
  apt-get install -y --no-install-recommends gcc g++ cmake make pkg-config python3-venv
cp -r "$root/examples" "$work/bookworm/root/"
must "the C example" inside bookworm sh -c "brrr ${train[*]} && cmake -S examples/c_api -B c -DCMAKE_C_FLAGS='-Wall -Werror' &&
  cmake --build c && c/c_api run 'To be'"
must "the C++ examples" inside bookworm sh -c "cmake -S examples/cpp -B cpp -DCMAKE_CXX_FLAGS='-Wall -Werror' &&
  cmake --build cpp -j $(nproc) && cpp/own_graph && cpp/own_loss && cpp/own_data && cpp/train_gpt text.txt 10 &&
  cpp/finetune train_gpt_model text.txt further 3 && cpp/generate further 'To be'"
must "the Python module of the package" inside bookworm python3 examples/python/train.py text.txt from_python
say "the examples of C, C++ and Python run against the installed package"

must "removing the package" inside bookworm apt-get purge -y brrr
install=$(line_of_readme 'pip ')
must "an environment of Python" inside bookworm python3 -m venv empty
must "pip $install" inside bookworm sh -c "empty/bin/pip ${install/install/install --no-index}"
must "the wheel" inside bookworm sh -c 'PATH=/root/empty/bin:$PATH; brrr --version && python -m brrr --version &&
  python examples/python/train.py text.txt from_wheel && python examples/python/own_graph.py'
say "the wheel installs with pip and trains in an empty environment of Python"

keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
if [[ ! -r $keys ]]; then
  # Signatures cannot be checked without the distribution's keys; what is tried there is ours.
  make_system jammy --no-check-gpg
else
  make_system jammy "--keyring=$keys"
fi || { say "Ubuntu 22.04 was not tried: debootstrap cannot make it"; exit 0; }
try_tarball jammy
