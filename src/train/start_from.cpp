// A model that a run starts from brings its shape and its tokenizer.

#include <algorithm>

#include "train/dataset_tokenizer.h"
#include "train/trainer.h"

namespace brrr::train {
namespace {

// Whether --tokenizer asks for the tokenizer that the model has.
bool asks_for(const std::string& name, const io::Tokenizer& model) {
  constexpr int32_t kGpt2Entries = 50257;
  if (name == "byte" || name == "char") return model.kind() == name;
  if (name == "gpt2") return model.kind() == "bpe" && model.vocab_size() == kGpt2Entries;
  if (const auto entries = bpe_entries(name))
    return model.kind() == "bpe" && model.vocab_size() == *entries;
  return same_tokens(*io::load_tokenizer(name), model);
}

}  // namespace

void adopt_architecture(TrainOptions& o, const io::ModelFolder& model) {
  const models::Gpt2Config& c = model.config;
  const std::string folder = model.folder.string();
  const auto check = [&](const char* name, int64_t asked, int64_t has) {
    if (o.was_given(name) && asked != has)
      usage_error("--init-from: {} has {} = {}; got {}. Leave --{} out: the model brings it",
                  folder, name, has, asked, name);
  };
  check("n-layer", o.n_layer, c.n_layer);
  check("n-head", o.n_head, c.n_head);
  check("n-embd", o.n_embd, c.n_embd);
  if (o.vocab_size != 0) check("vocab-size", o.vocab_size, c.vocab_size);
  if (o.was_given("bias") && o.bias != c.bias)
    usage_error("--init-from: {} has {} biases; leave --bias out: the model brings it", folder,
                c.bias ? "its" : "no");
  if (o.was_given("tokenizer") && !asks_for(o.tokenizer, *model.tokenizer))
    usage_error(
        "--init-from: the tokenizer of {} ({} of {}) is not --tokenizer {}; leave it out: the "
        "model brings it",
        folder, model.tokenizer->kind(), model.tokenizer->vocab_size(), o.tokenizer);
  if (!o.was_given("context")) o.context = std::min(o.context, c.n_positions);
  if (o.context > c.n_positions)
    usage_error("--context {} is longer than the {} positions of {}: take --context {} or less",
                o.context, c.n_positions, folder, c.n_positions);
  o.n_layer = c.n_layer;
  o.n_head = c.n_head;
  o.n_embd = c.n_embd;
  o.bias = c.bias;
}

}  // namespace brrr::train
