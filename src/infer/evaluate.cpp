#include "infer/evaluate.h"

#include <cmath>

#include "base/clock.h"
#include "base/human.h"
#include "data/loader.h"
#include "infer/generator.h"
#include "passes/pipeline.h"
#include "runtime/parameters.h"

namespace brrr::infer {

Evaluation evaluate(const io::ModelFolder& model, const io::TokenSource& tokens,
                    const Backend& backend, const EvaluateOptions& options) {
  const models::ModelSizes sizes = model.definition->sizes();
  const int64_t longest = sizes.context;
  if (options.context < 0 || options.context > longest)
    user_error("--context must be between 1 and the model's {}; got {}", longest, options.context);
  if (options.batch_size < 1)
    user_error("--batch-size must be at least 1; got {}", options.batch_size);
  if (tokens.tokens() < 2)
    user_error("{} has {}: at least two are needed to predict one", tokens.description(),
               counted(tokens.tokens(), "token"));
  const Stopwatch watch;
  io::LoaderOptions l;
  l.mode = io::Sampling::kSequential;
  l.vocab = sizes.vocabulary;
  // A short text does not pay for a long context or a large batch.
  l.context = std::min(options.context > 0 ? options.context : longest, tokens.tokens() - 1);
  l.batch = std::min(options.batch_size, (tokens.tokens() - 2) / l.context + 1);

  Engine engine(backend);
  PipelineOptions p;
  p.precision = options.precision;
  p.parameter_dtype = options.precision;
  p.refresher = Refresher::loader;
  const size_t program = engine.add(
      run_pipeline(model.definition->loss(l.batch, l.context), engine.backend().target(), p));
  engine.allocate();
  load_parameters(engine, weights_of(model));

  io::Loader loader(tokens, l);
  Evaluation result;
  const int64_t batches = loader.batches_per_pass();
  for (int64_t i = 0; i < batches; ++i) {
    const io::Batch& batch = loader.next();
    const float scale = 1;
    Call call{program, {}, {"loss"}};
    call.set("tokens", std::span<const int32_t>(batch.inputs));
    call.set("targets", std::span<const int32_t>(batch.targets));
    call.set("loss_scale", std::span(&scale, 1));
    result.loss += engine.run(std::span(&call, 1))[0][0];
    result.tokens += batch.real_tokens;
    if (options.progress) options.progress(i + 1, batches);
  }
  result.loss /= static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  result.seconds = watch.seconds();
  return result;
}

}  // namespace brrr::infer
