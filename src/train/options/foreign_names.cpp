#include "train/options/foreign_names.h"

#include <algorithm>
#include <iterator>

#include "base/file.h"
#include "train/options/harmless_names.h"

namespace brrr::train {
namespace {

using ForeignTable = OptionTable<TrainOptions>;
using Kind = OptionKind;

/// PEFT, TRL, axolotl, LLaMA-Factory and MLX-LM.
void add_adapter_rows(ForeignTable& t) {
  const auto use_lora = [](TrainOptions& o, const std::string& s) {
    constexpr int64_t kRankOfTrl = 16;
    if (!parse_bool(s))
      o.lora_r = 0;
    else if (o.lora_r == 0)
      o.lora_r = kRankOfTrl;
  };
  t.foreign("use-peft", Kind::kFlag, "lora-r", "lora-r=16", use_lora, {"use-lora"});
  t.foreign("finetuning-type", Kind::kText, "lora-r", "lora: lora-r=8, full: lora-r=off",
            [](TrainOptions& o, const std::string& s) {
              constexpr int64_t kUsualRank = 8;  // in LLaMA-Factory and MLX-LM
              if (s != "lora" && s != "full")
                usage_error(
                    "expected lora or full; --freeze leaves named parameters as they are, and "
                    "adapters with DoRA are used, not trained; got '{}'",
                    s);
              if (s == "full")
                o.lora_r = 0;
              else if (o.lora_r == 0)
                o.lora_r = kUsualRank;
            },
            {"fine-tune-type"});
  t.foreign("lora-target-linear", Kind::kFlag, "lora-targets", "lora-targets=all-linear",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s) && o.lora_targets.empty()) o.lora_targets = {"all-linear"};
            });
  t.foreign("bnb-4bit-compute-dtype", Kind::kText, "precision", "as precision has them",
            [](TrainOptions& o, const std::string& s) {
              if (is_among(s, "bfloat16 bf16 torch.bfloat16"))
                o.precision = Precision::bfloat16;
              else if (is_among(s, "float16 fp16 half torch.float16"))
                o.precision = Precision::fp16;
              else if (!is_among(s, "auto none null float32 fp32 torch.float32"))
                usage_error("expected bfloat16, float16 or float32; got '{}'", s);
            });
  const auto expect_with_answers = [](const TrainOptions& o, bool given, bool with_answers) {
    const bool expected = renders_conversations(o) == with_answers;
    if (given != expected)
      usage_error(
          "expected {}: --task chat and --task dpo learn answers alone, a run without --task whole "
          "texts; leave it out",
          expected);
  };
  t.foreign(
      "assistant-only-loss", Kind::kFlag, "assistant-only-loss", "true with task=chat",
      [=](TrainOptions& o, const std::string& s) { expect_with_answers(o, parse_bool(s), true); },
      {"completion-only-loss", "mask-prompt"});
  t.foreign(
      "train-on-prompt", Kind::kFlag, "train-on-prompt", "false with task=chat",
      [=](TrainOptions& o, const std::string& s) { expect_with_answers(o, parse_bool(s), false); },
      {"train-on-inputs"});
}

