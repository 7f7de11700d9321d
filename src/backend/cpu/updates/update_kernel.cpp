#include "backend/cpu/updates/update_kernel.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kChunk = 65536;  // elements

/// Whole blocks of 32 rows of a matrix.
void add_chunks_of_rows(size_t tensor, const Shape& s, std::vector<Chunk>& chunks) {
  const int64_t block = kPanelTerms * s.size(1);
  const int64_t size = block * std::max<int64_t>(1, kChunk / std::max<int64_t>(1, block));
  for (int64_t begin = 0; begin < s.elements(); begin += size)
    chunks.push_back({tensor, begin, std::min(size, s.elements() - begin)});
}

}  // namespace

std::vector<Chunk> chunks_of(const NodeView& node, size_t first, size_t n) {
  std::vector<Chunk> chunks;
  for (size_t t = 0; t < n; ++t) {
    const int64_t count = node.in[first + t].shape.elements();
    for (int64_t begin = 0; begin < count; begin += kChunk)
      chunks.push_back({t, begin, std::min(kChunk, count - begin)});
  }
  return chunks;
}

UpdateFrame::UpdateFrame(const NodeView& node, size_t states, bool by_rows)
    : at_(node.attrs(), node.in.size(), states),
      decays_(node.attrs().get<std::vector<int64_t>>("decays")),
      weight_decay_(node.attrs().get<double>("weight_decay")) {
  if (at_.has_key) stream_ = static_cast<uint32_t>(node.attrs().get<int64_t>("stream"));
  int64_t panel_bytes = 0;
  for (size_t i = 0; i < at_.n; ++i) {
    low_param_.push_back(node.in[at_.param(i)].dtype == DType::bf16);
    low_grad_.push_back(node.in[at_.grad(i)].dtype == DType::bf16);
    by_rows_.push_back(by_rows && at_.has_panels(i) && !low_grad_[i]);
    const Shape& s = node.in[at_.param(i)].shape;
    matrices_.push_back(at_.has_panels(i) ? Matrix{s.size(0), s.size(1)} : Matrix{});
    if (!at_.has_panels(i)) continue;
    panel_bytes += s.elements() * int64_t{sizeof(uint16_t)};
    add_chunks_of_rows(i, s, by_rows_[i] ? chunks_ : behind_);
  }
  for (const Chunk& c : chunks_of(node, at_.param(0), at_.n))
    if (!by_rows_[c.tensor]) chunks_.push_back(c);
  past_caches_ = panel_bytes >= kNearPanels;
  for (const Type& t : node.out()) result_bytes_.push_back(t.bytes());
  copies_f16_ = node.attrs().get_or<DType>("copy_dtype", DType::bf16) == DType::f16;
}

StepScalars UpdateFrame::scalars(const KernelArgs& args) {
  using At = ops::UpdateLayout;
  return {static_cast<double>(*static_cast<const float*>(args.in[At::kLearningRate])),
          static_cast<double>(*static_cast<const int32_t*>(args.in[At::kStep])),
          *static_cast<const float*>(args.in[At::kScale])};
}

void UpdateFrame::keep_everything(const KernelArgs& args) const {
  for (size_t i = 0; i < at_.n; ++i) keep(args, i);
  each_chunk(chunks_, [&](size_t c) {
    const Chunk& chunk = chunks_[c];
    if (by_rows_[chunk.tensor]) return copy_rows(args, chunk);
    copy(args, chunk.tensor, chunk.begin, chunk.count);
  });
  put_panels(args);
}

void UpdateFrame::copy_rows(const KernelArgs& args, const Chunk& chunk) const {
  const auto* param = static_cast<const float*>(args.out[at_.new_param(chunk.tensor)]);
  each_run(args, chunk, [&](int64_t begin, int64_t n, uint16_t* copy) {
    rows_.narrow(param + begin, copies_f16_, copy, n);
  });
}

void UpdateFrame::put_panels(const KernelArgs& args) const {
  each_chunk(behind_, [&](size_t c) { copy_rows(args, behind_[c]); });
}

