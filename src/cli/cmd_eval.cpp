// brrr eval: loss and perplexity of a model on any text or shards.

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/memory.h"
#include "base/terminal/progress.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "data/corpus.h"
#include "infer/evaluate.h"
#include "train/device.h"

namespace brrr::cli {
namespace {

struct Source {
  io::TokenSource tokens;
  std::string description;
  int64_t bytes = 0;  // of the text; 0 for shards
};

// A text that cannot fit with its tokens is refused before it is read. Only what is certain counts:
// how few tokens a vocabulary needs is not known.
void check_room(const io::CorpusFiles& corpus, const io::Tokenizer& tokenizer,
                const MemoryLimit& limit) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const fs::path& file : corpus.files)
    bytes += static_cast<int64_t>(fs::file_size(file, ignored));
  const int64_t ids = tokenizer.kind() == "byte" ? bytes * int64_t{sizeof(int32_t)} : 0;
  const int64_t now = resident_memory().needed(), needed = now + bytes + ids;
  if (needed <= limit.bytes) return;
  // Less than the program alone: the refusal of the model then names what would do.
  constexpr int64_t kLittle = int64_t{8} << 20;
  if (limit.bytes < now && bytes <= kLittle) return;
  throw UserError(
      fmt::format("the text does not fit in memory: {} of it are read at once, the process then "
                  "needs {} or more, and {} is {}. Make shards of it with `brrr data prepare` and "
                  "pass them by --data",
                  memory_text(bytes), memory_text(needed), limit.source, memory_text(limit.bytes)),
      ExitCode::kNoMemory);
}

Source open_source(const infer::EvalOptions& options, const io::Tokenizer& tokenizer,
                   const Backend& backend, const infer::Memory& memory) {
  if (!options.data.empty()) {
    io::TokenSource tokens = io::TokenSource::open_validation(options.data);
    std::string description = tokens.description();
    return {std::move(tokens), std::move(description), 0};
  }
  io::CorpusOptions c;
  for (const std::string& path : options.text) c.text.emplace_back(path);
  c.accept_bytes = tokenizer.kind() == "byte";
  if (backend.memory_bytes == 0) check_room(io::find_corpus(c), tokenizer, memory.limit);
  const io::Corpus corpus = io::load_corpus(c);
  return {io::TokenSource::from_ids(tokenizer.encode(std::string_view(corpus.text)),
                                    corpus.description),
          corpus.description, static_cast<int64_t>(corpus.text.size())};
}

}  // namespace

int eval_main(const infer::EvalOptions& options) {
  const io::ModelFolder model = open_named_model(options.model);
  if (const models::Head head = model.definition->task().head; head != models::Head::next_token)
    user_error(
        "{}: its model is for {}, but eval measures next-token prediction; its scores are in the "
        "log of its run",
        model.folder.string(), models::description(head));
  const Backend backend = train::backend_for(options.device);
  const infer::Memory memory = memory_of(options, "a smaller --batch-size, a smaller --context");
  const Source source = open_source(options, *model.tokenizer, backend, memory);

  std::optional<Progress> progress;
  infer::EvaluateOptions e;
  e.batch_size = options.batch_size;
  e.context = options.context;
  e.precision = dtype_of_precision(options.precision);
  e.memory = memory;
  e.progress = [&](int64_t done, int64_t total) {
    if (!progress) {
      ProgressOptions p;
      p.label = "eval";
      p.total = total;
      p.plain_interval_seconds = 5;
      if (options.disable_tqdm) p.is_terminal = false;
      progress.emplace(std::move(p));
    }
    progress->update(done);
  };
  const infer::Evaluation r = infer::evaluate(model, source.tokens, backend, e);
  if (progress) progress->finish();

  const double bits = r.loss * static_cast<double>(r.tokens) / std::log(2.0);
  if (options.json) {
    nlohmann::json j;
    j["loss"] = r.loss;  // null where it is no finite number
    j["perplexity"] = r.perplexity;
    j["tokens"] = r.tokens;
    if (!r.fault.empty()) j["reason"] = r.fault;
    if (source.bytes > 0 && r.fault.empty())
      j["bits_per_byte"] = bits / static_cast<double>(source.bytes);
    j["seconds"] = r.seconds;
    j["tokens_per_second"] = static_cast<double>(r.tokens) / r.seconds;
    j["process_peak_bytes"] = resident_memory().peak;
    j["model"] = model.folder.string();
    fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  if (!r.fault.empty()) user_error("{}: {}", model.folder.string(), r.fault);
  if (options.json) return 0;
  fmt::print("{}: loss {:.4f}, perplexity {:.3f}{} on {} tokens of {} ({:.0f} tokens/s)\n",
             model.folder.string(), r.loss, r.perplexity,
             source.bytes > 0
                 ? fmt::format(", {:.4f} bits per byte", bits / static_cast<double>(source.bytes))
                 : "",
             r.tokens, source.description, static_cast<double>(r.tokens) / r.seconds);
  return 0;
}

}  // namespace brrr::cli