void add_mapped_rows(ForeignTable& t) {
  const auto mixed = [&](const char* name, Precision precision, const char* help) {
    t.foreign(name, Kind::kFlag, "precision", help,
              [precision](TrainOptions& o, const std::string& s) {
                // axolotl's `bf16: auto` asks for bf16 if the device supports it; all do here.
                const bool is_auto = precision == Precision::bfloat16 && is_among(s, "auto");
                if (is_auto || parse_bool(s)) o.precision = precision;
              },
              {std::string(name) + "-full-eval"});
  };
  mixed("bf16", Precision::bfloat16, "precision=bf16");
  mixed("fp16", Precision::fp16, "precision=fp16");
  t.foreign("tf32", Kind::kFlag, "float32-matmul-precision", "true: high",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s)) o.float32_matmul_precision = "high";
            });
  t.foreign("gradient-checkpointing", Kind::kFlag, "rematerialize", "true: blocks",
            [](TrainOptions& o, const std::string& s) {
              set_rematerialize(o, parse_bool(s) ? "blocks" : "none");
            },
            {"activation-checkpointing", "grad-checkpoint"});
  t.foreign("group-by-length", Kind::kFlag, "sampling", "sampling=group_by_length",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s)) o.sampling = "group_by_length";
            });
  t.foreign("packing", Kind::kFlag, "pack", "pack=documents",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s)) o.pack = "documents";
            },
            {"neat-packing", "sample-packing"});
  t.foreign("use-cpu", Kind::kFlag, "device", "device=cpu",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s)) o.device = "cpu";
            },
            {"no-cuda"});
  t.foreign("decay-lr", Kind::kFlag, "lr-scheduler-type", "false: constant",
            [](TrainOptions& o, const std::string& s) {
              if (!parse_bool(s)) o.lr_scheduler_type = "constant";
            });
  t.foreign("warmup-ratio", Kind::kReal, "warmup-steps", "a share of all steps",
            [](TrainOptions& o, const std::string& s) {
              o.warmup_steps = parse_real(s, {.low = 0, .high = 1, .high_open = true});
            });
  t.foreign("do-eval", Kind::kFlag, "eval-steps", "false: eval-steps=0",
            [](TrainOptions& o, const std::string& s) {
              if (!parse_bool(s)) o.eval_steps = 0;
            });
  const auto strategy = [&](const char* name, const char* target, double TrainOptions::*field,
                            std::vector<std::string> aliases) {
    t.foreign(
        name, Kind::kText, target, "steps, no, or epoch",
        [field](TrainOptions& o, const std::string& s) {
          if (s == "no" || s == "false")
            o.*field = 0;
          else if (s == "epoch")
            o.*field = kEachEpoch;
          else if (s != "steps")
            usage_error("expected steps or no, or epoch with --num-train-epochs; got '{}'", s);
        },
        std::move(aliases));
  };
  strategy("eval-strategy", "eval-steps", &TrainOptions::eval_steps, {"evaluation-strategy"});
  strategy("save-strategy", "save-steps", &TrainOptions::save_steps, {});
  strategy("logging-strategy", "logging-steps", &TrainOptions::logging_steps, {});
  t.foreign("train-sampling-strategy", Kind::kText, "sampling", "random or group_by_length",
            [](TrainOptions& o, const std::string& s) {
              if (s != "random" && s != "group_by_length")
                usage_error(
                    "expected random (each token once per pass, shuffled) or group_by_length; got "
                    "'{}'",
                    s);
              o.sampling = s == "random" ? "epoch" : s;
            });
}

/// transformers' example scripts.
void add_script_rows(ForeignTable& t) {
  t.foreign("full-determinism", Kind::kFlag, "full-determinism", "always so",
            [](TrainOptions&, const std::string& s) { parse_bool(s); });
  t.foreign("greater-is-better", Kind::kOptional, "greater-is-better", "as the metric says",
            [](TrainOptions& o, const std::string& s) {
              if (!is_among(s, "none null")) o.greater_is_better = parse_bool(s);
            });
  t.foreign("validation-split-percentage", Kind::kReal, "val-fraction", "percent of the text",
            [](TrainOptions& o, const std::string& s) {
              o.val_fraction = parse_real(s, {.low = 0, .high = 100, .high_open = true}) / 100;
            });
  t.foreign(
      "torch-dtype", Kind::kText, "param-dtype", "float32, bfloat16 or auto",
      [](TrainOptions& o, const std::string& s) {
        if (is_among(s, "bfloat16 bf16"))
          o.param_dtype = Precision::bfloat16;
        else if (!is_among(s, "auto none null float32 fp32"))
          usage_error(
              "expected auto, float32 or bfloat16, in which parameters are stored; --precision is "
              "for what is computed with them; got '{}'",
              s);
      });
  t.foreign("streaming", Kind::kFlag, "tokenize", "true: stream",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s)) o.tokenize = "stream";
            });
  t.foreign("do-regression", Kind::kFlag, "do-regression", "that of the task",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s) != (o.task == TrainTask::regress))
                usage_error("expected {}: --task regress learns numbers, --task classify classes",
                            o.task == TrainTask::regress);
            });
}

