#include "infer/options.h"

#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "base/memory.h"
#include "machine/device.h"
#include "models/task.h"
#include "sampling/sampler.h"

namespace brrr::infer {
namespace {

constexpr const char* kModelHelp =
    "run, checkpoint or model folder, GGUF file, or ORG/NAME[@REVISION] of the Hugging Face Hub "
    "(ORG/NAME:Q4_K_M: a GGUF file), downloaded where its cache does not have it (default: the "
    "newest run)";
constexpr const char* kGenerateModelHelp =
    "run, checkpoint or model folder, GGUF file, a .brrr file of `brrr export --generate N`, or "
    "ORG/NAME[@REVISION] of the Hugging Face Hub (ORG/NAME:Q4_K_M: a GGUF file), downloaded where "
    "its cache does not have it (default: the newest run)";
constexpr const char* kEmbedModelHelp =
    "run, checkpoint or model folder, GGUF file, an ONNX file with tokenizer.json beside it, or "
    "ORG/NAME[@REVISION] of the Hugging Face Hub (ORG/NAME:Q4_K_M: a GGUF file), downloaded where "
    "its cache does not have it (default: the newest run)";

constexpr const char* kAdapterHelp =
    "low-rank adapter to put on the model, as `brrr train --lora-r` or PEFT writes it, with an "
    "optional factor of its scale (below 0: subtract it); give the option once for each adapter: "
    "their changes are added";

template <typename T>
void add_adapter_row(OptionTable<T>& t, const char* value = "FOLDER[=SCALE]",
                     const char* help = kAdapterHelp) {
  t.repeated("adapter", &T::adapter, false, value, help, {"lora", "peft"});
}

template <typename T>
void add_text_rows(OptionTable<T>& t, const char* model_help = kModelHelp) {
  t.group("input");
  t.text("model", &T::model, "FOLDER", model_help, {"model-name-or-path"});
  add_adapter_row(t);
  t.list("text", &T::text, false, "FILE...",
         "files with one text per line (default: standard input)");
  t.flag("truncate", &T::truncate,
         "truncate texts longer than the model's limit; --no-truncate makes them an error",
         {"truncation"});
  t.integer("max-length", &T::max_length, 0, 1 << 24, "N",
            "maximum tokens per text, including special tokens (0: the model's limit)",
            {"max-seq-length"});
}

template <typename T>
void add_bad_picture_rows(OptionTable<T>& t) {
  t.integer("skip-bad-images", &T::skip_bad_images, 0, 1 << 30, "N",
            "leave out up to N pictures that cannot be read (0: the first is an error)");
  t.integer("max-pixels", &T::max_pixels, 1, int64_t{1} << 40, "N",
            "largest picture that is read, in pixels");
}

template <typename T>
void add_picture_rows(OptionTable<T>& t) {
  t.group("pictures");
  t.list("images", &T::images, false, "PATH...",
         "pictures (JPEG, PNG, WebP, PPM) and folders of them, for a model that sees pictures");
  add_bad_picture_rows(t);
}

template <typename T>
void add_running_rows(OptionTable<T>& t, const char* json_help =
                                             "one JSON object with the result on standard output") {
  t.group("running");
  t.integer("batch-tokens", &T::batch_tokens, 1, 1 << 24, "N",
            "maximum tokens per batch; a longer text is a batch of its own");
  t.integer("batch-size", &T::batch_size, 0, 1 << 16, "N",
            "maximum texts per batch (0: as many as --batch-tokens allows)",
            {"per-device-eval-batch-size"});
  t.flag("json", &T::json, json_help);
  add_precision_row(t, "precision", &T::precision, PrecisionUse::inference, kPrecisionHelp,
                    {"dtype"});
  machine::add_device_row(t);
  machine::add_memory_row(t);
  t.integer("threads", &T::threads, 0, 4096, "N",
            "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"});
}

template <typename T>
T apply(const OptionTable<T>& table, const KeyValues& given) {
  T options;
  for (const auto& [key, value] : given)
    table.set(options, table.find(key), value, "--" + canonical_key(key));
  if constexpr (requires { options.is_precision_given; })
    options.is_precision_given = std::ranges::any_of(
        given, [&](const auto& option) { return table.find(option.first).name == "precision"; });
  return options;
}

std::string read_prompt(const std::string& file) {
  if (file != "-") return read_file(file);
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, stdin)) text.append(buffer, n);
  return text;
}

}  // namespace

