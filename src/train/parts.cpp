#include "train/parts.h"

#include <algorithm>
#include <cmath>

#include "base/human.h"
#include "base/memory.h"
#include "base/threads/parallel.h"
#include "folders/quantized/quantized_model.h"
#include "machine/device.h"
#include "models/freeze.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "runtime/attention_support.h"
#include "train/dataset.h"
#include "train/fit.h"
#include "train/options/lora_options.h"

namespace brrr::train {

models::ModelPtr model_of(const TrainOptions& o, int64_t vocab_size,
                          std::optional<int64_t> pad_token) {
  const int64_t vocabulary = o.vocab_size > 0 ? o.vocab_size : vocab_size;
  if (vocabulary < vocab_size && !learns_pictures(o))
    usage_error(
        "--vocab-size {} is smaller than the tokenizer's {}: use at least that, or leave it out",
        vocabulary, vocab_size);
  return models::find_architecture(o.architecture)
      .describe({{o.model_settings.begin(), o.model_settings.end()},
                 vocabulary,
                 o.context,
                 o.dropout,
                 pad_token});
}

std::string text_of_sizes(const models::ModelSizes& s, int64_t context) {
  if (s.picture)
    return fmt::format("{}, {}, pictures of {} x {} x {}, {}", counted(s.layers, "block"),
                       counted(s.width, "channel"), s.picture->channels, s.picture->height,
                       s.picture->width,
                       s.vocabulary == 1 ? std::string("1 class")
                                         : fmt::format("{} classes", with_commas(s.vocabulary)));
  return fmt::format("{}, {}, width {}, context {}", counted(s.layers, "layer"),
                     counted(s.heads, "head"), s.width, context);
}

bool trains_flat(const TrainOptions& o, const models::Model& model) {
  if (renders_conversations(o) && model.task().head != models::Head::next_token)
    user_error("--task {}: {} does not write text; start from a model that does", o.task,
               model.architecture().title);
  check_packable(o, model.task().head);
  if (!model.has_flat_loss()) {
    if (renders_conversations(o))
      user_error("--task {}: {} cannot begin another conversation within a row", o.task,
                 model.architecture().title);
    if (packs_documents(o))
      user_error("--pack documents: {} cannot begin another document within a row; leave it out",
                 model.architecture().title);
    return false;
  }
  if (model.task().head == models::Head::next_token && !joins_sequences(o)) return false;
  const Backend backend = machine::backend_for(o.device);
  const bool runs = runs_ragged_attention(backend, true);
  if (!runs && learns_preferences(o))
    user_error(
        "--task dpo: the device {} has no kernels for attention within the sequences of a pair; "
        "use --device cpu",
        backend.name);
  if (!runs && packs_documents(o))
    user_error(
        "--pack documents: the device {} has no kernels for attention within documents; use "
        "--device cpu, or --sampling documents without --pack",
        backend.name);
  return runs;
}

BatchContent content_of(const io::Batch& b, int64_t context) {
  const bool is_flat = !b.ids("starts").empty();
  if (!is_flat && b.ids("lengths").empty())
    return {b.count, static_cast<double>(b.count) / static_cast<double>(context)};
  BatchContent content;
  for (const io::Batch::Row& row : b.rows(1)) {
    // An empty padded row has one token; a text has at least its special tokens.
    if (row.tokens < (is_flat ? 1 : 2)) continue;
    content.tokens += static_cast<int64_t>(row.tokens);
    content.rows += 1;
  }
  if (!b.values("reference").empty()) content.rows /= 2;  // pairs
  return content;
}

SessionOptions session_options(const TrainOptions& o) {
  SessionOptions s;
  s.optimizer.kind = optim::optimizer_kind(o.optim);
  s.optimizer.beta1 = o.adam_beta1;
  s.optimizer.beta2 = o.adam_beta2;
  s.optimizer.eps = o.adam_epsilon;
  s.optimizer.weight_decay = o.weight_decay;
  s.optimizer.momentum = o.momentum;
  s.optimizer.muon_rate = o.muon_learning_rate / std::max(o.learning_rate, 1e-30);
  s.fp8 = o.precision == Precision::fp8;
  if (o.precision == Precision::bfloat16 || s.fp8) s.optimizer.muon_products = DType::bf16;
  s.optimizer.scale_parameter = o.relative_step;
  s.optimizer.max_grad_norm = o.max_grad_norm;
  s.optimizer.fused = o.fused_optimizer;
  s.shares.ranks = o.ranks;
  s.shares.zero = o.ranks > 1 ? static_cast<int>(o.zero) : 0;
  s.shares.slots = std::max(o.ranks, o.deterministic_ranks);
  s.shares.micro_batches = o.gradient_accumulation_steps;
  s.seed = static_cast<uint32_t>(o.seed);
  s.disabled_passes.insert(o.disable_pass.begin(), o.disable_pass.end());
  s.dump_folder = o.dump_graph;
  s.precision = dtype_of_precision(o.precision);
  s.parameter_dtype = dtype_of_precision(o.param_dtype);
  s.matmul_precision = o.float32_matmul_precision == "medium" ? MatmulPrecision::medium
                       : o.float32_matmul_precision == "high" ? MatmulPrecision::high
                                                              : MatmulPrecision::highest;
  s.scaler.initial = o.init_loss_scale;
  s.rematerialize.policy = remat_policy(o.rematerialize);
  if (!o.activation_memory.empty())
    s.rematerialize.budget_bytes = parse_memory(o.activation_memory);
  if (!o.compile)
    for (const std::string& pass : optional_passes()) s.disabled_passes.insert(pass);
  return s;
}

WeightQuantization fake_quantization_of(const TrainOptions& o, const models::Model& model) {
  if (o.qat == "none") return {};
  auto weights = std::make_shared<ParameterSet>(io::linear_weights(model));
  if (weights->empty())
    usage_error("--qat {}: no linear layer of a block has {} elements; smaller ones stay floats",
                o.qat, with_commas(kLeastQuantizedElements));
  Quantization q = quantization_of_precision(parse_precision(o.qat, PrecisionUse::inference));
  if (o.qat_group_size > 0) q.group = static_cast<int>(o.qat_group_size);
  return {q, std::move(weights)};
}

std::vector<std::string> emulation_notes(Precision precision, const Program& program) {
  std::vector<std::string> notes;
  if (precision == Precision::fp32) return notes;
  bool has_scales = false, multiplies = false;  // in 8 bits
  for (NodeId id = 0; id < program.graph().size(); ++id)
    machine::each_part(program.graph(), id, [&](const OpDef& op, const Cost&) {
      has_scales |= op.id == Op::quantize_scale;
      multiplies |= op.product && op.product->is_scaled;
    });
  if (precision == Precision::fp8 && !has_scales && !multiplies)
    notes.emplace_back(
        "note: --precision fp8 runs as --precision bf16 here: no product of a block has sizes that "
        "are multiples of 16, which 8-bit products need");
  else if (precision == Precision::fp8 && !multiplies)
    notes.emplace_back(
        "note: this device has no 8-bit products: --precision fp8 is emulated (operands are "
        "rounded to 8 bits, products run in bf16), which is much slower than --precision bf16");
  for (const Dispatch& d : program.dispatch())
    if (d.kernel == "gemm_widening") {
      notes.push_back(fmt::format(
          "note: this processor does not multiply {} natively: products are computed in f32, at "
          "about the speed of --precision fp32; 16-bit activations take half the memory",
          name_of(program.graph().type(program.graph().node(d.node).operands[0]).dtype)));
      break;
    }
  return notes;
}

std::string reading_line(const TrainOptions& o) {
  constexpr uint64_t kMuch = uint64_t{4} << 20;
  uint64_t bytes = 0;
  std::error_code ignored;
  const auto add = [&](const fs::path& file) {
    if (fs::is_regular_file(file, ignored)) bytes += fs::file_size(file, ignored);
  };
  for (const auto* names : {&o.text, &o.data, &o.val_data})
    for (const fs::path name : *names) {
      add(name);
      if (!fs::is_directory(name, ignored)) continue;
      for (fs::recursive_directory_iterator at(name, ignored), end; at != end;
           at.increment(ignored))
        add(at->path());
    }
  const std::string amount = format_bytes(static_cast<double>(bytes));
  if (learns_pictures(o)) return o.data.empty() ? "" : "finding the pictures";
  if (renders_conversations(o)) return bytes < kMuch ? "" : "reading and tokenising " + amount;
  if (learns_labels(o))
    return bytes < kMuch ? "" : "reading and tokenising " + amount + " of texts";
  if (!o.data.empty()) return bytes < kMuch ? "" : "checking " + amount + " of token shards";
  if (learnt_tokenizer(o.tokenizer) && !o.wants_resume())
    return "learning the tokenizer from the text";
  return bytes < kMuch ? "" : "reading and tokenising " + amount + " of text";
}

std::vector<std::string> start_lines(const Session& session, const models::Model& model,
                                     const TrainOptions& o) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("model: {:.2f}M parameters, {}; {} on {}",
                              static_cast<double>(model.parameter_count()) / 1e6,
                              text_of_sizes(model.sizes(), o.context),
                              session.engine().backend().name, counted(thread_count(), "thread")));
  for (const std::string& line : {adapter_line(model), kept_floats_note(model, o)})
    if (!line.empty()) lines.push_back(line);
  if (!o.freeze.empty()) {
    const std::set<std::string> frozen = models::frozen_parameters(model, o.freeze);
    int64_t elements = 0;
    for (const models::ParameterInfo& p : model.parameters())
      if (frozen.contains(p.name)) elements += p.shape.elements();
    lines.push_back(fmt::format("frozen: {:.2f}M parameters of {}, by --freeze {}",
                                1e-6 * static_cast<double>(elements),
                                counted(std::ssize(frozen), "tensor"), fmt::join(o.freeze, ",")));
  }
  lines.push_back(fmt::format("memory: {}; compiled in {}", arena_parts(session, o),
                              duration_text(session.compile_seconds())));
  if (o.explain)
    for (const std::string& note : notes_of(session.report())) lines.push_back("  " + note);
  const Program& program = session.step_program();
  if (o.explain_dispatch)
    for (std::string& line : summary(program.graph(), program.dispatch()))
      lines.push_back(std::move(line));
  for (std::string& note : emulation_notes(o.precision, program)) lines.push_back(std::move(note));
  return lines;
}

