#include "cli/foreign_words.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace brrr::cli {
namespace {

struct ForeignVerb {
  const char* name;
  std::vector<std::string> ours;  // the words that replace it; empty: refused
  const char* reason = "";
};

const std::vector<ForeignVerb>& verbs() {
  constexpr const char* kServer =
      "there is no server yet; `brrr generate --interactive`, or with --chat, keeps a model loaded "
      "and reads from standard input";
  static const std::vector<ForeignVerb> all{
      {"chat", {"generate", "--chat"}},
      {"sample", {"generate"}},
      {"complete", {"generate"}},
      {"perplexity", {"eval"}},
      {"ppl", {"eval"}},
      {"evaluate", {"eval"}},
      {"tokenize", {"data", "encode"}},
      {"encode", {"data", "encode"}},
      {"detokenize", {"data", "decode"}},
      {"decode", {"data", "decode"}},
      {"prepare", {"data", "prepare"}},
      {"convert", {"export"}},
      {"convert-hf-to-gguf", {"export", "--format", "gguf"}},
      {"convert-hf-to-gguf.py", {"export", "--format", "gguf"}},
      {"benchmark", {"bench"}},
      {"llama-bench", {"bench"}},
      {"finetune", {"train"}},
      {"fine-tune", {"train"}},
      {"embedding", {"embed"}},
      {"embeddings", {"embed"}},
      {"serve", {}, kServer},
      {"server", {}, kServer},
      {"quantise", {"quantize"}},
      {"llama-quantize", {"quantize"}},
      {"pull",
       {},
       "there is nothing to pull: name a model of the Hugging Face Hub, ORG/NAME, and `brrr "
       "generate --model` or `brrr embed --model` downloads it"},
      {"download",
       {},
       "there is nothing to download first: name a model of the Hugging Face Hub, ORG/NAME, and "
       "`brrr generate --model` or `brrr embed --model` downloads it"},
      {"predict",
       {},
       "`brrr classify` labels texts, `brrr generate` continues one, `brrr run` runs an ONNX file"},
      {"infer",
       {},
       "`brrr generate` continues a text, `brrr classify` labels texts, `brrr run` runs an ONNX "
       "file"}};
  return all;
}

/// An option of another program. It is replaced by the first of `ours` that the verb has.
struct ForeignOption {
  std::vector<std::string> names;  // as typed: "-n", "--n-predict"
  std::vector<std::string> ours;
  /// The error where the verb has none of `ours`; "": the option is reported as unknown.
  const char* reason = "";
};

const std::vector<ForeignOption>& options_of_others() {
  constexpr const char* kAdapters =
      "`brrr train --init-from MODEL --lora-r N` trains an adapter, with --load-in-4bit as QLoRA, "
      "and generate, eval, embed, classify, fill-mask, rerank, export and merge take it as "
      "--adapter "
      "FOLDER";
  constexpr const char* kBits =
      "leave it out: --precision int8, int8-weight-only or int4 quantises the weights in memory, "
      "`brrr quantize` in a folder, and train takes --load-in-4bit with --lora-r";
  constexpr const char* kRanks =
      "`brrr launch -n N train ...` starts N ranks of a training run on this machine, and --hosts "
      "a,b on several; leave it out";
  constexpr const char* kLayers =
      "a model is on one device as a whole; leave it out, and choose it by --device";
  static const std::vector<ForeignOption> all{
      {{"-m", "-hf", "--hf-repo"}, {"model", "init-from"}},
      {{"-p"}, {"prompt"}},
      {{"-f", "--file"}, {"prompt-file", "text"}},
      {{"-n", "--n-predict", "--predict"}, {"max-new-tokens", "processes"}},
      {{"-np", "--nproc-per-node", "--num-processes"}, {"processes"}, kRanks},
      {{"--nnodes", "--num-machines", "--node-rank", "--machine-rank", "--master-addr",
        "--master-port", "--rdzv-backend", "--rdzv-endpoint"},
       {},
       kRanks},
      {{"-c", "--ctx-size", "--n-ctx", "--max-model-len"},
       {"context", "max-length"},
       "the whole context of the model is used, and memory is taken for as much of it as the text "
       "needs; leave it out"},
      {{"-t"}, {"threads"}},
      {{"-b"}, {"batch-size"}},
      {{"-s"}, {"seed"}},
      {{"-o"}, {"output", "output-dir"}},
      {{"-i"}, {"interactive"}},
      {{"-cnv", "--conversation"}, {"chat"}},
      {{"--temp"}, {"temperature"}},
      {{"-sys", "--system-prompt"}, {"system"}},
      {{"-ngl", "--n-gpu-layers", "--gpu-layers"}, {}, kLayers},
      {{"--device-map"}, {}, kLayers},
      {{"--lora", "--lora-scaled", "--lora-path", "--lora-modules", "--enable-lora", "--peft-model",
        "--adapter"},
       {"adapter"},
       kAdapters},
      {{"--lora-r", "--lora-rank", "--lora-alpha", "--lora-dropout", "--lora-target-modules",
        "--lora-target-linear"},
       {"lora-r"},
       kAdapters},
      {{"--use-peft", "--use-lora", "--qlora"}, {}, kAdapters},
      {{"--onnx"}, {}, "`brrr export MODEL --format onnx` writes ONNX"},
      {{"--gguf"}, {}, "`brrr export MODEL --format gguf` writes GGUF"},
      {{"--load-in-8bit", "--load-in-4bit", "--bnb-4bit-compute-dtype",
        "--bnb-4bit-use-double-quant", "--bnb-4bit-quant-type"},
       {},
       kBits},
      {{"-q", "--quantization", "--quantize"}, {}, kBits}};
  return all;
}

bool has_option(std::span<const OptionInfo> options, const std::string& name) {
  return std::ranges::any_of(options, [&](const OptionInfo& o) {
    return o.name == name || std::ranges::find(o.aliases, name) != o.aliases.end();
  });
}

/// Whether the verb puts adapters on a model.
bool takes_adapters(std::span<const OptionInfo> options) {
  return std::ranges::any_of(options,
                             [](const OptionInfo& o) { return o.name == "adapter" && o.repeats; });
}

/// Rewrites options for adapters of other programs as --adapter: llama.cpp's
/// `--lora-scaled FILE SCALE` and `FILE:SCALE`, and vLLM's `--enable-lora --lora-modules NAME=PATH
/// ...` with its limits, which nothing here needs.
std::vector<std::string> with_our_adapters(std::vector<std::string> args) {
  std::vector<std::string> ours;
  size_t at = 0;
  const auto has_value = [&] { return at + 1 < args.size() && !args[at + 1].starts_with("--"); };
  for (; at < args.size(); ++at) {
    if (args[at] == "--") break;
    const std::string key = args[at].starts_with("--") ? canonical_key(args[at]) : "";
    if (key == "enable-lora") continue;
    if (key == "max-loras" || key == "max-lora-rank" || key == "max-cpu-loras") {
      if (has_value()) ++at;
    } else if (key == "lora-modules" && has_value()) {
      // The first word may be the folder alone.
      do ours.push_back("--adapter=" + args[++at]);
      while (has_value() && args[at + 1].find('=') != std::string::npos);
    } else if (key == "lora-scaled" && has_value()) {
      std::string folder = args[++at];
      const size_t colon = std::min(folder.rfind(':'), folder.size());
      if (has_value() && is_real(args[at + 1]))
        folder += "=" + args[++at];
      else if (colon < folder.size() && is_real(folder.substr(colon + 1)))
        folder[colon] = '=';
      ours.push_back("--adapter=" + folder);
    } else {
      ours.push_back(args[at]);
    }
  }
  ours.insert(ours.end(), args.begin() + static_cast<int64_t>(std::min(at, args.size())),
              args.end());
  return ours;
}

}  // namespace

