#pragma once
// ConfiguredModel implements what models that are described by a configuration share: settings,
// config.json, and variants with another dropout, vocabulary or head. `C` has a static table() of
// its fields (config_table.h), a static architecture(), validate(), vocab_size,
// tie_word_embeddings, unknown_keys, and says its sizes and names.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "models/causal_lm.h"
#include "models/config_table.h"
#include "models/encoder.h"

namespace brrr::models {

/// The text of a config.json: the table's keys, those that every file has, and the keys of the file
/// that it was read from that Brrr does not know. `class_name` is transformers'.
template <typename C>
std::string config_json_of(const C& c, DType stored, const std::string& class_name,
                           io::Json more = io::Json::object()) {
  more["architectures"] = {class_name};
  more["dtype"] = more["torch_dtype"] = dtype_text(stored);
  C::table().write(c, more);
  return config_text(std::move(more), c.unknown_keys);
}

/// Reads the table's keys over `defaults`, then `finish(config)` derives what the file left out.
/// Throws UserError, which names the file, for a key that is missing, mistyped or out of range and
/// for weights in a format that is not read. `understood`: keys beside the table's.
template <typename C, typename Finish>
C config_from(const ConfigReader& keys, C defaults, const Finish& finish,
              std::vector<std::string> understood = {}) {
  C c = std::move(defaults);
  C::table().read(c, keys);
  finish(c);
  try {
    c.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", keys.what(), e.what());
  }
  keys.refuse_quantization();
  for (const std::string& key : C::table().understood(c)) understood.push_back(key);
  for (const char* key : {"architectures", "dtype", "torch_dtype", "quantization_config"})
    understood.emplace_back(key);
  c.unknown_keys = keys.unknown_keys(io::Json::object(), understood);
  return c;
}

template <typename C, typename Base>
class ConfiguredModel : public Base {
 public:
  explicit ConfiguredModel(const C& config) : c_(config) { c_.validate(); }

  const Architecture& architecture() const override { return C::architecture(); }
  ModelSizes sizes() const override { return c_.sizes(); }
  FileNames file_names() const override { return c_.file_names(); }
  TextEnds text_ends() const override { return c_.text_ends(); }
  KeyValues settings() const override { return settings_to(C::table().options(), c_); }
  std::string config_json(DType stored) const override { return c_.json(stored); }

  ModelPtr with_dropout(double probability) const override {
    C c = c_;
    C::table().set_dropout(c, probability);
    return c.model();
  }
  ModelPtr with_vocabulary(int64_t size) const override {
    if constexpr (requires(C c) { c.vocab_size; }) {
      C c = c_;
      c.vocab_size = size;
      return c.model();
    }
    throw InternalError("a model without a vocabulary");
  }
  ModelPtr with_untied_head() const override {
    if constexpr (requires(C c) { c.tie_word_embeddings; }) {
      C c = c_;
      c.tie_word_embeddings = false;
      return c.model();
    }
    throw InternalError("a model without a tied head");
  }
  double dropout() const override { return C::table().dropouts(c_).front(); }

 protected:
  bool has_dropout() const override {
    return std::ranges::any_of(C::table().dropouts(c_), [](double p) { return p > 0; });
  }

  C c_;
};

/// The encoder of a configuration that has a task.
template <typename C>
class ConfiguredEncoder : public ConfiguredModel<C, EncoderModel> {
 public:
  using ConfiguredModel<C, EncoderModel>::ConfiguredModel;

  Task task() const override { return this->c_.task; }
  ModelPtr with_task(const Task& task) const override {
    if (task.head == Head::next_token)
      user_error("[{}] an encoder has no head that predicts the next token",
                 this->architecture().name);
    C c = this->c_;
    c.task = task;
    return c.model();
  }
};

/// The causal language model of a configuration that has a net().
template <typename C>
ModelPtr causal_model(const C& config) {
  class Configured final : public ConfiguredModel<C, CausalModel> {
   public:
    using ConfiguredModel<C, CausalModel>::ConfiguredModel;

   protected:
    std::unique_ptr<CausalNet> build(Parameters& p, std::optional<Value> rng_key,
                                     CausalHead head) const override {
      p.set_deviation(this->c_.initializer_range);
      return this->c_.net(p, rng_key, head);
    }
    CausalHead head() const override {
      return this->c_.tie_word_embeddings ? CausalHead::tied : CausalHead::own;
    }
  };
  return std::make_shared<Configured>(config);
}

/// Throws UserError (exit 2) where heads of equal width do not fill the model's.
inline void check_heads_divide(int64_t width, int64_t heads) {
  if (width % heads != 0)
    usage_error("n-embd must be divisible by n-head; got n-embd {} and n-head {}", width, heads);
}

/// Completes the record of an architecture whose models are configurations `C`: its options, how
/// options describe a model and how config.json is read. `complete(config, description)` derives
/// the fields that no option gave and throws UserError (exit 2) for sizes that do not go together.
template <typename C>
Architecture architecture_of(Architecture a, void (*complete)(C&, const Description&),
                             C (*parse)(std::string_view text, const std::string& what)) {
  a.options = options_of(C::table().options());
  a.describe = [complete](const Description& d) {
    C c = settings_from(C::table().options(), d.settings);
    if constexpr (requires { c.vocab_size; }) c.vocab_size = d.vocabulary;
    C::table().set_dropout(c, d.dropout);
    complete(c, d);
    return c.model();
  };
  a.parse = [parse](std::string_view text, const std::string& what) {
    return parse(text, what).model();
  };
  return a;
}

}  // namespace brrr::models
