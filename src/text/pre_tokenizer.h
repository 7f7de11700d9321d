#pragma once
// The pre-tokenizer of tokenizer.json: stages, each of which cuts the pieces of the one before.
// Models never join what was cut. Read from JSON; whatever is not supported is refused by name.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json_file.h"
#include "text/cut_rule.h"
#include "text/token_model.h"

namespace brrr::io {

class PreTokenizer;

/// Hands pieces on to the next stage, and those of the last to the sink.
class NextStage {
 public:
  inline void operator()(std::string_view piece) const;
  /// Where pieces go when there is no further stage, else nullptr.
  inline PieceSink* last() const;

  /// The same for a stage that hands on pieces of a text of its own.
  NextStage within(std::string_view text) const {
    return {all, stage, sink, at_start, text.data()};
  }

  const PreTokenizer* all;
  size_t stage;
  PieceSink* sink;
  bool at_start;      // the piece that is being split begins the user's text
  const char* begin;  // of that piece
};

class PreTokenizerStage {
 public:
  virtual ~PreTokenizerStage() = default;
  /// `piece` is not empty.
  virtual void split(std::string_view piece, const NextStage& next) const = 0;
  /// Removes from `rule` the pairs between which this stage may change tokens. `ends` gains the
  /// characters that surely begin a piece or follow its end.
  virtual void restrict_cuts(CutRule& rule, Symbols& ends) const = 0;
  /// It matches with a pattern, so its text must be UTF-8.
  virtual bool needs_utf8() const { return false; }
  /// It parts a text at white space of any kind, whatever stands beside it, and drops it.
  virtual bool drops_spaces() const { return false; }
  /// Its pieces are no parts of the text that it gets.
  virtual bool rewrites() const { return false; }
};

class PreTokenizer {
 public:
  /// No stages: a text is one piece.
  PreTokenizer() = default;
  /// GPT-2's split.
  static PreTokenizer gpt2();
  /// `json` is the value of "pre_tokenizer"; `where` names file and field in errors.
  static PreTokenizer read(const Json& json, const std::string& where);

  /// The pre-tokenizer of BERT.
  static PreTokenizer bert();

  /// ByteLevel is its last stage: pieces are bytes for the model, not characters.
  bool byte_level() const { return byte_level_; }
  /// For a model that takes no bytes: every byte becomes its letter.
  void spell_letters();
  bool empty() const { return stages_.empty(); }
  void split(std::string_view text, PieceSink& sink, bool at_start) const;
  /// White space parts a text wherever it stands, and no model sees it.
  bool drops_spaces() const { return !stages_.empty() && stages_[0]->drops_spaces(); }
  /// Where a text may be cut before the stages. `model_may_cut` is asked where no stage surely
  /// cuts.
  CutRule cut_rule(const std::function<bool(uint32_t before, uint32_t after)>& model_may_cut) const;

 private:
  friend class NextStage;
  void read_into(const Json& json, const std::string& where, int depth);

  std::vector<std::unique_ptr<PreTokenizerStage>> stages_;
  bool byte_level_ = false, needs_utf8_ = false;
  bool rewritten_ = false;  // a stage stands behind one whose pieces are no parts of the text
  uint32_t space_ = ' ';    // what a space is to the model
};

inline PieceSink* NextStage::last() const { return stage == all->stages_.size() ? sink : nullptr; }

inline void NextStage::operator()(std::string_view piece) const {
  if (piece.empty()) return;
  if (stage == all->stages_.size()) {
    sink->add(piece);
  } else {
    const bool starts = at_start && piece.data() == begin;
    all->stages_[stage]->split(piece, {all, stage + 1, sink, starts, piece.data()});
  }
}

}  // namespace brrr::io
