#pragma once
// The normalizer of tokenizer.json: steps that rewrite a text before it is cut. Read from JSON;
// whatever is not supported is refused by name.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json_file.h"

namespace brrr::io {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  /// Rewrites the text. `inside`: it continues another, so nothing is put before it.
  virtual void apply(std::string& text, bool inside) const = 0;
  /// Does the step rewrite the characters of `text`, which stand beside a character that is white
  /// space in the user's text, without looking at their neighbours?
  virtual bool is_local(std::string_view text) const = 0;
  /// Characters beyond ASCII stay such, and none becomes white space.
  virtual bool keeps_wide() const { return false; }
  /// How many times as long a text may become.
  virtual double growth() const { return 1; }
  /// What the step has made longer it makes no longer a second time.
  virtual bool settles() const { return false; }
};

class Normalizer {
 public:
  /// It changes nothing.
  Normalizer() = default;
  static Normalizer read(const Json& json, const std::string& where);
  /// The normalizer that vocab.txt of BERT stands for; `strip_accents` as in tokenizer.json.
  static Normalizer bert(bool clean_text, bool chinese, std::optional<bool> strip_accents,
                         bool lowercase);

  bool empty() const { return steps_.empty(); }
  /// `inside`: the text continues another, so nothing is put before it.
  std::string apply(std::string_view text, bool inside) const;

  /// What becomes of an ASCII character inside a text: the first and the last code point. Nothing
  /// when that depends on its neighbours, or nothing becomes of it.
  std::optional<std::pair<uint32_t, uint32_t>> mapped(uint8_t character) const;
  /// Characters beyond ASCII stay such, and none becomes white space.
  bool keeps_wide() const;

 private:
  void read_into(const Json& json, const std::string& where, int depth);
  std::vector<std::shared_ptr<const NormalizerStep>> steps_;
};

}  // namespace brrr::io
