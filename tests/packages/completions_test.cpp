// Completions as the shells themselves make them: zsh at a pseudo-terminal with its completion
// system, fish by `complete -C`, bash by its programmable completion. Skipped where a shell is
// absent.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

class Completions : public testing::Test {
 protected:
  void need(const std::string& shell) {
    if (std::system(fmt::format("command -v {} > /dev/null 2>&1", shell).c_str()) != 0)
      GTEST_SKIP() << "there is no " << shell;
    fs::create_directory(folder_.path() / "functions");
    write_file_atomically(folder_.path() / "notes.toml", "");
  }
  /// Writes the completion of the shell into a file of the folder.
  void write_completion(const std::string& shell, const std::string& name) {
    const std::string line = fmt::format("BRRR_COMMAND=brrr '{}' completion {} > '{}'", BRRR_BINARY,
                                         shell, (folder_.path() / name).string());
    ASSERT_EQ(std::system(line.c_str()), 0) << line;
  }
  /// What a script of the shell prints within half a minute; it runs in the folder.
  std::string output_of(const std::string& shell, const std::string& script) {
    write_file_atomically(folder_.path() / "script", script);
    const std::string line =
        fmt::format("cd '{}' && HOME=\"$PWD\" timeout 30 {} script > said 2> errors < /dev/null",
                    folder_.path().string(), shell);
    EXPECT_EQ(std::system(line.c_str()), 0) << read_file(folder_.path() / "errors");
    return read_file(folder_.path() / "said");
  }

  TempFolder folder_;
};

TEST_F(Completions, ZshCompletesFromItsFirstTab) {
  need("zsh");
  if (IsSkipped()) return;
  write_completion("zsh", "functions/_brrr");
  // Types each line and a Tab into a new interactive shell, in which a function called brrr prints
  // its arguments. zsh autoloads the completion file from fpath, as it does an installed one.
  const std::string said = output_of("zsh -f", R"(
zmodload zsh/zpty
wait_for() {
  local part
  REPLY=
  repeat 400; do
    if zpty -r -t shell part; then REPLY+=$part; else sleep 0.05; fi
    [[ $REPLY != *$~1* ]] || return 0
  done
  print -r -- "waited for $1 in ${(qqqq)REPLY}"
}
complete_line() {
  zpty -b shell zsh -f -i
  zpty -w shell 'unset zle_bracketed_paste; fpath=($PWD/functions $fpath)'
  zpty -w shell 'autoload -Uz compinit; compinit -u -D; setopt no_beep menu_complete; bindkey -e'
  zpty -w shell 'brrr() { print -r -- "words[$*]" }; PS1=rea""dy'
  wait_for ready
  zpty -w -n shell "$1"$'\t'
  sleep 0.2
  zpty -w -n shell $'\r'
  wait_for 'words\[*\]'
  print -r -- "${${REPLY#*words\[}%\]*}"
  zpty -d shell
}
complete_line 'brrr ev'
complete_line 'brrr train --learning-r'
complete_line 'brrr train --no-fu'
complete_line 'brrr train --precision b'
complete_line 'brrr train --precision=b'
complete_line 'brrr data prep'
complete_line 'brrr data prepare --format '
complete_line 'brrr train --config not'
complete_line 'brrr completion z'
)");
  EXPECT_EQ(said,
            "eval\ntrain --learning-rate\ntrain --no-fused-optimizer\ntrain --precision bf16\n"
            "train --precision=bf16\ndata prepare\ndata prepare --format llmc\n"
            "train --config notes.toml\ncompletion zsh\n");
}

TEST_F(Completions, FishCompletes) {
  need("fish");
  if (IsSkipped()) return;
  write_completion("fish", "brrr.fish");
  const std::string said = output_of("fish --no-config", R"(
source brrr.fish
for line in 'brrr ev' 'brrr train --pre' 'brrr train --no-fu' 'brrr train --precision b' \
    'brrr train --precision=b' 'brrr data prep' 'brrr data prepare tra' 'brrr data prepare --format ' \
    'brrr train --config not' 'brrr generate --model train --precision f' 'brrr completion '
  echo "$line:" (complete -C $line | string split -f 1 \t)
end
)");
  EXPECT_EQ(said,
            "brrr ev: eval\n"
            "brrr train --pre: --precision --preset\n"
            "brrr train --no-fu: --no-fused-optimizer\n"
            "brrr train --precision b: bf16\n"
            "brrr train --precision=b: --precision=bf16\n"
            "brrr data prep: prepare\n"
            "brrr data prepare tra:\n"
            "brrr data prepare --format : llmc nanogpt\n"
            "brrr train --config not: notes.toml\n"
            "brrr generate --model train --precision f: fp16 fp32\n"
            "brrr completion : bash fish zsh\n");
}

}  // namespace
}  // namespace brrr::test