const OptionTable<GenerateOptions>& generate_option_table() {
  static const OptionTable<GenerateOptions> table = [] {
    using O = GenerateOptions;
    OptionTable<O> t;
    t.group("input");
    t.text("model", &O::model, "FOLDER", kGenerateModelHelp, {"out-dir", "model-name-or-path"});
    add_adapter_row(
        t, "[NAME=]FOLDER[=SCALE]",
        "low-rank adapter to put on the model, as `brrr train --lora-r` or PEFT writes it, with an "
        "optional factor of its scale (below 0: subtract it); give the option once for each "
        "adapter: their changes are added. A line of --prompts with \"adapter\": \"NAME\" uses "
        "that "
        "one alone (default NAME: the folder's name), with \"adapter\": null none");
    t.text("prompt", &O::prompt, "TEXT",
           "text to continue; \"\": begin with the model's begin-of-text token", {"start"});
    t.text("prompt-file", &O::prompt_file, "FILE",
           "read the prompt from a file; -: standard input");
    t.text("prompts", &O::prompts, "FILE.jsonl",
           "answer many prompts, several at once: a JSON object with \"prompt\" per line, and "
           "optionally \"id\", sampling options of its own, and \"adapter\": the NAME of the one "
           "adapter "
           "it uses, or null for none (without it: all of --adapter); prints a JSON object per "
           "answer; "
           "-: standard input");
    t.flag("chat", &O::chat,
           "apply the folder's chat template to the prompt; without a prompt, read turns from "
           "standard input, one per line");
    t.text("system", &O::system, "TEXT", "system message of the chat");
    t.text("messages", &O::messages, "FILE.json",
           "the chat so far: a list of objects with \"role\" and \"content\"; the last message is "
           "answered, or the prompt after it");
    t.text("tools", &O::tools, "FILE.json",
           "tools that the chat template offers to the model: a list of objects, as Hugging Face's "
           "templates take them");
    t.flag("interactive", &O::interactive,
           "read prompts from standard input, one per line, and keep the conversation");
    t.group("sampling");
    t.integer("max-new-tokens", &O::max_new_tokens, 1, 1 << 30, "N", "tokens per sample",
              {"max-tokens"});
    t.integer("num-samples", &O::num_samples, 1, 1 << 20, "N", "samples",
              {"num-return-sequences", "n"});
    t.real("temperature", &O::temperature, {.low = 0, .high = 100}, "X",
           "below 1: more predictable; above 1: more varied; 0: always the most likely token");
    t.integer("top-k", &O::top_k, 0, 1 << 24, "N", "sample from the N most likely tokens (0: all)");
    t.real("top-p", &O::top_p, {.low = 0, .high = 1, .low_open = true}, "X",
           "sample from the most likely tokens that together reach this probability");
    t.real("min-p", &O::min_p, {.low = 0, .high = 1}, "X",
           "exclude tokens below this fraction of the most likely token's probability");
    t.real("repetition-penalty", &O::repetition_penalty,
           {.low = kLeastRepetitionPenalty, .high = kMostRepetitionPenalty}, "X",
           "divide the logits of tokens already in the text (1: off; above 1: less repetition)",
           {"repeat-penalty"});
    t.real("presence-penalty", &O::presence_penalty, {.low = -100, .high = 100}, "X",
           "subtract from the logits of tokens generated so far");
    t.real("frequency-penalty", &O::frequency_penalty, {.low = -100, .high = 100}, "X",
           "the same, for each time a token was generated");
    t.repeated("stop", &O::stop, false, "TEXT",
               "stop a sample before this string; give the option once for each string",
               {"stop-strings", "stop-sequences"});
    t.integer("seed", &O::seed, 0, (int64_t{1} << 32) - 1, "N", "random seed of the sampling");
    t.group("many prompts");
    t.integer("parallel", &O::parallel, 1, 1 << 12, "N", "texts at once", {"max-num-seqs", "np"});
    t.integer("prefill-tokens", &O::prefill_tokens, 1, 1 << 20, "N",
              "tokens of prompts read in one step, beside the texts that are being written",
              {"max-num-batched-tokens"});
    t.integer("beam-size", &O::beam_size, 1, 256, "N",
              "beam search with N beams instead of sampling (1: off)", {"num-beams"});
    t.real("length-penalty", &O::length_penalty, {.low = -100, .high = 100}, "X",
           "divide the score of a beam by its length to this power; above 1: longer texts");
    t.integer("prompt-lookup", &O::prompt_lookup, 0, 64, "N",
              "guess up to N tokens per step from the text so far and keep those that the model "
              "chooses, too; the text is the same (0: off)",
              {"prompt-lookup-num-tokens"});
    t.flag("ordered", &O::ordered, "print answers in the order of the prompts, not as they end");
    t.flag("logprobs", &O::logprobs, "add the log probability of each token");
    t.group("running");
    t.flag("cache", &O::cache, "use the KV cache; --no-cache recomputes every token",
           {"use-cache"});
    add_cache_precision_row(t, &O::kv_cache);
    t.flag("stream", &O::stream, "print tokens as they are generated");
    t.flag("json", &O::json, "one JSON object with the result on standard output");
    add_precision_row(t, "precision", &O::precision, PrecisionUse::inference, kPrecisionHelp,
                      {"dtype"});
    machine::add_device_row(t);
    machine::add_memory_row(t);
    t.integer("context", &O::context, 0, 1 << 24, "N",
              "tokens that are read at once, 2 or more; a longer text forgets its older half (0: "
              "the model's context)");
    t.integer("threads", &O::threads, 0, 4096, "N",
              "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"});
    // What nanoGPT's sample.py takes besides.
    t.foreign("init-from", OptionKind::kText, "model", "", [](O& o, const std::string& s) {
      if (s != "resume") o.model = s;
    });
    t.foreign("compile", OptionKind::kFlag, "compile", "",
              [](O&, const std::string& s) { parse_bool(s); });
    return t;
  }();
  return table;
}

