#!/usr/bin/env bash
# pack_dependencies.sh FOLDER|FILE.tar.xz: copies what a build needs besides a compiler, CMake and Ninja
# (headers and libraries of the packages in scripts/packages, CUDA's headers, texts for tests) into
# FOLDER, or into an archive, which is a sixth as large, for a machine without a package manager. There,
# unpacked:  BRRR_DEPS_DIR=FOLDER ./brrr train ...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
(($# == 1)) || { say "pack_dependencies: expected a folder, or a file named *.tar.xz"; exit 2; }
need build test
folder=$1
if [[ $1 == *.tar.xz ]]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder/include" "$folder/lib"

# header folders and files, as they stand below an include path
headers=(hwy fmt nlohmann toml++ gtest oneapi openssl webp)
for name in "${headers[@]}"; do
  found=
  for root_folder in /usr/include "/usr/include/$(uname -m)-linux-gnu"; do
    if [[ -d $root_folder/$name ]]; then
      cp -rL "$root_folder/$name" "$folder/include/"
      found=1
    fi
  done
  [[ -n $found ]] || die "pack_dependencies: the headers $name were not found"
done
for root_folder in /usr/include "/usr/include/$(uname -m)-linux-gnu"; do
  for file in "$root_folder"/dnnl*.h "$root_folder"/dnnl*.hpp "$root_folder/httplib.h" "$root_folder/pcre2.h" \
    "$root_folder/utf8proc.h" "$root_folder/zlib.h" "$root_folder/zconf.h" "$root_folder/zstd.h" \
    "$root_folder/zstd_errors.h" "$root_folder"/j{peglib,config,morecfg,error}.h \
    "$root_folder"/png{,conf,libconf}.h; do
    if [[ -e $file ]]; then cp -L "$file" "$folder/include/"; fi
  done
done

# Libraries once, under the name that programs ask for, and a link for the linker.
for name in dnnl hwy fmt cpp-httplib pcre2-8 utf8proc z zstd jpeg png16 webp webpdemux; do
  path=$(find /usr/lib -name "lib$name.so" -print -quit 2>/dev/null)
  [[ -n $path ]] || die "pack_dependencies: lib$name.so was not found"
  real=$(readlink -f "$path")
  soname=$(objdump -p "$real" | awk '/SONAME/ {print $2}')
  cp "$real" "$folder/lib/$soname"
  ln -sf "$soname" "$folder/lib/lib$name.so"
done
# What those were built with.
for soname in $(objdump -p "$folder"/lib/lib{cpp-httplib,dnnl}.so | awk '/NEEDED/ {print $2}' |
  grep -E '^lib(ssl|crypto|z|brotli|OpenCL)' | sort -u) libbrotlicommon.so.1; do
  path=$(find /usr/lib -name "$soname" -print -quit 2>/dev/null)
  [[ -n $path ]] || die "pack_dependencies: $soname was not found"
  cp -L "$path" "$folder/lib/$soname"
done
for name in gtest gtest_main; do
  path=$(find /usr/lib -name "lib$name.a" -print -quit 2>/dev/null)
  [[ -n $path ]] || die "pack_dependencies: lib$name.a was not found"
  cp "$path" "$folder/lib/"
done
# The headers of CUDA, where they are here: that machine may have its libraries alone.
cuda=$(realpath -m "${CUDA_HOME:-/usr/local/cuda}/include")
if [[ -e $cuda/cublasLt.h ]]; then
  printf '#include <%s>\n' cuda.h nvrtc.h cublasLt.h | "${CXX:-c++}" -M -x c++ -I"$cuda" - |
    tr -s ' \\' '\n' | grep "^$cuda/" | while read -r file; do
      mkdir -p "$folder/cuda/include/$(dirname "${file#"$cuda/"}")"
      cp -L "$file" "$folder/cuda/include/${file#"$cuda/"}"
    done || true
  [[ -e $folder/cuda/include/cublasLt.h ]] ||
    say "pack_dependencies: the headers of CUDA in $cuda could not be followed: none are packed"
fi
# Texts and tokenizers for a machine without a network, where they are here.
data=${BRRR_DATA:-$root/../shared/data}
if [[ -d $data ]]; then
  mkdir -p "$folder/data"
  cp -rL "$data/." "$folder/data/"
fi
if [[ $1 == *.tar.xz ]]; then tar -C "$folder" -cJf "$1" .; fi
say "$1: $(du -sm "$1" | cut -f 1) MiB"
