#include "folders/gguf/gguf_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/human.h"
#include "folders/chat_template.h"
#include "folders/gguf/gguf_hyperparameters.h"
#include "formats/gguf/gguf_file.h"
#include "text/gguf/gguf_vocabulary.h"

namespace brrr::io {
namespace {

constexpr int64_t kQuantizationVersion = 2;  // of ggml's block formats
constexpr std::string_view kTokenizerKeys = "tokenizer.", kSamplingKeys = "general.sampling.";
// Keys whose values an export makes.
constexpr std::string_view kOwnKeys[] = {"general.architecture", "general.file_type",
                                         "general.quantization_version", "general.alignment"};

/// The model's name: that of its folder or file.
std::string display_name(const fs::path& folder) {
  const fs::path name =
      is_gguf_file(folder) ? folder.stem() : fs::absolute(folder).lexically_normal().filename();
  return name.empty() ? "model" : name.string();
}

/// matrix: [rows, columns]
std::vector<float> transpose_of(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
  std::vector<float> out(matrix.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      out[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * columns + c)];
  return out;
}

/// Whether the type holds a number of this size at all.
bool holds(const BlockType& type, float value) {
  constexpr float kMostHalf = 65504;
  if (std::string_view(type.name) == "F32" || std::string_view(type.name) == "BF16") return true;
  return std::fabs(value) <= kMostHalf;  // false for NaN, too; scales of blocks are halves
}

/// Reorders rows of `row_bytes` bytes from the model's order to the file's.
void order_rows(const GgufChange change, int64_t heads, int64_t rows,
                std::span<const std::byte> from, std::span<std::byte> to) {
  const auto row_bytes = rows == 0 ? size_t{0} : from.size() / static_cast<size_t>(rows);
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to.data() + static_cast<size_t>(gguf_row(change, heads, row, rows)) * row_bytes,
                from.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
}

}  // namespace

GgufFileKind GgufExport::stored_kind(const ModelFolder& model) {
  if (model.has_integers()) return GgufFileKind::q8_0;
  int64_t most = 0;
  DType dtype = DType::f32;
  model.weights->each([&](const TensorView& t) {
    if (t.shape.elements() <= most) return;
    most = t.shape.elements();
    dtype = t.dtype;
  });
  return dtype == DType::bf16  ? GgufFileKind::bf16
         : dtype == DType::f16 ? GgufFileKind::f16
                               : GgufFileKind::f32;
}

GgufExport::GgufExport(const ModelFolder& model, GgufFileKind kind) : model_(model), kind_(kind) {
  const std::string where = model.folder.string();
  const GgufHyperparameters hyper = gguf_hyperparameters(*model.definition, where);
  notes_ = hyper.notes;
  GgufMetadata keys;
  add_general(keys, *hyper.architecture);
  keys.append(hyper.keys);
  if (is_gguf_file(model.folder)) {
    const GgufFile file(model.folder);
    for (const auto& [key, value] : file.metadata())
      if (key.starts_with(kTokenizerKeys)) keys.copy(key, value);
  } else {
    BRRR_CHECK(model.tokenizer != nullptr, "{} was opened without its tokenizer", where);
    const std::vector<std::string> notes = add_gguf_vocabulary(
        *model.tokenizer,
        {where, model.definition->sizes().vocabulary, model.generation.ends_of_text}, keys);
    notes_.insert(notes_.end(), notes.begin(), notes.end());
    if (const auto chat = chat_template_text(model.folder))
      keys.text("tokenizer.chat_template", *chat);
  }
  add_tensors(hyper);
  output_ = std::make_shared<GgufOutput>(keys, std::move(planned_));
}

void GgufExport::add_general(GgufMetadata& keys, const GgufArchitecture& architecture) const {
  keys.text("general.architecture", architecture.name);
  if (is_gguf_file(model_.folder)) {
    // What the file says of its model: names, authors, the license.
    const GgufFile file(model_.folder);
    for (const auto& [key, value] : file.metadata())
      if (key.starts_with("general.") && !key.starts_with(kSamplingKeys) &&
          std::ranges::find(kOwnKeys, key) == std::end(kOwnKeys))
        keys.copy(key, value);
  }
  if (!keys.has("general.type")) keys.text("general.type", "model");
  if (!keys.has("general.name")) keys.text("general.name", display_name(model_.folder));
  keys.count("general.file_type", file_type_of(kind_));
  if (is_quantised(kind_)) keys.count("general.quantization_version", kQuantizationVersion);
  const GenerationSettings& s = model_.generation;
  const auto real = [&](const char* key, std::optional<double> value) {
    if (value) keys.real(std::string(kSamplingKeys) + key, *value);
  };
  if (s.samples == false) return;
  if (s.top_k) keys.integer("general.sampling.top_k", static_cast<int32_t>(*s.top_k));
  real("top_p", s.top_p);
  real("min_p", s.min_p);
  real("temp", s.temperature);
  real("penalty_repeat", s.repetition_penalty);
}

void GgufExport::add_tensors(const GgufHyperparameters& hyper) {
  const models::FileNames names = model_.definition->file_names();
  const std::string_view architecture = hyper.architecture->name;
  // llama.cpp reads no tied head of this architecture.
  const bool copies_head = architecture == "gptneox" && names.tied;
  GgufMixture mixture{kind_, model_.definition->sizes().layers, copies_head};
  struct Found {
    std::string parameter;
    Shape shape;
    TranslatedName name;
  };
  std::vector<Found> found;
  for (const models::ParameterInfo& p : model_.definition->parameters()) {
    TranslatedName name = gguf_name_of(*hyper.architecture, p.name);
    for (const auto& [older, now] : names.renamed)
      if (name.name.empty() && now == p.name) name = gguf_name_of(*hyper.architecture, older);
    if (name.name.empty())
      user_error("{}: {} has no name in a GGUF file of the architecture {}", model_.folder.string(),
                 p.name, architecture);
    mixture.has_output |= name.name == "output.weight";
    found.push_back({p.name, p.shape, std::move(name)});
  }
  std::map<std::string, int64_t> fallbacks;  // by "Q5_0 instead of Q4_K"
  const auto plan = [&](const std::string& name, Shape shape, Tensor tensor) {
    if (tensor.change == GgufChange::transposed) shape = Shape({shape[1], shape[0]});
    if (tensor.change == GgufChange::key_pairs) tensor.heads = hyper.kv_heads;
    if (tensor.change == GgufChange::query_pairs || tensor.change == GgufChange::kinds_first)
      tensor.heads = hyper.heads;
    const GgufTypeChoice choice = gguf_type_of(mixture, name, shape);
    if (choice.instead_of != nullptr)
      ++fallbacks[fmt::format("{} instead of {}", choice.type->name, choice.instead_of->name)];
    add({name, std::move(shape), choice.type}, std::move(tensor));
  };
  for (const Found& f : found) {
    plan(f.name.name, f.shape, {.parameter = f.parameter, .change = f.name.change});
    if (copies_head && f.name.name == "token_embd.weight")
      plan("output.weight", f.shape, {.parameter = f.parameter});
  }
  for (const auto& [absent, shape] : names.zeros)
    if (const TranslatedName name = gguf_name_of(*hyper.architecture, absent); !name.name.empty())
      plan(name.name, shape, {});
  if (!hyper.rope_factors.empty())
    plan("rope_freqs.weight", Shape({std::ssize(hyper.rope_factors)}),
         {.values = hyper.rope_factors});
  for (const auto& [types, count] : fallbacks)
    notes_.push_back(fmt::format("{} {}: their rows are not whole blocks of that type",
                                 counted(count, "tensor"), types));
}

std::string GgufExport::types() const {
  std::map<uint32_t, int64_t> counts;
  for (const GgufPlanned& t : output_->tensors()) ++counts[t.type->id];
  std::string text;
  for (const auto& [id, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", find_block_type(id)->name, count);
  return text;
}

std::vector<float> GgufExport::values_of(const GgufPlanned& planned, const Tensor& tensor) const {
  std::vector<float> values(static_cast<size_t>(planned.shape.elements()));
  if (!tensor.values.empty()) return tensor.values;
  if (tensor.parameter.empty()) return values;
  model_.read(tensor.parameter, values);
  if (tensor.change == GgufChange::transposed)
    return transpose_of(values, planned.shape.size(1), planned.shape.size(0));
  if (tensor.change == GgufChange::one_added)
    for (float& value : values) value += 1;
  if (tensor.heads == 0) return values;
  std::vector<float> ordered(values.size());
  order_rows(tensor.change, tensor.heads, planned.shape.size(0), std::as_bytes(std::span(values)),
             std::as_writable_bytes(std::span(ordered)));
  return ordered;
}

void GgufExport::make(const GgufPlanned& planned, std::span<std::byte> out) const {
  const Tensor& tensor = tensors_.at(planned.name);
  const bool keeps_rows = tensor.change == GgufChange::none || tensor.heads > 0;
  const TensorView* const stored =
      tensor.parameter.empty() ? nullptr : model_.weights->find(tensor.parameter);
  // Blocks of the same type are copied: quantising them again would change them.
  if (stored != nullptr && keeps_rows && stored->storage.is_blocks() &&
      &block_type_of(stored->storage) == planned.type) {
    std::vector<std::byte> blocks(out.size());
    model_.weights->read(*stored, blocks);
    model_.weights->let_go(stored->bytes);
    const int64_t heads = std::max<int64_t>(tensor.heads, 1);
    return order_rows(tensor.change, heads, planned.shape.size(0), blocks, out);
  }
  if (stored != nullptr && !stored->bytes.empty() && tensor.change == GgufChange::none)
    return make_in_pieces(planned, tensor, *stored, out);
  quantise_checked(planned, tensor, values_of(planned, tensor), out);
}

/// Converts a tensor whose element order does not change piece by piece, so that its floats are
/// never all in memory.
void GgufExport::make_in_pieces(const GgufPlanned& planned, const Tensor& tensor,
                                const TensorView& stored, std::span<std::byte> out) const {
  constexpr int64_t kPiece = int64_t{1} << 22;  // values; whole blocks of every type
  const BlockType* const blocks =
      stored.storage.is_blocks() ? &block_type_of(stored.storage) : nullptr;
  const int64_t elements = planned.shape.elements();
  std::vector<float> values;
  for (int64_t begin = 0; begin < elements; begin += kPiece) {
    values.resize(static_cast<size_t>(std::min(kPiece, elements - begin)));
    const auto bytes_before = [&](int64_t count) {
      return static_cast<size_t>(blocks != nullptr
                                     ? count / blocks->elements * blocks->bytes
                                     : count * static_cast<int64_t>(bytes_of(stored.dtype)));
    };
    const auto from = stored.bytes.subspan(bytes_before(begin), bytes_before(std::ssize(values)));
    if (blocks != nullptr)
      dequantise(*blocks, from, values);
    else
      convert(stored.dtype, from.data(), DType::f32, values.data(), std::ssize(values));
    model_.weights->let_go(from);
    const auto written = [&](int64_t count) {
      return static_cast<size_t>(count / planned.type->elements * planned.type->bytes);
    };
    quantise_checked(planned, tensor, values,
                     out.subspan(written(begin), written(std::ssize(values))));
  }
}

void GgufExport::quantise_checked(const GgufPlanned& planned, const Tensor& tensor,
                                  std::span<const float> values, std::span<std::byte> out) const {
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    user_error(
        "{}: the tensor {} contains NaN or infinity; the file is damaged, or its run diverged: use "
        "an earlier checkpoint",
        model_.folder.string(), tensor.parameter);
  const auto wrong =
      std::ranges::find_if(values, [&](float value) { return !holds(*planned.type, value); });
  if (wrong != values.end())
    user_error("{}: {} holds {}, which {} cannot hold; write F32 or BF16", model_.folder.string(),
               tensor.parameter, *wrong, planned.type->name);
  quantise(*planned.type, values, out);
}

void GgufExport::write(const fs::path& path) const {
  output_->write(
      path, [this](const GgufPlanned& planned, std::span<std::byte> out) { make(planned, out); });
}

}  // namespace brrr::io