std::vector<std::string> with_our_verb(std::vector<std::string> args) {
  if (args.empty()) return args;
  for (const ForeignVerb& verb : verbs()) {
    if (canonical_key(args[0]) != verb.name || args[0].starts_with("-")) continue;
    if (verb.ours.empty()) usage_error("{}: {}", verb.name, verb.reason);
    args.erase(args.begin());
    args.insert(args.begin(), verb.ours.begin(), verb.ours.end());
    break;
  }
  return args;
}

std::vector<std::string> with_our_options(std::span<const OptionInfo> options,
                                          std::vector<std::string> args,
                                          const std::string& command) {
  const auto kind_of = [&](const std::string& name) {
    const auto at = std::ranges::find_if(options, [&](const OptionInfo& o) {
      return o.name == name || std::ranges::find(o.aliases, name) != o.aliases.end();
    });
    return at == options.end() ? OptionKind::kFlag : at->kind;
  };
  if (takes_adapters(options)) args = with_our_adapters(std::move(args));
  bool is_value = false;  // whether the next word is the value of the option before it
  for (std::string& arg : args) {
    if (arg == "--") break;
    const bool was_value = std::exchange(is_value, false) && !arg.starts_with("--");
    if (was_value || arg.size() < 2 || arg[0] != '-') continue;
    const size_t equals = std::min(arg.find('='), arg.size());
    const bool is_long = arg.starts_with("--");
    const std::string key =
        is_long ? "--" + canonical_key(arg.substr(0, equals)) : arg.substr(0, equals);
    const auto expect_value = [&](const std::string& name) {
      const OptionKind kind = kind_of(name);
      is_value =
          equals == arg.size() && (kind == OptionKind::kText || kind == OptionKind::kReal ||
                                   kind == OptionKind::kInteger || kind == OptionKind::kList);
    };
    if (is_long && has_option(options, canonical_key(key))) {
      expect_value(canonical_key(key));
      continue;
    }
    for (const ForeignOption& other : options_of_others()) {
      if (std::ranges::find(other.names, key) == other.names.end()) continue;
      const auto ours = std::ranges::find_if(
          other.ours, [&](const std::string& name) { return has_option(options, name); });
      if (ours != other.ours.end()) {
        expect_value(*ours);
        arg = "--" + *ours + arg.substr(equals);
      } else if (*other.reason != '\0') {
        usage_error("{} {}: {}", command, key, other.reason);
      }
      break;
    }
  }
  return args;
}

}  // namespace brrr::cli
