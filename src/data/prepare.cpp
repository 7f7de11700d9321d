#include "data/prepare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/threads/parallel_tasks.h"
#include "data/corpus.h"
#include "data/prepare/prepare_output.h"
#include "data/prepare/prepare_plan.h"
#include "data/prepare/prepare_record.h"
#include "folders/folder_lock.h"

namespace brrr::io {
namespace {

constexpr int64_t kDefaultShardTokens = 100'000'000;
constexpr size_t kMaxWavePieces = 1024;

class Prepare {
 public:
  Prepare(const Tokenizer& tokenizer, const PrepareOptions& options);
  PrepareSummary run();

 private:
  struct Wave {
    std::vector<Piece> pieces;
    std::vector<std::vector<int32_t>> ids;
    uint64_t bytes = 0;
  };
  void check_inputs() const;
  void begin_or_resume();
  void publish_tokenizer();
  void forget_earlier_run();
  Wave plan_wave();
  void encode(Wave& wave) const;
  void encode_piece(const Piece& piece, std::vector<int32_t>& ids) const;
  void write(const Wave& wave);
  void checkpoint(bool complete);
  void report() const;
  PrepareSummary summary() const;
  std::string_view text_of(size_t file);
  int64_t tokens() const { return record_.train.tokens() + record_.val.tokens(); }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  int64_t shard_tokens_;
  PlanOptions plan_;
  PrepareRecord record_;
  std::vector<uint64_t>
      file_begins_;  // in all inputs laid end to end; one more than there are files
  std::map<size_t, MappedFile> mapped_;
  PlanPosition planned_;  // the next piece to plan; record_.position follows behind
  SplitWriter train_, val_;
  std::optional<StagedTokenizer> staged_;
  int64_t run_tokens_ = 0, start_tokens_ = 0;
  uint64_t unrecorded_bytes_ = 0;
  double earlier_seconds_ = 0;
  Stopwatch clock_;
  bool resumed_ = false, already_done_ = false;
};

/// The shard size in use: where one llm.c shard might not hold the tokens (never more than bytes
/// and documents), shards of 10^8.
int64_t choose_shard_tokens(const PrepareOptions& options) {
  if (options.shard_tokens < 0)
    usage_error("the shard size is {} tokens; it must be positive", options.shard_tokens);
  if (options.format == ShardFormat::kLlmc && options.shard_tokens > kMaxShardTokens)
    usage_error("the shard size is {} tokens; a shard of llm.c holds at most {}",
                options.shard_tokens, kMaxShardTokens);
  if (options.shard_tokens > 0 || options.format != ShardFormat::kLlmc) return options.shard_tokens;
  uint64_t bytes = 0;
  for (const fs::path& input : options.inputs) bytes += look_at(input).bytes + 1;
  return bytes > kMaxShardTokens ? kDefaultShardTokens : 0;
}

Prepare::Prepare(const Tokenizer& tokenizer, const PrepareOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      shard_tokens_(choose_shard_tokens(options)),
      train_({options.output, "train", options.format, shard_tokens_, tokenizer.vocab_size()}),
      val_({options.output, "val", options.format, shard_tokens_, tokenizer.vocab_size()}) {
  const std::string kind = tokenizer.kind();
  if (options.inputs.empty()) usage_error("no text files to prepare");
  if (!(options.val_fraction >= 0 && options.val_fraction < 1))
    usage_error("the validation fraction is {}; expected 0 <= fraction < 1", options.val_fraction);
  if (options.val_every < 0 || options.val_every == 1)
    usage_error("every {}-th document for validation leaves none to train on; use 2 or more",
                options.val_every);
  if (options.accept_bytes && kind != "byte")
    usage_error("raw bytes need the byte tokenizer, this one is '{}'", kind);
  if (options.format == ShardFormat::kNanogpt && tokenizer.vocab_size() > 65536)
    user_error(
        "nanogpt shards hold 2-byte ids, but the vocabulary has {} entries (more than 65536); use "
        "the format llmc",
        tokenizer.vocab_size());
  file_begins_.push_back(0);
  for (const fs::path& input : options.inputs) {
    record_.inputs.push_back(look_at(input));
    file_begins_.push_back(file_begins_.back() + record_.inputs.back().bytes);
  }
  plan_.separator = options.separator;
  plan_.piece_bytes = options.piece_bytes;
  plan_.cut_anywhere = options.accept_bytes;
  plan_.cuts = tokenizer.cut_rule();
  plan_.split.val_every = options.val_every;
  if (options.val_every == 0 && options.val_fraction > 0)
    plan_.split.val_begin = static_cast<uint64_t>(
        std::floor(static_cast<double>(file_begins_.back()) * (1.0 - options.val_fraction)));
}

void Prepare::forget_earlier_run() {
  std::error_code error;
  fs::remove(record_path(options_.output), error);  // first: shards without a record are no run
  for (fs::directory_iterator it(options_.output, error), end; !error && it != end;
       it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(".partial")) name.resize(name.size() - 8);
    for (const std::string split : {"train", "val"}) {
      const std::string numbered = split + "_000000.bin";
      const bool ours =
          name == split + ".bin" ||
          (name.size() == numbered.size() && name.starts_with(split + "_") &&
           name.ends_with(".bin") &&
           name.substr(split.size() + 1, 6).find_first_not_of("0123456789") == std::string::npos);
      if (ours) fs::remove(it->path(), error);
    }
  }
}

void Prepare::begin_or_resume() {
  staged_.emplace(tokenizer_, options_.output);
  record_.settings = {
      {kTokenizerKind,
       fmt::format("{} tokenizer of {}", tokenizer_.kind(), tokenizer_.vocab_size())},
      {"tokenizer", staged_->hash()},
      {"format", std::string(name_of(options_.format))},
      {"validation fraction", fmt::format("{}", options_.val_every ? 0 : options_.val_fraction)},
      {"validation every", std::to_string(options_.val_every)},
      {"shard size", std::to_string(shard_tokens_)},
      {"end of text", options_.end_of_text ? "yes" : "no"},
      {"separator", sha256_hex(options_.separator)},
      {"raw bytes", options_.accept_bytes ? "yes" : "no"}};
  if (options_.restart) forget_earlier_run();
  auto earlier = load_record(options_.output);
  if (earlier && !earlier->has_begun()) earlier.reset();  // nothing to lose, nothing to continue
  if (earlier) {
    check_same_run(options_.output, *earlier, record_);
    for (size_t i = 0; i < record_.inputs.size(); ++i)
      record_.inputs[i].crc = earlier->inputs[i].crc;
    record_.position = planned_ = earlier->position;
    record_.train = earlier->train;
    record_.val = earlier->val;
    earlier_seconds_ = earlier->seconds;
    train_.resume(earlier->train);
    val_.resume(earlier->val);
    already_done_ = earlier->complete;
    resumed_ = already_done_ || tokens() > 0;
  } else {
    for (const char* split : {"train", "val"})
      if (const fs::path shard = shard_path(options_.output, split, 0, shard_tokens_);
          fs::exists(shard))
        user_error(
            "{} exists, but no prepare.json says where it comes from; choose another folder, or "
            "replace it with --overwrite",
            shard.string());
  }
  start_tokens_ = tokens();
}

/// Not before the first text has been read and accepted: a refused one leaves the folder as it was.
void Prepare::publish_tokenizer() {
  if (!staged_) return;
  staged_->publish();
  staged_.reset();
  if (!resumed_) save_record(options_.output, record_);
}

/// The beginnings of all inputs, before anything is written: what is binary is refused at once.
void Prepare::check_inputs() const {
  if (options_.accept_bytes) return;
  for (const fs::path& input : options_.inputs) {
    const MappedFile file(input);
    const std::string_view start = file.text().substr(0, kSniffBytes);
    check_not_binary(start, input.string());
    if (start.size() == file.text().size()) check_is_text(start, input.string());
  }
}

std::string_view Prepare::text_of(size_t file) {
  auto it = mapped_.find(file);
  if (it == mapped_.end()) it = mapped_.emplace(file, MappedFile(options_.inputs[file])).first;
  if (it->second.bytes().size() != record_.inputs[file].bytes)
    user_error("{} changed while it was read: {} bytes, {} at the start; run again",
               record_.inputs[file].path, it->second.bytes().size(), record_.inputs[file].bytes);
  return it->second.text();
}

Prepare::Wave Prepare::plan_wave() {
  mapped_.erase(mapped_.begin(), mapped_.lower_bound(planned_.file));
  const auto threads = static_cast<size_t>(thread_count());
  const uint64_t enough = std::min(options_.checkpoint_bytes, 16 * threads * options_.piece_bytes);
  Wave wave;
  while (planned_.file < options_.inputs.size() && wave.pieces.size() < kMaxWavePieces &&
         wave.bytes < enough) {
    const std::string_view text = text_of(planned_.file);
    wave.pieces.push_back(next_piece(text, file_begins_[planned_.file], plan_, planned_));
    wave.bytes += wave.pieces.back().next - wave.pieces.back().begin;
    if (planned_.offset == text.size())
      planned_ = {.file = planned_.file + 1, .offset = 0, .document = planned_.document};
  }
  wave.ids.resize(wave.pieces.size());
  return wave;
}

void Prepare::encode_piece(const Piece& piece, std::vector<int32_t>& ids) const {
  const std::string& name = record_.inputs[piece.file].path;
  const std::string_view text =
      mapped_.at(piece.file).text().substr(piece.begin, piece.end - piece.begin);
  if (!options_.accept_bytes) {
    if (piece.begin == 0)
      check_not_binary(mapped_.at(piece.file).text().substr(0, kSniffBytes), name);
    check_is_text(text, name, piece.begin);
  }
  try {
    tokenizer_.encode(text, {.inside = !piece.begins_text}, ids);
  } catch (const UserError& error) {
    user_error("{}, bytes {} to {}: {}", name, piece.begin, piece.end, error.what());
  }
  if (piece.ends_document && options_.end_of_text && tokenizer_.end_of_text() >= 0)
    ids.push_back(tokenizer_.end_of_text());
}

void Prepare::encode(Wave& wave) const {
  parallel_tasks(std::ssize(wave.pieces),
                 [&](size_t i) { encode_piece(wave.pieces[i], wave.ids[i]); });
}

void Prepare::write(const Wave& wave) {
  for (size_t i = 0; i < wave.pieces.size(); ++i) {
    const Piece& piece = wave.pieces[i];
    (piece.validation ? val_ : train_).append(wave.ids[i]);
    run_tokens_ += static_cast<int64_t>(wave.ids[i].size());
    uint32_t& crc = record_.inputs[piece.file].crc;
    crc =
        crc32c(mapped_.at(piece.file).bytes().data() + piece.begin, piece.next - piece.begin, crc);
  }
  record_.position = planned_;
  unrecorded_bytes_ += wave.bytes;
}

void Prepare::checkpoint(bool complete) {
  record_.train = train_.sync();
  record_.val = val_.sync();
  record_.seconds = earlier_seconds_ + clock_.seconds();
  record_.complete = complete;
  fault_point("prepare.record");
  save_record(options_.output, record_);
  fault_point("prepare.publish");
  train_.publish();
  val_.publish();
  unrecorded_bytes_ = 0;
}

void Prepare::report() const {
  if (!options_.progress) return;
  PrepareProgress progress;
  progress.bytes_done = file_begins_[record_.position.file] + record_.position.offset;
  progress.bytes_total = file_begins_.back();
  progress.tokens = start_tokens_ + run_tokens_;
  progress.seconds = clock_.seconds();
  progress.tokens_per_second = static_cast<double>(run_tokens_) / std::max(progress.seconds, 1e-9);
  options_.progress(progress);
}

PrepareSummary Prepare::summary() const {
  PrepareSummary out;
  out.train_tokens = record_.train.tokens();
  out.val_tokens = record_.val.tokens();
  out.documents = record_.position.document;
  out.bytes = file_begins_.back();
  out.train_shards = train_.paths();
  out.val_shards = val_.paths();
  out.resumed = resumed_;
  out.already_done = already_done_;
  out.seconds = record_.seconds;
  out.tokens_per_second = static_cast<double>(run_tokens_) / std::max(clock_.seconds(), 1e-9);
  out.bytes_per_token =
      static_cast<double>(out.bytes) / static_cast<double>(std::max<int64_t>(1, tokens()));
  return out;
}

PrepareSummary Prepare::run() {
  create_folder(options_.output);
  const FolderLock lock(options_.output, "preparing shards");
  remove_dead_temporaries(options_.output);
  check_inputs();
  begin_or_resume();
  if (already_done_) {
    publish_tokenizer();
    record_.seconds = earlier_seconds_;
    train_.verify();
    val_.verify();
    return summary();
  }
  while (record_.position.file < options_.inputs.size()) {
    Wave wave = plan_wave();
    encode(wave);
    publish_tokenizer();
    write(wave);
    if (unrecorded_bytes_ >= options_.checkpoint_bytes || train_.has_unpublished() ||
        val_.has_unpublished())
      checkpoint(false);
    report();
  }
  for (size_t i = 0; i < options_.inputs.size(); ++i)
    if (const InputRecord now = look_at(options_.inputs[i]);
        now.bytes != record_.inputs[i].bytes || now.modified_ns != record_.inputs[i].modified_ns)
      user_error("{} changed while it was read; run again with --overwrite", now.path);
  train_.close();
  val_.close();
  if (train_.paths().empty())
    user_error(
        "no text is left to train on: all of it went to validation; hold out a smaller fraction");
  checkpoint(true);
  return summary();
}

}  // namespace

PrepareSummary prepare_shards(const Tokenizer& tokenizer, const PrepareOptions& options) {
  return Prepare(tokenizer, options).run();
}

}  // namespace brrr::io
