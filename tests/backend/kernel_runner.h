#pragma once
// Runs one node through one kernel and through the reference, and compares. Operands and results
// lie in buffers of exactly their size between guard bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backend/reference/interpreter.h"
#include "base/rng.h"
#include "ops/attention.h"
#include "runtime/backend.h"
#include "support/tolerance.h"

#if defined(BRRR_SANITIZED)
#include <sanitizer/asan_interface.h>
#endif

namespace brrr::test {

/// Makes the kernels' accesses to [address, address + bytes) errors under AddressSanitizer, which
/// instruments them though not the tests.
inline void poison([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#if defined(BRRR_SANITIZED)
  __asan_poison_memory_region(address, bytes);
#endif
}
inline void unpoison([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#if defined(BRRR_SANITIZED)
  __asan_unpoison_memory_region(address, bytes);
#endif
}

/// Bytes at an address of chosen misalignment, with guards that reveal a write outside,
/// and under AddressSanitizer a read as well.
class Buffer {
 public:
  explicit Buffer(int64_t bytes, size_t misalign = 0)
      : storage_(static_cast<size_t>(bytes) + 2 * kGuard + 64, kMark),
        bytes_(static_cast<size_t>(bytes)) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    start_ = kGuard + (64 - address % 64) % 64 + misalign;
  }
  std::byte* data() { return storage_.data() + start_; }
  const std::byte* data() const { return storage_.data() + start_; }
  size_t size() const { return bytes_; }
  bool intact() const {
    auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(storage_.begin(), storage_.begin() + static_cast<int64_t>(start_), marked) &&
           std::all_of(storage_.begin() + static_cast<int64_t>(start_ + bytes_), storage_.end(),
                       marked);
  }
  /// While closed, AddressSanitizer reports any access to the guards.
  void close() const {
    each_guard([](auto* p, size_t n) { poison(p, n); });
  }
  void open() const {
    each_guard([](auto* p, size_t n) { unpoison(p, n); });
  }
  bool operator==(const Buffer& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data(), other.data(), bytes_) == 0;
  }

 private:
  template <typename F>
  void each_guard(F&& f) const {
    f(storage_.data(), start_);
    f(storage_.data() + start_ + bytes_, storage_.size() - start_ - bytes_);
  }
  static constexpr size_t kGuard = 128;
  static constexpr std::byte kMark{0xa5};
  std::vector<std::byte> storage_;
  size_t start_ = 0, bytes_;
};

/// One op on operands with values: the graph, the node, the bytes.
struct Call {
  Graph graph;
  NodeId id = kNoNode;
  std::vector<std::vector<double>> values;  // as stored, that is rounded to the dtypes

  Call(const OpDef& op, const Sample& sample, uint32_t seed = 1) {
    RngStream rng({seed, 77}, 5);
    for (const Sample::Operand& operand : sample.in) {
      std::vector<double> v(static_cast<size_t>(operand.type.shape.elements()));
      for (double& x : v) {
        x = operand.low + (operand.high - operand.low) * static_cast<double>(rng.next_uniform());
        if (!is_float(operand.type.dtype)) x = std::floor(x);
      }
      if (operand.is_partition) {
        std::sort(v.begin(), v.end());
        v.front() = operand.low;
        v.back() = operand.high - 1;
      }
      add(operand.type, std::move(v));
    }
    finish(op, sample.attrs);
  }
  Call(const OpDef& op, std::vector<std::pair<Type, std::vector<double>>> operands,
       Attrs attrs = {}) {
    for (auto& [type, v] : operands) add(type, std::move(v));
    finish(op, std::move(attrs));
  }

  /// On these operands, integers of 64 bits among them, which `values` only come near to.
  static Call on(const OpDef& op, const std::vector<RefTensor>& operands, Attrs attrs = {}) {
    Call call;
    for (const RefTensor& t : operands) {
      std::vector<double> v;
      for (size_t i = 0; i < t.size(); ++i) v.push_back(t.number(i));
      call.integers_.emplace(call.values.size(), t);
      call.add(t.type, std::move(v));
    }
    call.finish(op, std::move(attrs));
    return call;
  }

