#!/usr/bin/env bash
# describe.sh PROGRAM SHARE: writes what the program says of itself below the folder SHARE: a man page
# for it and for each verb, completions for bash, zsh and fish, and the notices of what it is linked
# with. `cmake --install` calls it.
set -euo pipefail
(($# == 2)) || { echo "describe.sh: expected PROGRAM SHARE" >&2; exit 2; }
program=$1 share=$2
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export BRRR_COMMAND=brrr COLUMNS=80 LC_ALL=C.UTF-8
version=$("$program" --version | cut -d ' ' -f 2)

write() { mkdir -p "$(dirname "$1")" && cat >"$1"; }
"$program" completion bash | write "$share/bash-completion/completions/brrr"
"$program" completion zsh | write "$share/zsh/site-functions/_brrr"
"$program" completion fish | write "$share/fish/vendor_completions.d/brrr.fish"

manual() { # NAME VERB...: the page NAME from `brrr VERB... --help`
  local name=$1
  shift
  "$program" "$@" --help | awk -v name="$name" -v version="$version" -v command="brrr${*:+ $*}" \
    -f "$here/manual.awk"
}
verbs_of() { "$program" "$@" --help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p'; }

{
  manual brrr
  echo '.SH ENVIRONMENT'
  "$program" info --env | awk '$2 != "tests:" && !/set by .\/brrr/ {
    name = $1; sub(/^[^ ]+ +/, ""); sub(/ \[[^]]*\]$/, ""); gsub(/\\/, "\\e"); printf ".TP\n.B %s\n%s\n", name, $0 }'
  echo '.SH EXIT STATUS'
  echo '0 done, 1 failed, 2 wrong usage, 3 does not fit in memory, 128 + n stopped by signal n after saving.'
} | write "$share/man/man1/brrr.1"
for verb in $(verbs_of); do
  manual "brrr-$verb" "$verb" | write "$share/man/man1/brrr-$verb.1"
done
for verb in $(verbs_of data); do
  manual "brrr-data-$verb" data "$verb" | write "$share/man/man1/brrr-data-$verb.1"
done

mkdir -p "$share/doc/brrr"
cp "$here/../../LICENSE" "$share/doc/brrr/LICENSE"
"$here/notices.sh" "$program" | write "$share/doc/brrr/NOTICES"
