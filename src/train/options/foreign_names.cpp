#include "train/options/foreign_names.h"

#include <algorithm>
#include <iterator>

#include "base/file.h"

namespace brrr::train {
namespace {

using ForeignTable = OptionTable<TrainOptions>;
using Kind = OptionKind;

/// A name that no option of ours corresponds to. `harmless`: the values, separated by spaces, that
/// change nothing here; "": any. Other values are refused with `reason`, which says what to do.
struct Harmless {
  const char* name;
  Kind kind;
  const char* harmless;
  const char* reason;
};

constexpr const char* kOff = "false none null 0 off no {} []";
constexpr const char* kLabelledFile =
    "texts with labels are read from a file: take --task NAME --data FILE.tsv";
constexpr const char* kOwnRanks =
    "leave it out: `brrr launch -n N train` starts N ranks, --zero 1, 2 or 3 divides states, "
    "gradients and weights among them, and torchrun, mpirun and srun start them with the same "
    "options";
constexpr const char* kScales =
    "the scales of --load-in-4bit are held as they are, not quantised in their turn; leave it out";
constexpr const char* kReference =
    "the reference of --task dpo is the model that the run starts from; leave it out";
constexpr const char* kPreferenceLosses =
    "--task dpo has the losses of --dpo-loss: sigmoid and ipo; leave it out";
constexpr const char* kNoUpload =
    "nothing is uploaded; leave it out, and upload the run's folder by `hf upload NAME FOLDER`";

// In the order of transformers' TrainingArguments, then names that its earlier versions had, then
// nanoGPT's.
constexpr Harmless kHarmless[] = {
    {"lr-scheduler-kwargs", Kind::kText, kOff,
     "schedules have options of their own: --min-lr, --warmup-steps, --lr-decay-steps"},
    {"optim-args", Kind::kText, kOff,
     "optimizers have options of their own: --adam-beta1, --adam-beta2, --adam-epsilon, "
     "--momentum, --relative-step"},
    {"optim-target-modules", Kind::kText, kOff,
     "an optimizer updates all parameters; leave it out, or choose another --optim"},
    {"average-tokens-across-devices", Kind::kFlag, "", ""},
    {"label-smoothing-factor", Kind::kReal, "0 0.0",
     "the loss is that of the true tokens alone; leave it out"},
    {"activation-checkpointing-kwargs", Kind::kText, "", ""},
    {"gradient-checkpointing-kwargs", Kind::kText, "", ""},
    {"torch-compile-backend", Kind::kText, "", ""},
    {"torch-compile-mode", Kind::kText, "", ""},
    {"use-liger-kernel", Kind::kFlag, "", ""},
    {"liger-kernel-config", Kind::kText, "", ""},
    {"use-cache", Kind::kFlag, "", ""},
    {"neftune-noise-alpha", Kind::kText, "none null 0 0.0",
     "no noise is added to embeddings; leave it out, or take --dropout"},
    {"torch-empty-cache-steps", Kind::kText, "", ""},
    {"logging-first-step", Kind::kFlag, "false",
     "the first step is logged where every step is: take --logging-steps 1"},
    {"log-on-each-node", Kind::kFlag, "", ""},
    {"logging-nan-inf-filter", Kind::kFlag, "", ""},
    {"include-num-input-tokens-seen", Kind::kOptional, "", ""},
    {"log-level", Kind::kText, "", ""},
    {"log-level-replica", Kind::kText, "", ""},
    {"project", Kind::kText, "", ""},
    {"trackio-space-id", Kind::kText, "", ""},
    {"trackio-bucket-id", Kind::kText, "", ""},
    {"trackio-static-space-id", Kind::kText, "", ""},
    {"eval-delay", Kind::kReal, "0 0.0",
     "evaluations are every --eval-steps from the start; leave it out"},
    {"prediction-loss-only", Kind::kFlag, "", ""},
    // The trainer evaluates before its first step, unless it never does.
    {"eval-on-start", Kind::kFlag, "", ""},
    {"eval-do-concat-batches", Kind::kFlag, "", ""},
    {"eval-use-gather-object", Kind::kFlag, "", ""},
    {"eval-accumulation-steps", Kind::kText, "", ""},
    {"include-for-metrics", Kind::kList, "", ""},
    {"batch-eval-metrics", Kind::kFlag, "", ""},
    {"save-only-model", Kind::kFlag, "false",
     "a checkpoint holds all that --resume needs; the run's folder itself holds the model alone at "
     "the end"},
    {"save-on-each-node", Kind::kFlag, "", ""},
    {"enable-jit-checkpoint", Kind::kFlag, "", ""},
    {"push-to-hub", Kind::kFlag, "false", kNoUpload},
    {"hub-token", Kind::kText, "", ""},
    {"hub-private-repo", Kind::kOptional, "", ""},
    {"hub-model-id", Kind::kText, "", ""},
    {"hub-strategy", Kind::kText, "", ""},
    {"hub-always-push", Kind::kFlag, "false", kNoUpload},
    {"hub-revision", Kind::kText, "", ""},
    {"ignore-data-skip", Kind::kFlag, "false",
     "a resumed run goes on with the batch at which it stopped, at once; leave it out"},
    {"restore-callback-states-from-checkpoint", Kind::kFlag, "", ""},
    {"accelerator-config", Kind::kText, kOff, kOwnRanks},
    {"parallelism-config", Kind::kText, kOff, kOwnRanks},
    {"dataloader-drop-last", Kind::kFlag, "false",
     "every row is learnt from in every pass; leave it out"},
    {"dataloader-pin-memory", Kind::kFlag, "", ""},
    {"dataloader-persistent-workers", Kind::kFlag, "", ""},
    {"dataloader-multiprocessing-context", Kind::kText, "", ""},
    {"dataloader-in-order", Kind::kFlag, "", ""},
    {"remove-unused-columns", Kind::kFlag, "", ""},
    {"label-names", Kind::kText, "none null labels",
     "the column of the label is named by --label-column"},
    {"length-column-name", Kind::kText, "", ""},
    {"ddp-find-unused-parameters", Kind::kOptional, "", ""},
    {"ddp-bucket-cap-mb", Kind::kText, "", ""},
    {"ddp-broadcast-buffers", Kind::kOptional, "", ""},
    {"ddp-static-graph", Kind::kOptional, "", ""},
    {"ddp-backend", Kind::kText, "", ""},
    {"ddp-timeout", Kind::kText, "", ""},
    {"fsdp", Kind::kOptional, kOff, kOwnRanks},
    {"fsdp-config", Kind::kText, kOff, kOwnRanks},
    {"deepspeed", Kind::kText, kOff, kOwnRanks},
    {"debug", Kind::kText, kOff,
     "a run says by itself which step overflowed, and why; leave it out"},
    {"skip-memory-metrics", Kind::kFlag, "", ""},
    {"do-train", Kind::kFlag, "true", "another verb uses a model without training it: eval"},
    {"do-predict", Kind::kFlag, "false",
     "other verbs use a trained model: generate, classify, fill-mask, embed"},
    {"local-rank", Kind::kText, "-1 0", kOwnRanks},

    {"logging-dir", Kind::kText, kOff,
     "the logs of a run are in its folder: leave it out, and name that by --output-dir"},
    {"save-safetensors", Kind::kFlag, "true", "weights are always saved as safetensors"},
    {"half-precision-backend", Kind::kText, "", ""},
    {"fp16-backend", Kind::kText, "", ""},
    {"fp16-opt-level", Kind::kText, "", ""},
    {"include-tokens-per-second", Kind::kFlag, "", ""},
    {"jit-mode-eval", Kind::kFlag, "", ""},
    {"use-ipex", Kind::kFlag, "", ""},
    {"use-mps-device", Kind::kFlag, "false", "devices are cpu and cuda: take --device"},
    {"past-index", Kind::kText, "-1", "no memory is carried from batch to batch; leave it out"},
    {"split-batches", Kind::kOptional, "", ""},
    {"dispatch-batches", Kind::kOptional, "", ""},
    {"tpu-num-cores", Kind::kText, kOff, kOwnRanks},
    {"dataset-name", Kind::kText, kOff,
     "data is read from files: take --text FILE... or --data SHARD..."},
    {"dataset-config-name", Kind::kText, kOff,
     "data is read from files: take --text FILE... or --data SHARD..."},

    // Its example scripts: run_clm, run_mlm, run_glue, run_ner.
    {"cache-dir", Kind::kText, kOff,
     "models and data are looked for where the environment variable HF_HOME says; set that, and "
     "leave it out"},
    {"config-name", Kind::kText, kOff,
     "--preset NAME, or --architecture NAME and its options, shape a new model; --init-from FOLDER "
     "starts from one that there is"},
    {"use-fast-tokenizer", Kind::kFlag, "", ""},
    {"model-revision", Kind::kText, "main none null",
     "fetch it by `hf download NAME --revision REVISION --local-dir FOLDER`, and take --init-from "
     "FOLDER"},
    {"token", Kind::kText, "", ""},
    {"use-auth-token", Kind::kOptional, "", ""},
    {"trust-remote-code", Kind::kFlag, "", ""},  // no code of a model is ever run
    {"low-cpu-mem-usage", Kind::kFlag, "", ""},
    {"attn-implementation", Kind::kText, "", ""},
    {"ignore-mismatched-sizes", Kind::kFlag, "", ""},
    {"max-train-samples", Kind::kText, kOff,
     "the whole file is learnt from: cut it, or take --max-steps"},
    {"max-eval-samples", Kind::kText, kOff, "take --eval-batches"},
    {"max-predict-samples", Kind::kText, kOff,
     "`brrr classify RUN FILE` labels the lines of any file"},
    {"overwrite-cache", Kind::kFlag, "", ""},
    {"preprocessing-num-workers", Kind::kText, "", ""},
    {"keep-linebreaks", Kind::kFlag, "true", "line ends are part of the text; leave it out"},
    {"pad-to-max-length", Kind::kFlag, "", ""},
    {"task-name", Kind::kText, kOff, kLabelledFile},
    {"test-file", Kind::kText, kOff, "`brrr classify RUN FILE` labels the lines of any file"},
    {"train-split-name", Kind::kText, "none null train", kLabelledFile},
    {"validation-split-name", Kind::kText, "none null validation", kLabelledFile},
    {"test-split-name", Kind::kText, "none null test", kLabelledFile},
    {"remove-splits", Kind::kText, kOff, kLabelledFile},
    {"remove-columns", Kind::kText, kOff, "other columns are not read; leave it out"},
    {"shuffle-train-dataset", Kind::kFlag, "", ""},
    {"shuffle-seed", Kind::kText, "", ""},
    {"metric-name", Kind::kText, kOff, "the metrics are those of --task; leave it out"},
    {"label-all-tokens", Kind::kFlag, "false",
     "a word has its label once, at its first token; leave it out"},
    {"return-entity-level-metrics", Kind::kFlag, "", ""},
    {"with-tracking", Kind::kFlag, "", ""},  // log.jsonl and event files are written in any case

    // Options of the launchers torchrun and accelerate.
    {"nnodes", Kind::kText, "1", kOwnRanks},
    {"num-machines", Kind::kText, "1", kOwnRanks},
    {"node-rank", Kind::kText, "0", kOwnRanks},
    {"machine-rank", Kind::kText, "0", kOwnRanks},
    {"master-addr", Kind::kText, kOff, kOwnRanks},
    {"master-port", Kind::kText, kOff, kOwnRanks},
    {"rdzv-backend", Kind::kText, kOff, kOwnRanks},
    {"rdzv-endpoint", Kind::kText, kOff, kOwnRanks},

    // PEFT and the scripts around it.
    {"lora-task-type", Kind::kText, "", ""},
    {"use-dora", Kind::kFlag, "false", "adapters with DoRA are used, not trained; leave it out"},
    {"bnb-4bit-use-double-quant", Kind::kFlag, "false", kScales},
    {"use-bnb-nested-quant", Kind::kFlag, "false", kScales},
    {"bnb-4bit-quant-storage", Kind::kText, "", ""},

    // TRL's DPOConfig.
    {"precompute-ref-log-probs", Kind::kFlag, "", ""},  // they always are
    {"precompute-ref-batch-size", Kind::kText, "", ""},
    {"truncation-mode", Kind::kText, "keep_start",
     "a sequence that is longer than --context loses its end; leave it out"},
    {"reference-free", Kind::kFlag, "false", kReference},
    {"sync-ref-model", Kind::kFlag, "false", kReference},
    {"ref-model", Kind::kText, kOff, kReference},
    {"use-weighting", Kind::kFlag, "false", "every pair counts alike; leave it out"},
    {"rpo-alpha", Kind::kText, kOff, kPreferenceLosses},
    {"ld-alpha", Kind::kText, kOff, kPreferenceLosses},
    {"f-divergence-type", Kind::kText, "reverse_kl", kPreferenceLosses},
    {"padding-free", Kind::kFlag, "", ""},  // it always is
    {"disable-dropout", Kind::kFlag, "true",
     "--task dpo trains without the model's dropout; name one with --dropout"},

    // nanoGPT. It keeps its best checkpoint alone where this is false; a run keeps the newest, too.
    {"always-save-checkpoint", Kind::kFlag, "", ""},
    {"backend", Kind::kText, "", ""},
    {"wandb-project", Kind::kText, "", ""},
    {"wandb-log", Kind::kFlag, "false",
     "metrics go to log.jsonl and TensorBoard files of the run, and `brrr report RUN` draws them; "
     "leave it out"},
    {"eval-only", Kind::kFlag, "false",
     "`brrr eval MODEL --text FILE` evaluates a model without training it; leave it out"},
};

bool is_among(const std::string& value, std::string_view words) {
  std::string word;
  for (const char c : value) word += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    if (words.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

void check_harmless(const Harmless& h, const std::string& value) {
  const std::string_view harmless = h.harmless;
  if (h.kind == Kind::kFlag) {
    const bool on = parse_bool(value);
    if (!harmless.empty() && on != (harmless == "true"))
      usage_error("expected {}: {}; got '{}'", harmless, h.reason, value);
  } else if (!harmless.empty() && !value.empty() && !is_among(value, harmless)) {
    usage_error("expected nothing else than {}: {}; got '{}'",
                harmless.substr(0, harmless.find(' ')), h.reason, value);
  }
}

/// PEFT, TRL and axolotl.
void add_adapter_rows(ForeignTable& t) {
  const auto use_lora = [](TrainOptions& o, const std::string& s) {
    constexpr int64_t kRankOfTrl = 16;
    if (parse_bool(s) && o.lora_r == 0) o.lora_r = kRankOfTrl;
  };
  t.foreign("use-peft", Kind::kFlag, "lora-r", "lora-r=16", use_lora, {"use-lora"});
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
  const auto learnt_turns = [](TrainOptions& o, const std::string& s) {
    if (parse_bool(s) != (o.task == TrainTask::chat))
      usage_error(
          "expected {}: --task chat learns the assistant's turns or the completion alone, other "
          "tasks whole texts; leave it out",
          o.task == TrainTask::chat);
  };
  t.foreign("assistant-only-loss", Kind::kFlag, "assistant-only-loss", "true with task=chat",
            learnt_turns, {"completion-only-loss"});
}

void add_mapped_rows(ForeignTable& t) {
  const auto mixed = [&](const char* name, Precision precision, const char* help) {
    t.foreign(name, Kind::kFlag, "precision", help,
              [precision](TrainOptions& o, const std::string& s) {
                if (parse_bool(s)) o.precision = precision;
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
            {"activation-checkpointing"});
  t.foreign("group-by-length", Kind::kFlag, "sampling", "sampling=group_by_length",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s)) o.sampling = "group_by_length";
            });
  t.foreign("packing", Kind::kFlag, "pack", "pack=documents",
            [](TrainOptions& o, const std::string& s) {
              if (parse_bool(s)) o.pack = "documents";
            });
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
  t.foreign("validation-split-percentage", Kind::kReal, "val-fraction", "percent of the text",
            [](TrainOptions& o, const std::string& s) {
              o.val_fraction =
                  parse_real(s, {.low = 0, .high = 100, .low_open = true, .high_open = true}) / 100;
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

/// Names that set no field: they stand for themselves.
void add_harmless_rows(ForeignTable& t) {
  for (const Harmless& h : kHarmless)
    t.foreign(h.name, h.kind, h.name, "",
              [&h](TrainOptions&, const std::string& s) { check_harmless(h, s); });
  t.foreign("full-determinism", Kind::kFlag, "full-determinism", "always so",
            [](TrainOptions&, const std::string& s) { parse_bool(s); });
  t.foreign("greater-is-better", Kind::kOptional, "greater-is-better", "as the metric says",
            [](TrainOptions& o, const std::string& s) {
              if (!is_among(s, "none null")) o.greater_is_better = parse_bool(s);
            });
  // Options of ours by another name, or several of them, which in_our_names() has.
  for (const char* name : {"dataset", "config-overrides", "text-column-names", "line-by-line",
                           "num-warmup-steps", "max-train-steps", "max-length",
                           "checkpointing-steps", "beta", "loss-type", "adapter", "qlora"}) {
    const bool is_flag =
        std::string_view(name) == "line-by-line" || std::string_view(name) == "qlora";
    t.foreign(name, is_flag ? Kind::kFlag : Kind::kText, name, "",
              [](TrainOptions&, const std::string&) {});
  }
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
      "make shards by `brrr data prepare --text FILE... --output-dir data/{0}`; got '{0}'",
      name);
}

/// axolotl's `adapter: lora` or `qlora`.
KeyValues adapter_named(const std::string& kind) {
  if (is_among(kind, kOff)) return {};
  if (kind == "lora") return {{"use-peft", "true"}};
  if (kind == "qlora") return {{"use-peft", "true"}, {"load-in-4bit", "true"}};
  usage_error(
      "expected lora or qlora; `--lora-r N` trains a new adapter, and --init-from FOLDER trains "
      "one further; got '{}'",
      kind);
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

}  // namespace

void add_foreign_rows(ForeignTable& t) {
  t.group("");
  add_mapped_rows(t);
  add_adapter_rows(t);
  add_script_rows(t);
  add_harmless_rows(t);
}

std::optional<KeyValues> in_our_names(const std::string& option, const std::string& value) {
  if (option == "init-from" && value == "resume") return KeyValues{{"resume", "true"}};
  if (option == "dataset") return dataset_named(value);
  if (option == "config-overrides") return overrides_in(value);
  if (option == "text-column-names") {
    const size_t comma = value.find(',');
    KeyValues ours{{"text-column", value.substr(0, comma)}};
    if (comma != std::string::npos) ours.emplace_back("text2-column", value.substr(comma + 1));
    return ours;
  }
  if (option == "line-by-line")
    return parse_bool(value) ? KeyValues{{"sampling", "documents"}, {"separator", "\n"}}
                             : KeyValues{};
  if (option == "num-warmup-steps") return KeyValues{{"warmup-steps", value}};
  if (option == "max-train-steps") return KeyValues{{"max-steps", value}};
  if (option == "max-length") return KeyValues{{"context", value}};
  if (option == "beta") return KeyValues{{"dpo-beta", value}};
  if (option == "loss-type") return KeyValues{{"dpo-loss", value}};
  if (option == "adapter") return adapter_named(value);
  if (option == "qlora") return adapter_named(parse_bool(value) ? "qlora" : "none");
  if (option == "checkpointing-steps")
    return KeyValues{{value == "epoch" ? "save-strategy" : "save-steps", value}};
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