  NodeView view() const { return NodeView(graph, id); }
  const Node& node() const { return graph.node(id); }
  std::string text() const {
    std::string s = node().op->name + "(";
    for (const Type& t : view().in) s += t.str() + " ";
    return s + ")" + node().attrs.str();
  }

  std::vector<Buffer> operand_buffers(size_t misalign = 0) const {
    std::vector<Buffer> buffers;
    const NodeView v = view();
    for (size_t k = 0; k < v.in.size(); ++k) {
      const size_t shift = misalign ? bytes_of(v.in[k].dtype) * misalign : 0;
      buffers.emplace_back(v.in[k].bytes(), shift);
      write_tensor(operand(k), buffers.back().data());
    }
    return buffers;
  }

  RefTensor operand(size_t k) const {
    const auto exact = integers_.find(k);
    return exact == integers_.end() ? RefTensor(view().in[k], values[k]) : exact->second;
  }
  std::vector<RefTensor> wanted() const {
    std::vector<RefTensor> tensors;
    const NodeView v = view();
    for (size_t k = 0; k < v.in.size(); ++k) tensors.push_back(operand(k));
    std::vector<const RefTensor*> pointers;
    for (const RefTensor& t : tensors) pointers.push_back(&t);
    return reference::evaluate_node(graph, id, pointers);
  }