GenerateOptions resolve_generate(const KeyValues& given) {
  GenerateOptions options = apply(generate_option_table(), given);
  for (const auto& [key, value] : given)
    options.given.insert(generate_option_table().find(key).name);
  // nanoGPT's sample.py reads a prompt from a file that is named so.
  constexpr std::string_view kFile = "FILE:";
  if (!given.empty() && options.prompt.starts_with(kFile) &&
      std::any_of(given.begin(), given.end(), [&](const auto& option) {
        return canonical_key(option.first) == "start" && option.second == options.prompt;
      })) {
    options.prompt_file = options.prompt.substr(kFile.size());
    options.given.erase("prompt");
    options.given.insert("prompt-file");
  }
  if (!options.prompt_file.empty()) {
    if (options.was_given("prompt")) usage_error("expected --prompt or --prompt-file, not both");
    options.prompt = read_prompt(options.prompt_file);
    if (options.prompt.empty())
      usage_error("--prompt-file: {} is empty; expected text to continue, at least one character",
                  options.prompt_file == "-" ? "standard input" : options.prompt_file);
  }
  if (options.was_given("prompts") && options.prompts.empty())
    usage_error("--prompts: expected a file, or - for standard input");
  if (!options.prompts.empty()) {
    for (const char* name : {"prompt", "prompt-file", "messages", "interactive"})
      if (options.was_given(name)) usage_error("expected --prompts or --{}, not both", name);
    if (!options.cache) usage_error("--no-cache: texts at once have a cache; leave it out");
  } else {
    for (const char* name : {"ordered", "logprobs"})
      if (options.was_given(name)) usage_error("--{} needs --prompts FILE.jsonl", name);
  }
  if (!options.cache && options.kv_cache != CachePrecision::computed)
    usage_error("--kv-cache: --no-cache keeps no keys and values; leave one of them out");
  if (options.beam_size > 1) {
    for (const char* name :
         {"temperature", "top-k", "top-p", "min-p", "repetition-penalty", "presence-penalty",
          "frequency-penalty", "stop", "prompt-lookup", "logprobs"})
      if (options.was_given(name) &&
          !(std::string_view(name) == "temperature" && options.temperature == 0))
        usage_error("--{} does not apply to a beam search; leave it or --beam-size out", name);
    if (options.num_samples > options.beam_size)
      usage_error("--num-samples: a search with {} beams finds at most as many texts; got {}",
                  options.beam_size, options.num_samples);
    if (!options.cache) usage_error("--no-cache: beams share a cache; leave it or --beam-size out");
  } else if (options.was_given("length-penalty")) {
    usage_error("--length-penalty needs --beam-size 2 or more");
  }
  for (const char* name : {"system", "messages", "tools"})
    if (options.was_given(name) && !options.chat) usage_error("--{} needs --chat", name);
  if (options.chat && options.has_prompt() && options.prompt.empty())
    usage_error("--prompt: expected a turn of the chat, at least one character");
  if (options.reads_turns()) {
    const char* const why = options.interactive ? "with --interactive" : "without --prompt";
    if (options.json) usage_error("--json: {} the answers are text; expected one prompt", why);
    if (options.num_samples > 1)
      usage_error("--num-samples: {} there is one answer to a turn; got {}", why,
                  options.num_samples);
    if (options.prompt_file == "-")
      usage_error("--prompt-file: {} standard input holds the turns; expected --prompt TEXT", why);
  }
  return options;
}

