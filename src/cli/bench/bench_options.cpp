#include "cli/bench/bench_options.h"

#include <charconv>

namespace brrr::cli {

const OptionTable<BenchOptions>& bench_table() {
  static const OptionTable<BenchOptions> table = [] {
    using O = BenchOptions;
    OptionTable<O> t;
    t.group("what");
    t.list("shape", &O::shapes, true, "MxKxN...",
           "matmul: shapes of the products, as MxKxN (default: the twelve of a GPT-2 124M step)");
    t.list("dtype", &O::dtypes, true, "NAME...",
           "f32, bf16, f16; matmul: i8, too; ops: any (default: all)");
    t.list("op", &O::ops, true, "NAME...", "ops: those whose names contain one of these");
    t.integer("rows", &O::rows, 1, 1 << 24, "N", "matmul: tokens of the GPT-2 products");
    t.list(
        "length", &O::lengths, true, "T...",
        "attention: sequence lengths (default: 256, 1024, 4096); inference: tokens of texts of one "
        "length, beside those of --text (default: 16 64 256; --quick: 64)");
    t.integer("elements", &O::elements, 0, int64_t{1} << 32, "N",
              "fusion, ops: elements of a tensor; optimizer: number of parameters (0: 16,777,216, "
              "and 1,048,576 for ops)");
    t.text("svg", &O::svg, "FILE", "fusion: also draw the plot");
    t.text("preset", &O::preset, "NAME",
           "step, decode: preset of `brrr train` (default: char-cpu for step, gpt2 for decode)");
    t.text(
        "model", &O::model, "FOLDER",
        "step, decode: the model of a run, checkpoint or model folder, or ORG/NAME of the Hugging "
        "Face Hub, instead of a preset's; inference: an encoder (default: random weights of "
        "MiniLM's size)",
        {"model-name-or-path"});
    t.integer("prompt", &O::prompt, 0, 1 << 20, "N",
              "decode: tokens in the cache at the start (0: 64, or half of the context)");
    add_cache_precision_row(t, &O::kv_cache);
    t.list(
        "precision", &O::precisions, true, "NAME...",
        "step, decode, inference: fp32, bf16, fp16; step: tf32, fp8; matmul, decode, inference: "
        "int8, int8-weight-only, int4, int4-weight-only (default: fp32 and bf16; of a model with "
        "quantised weights: its own; matmul: none)");
    t.list("batch-size", &O::batches, true, "B...",
           "step: sequences (default: the preset's); inference: sentences of a batch (default: 1 8 "
           "16 32 64; --quick: 1 16 64)");
    t.integer("context", &O::context, 0, 1 << 24, "N", "step: sequence length (0: the preset's)",
              {"block-size"});
    t.list("rematerialize", &O::rematerialize, true, "NAME...",
           "step: none, all, blocks, auto, or budgets of auto such as 300MB (default: none)");
    t.flag("compile", &O::compile, "step: --no-compile also measures execution node by node");
    t.text("device", &O::device, "NAME", "step: auto, cpu, or a GPU of this machine: cuda, cuda:N");
    t.integer("n-layer", &O::layers, 0, 4096, "N", "step: layers (0: the preset's)");
    t.integer("n-head", &O::heads, 0, 4096, "N", "step: heads (0: the preset's)");
    t.integer("n-embd", &O::width, 0, 1 << 20, "N", "step: width (0: the preset's)");
    t.text("text", &O::text, "FILE",
           "inference: a file with a sentence on each line (default: "
           "sentences/mixed-1000.txt in $BRRR_DATA, else lines of the default text)");
    t.integer("sentences", &O::sentences, 0, 1 << 24, "N",
              "inference: read only the first N sentences (0: 1,000; --quick: 80)");
    t.text("peers", &O::peers, "VENV",
           "inference: also time the runtimes of a Python virtual environment: onnxruntime, "
           "openvino, torch, sentence-transformers");
    t.real("peer-timeout", &O::peer_timeout, {.low = 0, .high = 1e6, .low_open = true}, "X",
           "inference: seconds that a peer may take for one answer");
    t.flag("quick", &O::quick,
           "inference: fewer sentences, sizes, repeats and peers: a minute on two cores");
    t.text("html", &O::html, "FILE", "inference: write curves and tables as one HTML page");
    t.text("comm", &O::comm, "NAME", "ranks: what carries the bytes: auto, shm, mpi");
    t.group("running");
    t.flag("peaks", &O::peaks,
           "step: --no-peaks skips measuring the machine's peak, and prints no MFU");
    t.integer("steps", &O::steps, 2, 1000, "N",
              "step: run at least this many steps, however long they take, and print their losses");
    t.real("seconds", &O::seconds, {.low = 0, .high = 3600}, "X",
           "time to spend on each row (ops: a fortieth of it)");
    t.flag("json", &O::json, "one JSON object on standard output");
    t.integer("threads", &O::threads, 0, 4096, "N",
              "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"});
    return t;
  }();
  return table;
}

int64_t positive(std::string_view text, const char* option, int64_t most) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < 1)
    usage_error("--{}: expected whole numbers from 1; got '{}'", option, text);
  if (value > most) usage_error("--{}: expected at most {}; got {}", option, most, value);
  return value;
}

int64_t single_batch(const BenchOptions& o, const char* question) {
  if (o.batches.size() > 1)
    usage_error("--batch-size: bench {} takes one; got {}", question, o.batches.size());
  // A value of 0 selects the default, as in other verbs.
  return o.batches.empty() || o.batches[0] == "0"
             ? 0
             : positive(o.batches[0], "batch-size", kLargestBatch);
}

}  // namespace brrr::cli