 private:
  Call() = default;
  void add(const Type& type, std::vector<double> v) {
    Buffer rounded(type.bytes());
    write_floats(type.storage, type.dtype, type.shape, v, rounded.data());
    read_floats(type.storage, type.dtype, type.shape, rounded.data(), v);
    operands_.push_back(graph.input("x" + std::to_string(operands_.size()), type).id);
    values.push_back(std::move(v));
  }
  void finish(const OpDef& op, Attrs attrs) {
    id = graph.add(op, operands_, std::move(attrs));
    for (uint32_t port = 0; port < node().results.size(); ++port)
      graph.output(std::to_string(port), graph.value(id, port));
  }
  std::vector<ValueId> operands_;
  std::map<size_t, RefTensor> integers_;
};

/// Runs the kernel. With `in_place` the results of the OpDef's pairs of equal size are written over
/// their operands, as many at once as have distinct operands.
inline std::vector<Buffer> run_kernel(const KernelEntry& entry, const Call& call,
                                      size_t misalign = 0, bool in_place = false,
                                      int which_pair = 0) {
  const NodeView view = call.view();
  std::unique_ptr<Kernel> kernel = entry.prepare(view);
  std::vector<Buffer> in = call.operand_buffers(misalign), out;
  for (const Type& t : view.out())
    out.emplace_back(t.bytes(), misalign ? bytes_of(t.dtype) * (misalign + 1) : 0);
  Buffer scratch(kernel->scratch_bytes());
  std::vector<const void*> in_pointers;
  std::vector<void*> out_pointers;
  for (Buffer& b : in) in_pointers.push_back(b.data());
  for (Buffer& b : out) out_pointers.push_back(b.data());
  std::vector<int> over(out.size(), -1);
  if (in_place && kernel->in_place()) {
    std::vector<bool> taken(in.size(), false);
    auto pairs = call.node().op->in_place_pairs(call.node());
    std::rotate(pairs.begin(),
                pairs.begin() + (pairs.empty() ? 0 : which_pair % static_cast<int>(pairs.size())),
                pairs.end());
    for (const auto& pair : pairs) {
      if (over[pair.result] >= 0 || taken[pair.operand] ||
          !(view.out()[pair.result] == view.in[pair.operand]))
        continue;
      over[pair.result] = static_cast<int>(pair.operand);
      taken[pair.operand] = true;
      out_pointers[pair.result] = in[pair.operand].data();
    }
  }
  KernelArgs args{in_pointers, out_pointers, scratch.data()};
  auto each_buffer = [&](auto&& f) {
    for (auto* list : {&in, &out})
      for (const Buffer& b : *list) f(b);
    f(scratch);
  };
  each_buffer([](const Buffer& b) { b.close(); });
  try {
    kernel->run(args);
  } catch (...) {
    each_buffer([](const Buffer& b) { b.open(); });
    throw;
  }
  each_buffer([](const Buffer& b) { b.open(); });
  for (size_t k = 0; k < in.size(); ++k) EXPECT_TRUE(in[k].intact()) << "beside operand " << k;
  for (size_t k = 0; k < out.size(); ++k) {
    EXPECT_TRUE(out[k].intact()) << "beside result " << k;
    if (over[k] >= 0)
      std::memcpy(out[k].data(), in[static_cast<size_t>(over[k])].data(), out[k].size());
  }
  EXPECT_TRUE(scratch.intact()) << "beside the scratch memory";
  return out;
}

/// Terms of the longest sum that goes into one element of a result.
inline int64_t terms_of(const Call& call) {
  int64_t most = 1, least = call.view().in.empty() ? 1 : 0;
  for (const Type& t : call.view().in) most = std::max(most, t.shape.elements());
  for (const Type& t : call.view().out()) {
    const int64_t n = std::max<int64_t>(1, t.shape.elements());
    least = least == 0 ? n : std::min(least, n);
  }
  const std::string& op = call.node().op->name;
  if (op == "softmax" || op == "softmax_grad" || op.starts_with("cross_entropy"))
    return call.view().in[0].shape.size(-1);
  if (op.starts_with("attention")) {  // a product, and the longer of the sums over keys and queries
    const AttentionForm form(call.node(), call.view().in);
    return form.places.width + std::max(form.queries.size() * form.group(), form.keys.size());
  }
  if (op.starts_with("linear_cross_entropy"))  // sums over x, over classes and over rows
    return call.view().in[0].shape.size(-1) + call.view().in[2].shape.elements() +
           call.view().in[1].shape.elements() /
               std::max<int64_t>(1, call.view().in[0].shape.size(-1));
  if (call.node().op->op_class == OpClass::elementwise) return 1;
  return std::max<int64_t>(1, most / std::max<int64_t>(1, least));
}

/// `magnitudes`: for each result, how large the terms are that it is the sum of, where they may
/// cancel.
inline void expect_close(const Call& call, const std::vector<Buffer>& got,
                         const std::vector<RefTensor>& wanted,
                         const std::vector<double>& magnitudes = {}) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t k = 0; k < got.size(); ++k) {
    const Type& type = call.view().out()[k];
    const RefTensor seen = read_tensor(type, got[k].data());
    double largest = magnitudes.empty() ? 0 : magnitudes[k];
    for (size_t i = 0; i < wanted[k].size(); ++i)
      if (std::isfinite(wanted[k].number(i)))
        largest = std::max(largest, std::fabs(wanted[k].number(i)));
    const double bound = tolerance(type.dtype, terms_of(call)) * largest;
    int shown = 0;
    for (size_t i = 0; i < wanted[k].size() && shown < 3; ++i) {
      if (is_integer(type.dtype) && seen.bits(i) != wanted[k].bits(i)) {
        ADD_FAILURE() << call.text() << ": result " << k << " element " << i << " is "
                      << seen.integer<int64_t>(i) << ", wanted " << wanted[k].integer<int64_t>(i);
        ++shown;
      }
      if (is_integer(type.dtype)) continue;
      const double w = wanted[k].number(i), g = seen.number(i);
      const bool same = (std::isnan(w) && std::isnan(g)) || w == g;
      if (same || std::fabs(g - w) <= bound) continue;
      ADD_FAILURE() << call.text() << ": result " << k << " element " << i << " is " << g
                    << ", wanted " << w << ", bound " << bound;
      ++shown;
    }
  }
}

}  // namespace brrr::test