const OptionTable<EvalOptions>& eval_option_table() {
  static const OptionTable<EvalOptions> table = [] {
    using O = EvalOptions;
    OptionTable<O> t;
    t.group("input");
    t.text("model", &O::model, "FOLDER", kModelHelp, {"out-dir", "model-name-or-path"});
    add_adapter_row(t);
    t.list("text", &O::text, false, "FILE...",
           "text files and folders to measure on; for a model with a task its file of texts and "
           "labels (.csv, .tsv, .jsonl)",
           {"validation-file"});
    t.list("data", &O::data, false, "SHARD...",
           "token shards (.bin) to measure on; of a prepared folder, the validation shards; or the "
           "file of texts and labels; or for a model of pictures their folder, as train reads it; "
           "or a .jsonl file of conversations or pairs of answers",
           {"val-data"});
    t.group("texts with labels");
    t.text(
        "text-column", &O::text_column, "NAME",
        "column of the text: its name in the header, or its number (default: detected); of .jsonl "
        "files the field",
        {"text-column-name"});
    t.text("text2-column", &O::text2_column, "NAME", "column of a second text");
    t.text("label-column", &O::label_column, "NAME", "column of the label", {"label-column-name"});
    t.choice("header", &O::header, {{"auto"}, {"yes"}, {"no"}}, "WHETHER",
             "whether the first row names the columns");
    t.choice("quoting", &O::quoting, {{"auto"}, {"csv"}, {"none"}}, "HOW",
             "how such files use quotes: csv (around fields), none (quotes are text), auto "
             "(detected)");
    t.flag("truncate", &O::truncate,
           "truncate texts longer than the context; --no-truncate makes them an error",
           {"truncation"});
    t.real("mlm-probability", &O::mlm_probability, {.low = 0, .high = 1, .low_open = true}, "X",
           "fraction of the tokens that a masked language model has to predict");
    t.group("conversations");
    t.text("chat-template", &O::chat_template, "FILE",
           "template (Jinja) that writes conversations (default: the model's own)",
           {"chat-template-path"});
    t.choice("dpo-loss", &O::dpo_loss, {{"auto"}, {"sigmoid"}, {"ipo"}}, "NAME",
             "loss of pairs of answers, as train --task dpo has it; auto, here and below: as the "
             "run of a single adapter recorded, else the default of train");
    using Real = std::optional<double>;
    const auto real_or_auto = [&](const char* name, Real O::*field, const RealRange& range,
                                  const char* help) {
      t.parsed<Real>(
          name, field,
          [range](const std::string& s) { return s == "auto" ? Real() : parse_real(s, range); },
          [](const Real& x) { return x ? show_real(*x) : std::string("auto"); }, "X", help);
    };
    real_or_auto("dpo-beta", &O::dpo_beta, {.low = 0, .high = 1e6, .low_open = true},
                 "factor of rewards: of how much a log probability exceeds the reference's");
    real_or_auto("dpo-label-smoothing", &O::dpo_label_smoothing,
                 {.low = 0, .high = 0.5, .high_open = true},
                 "sigmoid: probability that a pair is labelled the wrong way round");
    t.group("pictures");
    add_bad_picture_rows(t);
    t.group("running");
    t.integer("batch-size", &O::batch_size, 1, 1 << 16, "N", "sequences, rows or pairs per batch",
              {"per-device-eval-batch-size", "eval-batch-size"});
    t.integer("context", &O::context, 0, 1 << 24, "N", "sequence length (tokens; 0: the model's)",
              {"block-size"});
    t.flag("disable-tqdm", &O::disable_tqdm, "plain lines instead of a progress bar");
    t.flag("json", &O::json, "one JSON object with the result on standard output");
    add_precision_row(t, "precision", &O::precision, PrecisionUse::inference, kPrecisionHelp,
                      {"dtype"});
    machine::add_device_row(t);
    machine::add_memory_row(t);
    t.integer("threads", &O::threads, 0, 4096, "N",
              "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"});
    return t;
  }();
  return table;
}

EvalOptions resolve_eval(const KeyValues& given) {
  EvalOptions options = apply(eval_option_table(), given);
  if (options.text.empty() == options.data.empty())
    usage_error("expected either --text FILE... or --data FILE...; got {}",
                options.text.empty() ? "neither" : "both");
  return options;
}