void UpdateFrame::put_copies(const KernelArgs& args, const Part& part, uint16_t* copies) const {
  const auto to = [&](Layout layout) -> uint16_t* {
    if (!at_.has_copy(part.tensor, layout)) return nullptr;
    return static_cast<uint16_t*>(args.out[at_.new_copy(part.tensor, layout)]);
  };
  const Matrix& m = matrices_[part.tensor];
  if (uint16_t* const plain = to(Layout::rows)) {
    for (int64_t i = 0; i < part.rows; ++i)
      std::copy_n(copies + i * part.ld, part.columns,
                  plain + (part.row + i) * m.columns + part.column);
  }
  pad_with_zeros(copies, part.ld, part.rows, part.columns);
  const PanelPlaces places{m.rows, m.columns, to(Layout::panels), to(Layout::transposed_panels),
                           past_caches_};
  put_into_panels(copies, part.ld, part.ld, places.at(part.row, part.column));
}

void UpdateFrame::copy(const KernelArgs& args, size_t tensor, int64_t begin, int64_t n) const {
  if (!at_.has_copy(tensor) || at_.has_panels(tensor)) return;
  rows_.narrow(static_cast<const float*>(args.out[at_.new_param(tensor)]) + begin, copies_f16_,
               static_cast<uint16_t*>(args.out[at_.new_copy(tensor)]) + begin, n);
}

void UpdateFrame::keep(const KernelArgs& args, size_t i) const {
  auto copy = [&](size_t operand, size_t result) {
    if (args.in[operand] != args.out[result])
      std::memcpy(args.out[result], args.in[operand], static_cast<size_t>(result_bytes_[result]));
  };
  copy(at_.param(i), at_.new_param(i));
  for (size_t k = 0; k < at_.states; ++k) copy(at_.state(k, i), at_.new_state(k, i));
}

void UpdateFrame::open(const KernelArgs& args, size_t tensor, int64_t begin, Staging* staging,
                       UpdateRun& run) const {
  auto floats = [&](const void* from, bool low, float* room) -> const float* {
    if (!low) return static_cast<const float*>(from) + begin;
    rows_.widen(static_cast<const uint16_t*>(from) + begin, room, run.n);
    return room;
  };
  float* const param = staging != nullptr ? staging->param : nullptr;
  float* const grad = staging != nullptr ? staging->grad : nullptr;
  run.param = floats(args.in[at_.param(tensor)], low_param_[tensor], param);
  run.grad = floats(args.in[at_.grad(tensor)], low_grad_[tensor], grad);
  run.new_param =
      low_param_[tensor] ? param : static_cast<float*>(args.out[at_.new_param(tensor)]) + begin;
  run.copy_is_f16 = copies_f16_;
  const bool has_copy = at_.has_copy(tensor) && !at_.has_panels(tensor);
  run.copy = has_copy ? static_cast<uint16_t*>(args.out[at_.new_copy(tensor)]) + begin : nullptr;
}

void UpdateFrame::close(const KernelArgs& args, size_t tensor, int64_t begin, Staging& staging,
                        int64_t n) const {
  if (!low_param_[tensor]) return;
  const auto* words = static_cast<const uint32_t*>(args.in[ops::UpdateLayout::kKey]);
  random_rows(false).draw({words[0], words[1]}, stream_ + static_cast<uint32_t>(tensor),
                          static_cast<uint64_t>(begin) / 8, (n + 7) / 8, staging.random);
  rows_.round_at_random(staging.param, staging.random,
                        static_cast<uint16_t*>(args.out[at_.new_param(tensor)]) + begin, n);
}

std::string refuse_update(const NodeView& node, size_t states) {
  const ops::UpdateLayout at(node.attrs(), node.in.size(), states);
  for (size_t i = 0; i < at.n; ++i)
    for (const Type& t : {node.in[at.param(i)], node.in[at.grad(i)]})
      if (t.dtype != DType::f32 && t.dtype != DType::bf16)
        return fmt::format("dtype {}: only f32 and bf16", name_of(t.dtype));
  return "";
}

}  // namespace brrr::cpu
