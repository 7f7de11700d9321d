#include "infer/encoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "backend/cpu/target.h"
#include "base/human.h"
#include "base/integers.h"
#include "data/row_order.h"
#include "infer/model_runnable.h"
#include "models/encoder.h"
#include "models/exchange_names.h"
#include "runtime/ranks/shared_work.h"

namespace brrr::infer {
namespace {

namespace exchange_names = models::exchange_names;
using models::Head;

constexpr std::array kFileInputs{exchange_names::kIds, exchange_names::kMask,
                                 exchange_names::kTypes, exchange_names::kPositions};
constexpr std::array kTextOutputs{"sentence_embedding", "embedding"};
constexpr std::array kTokenOutputs{exchange_names::kLastHidden, "token_embeddings"};
constexpr const char* kLogits = "logits";
// What lies beside an output of tokens while it is pooled: a copy in the graph, its masked form.
constexpr int64_t kCopiesOfTokens = 3;
// Batches that each rank gets of the rows of one call, if they are not smaller than this.
constexpr int64_t kBatchesOfRank = 2, kLeastTokensOfBatch = 256;

std::string names_of(const std::vector<Port>& ports) {
  std::string names;
  for (const Port& port : ports)
    names += (names.empty() ? "" : ", ") + port.name + " " + port.str();
  return names.empty() ? "none" : names;
}

/// Token vectors [batch, length, width] as one for each text.
std::shared_ptr<const Runnable> pooling_runnable(const models::Task& task, int64_t width) {
  GraphMaker maker;
  const Dim batch = Dim::symbol("batch"), length = Dim::symbol("length");
  maker.inputs = {port_of("tokens", {DType::f32, {batch, length, width}}),
                  port_of("lengths", {DType::i32, {batch}})};
  maker.outputs = {Port{.name = "vectors", .type = "f32", .dims = {}, .lowest = {}}};
  maker.graph = [task](const std::map<std::string, Type>& inputs) {
    Graph g;
    const Value x = g.input("tokens", inputs.at("tokens").shape, DType::f32);
    models::EncoderRows rows;
    rows.lengths = g.input("lengths", inputs.at("lengths").shape, DType::i32);
    g.output("vectors", models::pooled(x, rows, task));
    return g;
  };
  maker.summary = "pooling";
  return make_runnable(std::move(maker));
}

EncoderOptions counting_all_of(EncoderOptions options) {
  options.memory = counting_all(std::move(options.memory));
  return options;
}

EncoderTask task_of(const models::Model& model) {
  return {model.architecture().title, model.task(), model.sizes().context,
          model.sizes().vocabulary};
}

}  // namespace

Encoder::Encoder(const models::ModelPtr& model, const Backend& backend,
                 std::shared_ptr<const WeightSource> weights, const EncoderOptions& options)
    : Encoder(forward_runnable(model, std::move(weights), text_layout(*model, backend)), backend,
              task_of(*model), counting_all_of(options)) {}

Encoder::Encoder(const std::shared_ptr<const Runnable>& runnable, const Backend& backend,
                 EncoderTask task, const EncoderOptions& options)
    : task_(std::move(task)),
      limits_{.tokens = options.batch_tokens, .rows = options.batch_size},
      communicator_(options.communicator) {
  find_inputs(*runnable);
  find_output(*runnable);
  const bool pools = task_.task.head == Head::embedding && !is_pooled_;
  RunnableOptions how;
  how.passes = for_inference(options.precision, options.quantization);
  runner_ = std::make_unique<Runner>(runnable, backend, how, options.memory, options.beside,
                                     pools                         ? kCopiesOfTokens
                                     : output_dtype_ == DType::f32 ? 0
                                                                   : 1);
  // The first run of all: it is refused here where it does not fit.
  const std::array<int32_t, 1> id{0}, place{0};
  const EncoderRow row{id, {}, place};
  const size_t first = 0;
  const Batch batch = batch_of(std::span(&row, 1), std::span(&first, 1));
  runner_->prepare(batch.inputs, {output_});
  const Shape shape = output_of(batch).shape;
  const bool embeds = task_.task.head == Head::embedding;
  if (embeds ? shape.rank() != (is_pooled_ ? 2 : 3) : shape.rank() < 1)
    refuse(shape, is_pooled_ ? "expected [batch, width]" : "expected [batch, sequence, width]");
  width_ = shape.size(shape.rank() - 1);
  if (!embeds) return;
  if (is_pooled_) return;
  // Token vectors of a device are on the host by then.
  pooling_ =
      std::make_unique<RunnableSession>(pooling_runnable(task_.task, width_), cpu::cpu_backend());
  width_ *= std::ssize(task_.task.pooling);
}

std::optional<Encoder::Holds> Encoder::known_input(std::string_view name) {
  constexpr std::pair<std::string_view, Holds> kInputs[] = {
      {exchange_names::kIds, Holds::ids},
      {exchange_names::kMask, Holds::mask},
      {exchange_names::kTypes, Holds::types},
      {exchange_names::kPositions, Holds::positions},
      {"tokens", Holds::ids},
      {"types", Holds::types},
      {"positions", Holds::positions},
      {"lengths", Holds::lengths},
      {"starts", Holds::starts},
      {"places", Holds::places}};
  for (const auto& [known, holds] : kInputs)
    if (known == name) return holds;
  return std::nullopt;
}

void Encoder::find_inputs(const Runnable& runnable) {
  is_flat_ = find_port(runnable.inputs(), "starts") != nullptr;
  for (const Port& port : runnable.inputs()) {
    const std::optional<Holds> holds = known_input(port.name);
    if (!holds) {
      if (port.is_optional) continue;
      user_error("{}: it has the input '{}'; an encoder's inputs are {}", task_.name, port.name,
                 fmt::join(kFileInputs, ", "));
    }
    const bool is_of_tokens = !is_flat_ && *holds != Holds::lengths && *holds != Holds::places;
    if (!port.is_tensor || (port.has_shape && port.dims.size() != (is_of_tokens ? 2 : 1)))
      user_error("{}: its input '{}' is {}; expected {}", task_.name, port.name, port.str(),
                 is_of_tokens ? "[batch, sequence]" : "[batch]");
    inputs_.push_back({port, *holds});
    if (!port.has_shape || !is_of_tokens) continue;
    if (port.dims[0].size >= 0) fixed_batch_ = port.dims[0].size;
    if (port.dims[1].size >= 0) fixed_length_ = port.dims[1].size;
    if (port.dims[1].most >= 0) task_.context = std::min(task_.context, port.dims[1].most);
  }
  const auto ids = std::ranges::find(inputs_, Holds::ids, &Input::holds);
  if (ids == inputs_.end())
    user_error("{}: it has no input '{}'; its inputs are: {}", task_.name, exchange_names::kIds,
               names_of(runnable.inputs()));
  if (int64_t& rows = limits_.rows; fixed_batch_)
    rows = rows > 0 ? std::min(rows, *fixed_batch_) : *fixed_batch_;
  if (fixed_length_) task_.context = std::min(task_.context, *fixed_length_);
  if (fixed_batch_.value_or(1) < 1 || task_.context < 1)
    user_error("{}: its input '{}' is {}, which has no room for a text", task_.name, ids->port.name,
               ids->port.str());
}

void Encoder::find_output(const Runnable& runnable) {
  const std::vector<Port>& outputs = runnable.outputs();
  const auto take = [&](const char* name) {
    if (output_.empty() && find_port(outputs, name) != nullptr) output_ = name;
  };
  if (task_.task.head == Head::embedding) {
    for (const char* name : kTextOutputs) take(name);
    is_pooled_ = !output_.empty();
    for (const char* name : kTokenOutputs) take(name);
    const bool is_named = !output_.empty();
    for (const Port& port : outputs) {
      if (is_named || !port.has_shape || port.dims.size() != 3 || port.name == kLogits) continue;
      if (!output_.empty())
        user_error(
            "{}: its outputs '{}' and '{}' could both be vectors of tokens; expected one that is "
            "named sentence_embedding, {}",
            task_.name, output_, port.name, fmt::join(kTokenOutputs, " or "));
      output_ = port.name;
    }
    if (output_.empty())
      user_error("{}: none of its outputs holds vectors of texts or tokens: {}", task_.name,
                 names_of(outputs));
  } else {
    take(kLogits);
    if (output_.empty())
      user_error("{}: it has no output '{}'; its outputs are: {}", task_.name, kLogits,
                 names_of(outputs));
  }
  output_dtype_ = find_port(outputs, output_)->dtype;
}

void Encoder::check(const EncoderRow& row) const {
  BRRR_CHECK(row.types.empty() || row.types.size() == row.ids.size(), "{} types of {} tokens",
             row.types.size(), row.ids.size());
  BRRR_CHECK(task_.task.head != Head::masked_token || !row.places.empty(), "a row without places");
  if (row.ids.empty()) user_error("a text has no tokens; expected at least one");
  if (std::ssize(row.ids) > task_.context)
    user_error("a text has {} tokens, more than the model's limit of {}", row.ids.size(),
               task_.context);
  for (const int32_t id : row.ids)
    if (task_.vocabulary > 0 && (id < 0 || id >= task_.vocabulary))
      user_error("token {} lies outside the vocabulary of {}", id, task_.vocabulary);
}

int64_t Encoder::output_rows(const EncoderRow& row) const {
  switch (task_.task.head) {
    case Head::token_classes:
      return std::ssize(row.ids);
    case Head::masked_token:
      return std::ssize(row.places);
    default:
      return 1;
  }
}

Encoder::Batch Encoder::batch_of(std::span<const EncoderRow> rows,
                                 std::span<const size_t> chosen) const {
  return is_flat_ ? flat_batch_of(rows, chosen) : padded_batch_of(rows, chosen);
}

void Encoder::add_places(Batch& batch, std::vector<int32_t>& places, const EncoderRow& row,
                         int64_t first) const {
  batch.first.push_back(std::ssize(places));
  for (const int32_t place : row.places) places.push_back(static_cast<int32_t>(first) + place);
  batch.rows = std::ssize(places);
}

Encoder::Batch Encoder::flat_batch_of(std::span<const EncoderRow> rows,
                                      std::span<const size_t> chosen) const {
  const Head head = task_.task.head;
  Batch batch;
  std::vector<int32_t> ids, types, positions, starts{0}, places;
  for (const size_t which : chosen) {
    const EncoderRow& row = rows[which];
    if (head == Head::masked_token)
      add_places(batch, places, row, std::ssize(ids));
    else
      batch.first.push_back(head == Head::token_classes ? std::ssize(ids) : std::ssize(starts) - 1);
    batch.lengths.push_back(static_cast<int32_t>(row.ids.size()));
    ids.insert(ids.end(), row.ids.begin(), row.ids.end());
    if (row.types.empty())
      types.resize(ids.size());
    else
      types.insert(types.end(), row.types.begin(), row.types.end());
    for (int32_t i = 0; i < std::ssize(row.ids); ++i) positions.push_back(i);
    starts.push_back(static_cast<int32_t>(ids.size()));
  }
  // Round the sizes up with tokens outside all texts, empty texts and repeated places.
  const auto tokens = static_cast<size_t>(io::flat_length(std::ssize(ids)));
  for (std::vector<int32_t>* of_tokens : {&ids, &types, &positions}) of_tokens->resize(tokens);
  const size_t texts = std::bit_ceil(chosen.size());
  starts.resize(texts + 1, starts.back());
  if (head == Head::masked_token) {
    places.resize(std::bit_ceil(places.size()), places.back());
    batch.rows = std::ssize(places);
  } else {
    batch.rows = static_cast<int64_t>(head == Head::token_classes ? tokens : texts);
  }
  for (const auto& [port, holds] : inputs_) {
    const std::vector<int32_t>& values = holds == Holds::ids         ? ids
                                         : holds == Holds::types     ? types
                                         : holds == Holds::positions ? positions
                                         : holds == Holds::starts    ? starts
                                                                     : places;
    batch.inputs.emplace(port.name, HostTensor::of<int32_t>({std::ssize(values)}, values));
  }
  return batch;
}

Encoder::Batch Encoder::padded_batch_of(std::span<const EncoderRow> rows,
                                        std::span<const size_t> chosen) const {
  const Head head = task_.task.head;
  Batch batch;
  const int64_t count = fixed_batch_.value_or(std::ssize(chosen));
  const int64_t length =
      fixed_length_.value_or(padded_length(std::ssize(rows[chosen[0]].ids), task_.context));
  // Rows that fill a batch of fixed size are copies of the first.
  const auto row_at = [&](int64_t i) -> const EncoderRow& {
    return rows[chosen[i < std::ssize(chosen) ? static_cast<size_t>(i) : 0]];
  };
  std::vector<int32_t> places;
  const int64_t of_text = head == Head::token_classes ? length : 1;
  batch.rows = count * of_text;
  for (int64_t i = 0; i < count; ++i) {
    if (head == Head::masked_token)
      add_places(batch, places, row_at(i), i * length);
    else
      batch.first.push_back(i * of_text);
    batch.lengths.push_back(static_cast<int32_t>(row_at(i).ids.size()));
  }
  for (const auto& [port, holds] : inputs_) {
    HostTensor tensor(port.dtype, holds == Holds::lengths  ? Shape{count}
                                  : holds == Holds::places ? Shape{std::ssize(places)}
                                                           : Shape{count, length});
    const auto put = [&](int64_t i, int64_t value) {
      store_from_double(tensor.dtype, tensor.bytes.data(), i, static_cast<double>(value));
    };
    if (holds == Holds::lengths || holds == Holds::places) {
      const std::vector<int32_t>& values = holds == Holds::lengths ? batch.lengths : places;
      for (size_t i = 0; i < values.size(); ++i) put(static_cast<int64_t>(i), values[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const EncoderRow& row = row_at(i);
        const int64_t tokens = std::ssize(row.ids);
        for (int64_t t = 0; t < (holds == Holds::positions ? length : tokens); ++t) {
          const auto at = static_cast<size_t>(t);
          put(i * length + t, holds == Holds::ids         ? row.ids[at]
                              : holds == Holds::mask      ? 1
                              : holds == Holds::positions ? t
                              : row.types.empty()         ? 0
                                                          : row.types[at]);
        }
      }
    }
    batch.inputs.emplace(port.name, std::move(tensor));
  }
  return batch;
}

OutputView Encoder::output_of(const Batch& batch) {
  if (output_dtype_ == DType::f32) return runner_->run_in_place(batch.inputs, {output_});
  const PortValues values = runner_->run(batch.inputs, {output_});
  const HostTensor& given = values.begin()->second.tensor();
  floats_.resize(static_cast<size_t>(given.shape.elements()));
  for (size_t i = 0; i < floats_.size(); ++i) floats_[i] = static_cast<float>(given.number(i));
  return {given.shape, floats_};
}

void Encoder::refuse(const Shape& shape, const std::string& expected) const {
  user_error("{}: its output '{}' has the shape {}; {}", task_.name, output_, shape.str(),
             expected);
}

void Encoder::run(std::span<const EncoderRow> rows, const OnRow& on_row) {
  for (const EncoderRow& row : rows) check(row);
  if (communicator_ != nullptr) return run_divided(rows, on_row);
  run_in_batches(rows, limits_, padding(),
                 [&](std::span<const size_t> chosen) { run_batch(rows, chosen, on_row); });
}

std::function<int64_t(int64_t)> Encoder::padding() const {
  if (is_flat_) return {};
  return [this](int64_t longest) {
    return fixed_length_.value_or(padded_length(longest, task_.context));
  };
}

void Encoder::run_divided(std::span<const EncoderRow> rows, const OnRow& on_row) {
  BatchLimits limits = limits_;
  // Without padding a row has the same bits in any batch, so that there may be enough batches for
  // all ranks. Padded rows lie in the batches of a single process.
  if (is_flat_) {
    int64_t tokens = 0;
    for (const EncoderRow& row : rows) tokens += std::ssize(row.ids);
    const int64_t each = ceil_div(tokens, kBatchesOfRank * communicator_->ranks());
    limits.tokens = std::min(limits.tokens, std::max(each, kLeastTokensOfBatch));
  }
  std::vector<std::vector<size_t>> batches;
  run_in_batches(rows, limits, padding(), [&](std::span<const size_t> chosen) {
    batches.emplace_back(chosen.begin(), chosen.end());
  });
  const int64_t count = std::ssize(batches);
  divide_pieces(
      communicator_, count, std::max<int64_t>(1, ceil_div(count, communicator_->ranks())),
      [&](int64_t piece) {
        std::vector<EncoderRow> own;
        for (const size_t row : batches[static_cast<size_t>(piece)]) own.push_back(rows[row]);
        std::vector<std::vector<float>> results(own.size());
        run_in_batches(own, limits_, padding(), [&](std::span<const size_t> chosen) {
          run_batch(own, chosen, [&](size_t row, std::span<const float> numbers) {
            results[row].assign(numbers.begin(), numbers.end());
          });
        });
        Packed packed;
        for (const std::vector<float>& numbers : results) packed.put<float>(numbers);
        return packed;
      },
      [&](int64_t piece, Packed& packed) {
        for (const size_t row : batches[static_cast<size_t>(piece)])
          on_row(row, packed.take<float>());
        return true;
      });
}

void Encoder::run_batch(std::span<const EncoderRow> rows, std::span<const size_t> chosen,
                        const OnRow& on_row) {
  const Batch batch = batch_of(rows, chosen);
  OutputView output = output_of(batch);
  if (pooling_) output.numbers = pooled(output, batch);
  const auto width = static_cast<size_t>(width_);
  if (output.numbers.size() != static_cast<size_t>(batch.rows) * width)
    refuse(output.shape, "it is for " + counted(std::ssize(batch.lengths), "text"));
  for (size_t i = 0; i < chosen.size(); ++i)
    on_row(chosen[i],
           output.numbers.subspan(static_cast<size_t>(batch.first[i]) * width,
                                  static_cast<size_t>(output_rows(rows[chosen[i]])) * width));
}

std::span<const float> Encoder::pooled(const OutputView& tokens, const Batch& batch) {
  const Shape& shape = tokens.shape;
  if (shape.rank() != 3 || shape.size(0) != std::ssize(batch.lengths))
    refuse(shape, "it is for " + counted(std::ssize(batch.lengths), "text"));
  std::vector<int32_t> counts = batch.lengths;
  for (int32_t& count : counts) count = std::min(count, static_cast<int32_t>(shape.size(1)));
  PortValues inputs;
  inputs.emplace("tokens", HostTensor::of<float>(shape.sizes(),
                                                 {tokens.numbers.begin(), tokens.numbers.end()}));
  inputs.emplace("lengths", HostTensor::of<int32_t>({std::ssize(counts)}, counts));
  return pooling_->run_in_place(inputs).numbers;
}

std::span<const float> Encoder::logits_at(EncoderRow row, std::span<const int32_t> places) {
  BRRR_CHECK(task_.task.head == Head::masked_token, "logits_at");
  row.places = places;
  std::span<const float> logits;
  run(std::span(&row, 1), [&](size_t, std::span<const float> numbers) { logits = numbers; });
  return logits;
}

}  // namespace brrr::infer
