#!/usr/bin/env bash
# bundled.sh LIBRARY FOLDER: copies what LIBRARY needs of this system into FOLDER, each under the name
# by which it is looked for, but for what every system with a C++ program has: the C library and GCC's.
# Prints "GLIBC VERSION" and "GLIBCXX VERSION", what all of them need of those.
set -euo pipefail
library=$1 folder=$2
mkdir -p "$folder"
ldd "$library" | awk '$3 ~ /^\// {print $1, $3}' |
  grep -vE '^(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' | sort |
  while read -r name file; do
    install -m 644 "$file" "$folder/$name"
    strip --strip-unneeded "$folder/$name"
  done
for family in GLIBC GLIBCXX; do
  newest=$(for file in "$library" "$folder"/*.so*; do objdump -T "$file"; done |
    grep -oE "\b${family}_[0-9.]+" | sort -uV | tail -n 1)
  echo "$family ${newest#*_}"
done
