#include "backend/cpu/update_kernel.h"

namespace brrr::cpu {

std::vector<Chunk> chunks_of(const NodeView& node, size_t first, size_t n) {
  constexpr int64_t kChunk = 65536;  // elements
  std::vector<Chunk> chunks;
  for (size_t t = 0; t < n; ++t) {
    const int64_t count = node.in[first + t].shape.elements();
    for (int64_t begin = 0; begin < count; begin += kChunk)
      chunks.push_back({t, begin, std::min(kChunk, count - begin)});
  }
  return chunks;
}

UpdateFrame::UpdateFrame(const NodeView& node, size_t states)
    : at_(node.attrs(), node.in.size(), states),
      chunks_(chunks_of(node, at_.param(0), at_.n)),
      decays_(node.attrs().get<std::vector<int64_t>>("decays")),
      weight_decay_(node.attrs().get<double>("weight_decay")) {
  if (at_.has_key) stream_ = static_cast<uint32_t>(node.attrs().get<int64_t>("stream"));
  for (size_t i = 0; i < at_.n; ++i) {
    low_param_.push_back(node.in[at_.param(i)].dtype == DType::bf16);
    low_grad_.push_back(node.in[at_.grad(i)].dtype == DType::bf16);
  }
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
  each_chunk(chunks_,
             [&](size_t c) { copy(args, chunks_[c].tensor, chunks_[c].begin, chunks_[c].count); });
}

void UpdateFrame::copy(const KernelArgs& args, size_t tensor, int64_t begin, int64_t n) const {
  if (!at_.has_copy(tensor)) return;
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

void UpdateFrame::open(const KernelArgs& args, size_t tensor, int64_t begin, Staging& staging,
                       UpdateRun& run) const {
  auto floats = [&](const void* from, bool low, float* room) -> const float* {
    if (!low) return static_cast<const float*>(from) + begin;
    rows_.widen(static_cast<const uint16_t*>(from) + begin, room, run.n);
    return room;
  };
  run.param = floats(args.in[at_.param(tensor)], low_param_[tensor], staging.param);
  run.grad = floats(args.in[at_.grad(tensor)], low_grad_[tensor], staging.grad);
  run.new_param = low_param_[tensor] ? staging.param
                                     : static_cast<float*>(args.out[at_.new_param(tensor)]) + begin;
  run.copy_is_f16 = copies_f16_;
  run.copy = at_.has_copy(tensor) ? static_cast<uint16_t*>(args.out[at_.new_copy(tensor)]) + begin
                                  : nullptr;
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
