#pragma once
// The verbs of the program: one table from which dispatch, help and shell completion come, and one
// function per verb. Functions return the exit code; what goes wrong they throw.

#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "infer/options.h"
#include "train/options.h"

namespace brrr::cli {

struct Command {
  std::string name;
  std::string summary;   // one line, for the list of verbs
  std::string synopsis;  // after the name: "[--text FILE...] [options]"
  std::string notes;     // further paragraphs of its help; may be empty
  std::vector<OptionInfo> options = {};
  int (*run)(const Arguments&) = nullptr;  // null when there are subcommands
  std::vector<Command> subcommands = {};
  bool takes_positional = false;  // else stray words are refused before run()
  /// Its product is files: it goes on when nobody reads what it says. The other verbs end at the
  /// first write that finds no reader, by SIGPIPE.
  bool works_unread = false;
  /// Several processes of it would write the same files: `brrr launch` does not start it.
  bool is_for_one_process = false;
  /// Its first word begins another command line, whose options are not its own.
  bool takes_command = false;
  /// What --help lists beside other options: null: `options`.
  std::vector<OptionInfo> (*options_for_help)(std::vector<OptionInfo> all,
                                              const KeyValues& given) = nullptr;
};

/// All verbs, in the order of the help.
const std::vector<Command>& commands();

/// The most threads of a team, as --threads has it.
inline constexpr int kMostThreads = 4096;
/// Throws UserError (exit 2) where the environment asks for more.
void check_team();
/// Sets the number of threads for everything that follows; 0 leaves it as the environment has it,
/// which is checked.
void use_threads(int64_t threads);
/// Throws UserError for a file that cannot be written, before the work is done whose result it is
/// to hold; "" is no file.
void check_place(const std::string& file);
/// To standard output; both throw where it cannot be written to, at once: the work is in vain then.
void write_output(std::string_view text);
void flush_output();
/// Standard output is a terminal that wants colour.
bool colour_on_stdout();

// One per cmd_*.cpp.
Command data_command();
Command bench_command();
Command plan_command();
Command ladder_command();
Command profile_command();
Command report_command();
Command export_command();
Command quantize_command();
Command merge_command();
Command run_command();
Command runs_command();
Command info_command();
Command completion_command();
Command launch_command();
/// The options that a command line of `train` means.
train::TrainOptions train_options(const Arguments& args);
int train_main(const train::TrainOptions& options);
int generate_main(const infer::GenerateOptions& options);
int embed_main(const infer::EmbedOptions& options);
int classify_main(const infer::ClassifyOptions& options);
int rerank_main(const infer::RerankOptions& options);
int fill_mask_main(const infer::FillMaskOptions& options);
int eval_main(const infer::EvalOptions& options);

}  // namespace brrr::cli
