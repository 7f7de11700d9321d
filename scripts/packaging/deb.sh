#!/usr/bin/env bash
# deb.sh PYTHON_PACKAGE PREFIX VERSION FOLDER: writes the Debian package of PREFIX into FOLDER. Its
# dependencies are those that dpkg-shlibdeps finds.
set -euo pipefail
package=$1 prefix=$2 version=$3 folder=$4
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/root
mkdir -p "$root/usr" "$root/DEBIAN"
chmod 755 "$root"
cp -a "$prefix/." "$root/usr/"
mkdir -p "$root/usr/share/zsh/vendor-completions" "$root/usr/lib/python3/dist-packages/brrr"
mv "$root/usr/share/zsh/site-functions/_brrr" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
install -m 644 "$package"/*.py "$root/usr/lib/python3/dist-packages/brrr/"
gzip -9n "$root"/usr/share/man/man1/*.1
documents=$root/usr/share/doc/brrr
cat "$documents/LICENSE" <(echo) "$documents/NOTICES" >"$documents/copyright"
rm "$documents/LICENSE" "$documents/NOTICES"
printf 'brrr (%s) unstable; urgency=medium\n\n  * Release %s.\n\n -- Brrr <brrr@localhost>  %s\n' "$version" "$version" \
  "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$documents/changelog.gz"

mkdir "$work/debian"
printf 'Source: brrr\n\nPackage: brrr\nArchitecture: amd64\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O -lroot/usr/lib --ignore-missing-info \
  root/usr/bin/brrr root/usr/lib/libbrrr.so."$version" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
[[ -n $depends ]] || { echo "deb.sh: dpkg-shlibdeps found no dependency" >&2; exit 1; }
size=$(find "$root/usr" -type f -printf '%s\n' | awk '{kib += int(($1 + 1023) / 1024)} END {print kib}')
cat >"$root/DEBIAN/control" <<CONTROL
Package: brrr
Version: $version
Architecture: amd64
Maintainer: Brrr <brrr@localhost>
Installed-Size: $size
Depends: $depends
Recommends: ca-certificates, curl
Suggests: python3, python3-numpy
Section: science
Priority: optional
Description: trains, compresses and runs neural nets on plain CPUs
 Brrr trains, fine-tunes, quantises and runs transformers, recurrent nets and
 nets for pictures: folders of Hugging Face, GGUF and ONNX files. It knows every
 byte of a run before the run starts, and says where the time goes.
 .
 This package has the program, the library for C and C++ with its headers, and
 the module brrr for Python 3.
CONTROL
echo 'activate-noawait ldconfig' >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0 -r touch -h -d "@$SOURCE_DATE_EPOCH"
dpkg-deb --root-owner-group -Zxz --build "$root" "$folder/brrr_${version}_amd64.deb" >/dev/null
