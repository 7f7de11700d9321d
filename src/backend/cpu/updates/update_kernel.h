#pragma once
// The frame of the multi-tensor update kernels: all tensors cut into fixed chunks, so that bits do
// not depend on the number of threads, and each chunk into blocks that stay in the cache where
// 16-bit parameters or gradients stand between memory and f32 arithmetic. Copies in panels are made
// of 32 rows at a time: while these are in the cache where a kernel's rule may go by rows, else in
// a pass behind it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/products/panel_rows.h"
#include "backend/cpu/rows/random_rows.h"
#include "backend/cpu/updates/optimizer_rows.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/update.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// Of 32 rows whose copies go into panels together: columns at most, and the bytes on the stack.
inline constexpr int64_t kMostPanelRowColumns = 4096;
inline constexpr int64_t kMostPanelRowsBytes =
    kPanelTerms * kMostPanelRowColumns * int64_t{sizeof(uint16_t)};

/// Elements [begin, begin + count) of a tensor.
struct Chunk {
  size_t tensor;
  int64_t begin, count;
};
/// The tensors in[first, first + n) as chunks, numbered from 0.
std::vector<Chunk> chunks_of(const NodeView& node, size_t first, size_t n);

/// body(c) for each chunk, on the team where there is enough to do.
template <typename Body>
void each_chunk(const std::vector<Chunk>& chunks, Body&& body) {
  constexpr int64_t kSingleThread = 32768;  // elements in all, below which the team is not woken
  int64_t total = 0;
  for (const Chunk& c : chunks) total += c.count;
  if (total <= kSingleThread) {
    for (size_t c = 0; c < chunks.size(); ++c) body(c);
  } else {
    parallel_chunks(static_cast<int64_t>(chunks.size()),
                    [&](int64_t c) { body(static_cast<size_t>(c)); });
  }
}

/// What a kernel is told of one step.
struct StepScalars {
  double lr, t;
  float scale;
};

/// The numbers of AdamW for a step.
struct AdamwRule {
  double beta1, beta2, eps;
  explicit AdamwRule(const Attrs& a)
      : beta1(a.get<double>("beta1")), beta2(a.get<double>("beta2")), eps(a.get<double>("eps")) {}
  AdamwStep step(const StepScalars& s, double decay) const {
    AdamwStep step{};
    step.beta1 = static_cast<float>(beta1);
    step.one_minus_beta1 = static_cast<float>(1 - beta1);
    step.beta2 = static_cast<float>(beta2);
    step.one_minus_beta2 = static_cast<float>(1 - beta2);
    step.scale = s.scale;
    step.keep = static_cast<float>(1 - s.lr * decay);
    step.step_size = static_cast<float>(s.lr / (1 - std::pow(beta1, s.t)));
    step.correction = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, s.t)));
    step.eps = static_cast<float>(eps);
    return step;
  }
};

/// Walks over blocks of elements whose parameters and gradients stand there as f32, and stores new
/// parameters in their dtype.
class UpdateFrame {
 public:
  /// by_rows: each_block() may take any run of elements of a tensor whose gradient is f32.
  UpdateFrame(const NodeView& node, size_t states, bool by_rows = false);

  const ops::UpdateLayout& at() const { return at_; }
  size_t tensors() const { return at_.n; }
  bool decays(size_t tensor) const { return decays_[tensor] != 0; }
  double weight_decay() const { return weight_decay_; }
  static StepScalars scalars(const KernelArgs& args);

  /// Where results are not over their operands they become copies of them. Copies in 16 bits are
  /// made of the parameters as they are.
  void keep_everything(const KernelArgs& args) const;
  void keep(const KernelArgs& args, size_t tensor) const;

  /// Writes the copy in 16 bits, where there is one, of new parameters [begin, begin + n). Tensors
  /// with copies in panels are put_panels()'s.
  void copy(const KernelArgs& args, size_t tensor, int64_t begin, int64_t n) const;
  /// At the end of a step: all copies of tensors with copies in panels that each_block() did not
  /// make on the way.
  void put_panels(const KernelArgs& args) const;