/// nanoGPT's --dataset NAME is the folder data/NAME, with train.bin and val.bin in it.
KeyValues dataset_named(const std::string& name) {
  for (const std::string& folder : {"data/" + name, name}) {
    std::error_code ignored;
    const auto holds = [&](const char* file) {
      return fs::exists(fs::path(folder) / file, ignored);
    };
    // Its meta.pkl says which character an id is; the text itself says it, too.
    const bool has_characters = holds("meta.pkl") && holds("input.txt");
    if (holds("train.bin") && !has_characters) {
      KeyValues ours{{"data", folder}};
      if (!holds("tokenizer.json") && !holds("meta.pkl")) ours.emplace_back("tokenizer", "gpt2");
      return ours;
    }
    if (holds("input.txt"))
      return {{"text", (fs::path(folder) / "input.txt").string()},
              {"tokenizer", has_characters || name.ends_with("_char") ? "char" : "gpt2"}};
  }
  if (name == "shakespeare_char") return {{"tokenizer", "char"}};  // the default text
  if (name == "shakespeare") return {{"tokenizer", "gpt2"}};
  usage_error(
      "there is no folder data/{0} with train.bin or input.txt: name files by --text FILE..., or "
      "with --task chat or dpo by --data FILE.jsonl, or make shards by `brrr data prepare --text "
      "FILE... --output-dir data/{0}`; got '{0}'",
      name);
}

/// axolotl's `adapter: lora` or `qlora`.
KeyValues adapter_named(const std::string& kind) {
  if (is_among(kind, kOff)) return {{"use-peft", "false"}};
  if (kind == "lora") return {{"use-peft", "true"}};
  if (kind == "qlora") return {{"use-peft", "true"}, {"load-in-4bit", "true"}};
  usage_error(
      "expected lora or qlora; `--lora-r N` trains a new adapter, and --init-from FOLDER trains "
      "one further; got '{}'",
      kind);
}

/// LLaMA-Factory's `stage: sft`.
KeyValues stage_named(const std::string& stage) {
  if (stage == "pt") return {};
  if (stage == "sft") return {{"task", "chat"}};
  if (stage == "dpo") return {{"task", "dpo"}};
  usage_error("expected pt (learn --text FILE...), sft (--task chat) or dpo (--task dpo); got '{}'",
              stage);
}

/// axolotl's `rl: dpo`.
KeyValues preference_task_named(const std::string& method) {
  if (is_among(method, kOff)) return {};
  if (method == "dpo") return {{"task", "dpo"}};
  if (method == "ipo") return {{"task", "dpo"}, {"dpo-loss", "ipo"}};
  usage_error("expected dpo or ipo; got '{}'", method);
}

/// LLaMA-Factory's `lora_target: q_proj, v_proj`, or `all`.
KeyValues targets_named(const std::string& list) {
  std::string names = list;
  std::erase(names, ' ');
  return {{"lora-targets", names == "all" ? "all-linear" : names}};
}

/// LLaMA-Factory's `quantization_bit: 4`.
KeyValues integers_of_bits(const std::string& bits) {
  if (is_among(bits, kOff)) return {};
  if (bits == "4") return {{"load-in-4bit", "true"}};
  if (bits == "8") return {{"load-in-8bit", "true"}};
  usage_error("expected 4 or 8; got '{}'", bits);
}

/// "n_embd=256,n_layer=4", as run_clm has it.
KeyValues overrides_in(const std::string& list) {
  KeyValues ours;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string one = list.substr(begin, end - begin);
    const size_t equals = one.find('=');
    if (equals == std::string::npos)
      usage_error("expected NAME=VALUE, several separated by commas; got '{}'", list);
    ours.emplace_back(one.substr(0, equals), one.substr(equals + 1));
    begin = end + 1;
  }
  return ours;
}