const OptionTable<EmbedOptions>& embed_option_table() {
  static const OptionTable<EmbedOptions> table = [] {
    using O = EmbedOptions;
    OptionTable<O> t;
    add_text_rows(t, kEmbedModelHelp);
    add_picture_rows(t);
    t.group("vectors");
    t.text("output", &O::output, "FILE.npy",
           "write the vectors to a NumPy .npy file instead of printing them");
    std::vector<std::vector<std::string>> poolings{{""}};
    for (const auto& [name, pooling] : models::poolings()) poolings.push_back({name});
    t.choice("pooling", &O::pooling, poolings, "NAME",
             "how to pool token vectors into one: cls, max, mean, mean_sqrt_len, weighted_mean or "
             "last_token (default: as the folder says, else mean)");
    t.flag(
        "normalize", &O::normalize,
        "normalize vectors to length 1 if the folder says so; --no-normalize keeps their lengths");
    t.integer("truncate-dim", &O::truncate_dim, 0, 1 << 24, "N",
              "keep the first N numbers of each vector, normalized again where the folder "
              "normalizes (Matryoshka models; 0: all)");
    t.text("prompt-name", &O::prompt_name, "NAME",
           "put this prompt of the folder before each text, for example query (default: the "
           "folder's default prompt)");
    t.text("similarity", &O::similarity, "TEXT",
           "print the texts by their similarity to TEXT, the most similar first, instead of "
           "vectors; the folder's prompts query and document are used where it has them");
    t.flag("json-lines", &O::json_lines, "one JSON object per text on standard output, as it comes",
           {"jsonl"});
    add_running_rows(t);
    return t;
  }();
  return table;
}
EmbedOptions resolve_embed(const KeyValues& given) {
  const EmbedOptions o = apply(embed_option_table(), given);
  if (!o.output.empty() && !o.output.ends_with(".npy"))
    usage_error("--output: expected a name that ends in .npy; got {}", o.output);
  if (o.json && o.json_lines)
    usage_error("expected --json or --json-lines, not both: one object, or one per text");
  if ((o.json || o.json_lines) && !o.output.empty())
    usage_error("expected --{} or --output, not both: each says where the vectors go",
                o.json ? "json" : "json-lines");
  if (!o.similarity.empty() && !o.output.empty())
    usage_error("--output: with --similarity texts are printed, not vectors; leave one out");
  return o;
}

const OptionTable<ClassifyOptions>& classify_option_table() {
  static const OptionTable<ClassifyOptions> table = [] {
    using O = ClassifyOptions;
    OptionTable<O> t;
    add_text_rows(t);
    t.flag("pairs", &O::pairs, "each line holds two texts separated by a tab", {"pair"});
    t.flag("all-scores", &O::all_scores, "print the score of every class", {"return-all-scores"});
    add_picture_rows(t);
    t.integer("top-k", &O::top_k, 1, 1 << 20, "N", "print the N most likely classes of a picture",
              {"topk"});
    add_running_rows(t);
    return t;
  }();
  return table;
}
ClassifyOptions resolve_classify(const KeyValues& given) {
  return apply(classify_option_table(), given);
}

const OptionTable<RerankOptions>& rerank_option_table() {
  static const OptionTable<RerankOptions> table = [] {
    using O = RerankOptions;
    OptionTable<O> t;
    add_text_rows(t, kEmbedModelHelp);
    t.text("query", &O::query, "TEXT", "what the documents are ranked for");
    t.group("ranking");
    t.text("label", &O::label, "NAME",
           "score by the probability of this class (default: the second of two classes)");
    t.integer("top-k", &O::top_k, 0, 1 << 30, "N", "print the N best documents (0: all)");
    add_running_rows(t, "a JSON list of {index, score} on standard output; index is a line from 0");
    return t;
  }();
  return table;
}
RerankOptions resolve_rerank(const KeyValues& given) {
  RerankOptions o = apply(rerank_option_table(), given);
  if (o.query.empty()) usage_error("expected a query: `brrr rerank [FOLDER] QUERY [FILE...]`");
  return o;
}

const OptionTable<FillMaskOptions>& fill_mask_option_table() {
  static const OptionTable<FillMaskOptions> table = [] {
    using O = FillMaskOptions;
    OptionTable<O> t;
    add_text_rows(t);
    t.integer("top-k", &O::top_k, 1, 1 << 24, "N", "print the N most likely tokens for each mask");
    add_running_rows(t);
    return t;
  }();
  return table;
}
FillMaskOptions resolve_fill_mask(const KeyValues& given) {
  return apply(fill_mask_option_table(), given);
}

}  // namespace brrr::infer