  /// body(tensor, begin, run): run.param, run.grad, run.new_param, run.copy and run.n are set.
  template <typename Body>
  void each_block(const KernelArgs& args, Body&& body) const {
    each_chunk(chunks_, [&](size_t c) {
      const Chunk& chunk = chunks_[c];
      if (by_rows_[chunk.tensor]) {
        return each_run(args, chunk, [&](int64_t begin, int64_t n, uint16_t* copy) {
          UpdateRun run;
          run.n = n;
          open(args, chunk.tensor, begin, nullptr, run);
          run.copy = copy;
          body(chunk.tensor, begin, run);
        });
      }
      const bool staged = low_param_[chunk.tensor] || low_grad_[chunk.tensor];
      const int64_t size = staged ? kBlock : chunk.count;
      Staging staging;
      for (int64_t i = 0; i < chunk.count; i += size) {
        const int64_t begin = chunk.begin + i;
        UpdateRun run;
        run.n = std::min(size, chunk.count - i);
        open(args, chunk.tensor, begin, &staging, run);
        body(chunk.tensor, begin, run);
        close(args, chunk.tensor, begin, staging, run.n);
      }
    });
  }

 private:
  static constexpr int64_t kBlock = 2 * kRandomStep;

  struct Matrix {
    int64_t rows = 0, columns = 0;
  };
  /// Part of a matrix with copies in panels: up to 32 rows, whose copies are `ld` apart.
  struct Part {
    size_t tensor;
    int64_t row, rows, column, columns, ld;
  };
  /// fill(begin, n, copy) writes the copies of new parameters [begin, begin + n) of the chunk's
  /// tensor, in order; then they go where all copies of theirs belong.
  template <typename Fill>
  void each_run(const KernelArgs& args, const Chunk& chunk, Fill&& fill) const {
    const int64_t width = matrices_[chunk.tensor].columns;
    const int64_t end = (chunk.begin + chunk.count) / width;
    alignas(64) uint16_t copies[kPanelTerms * kMostPanelRowColumns];
    for (int64_t row = chunk.begin / width; row < end; row += kPanelTerms) {
      for (int64_t column = 0; column < width; column += kMostPanelRowColumns) {
        const int64_t columns = std::min(kMostPanelRowColumns, width - column);
        const Part part{chunk.tensor, row,     std::min(kPanelTerms, end - row),
                        column,       columns, round_up(columns, kPanelColumns)};
        // Rows that adjoin, as their copies do, are one run.
        const bool whole = part.ld == width;
        for (int64_t i = 0; i < (whole ? 1 : part.rows); ++i)
          fill((row + i) * width + column, whole ? part.rows * width : columns,
               copies + i * part.ld);
        put_copies(args, part, copies);
      }
    }
  }
  void put_copies(const KernelArgs& args, const Part& part, uint16_t* copies) const;
  void copy_rows(const KernelArgs& args, const Chunk& chunk) const;

  struct Staging {
    alignas(64) float param[kBlock], grad[kBlock];
    alignas(64) uint16_t random[kBlock + 8 * kRandomSlack];
  };
  /// No staging is needed where parameters and gradients are f32.
  void open(const KernelArgs& args, size_t tensor, int64_t begin, Staging* staging,
            UpdateRun& run) const;
  void close(const KernelArgs& args, size_t tensor, int64_t begin, Staging& staging,
             int64_t n) const;

  ops::UpdateLayout at_;
  std::vector<Chunk> chunks_;
  std::vector<int64_t> decays_;
  double weight_decay_;
  uint32_t stream_ = 0;
  std::vector<bool> low_param_, low_grad_;
  std::vector<bool> by_rows_;     // whose copies in panels each_block() makes
  std::vector<Chunk> behind_;     // of the others with such copies
  std::vector<Matrix> matrices_;  // all with such copies
  bool past_caches_ = false;
  bool copies_f16_ = false;
  std::vector<int64_t> result_bytes_;
  const OptimizerRows& rows_ = optimizer_rows();
};

/// The reason against a node whose parameters are not f32 or bf16, or gradients.
std::string refuse_update(const NodeView& node, size_t states);

}  // namespace brrr::cpu
