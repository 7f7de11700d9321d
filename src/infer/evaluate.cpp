#include "infer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/human.h"
#include "data/loader.h"
#include "data/strided_batches.h"
#include "data/window_batches.h"
#include "infer/runner.h"
#include "runtime/made_inputs.h"
#include "runtime/ranks/shared_work.h"

namespace brrr::infer {
namespace {

// Number of batches that each rank computes between two exchanges. Few, so that a non-finite loss
// ends the evaluation soon.
constexpr int64_t kBatchesBetweenExchanges = 8;

}  // namespace

std::string fault_of_loss(double loss, const io::ModelFolder& model) {
  const std::string what =
      fmt::format("the loss is {}", std::isnan(loss) ? "not a number" : "infinite");
  std::vector<float> values;
  for (const models::ParameterInfo& p : model.definition->parameters()) {
    values.resize(static_cast<size_t>(p.shape.elements()));
    model.read(p.name, values);
    if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
      return fmt::format(
          "{}: {} contains NaN or infinity; the file is damaged, or its run diverged: use an "
          "earlier checkpoint",
          what, p.name);
  }
  return fmt::format(
      "{}, although every weight is finite: activations overflow; try --precision fp32 or an "
      "earlier checkpoint",
      what);
}

std::optional<int32_t> begin_of_windows(const io::Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = tokenizer.encode("", {.add_special_tokens = true});
  const bool begins = !ids.empty() && ids[0] >= 0 && ids[0] == tokenizer.begin_of_text();
  return begins ? std::optional(ids[0]) : std::nullopt;
}

Evaluation evaluate(const io::ModelFolder& model, const io::TokenSource& tokens,
                    const Backend& backend, const EvaluateOptions& options) {
  const models::ModelSizes sizes = model.definition->sizes();
  const int64_t longest = sizes.context;
  if (options.context < 0 || options.context > longest)
    user_error("--context must be between 1 and the model's {}; got {}", longest, options.context);
  if (options.batch_size < 1)
    user_error("--batch-size must be at least 1; got {}", options.batch_size);
  if (tokens.tokens() < 2)
    user_error("{} has {}; expected at least two, to predict one", tokens.description(),
               counted(tokens.tokens(), "token"));
  tokens.verify(sizes.vocabulary);
  const Stopwatch watch;
  io::LoaderOptions l;
  l.mode = io::Sampling::kSequential;
  l.vocab = sizes.vocabulary;
  // A short text does not pay for a long context or a large batch.
  l.context = std::min(options.context > 0 ? options.context : longest, tokens.tokens() - 1);
  l.batch = std::min(options.batch_size, (tokens.tokens() - 2) / l.context + 1);

  const std::shared_ptr<const Runnable> loss =
      runnable_of(model.definition->loss(l.batch, l.context), model.weights);
  RunnableOptions how;
  how.passes = for_inference(options.precision, options.quantization);
  // The batches ahead, one in the hands of the worker, and the current one; tokens and targets.
  const int64_t batches_held = l.workers * (l.prefetch_factor + 1) + 1;
  PortValues inputs = make_inputs(*loss, {}, {}).values;  // overwritten by each batch
  std::optional<Runner> runner;
  run_on_all(options.communicator, [&] {
    runner.emplace(loss, backend, how, counting_all(options.memory),
                   batches_held * l.batch * l.context * 2 * int64_t{sizeof(int32_t)});
    runner->prepare(inputs);
  });
  inputs.insert_or_assign("loss_scale", HostTensor::of<float>({}, {1}));

  Communicator* const communicator = options.communicator;
  auto windows = std::make_unique<io::WindowBatches>(tokens, l);
  const int64_t batches = windows->batches_per_pass();
  io::Loader loader(std::make_unique<io::StridedBatches>(std::move(windows), rank_of(communicator),
                                                         ranks_of(communicator)),
                    l);
  struct BatchLoss {
    double loss = 0;
    int64_t tokens = 0;
  };
  const auto loss_of_next = [&] {
    const io::Batch& batch = loader.next();
    for (const io::Batch::Tensor& t : batch.tensors)
      if (const auto input = inputs.find(t.name); input != inputs.end()) {
        std::vector<std::byte>& to = input->second.tensors[0].bytes;
        BRRR_CHECK(to.size() == t.bytes().size(), "{}: {} bytes for {}", t.name, t.bytes().size(),
                   to.size());
        std::ranges::copy(t.bytes(), to.begin());
        if (t.name == "tokens" && options.begin)
          for (int64_t at = 0; at < l.batch * l.context; at += l.context)
            std::memcpy(to.data() + at * int64_t{sizeof(int32_t)}, &*options.begin,
                        sizeof(int32_t));
      }
    return BatchLoss{runner->run_in_place(inputs).numbers[0], batch.count};
  };
  Evaluation result;
  const bool is_finite = divide_pieces(
      communicator, batches, kBatchesBetweenExchanges,
      [&](int64_t) {
        Packed packed;
        packed.put_value(loss_of_next());
        return packed;
      },
      [&](int64_t batch, Packed& packed) {
        const auto [of_batch, of_tokens] = packed.take_value<BatchLoss>();
        result.loss += of_batch;
        result.tokens += of_tokens;
        if (options.progress) options.progress(batch + 1, batches);
        return std::isfinite(result.loss);  // no later batch can mend it
      });
  if (!is_finite) result.fault = fault_of_loss(result.loss, model);
  result.loss /= static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  result.seconds = watch.seconds();
  return result;
}

}  // namespace brrr::infer