KeyValues columns_named(const std::string& names) {
  const size_t comma = names.find(',');
  KeyValues ours{{"text-column", names.substr(0, comma)}};
  if (comma != std::string::npos) ours.emplace_back("text2-column", names.substr(comma + 1));
  return ours;
}

/// Option name of another program that stands for one or several options of ours. `option`: the
/// main one of these, by which plans and ladders recognise what was given.
struct Translated {
  const char* name;
  Kind kind;
  const char* option;
  KeyValues (*in_ours)(const std::string& value);
};

const Translated kTranslated[] = {
    {"dataset", Kind::kText, "data", dataset_named},
    {"config-overrides", Kind::kText, "config-overrides", overrides_in},
    {"text-column-names", Kind::kText, "text-column", columns_named},
    {"line-by-line", Kind::kFlag, "sampling",
     [](const std::string& s) {
       return parse_bool(s) ? KeyValues{{"sampling", "documents"}, {"separator", "\n"}}
                            : KeyValues{};
     }},
    {"checkpointing-steps", Kind::kText, "save-steps",
     [](const std::string& s) {
       return KeyValues{{s == "epoch" ? "save-strategy" : "save-steps", s}};
     }},
    {"stage", Kind::kText, "task", stage_named},
    {"rl", Kind::kText, "task", preference_task_named},
    {"adapter", Kind::kText, "lora-r", adapter_named},
    {"qlora", Kind::kFlag, "lora-r",
     [](const std::string& s) { return parse_bool(s) ? adapter_named("qlora") : KeyValues{}; }},
    {"lora-target", Kind::kList, "lora-targets", targets_named},
    {"quantization-bit", Kind::kText, "load-in-4bit", integers_of_bits},
    {"pure-bf16", Kind::kFlag, "precision",
     [](const std::string& s) {
       return parse_bool(s) ? KeyValues{{"precision", "bf16"}, {"param-dtype", "bfloat16"}}
                            : KeyValues{};
     }},
    // MLX-LM writes the adapter there; training one is its default.
    {"adapter-path", Kind::kText, "output-dir",
     [](const std::string& s) {
       return KeyValues{{"output-dir", s}, {"finetuning-type", "lora"}};
     }},
};

void add_translated_rows(ForeignTable& t) {
  for (const Translated& row : kTranslated)
    t.foreign(row.name, row.kind, row.option, "", [](TrainOptions&, const std::string&) {});
}

}  // namespace

void add_foreign_rows(ForeignTable& t) {
  t.group("");
  add_mapped_rows(t);
  add_adapter_rows(t);
  add_script_rows(t);
  add_harmless_rows(t);
  add_translated_rows(t);
}

std::optional<KeyValues> in_our_names(const std::string& option, const std::string& value) {
  if (option == "init-from" && value == "resume") return KeyValues{{"resume", "true"}};
  for (const Translated& row : kTranslated)
    if (option == row.name) return row.in_ours(value);
  return std::nullopt;
}

const KeyValues& nanogpt_defaults() {
  static const KeyValues all = {{"bias", "false"},         {"gradient-accumulation-steps", "40"},
                                {"batch-size", "12"},      {"context", "1024"},
                                {"learning-rate", "6e-4"}, {"min-lr", "6e-5"},
                                {"max-steps", "600000"},   {"lr-decay-steps", "600000"},
                                {"warmup-steps", "2000"},  {"weight-decay", "0.1"},
                                {"adam-beta1", "0.9"},     {"adam-beta2", "0.95"},
                                {"max-grad-norm", "1"},    {"eval-steps", "2000"},
                                {"eval-batches", "200"},   {"logging-steps", "1"}};
  return all;
}

void set_rematerialize(TrainOptions& o, const std::string& policy) {
  o.rematerialize = policy;
  if (policy != "auto") o.activation_memory.clear();
}

}  // namespace brrr::train
