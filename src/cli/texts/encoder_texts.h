#pragma once
// What the verbs that read texts line by line share: the model with an encoder, and lines as the
// model reads them, some at a time, so that results come while later lines are read.

#include <optional>
#include <string>
#include <vector>

#include "data/packed/unpacked_file.h"
#include "folders/model_folder.h"
#include "infer/open/encoder_inputs.h"
#include "infer/options.h"

namespace brrr::cli {

/// The lines of files one after the other, or of standard input.
class LineReader {
 public:
  /// Files may be packed by gzip or Zstandard. Throws UserError for one that cannot be read.
  explicit LineReader(const std::vector<std::string>& files);
  /// Returns further lines without their ends: up to `most_lines`, or fewer once they have
  /// `most_bytes`; at a terminal one. None: there are no more.
  std::vector<std::string> next(size_t most_lines, size_t most_bytes = size_t{16} << 20);
  /// Where line `i` of the last next() stands: "texts.txt, line 3".
  std::string where(size_t i) const;
  /// Spent in waiting for standard input, for somebody who types or a program that writes.
  double seconds_waited() const { return seconds_waited_; }

 private:
  bool read_line(std::string& line);
  bool refill();
  void open_next();

  std::vector<std::string> files_;
  size_t next_file_ = 0;
  std::optional<io::UnpackedFile> file_;  // none: standard input, or all is read
  bool reads_stdin_ = false;
  bool is_terminal_ = false;
  std::string name_;
  std::string buffer_;
  size_t at_ = 0;     // in buffer_
  int64_t line_ = 0;  // lines read of this file
  double seconds_waited_ = 0;
  std::vector<std::string> places_;
};

/// Lines as a model reads them.
class EncoderTexts {
 public:
  /// `tokenizer` outlives this. `longest`: tokens that a text may have. `communicator`: rank 0
  /// reads the files, and all ranks get the lines; the constructor exchanges nothing.
  EncoderTexts(const infer::TextsOptions& options, const io::Tokenizer& tokenizer, int64_t longest,
               infer::TextForm form = infer::TextForm::with_special_tokens,
               Communicator* communicator = nullptr);

  /// Reads further lines; false when there are none.
  bool next();
  const std::vector<std::string>& lines() const { return lines_; }
  std::string where(size_t line) const { return places_[line]; }
  /// What the model reads of texts of a line, by the tokenizer. Counts it when it is cut; throws
  /// UserError with --no-truncate.
  io::ModelInput encode(size_t line, std::string_view first,
                        std::optional<std::string_view> second = std::nullopt);
  /// The same for a text that is not a line, such as a query; notes at once that it is truncated.
  /// `where` names it in messages.
  io::ModelInput encode_other(std::string_view text, const std::string& where);
  /// The same for the words of a line, each with the place of its tokens.
  io::ModelInput encode_words(size_t line, std::span<const std::string_view> words);
  int64_t count() const { return count_; }
  double seconds_waited() const { return reader_ ? reader_->seconds_waited() : 0; }
  /// Says on stderr, once, what was cut and how many lines were empty.
  void say_notes() const;

 private:
  void read_lines();
  void get_lines_of_first();
  io::ModelInput checked(const std::string& where, io::ModelInput input);

  const infer::TextsOptions& options_;
  const io::Tokenizer& tokenizer_;
  size_t longest_;
  infer::TextForm form_;
  Communicator* communicator_;
  std::optional<LineReader> reader_;  // of rank 0
  std::vector<std::string> lines_, places_;
  int64_t count_ = 0, empty_ = 0, cut_ = 0, broken_ = 0;
};

/// A list in a JSON object, printed result by result on standard output. Its beginning goes with
/// the first result: where something is wrong before that, only the message stands.
class ResultList {
 public:
  explicit ResultList(std::string name) : name_(std::move(name)) {}
  void print(const std::string& result);
  /// Ends the list, and the object with `rest`, the text of one that is not empty.
  void finish(const std::string& rest);

 private:
  std::string name_;
  bool has_begun_ = false;
};

/// Prints "1,000 texts in 1.20 s, 833 texts/s (MODEL)" on stderr. `seconds`: without the time spent
/// waiting for texts.
void say_rate(int64_t texts, double seconds, const std::string& model);
double rate_of(int64_t texts, double seconds);

}  // namespace brrr::cli