optim::Schedule schedule_of(const TrainOptions& o) {
  optim::Schedule s;
  s.kind = o.relative_step ? optim::ScheduleKind::relative_step
                           : optim::schedule_kind(o.lr_scheduler_type);
  s.peak = o.learning_rate;
  s.floor = o.min_lr;
  const double share = o.warmup_steps < 1 ? static_cast<double>(o.max_steps) : 1.0;
  s.warmup_steps = std::llround(o.warmup_steps * share);
  s.decay_steps = o.lr_decay_steps > 0 ? o.lr_decay_steps : o.max_steps;
  return s;
}

std::string warmup_note(const TrainOptions& o) {
  const optim::Schedule s = schedule_of(o);
  const bool warms_up =
      s.kind != optim::ScheduleKind::constant && s.kind != optim::ScheduleKind::relative_step;
  if (!warms_up || s.warmup_steps < o.max_steps) return "";
  return fmt::format(
      "the warm-up of {} does not end within the run of {}: the learning rate reaches {:.2g} "
      "instead of {:.2g}. Use fewer --warmup-steps (below 1: a fraction of the run) or more "
      "--max-steps",
      counted(s.warmup_steps, "step"), counted(o.max_steps, "step"), s.at(o.max_steps - 1), s.peak);
}

io::LoaderOptions loader_options(const TrainOptions& o, int64_t vocab_size) {
  io::LoaderOptions l;
  l.batch = o.batch_size;
  l.context = row_tokens(o);
  l.seed = static_cast<uint32_t>(o.data_seed);
  l.mode = io::sampling_from_name(o.sampling);
  l.vocab = vocab_size;
  l.flat = joins_sequences(o);
  l.sequences_per_row = sequences_per_row(o);
  l.lengths = batch_lengths(o, l.flat, o.batch_size);
  l.batches_per_step = o.gradient_accumulation_steps;
  l.workers = o.dataloader_num_workers;
  l.prefetch_factor = o.dataloader_prefetch_factor;
  return l;
}

io::LoaderOptions loader_options(const TrainOptions& o, const models::Model& model) {
  io::LoaderOptions l = loader_options(o, model.sizes().vocabulary);
  l.flat = trains_flat(o, model);
  l.lengths = batch_lengths(o, l.flat, l.batch);
  return l;
}

}  // namespace brrr::train
