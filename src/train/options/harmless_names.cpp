#include "train/options/harmless_names.h"

#include <algorithm>

namespace brrr::train {
namespace {

using Kind = OptionKind;

/// A name that no option of ours corresponds to. `harmless`: the values, separated by spaces, that
/// change nothing here; "": any. Other values are refused with `reason`, which says what to do.
struct Harmless {
  const char* name;
  Kind kind;
  const char* harmless;
  const char* reason;
};

constexpr const char* kLabelledFile =
    "texts with labels are read from a file: take --task NAME --data FILE.tsv";
constexpr const char* kOwnRanks =
    "leave it out: `brrr launch -n N train` starts N ranks, --zero 1, 2 or 3 divides states, "
    "gradients and weights among them, and torchrun, mpirun and srun start them with the same "
    "options";
constexpr const char* kScales =
    "the scales of --load-in-4bit are held as they are, not quantised in their turn; leave it out";
constexpr const char* kOwnIntegers =
    "--load-in-4bit and --load-in-8bit quantise the base model; a folder that GPTQ, AWQ or "
    "bitsandbytes has quantised keeps its integers; leave it out";
constexpr const char* kStartedAdapter =
    "--init-from FOLDER trains the adapter in FOLDER further, over the base model that it names: "
    "name that folder in the place of the model";
constexpr const char* kSmallStates =
    "--optim adamw_8bit or adafactor keeps small states for all weights, and --lora-r N trains "
    "few; leave it out";
constexpr const char* kSharesOfSteps =
    "--eval-steps and --save-steps below 1 are a share of all steps; leave it out";
constexpr const char* kReference =
    "the reference of --task dpo is the model that the run starts from; leave it out";
constexpr const char* kPreferenceLosses =
    "--task dpo has the losses of --dpo-loss: sigmoid and ipo; leave it out";
constexpr const char* kNoUpload =
    "nothing is uploaded; leave it out, and upload the run's folder by `hf upload NAME FOLDER`";

// transformers' TrainingArguments in their order, then names that its earlier versions had.
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

    // PEFT, axolotl, LLaMA-Factory, MLX-LM and the scripts around them.
    {"lora-task-type", Kind::kText, "", ""},
    {"use-dora", Kind::kFlag, "false", "adapters with DoRA are used, not trained; leave it out"},
    {"bnb-4bit-use-double-quant", Kind::kFlag, "false", kScales},
    {"use-bnb-nested-quant", Kind::kFlag, "false", kScales},
    {"bnb-4bit-quant-storage", Kind::kText, "", ""},
    {"double-quantization", Kind::kFlag, "false", kScales},
    {"quantization-method", Kind::kText, "bnb bitsandbytes", kOwnIntegers},
    {"adapter-name-or-path", Kind::kText, kOff, kStartedAdapter},
    {"lora-model-dir", Kind::kText, kOff, kStartedAdapter},
    {"resume-adapter-file", Kind::kText, kOff, kStartedAdapter},
    {"create-new-adapter", Kind::kFlag, "false", kStartedAdapter},
    {"lora-fan-in-fan-out", Kind::kOptional, "", ""},
    {"pissa-init", Kind::kFlag, "false",
     "B begins with zeros, and A with random numbers; leave it out"},
    {"loraplus-lr-ratio", Kind::kText, kOff, "A and B have one learning rate; leave it out"},
    {"use-galore", Kind::kFlag, "false", kSmallStates},
    {"use-badam", Kind::kFlag, "false", kSmallStates},
    {"use-apollo", Kind::kFlag, "false", kSmallStates},
    {"template", Kind::kText, "none null default",
     "conversations are written by the chat template of the model's folder, or of --chat-template "
     "FILE; leave it out"},
    {"mask-history", Kind::kFlag, "false", "all turns of the assistant are learnt; leave it out"},
    {"dataset-dir", Kind::kText, kOff, "data is read from files: take --data FILE.jsonl"},
    {"max-samples", Kind::kText, kOff,
     "the whole file is learnt from: cut it, or take --max-steps"},
    {"grad-accumulation-steps", Kind::kText, "1",
     "MLX-LM's iters count micro-batches, --max-steps optimizer steps: divide them, and take "
     "--gradient-accumulation-steps"},
    {"eval-dataset", Kind::kText, kOff, "data is read from files: take --val-data FILE.jsonl"},
    {"evals-per-epoch", Kind::kText, kOff, kSharesOfSteps},
    {"saves-per-epoch", Kind::kText, kOff, kSharesOfSteps},
    {"pad-to-sequence-len", Kind::kFlag, "", ""},
    {"dataset-prepared-path", Kind::kText, "", ""},
    {"wandb-entity", Kind::kText, "", ""},
    {"wandb-watch", Kind::kText, "", ""},
    {"wandb-name", Kind::kText, "", ""},
    {"wandb-log-model", Kind::kText, "", ""},
    {"project-name", Kind::kText, "", ""},
    {"upcast-layernorm", Kind::kFlag, "", ""},  // norms always compute in f32
    {"pref-ftx", Kind::kText, "0 0.0", kPreferenceLosses},
    {"train", Kind::kFlag, "true", "another verb uses a model without training it: eval"},
    {"test", Kind::kFlag, "false", "`brrr eval MODEL --text FILE` evaluates a model; leave it out"},
    {"test-batches", Kind::kText, "", ""},
    {"plot-loss", Kind::kFlag, "", ""},  // the page of a run draws it
    {"flash-attn", Kind::kText, "", ""},
    {"flash-attention", Kind::kOptional, "", ""},
    {"enable-liger-kernel", Kind::kFlag, "", ""},
    {"use-unsloth", Kind::kFlag, "", ""},
    {"use-unsloth-gc", Kind::kFlag, "", ""},
    {"eval-sample-packing", Kind::kFlag, "", ""},
    {"strict", Kind::kFlag, "", ""},

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

}  // namespace

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

void add_harmless_rows(OptionTable<TrainOptions>& t) {
  for (const Harmless& h : kHarmless)
    t.foreign(h.name, h.kind, h.name, "",
              [&h](TrainOptions&, const std::string& s) { check_harmless(h, s); });
}

}  // namespace brrr::train
