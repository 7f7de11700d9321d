// Adafactor: three passes over a matrix's gradient, for its steps depend on sums over all of it.
// The first sums squares over rows and columns, the second measures the update, the third takes the
// step. A matrix is cut into at most 64 parts of whole rows, whatever the number of threads;
// matrices that fit a core's cache are one part and one thread's.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/updates/adafactor_rows.h"
#include "backend/cpu/updates/update_kernel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kOneThread = 65536;  // elements of a matrix that one thread takes whole
constexpr int64_t kParts = 64;

struct Constants {
  double decay_rate, eps1, eps2, clip, weight_decay;
  bool scale_parameter;
  explicit Constants(const Attrs& a)
      : decay_rate(a.get<double>("decay_rate")),
        eps1(a.get<double>("eps1")),
        eps2(a.get<double>("eps2")),
        clip(a.get<double>("clip")),
        weight_decay(a.get<double>("weight_decay")),
        scale_parameter(a.get<bool>("scale_parameter")) {}

  /// The size of a step, given the sum of squares of the parameter's n elements.
  double rate(double lr, double squares, int64_t n) const {
    if (!scale_parameter || n == 0) return lr;
    return lr * std::max(eps2, std::sqrt(squares / static_cast<double>(n)));
  }
  /// What the update is divided by, given its sum of squares.
  double clipping(double squares, int64_t n) const {
    return std::max(1.0, std::sqrt(squares / static_cast<double>(std::max<int64_t>(1, n))) / clip);
  }
};

// A parameter [B, R, C] and what one step needs for it in scratch memory.
struct Matrix {
  size_t tensor = 0;
  int64_t batch = 0, rows = 0, columns = 0;
  int64_t part_rows = 0, parts = 0;  // over batch * rows
  bool decays = false;

  int64_t elements() const { return batch * rows * columns; }
  bool is_small() const { return elements() <= kOneThread; }
  // Scratch, in doubles: sums of squares of each part's parameters and updates, row factors; then
  // floats: column sums of each part and matrix that it touches, column factors.
  int64_t doubles() const { return 2 * parts + batch * rows; }
  int64_t floats() const { return (parts + batch) * columns + batch * columns; }
  int64_t scratch_bytes() const { return (doubles() * 8 + floats() * 4 + 63) / 64 * 64; }
};

Matrix matrix_of(const Shape& shape, size_t tensor, bool decays) {
  Matrix m;
  m.tensor = tensor;
  m.rows = shape.size(-2);
  m.columns = shape.size(-1);
  m.batch = m.rows * m.columns == 0 ? 0 : shape.elements() / (m.rows * m.columns);
  m.decays = decays;
  const int64_t all = m.batch * m.rows;
  m.part_rows = m.is_small() ? std::max<int64_t>(1, all) : (all + kParts - 1) / kParts;
  m.parts = all == 0 ? 0 : (all + m.part_rows - 1) / m.part_rows;
  return m;
}

class AdafactorKernel final : public Kernel {
 public:
  explicit AdafactorKernel(const NodeView& node)
      : at_(node.attrs(), node.in.size(), 2), constants_(node.attrs()), frame_(node, 2) {
    for (size_t i = 0; i < at_.n; ++i) {
      matrices_.push_back(matrix_of(node.in[at_.param(i)].shape, i, frame_.decays(i)));
      scratch_at_.push_back(scratch_);
      scratch_ += matrices_.back().scratch_bytes();
    }
    for (size_t i = 0; i < at_.n; ++i) (matrices_[i].is_small() ? small_ : large_).push_back(i);
  }
  int64_t scratch_bytes() const override { return scratch_; }

  void run(const KernelArgs& args) override {
    const StepScalars s = UpdateFrame::scalars(args);
    if (std::isnan(s.scale)) return frame_.keep_everything(args);
    parallel_chunks(static_cast<int64_t>(small_.size()), [&](int64_t i) {
      Work work = open(args, s, small_[static_cast<size_t>(i)]);
      if (work.m.parts == 0) return frame_.keep(args, work.m.tensor);
      update(args, work, [](int64_t n, auto&& body) {
        for (int64_t part = 0; part < n; ++part) body(part);
      });
    });
    for (size_t i : large_) {
      Work work = open(args, s, i);
      update(args, work, [](int64_t n, auto&& body) { parallel_chunks(n, body); });
    }
    frame_.put_panels(args);
  }

 private:
  struct Work {
    Matrix m;
    StepScalars s;
    const float *param, *grad, *row, *column;
    float *new_param, *new_row, *new_column;
    double *param_squares, *update_squares, *row_factors;
    float *column_sums, *column_factors;
  };

  Work open(const KernelArgs& args, const StepScalars& s, size_t i) const {
    Work w{};
    w.m = matrices_[i];
    w.s = s;
    auto in = [&](size_t k) { return static_cast<const float*>(args.in[k]); };
    auto out = [&](size_t k) { return static_cast<float*>(args.out[k]); };
    w.param = in(at_.param(i));
    w.grad = in(at_.grad(i));
    w.row = in(at_.state(0, i));
    w.column = in(at_.state(1, i));
    w.new_param = out(at_.new_param(i));
    w.new_row = out(at_.new_state(0, i));
    w.new_column = out(at_.new_state(1, i));
    w.param_squares = reinterpret_cast<double*>(args.scratch + scratch_at_[i]);
    w.update_squares = w.param_squares + w.m.parts;
    w.row_factors = w.update_squares + w.m.parts;
    w.column_sums = reinterpret_cast<float*>(w.row_factors + w.m.batch * w.m.rows);
    w.column_factors = w.column_sums + (w.m.parts + w.m.batch) * w.m.columns;
    return w;
  }

  template <typename Each>
  void update(const KernelArgs& args, Work& w, Each&& each) const {
    const Matrix& m = w.m;
    each(m.parts, [&](int64_t part) { sum_squares(w, part); });
    next_moments(w);
    each(m.parts, [&](int64_t part) { measure(w, part); });
    double params = 0, updates = 0;
    for (int64_t part = 0; part < m.parts; ++part) {
      params += w.param_squares[part];
      updates += w.update_squares[part];
    }
    const double rate = constants_.rate(w.s.lr, params, m.elements());
    const double size = rate / constants_.clipping(updates, m.elements());
    const double decay = m.decays ? constants_.weight_decay : 0;
    each(m.parts, [&](int64_t part) { step(args, w, part, 1 - rate * decay, size); });
  }

  // body(row) for the rows of a part, numbered over all matrices of the batch.
  template <typename Body>
  static void each_row(const Matrix& m, int64_t part, Body&& body) {
    const int64_t end = std::min((part + 1) * m.part_rows, m.batch * m.rows);
    for (int64_t r = part * m.part_rows; r < end; ++r) body(r);
  }
  // Where a part collects column sums of a matrix: parts and matrices ascend together.
  static float* sums_of(const Work& w, int64_t part, int64_t matrix) {
    return w.column_sums + (part + matrix) * w.m.columns;
  }

  void sum_squares(Work& w, int64_t part) const {
    const Matrix& m = w.m;
    const AdafactorRows& rows = adafactor_rows();
    double params = 0;
    int64_t matrix = -1;
    each_row(m, part, [&](int64_t r) {
      if (r / m.rows != matrix) {
        matrix = r / m.rows;
        std::fill_n(sums_of(w, part, matrix), m.columns, 0.0f);
      }
      const int64_t at = r * m.columns;
      w.row_factors[r] =
          rows.square_sums(w.grad + at, w.s.scale, sums_of(w, part, matrix), m.columns);
      if (constants_.scale_parameter)
        params += optimizer_rows().sum_of_squares(w.param + at, m.columns);
    });
    w.param_squares[part] = params;
  }

  // Rows and columns from the sums, and the factors by which a gradient becomes an update.
  void next_moments(Work& w) const {
    const Matrix& m = w.m;
    const double beta = 1 - std::pow(w.s.t, constants_.decay_rate), eps = constants_.eps1;
    const auto C = static_cast<double>(m.columns), R = static_cast<double>(m.rows);
    for (int64_t b = 0; b < m.batch; ++b) {
      double mean = 0;
      for (int64_t r = b * m.rows; r < (b + 1) * m.rows; ++r) {
        const double next =
            beta * static_cast<double>(w.row[r]) + (1 - beta) * (w.row_factors[r] / C + eps);
        w.new_row[r] = static_cast<float>(next);
        w.row_factors[r] = next;
        mean += next / R;
      }
      for (int64_t r = b * m.rows; r < (b + 1) * m.rows; ++r)
        w.row_factors[r] = mean / w.row_factors[r];  // squared
      const int64_t first = b * m.rows / m.part_rows, last = ((b + 1) * m.rows - 1) / m.part_rows;
      for (int64_t k = 0; k < m.columns; ++k) {
        double sum = 0;
        for (int64_t part = first; part <= last; ++part)
          sum += static_cast<double>(sums_of(w, part, b)[k]);
        const int64_t at = b * m.columns + k;
        const double next = beta * static_cast<double>(w.column[at]) + (1 - beta) * (sum / R + eps);
        w.new_column[at] = static_cast<float>(next);
        w.column_factors[at] = static_cast<float>(1 / std::sqrt(next));
      }
    }
  }

  // The sum of squares of the update: factors are squared on the fly.
  void measure(Work& w, int64_t part) const {
    const Matrix& m = w.m;
    std::vector<float> squares(static_cast<size_t>(m.columns));
    double sum = 0;
    int64_t matrix = -1;
    each_row(m, part, [&](int64_t r) {
      if (r / m.rows != matrix) {
        matrix = r / m.rows;
        const float* factors = w.column_factors + matrix * m.columns;
        for (int64_t k = 0; k < m.columns; ++k)
          squares[static_cast<size_t>(k)] = factors[k] * factors[k];
      }
      sum += w.row_factors[r] * adafactor_rows().weighted_squares(w.grad + r * m.columns, w.s.scale,
                                                                  squares.data(), m.columns);
    });
    w.update_squares[part] = sum;
  }

  void step(const KernelArgs& args, Work& w, int64_t part, double keep, double size) const {
    const Matrix& m = w.m;
    each_row(m, part, [&](int64_t r) {
      const int64_t at = r * m.columns;
      const double factor = size * static_cast<double>(w.s.scale) * std::sqrt(w.row_factors[r]);
      adafactor_rows().step(w.param + at, w.grad + at, w.column_factors + r / m.rows * m.columns,
                            static_cast<float>(keep), static_cast<float>(factor), w.new_param + at,
                            m.columns);
      frame_.copy(args, m.tensor, at, m.columns);
    });
  }

  ops::UpdateLayout at_;
  Constants constants_;
  UpdateFrame frame_;  // for what all updates share
  std::vector<Matrix> matrices_;
  std::vector<int64_t> scratch_at_;
  int64_t scratch_ = 0;
  std::vector<size_t> small_, large_;
};

// Vectors: few elements, one thread each.
class AdafactorVectorKernel final : public Kernel {
 public:
  explicit AdafactorVectorKernel(const NodeView& node)
      : at_(node.attrs(), node.in.size(), 1), constants_(node.attrs()), frame_(node, 1) {
    for (size_t i = 0; i < at_.n; ++i) counts_.push_back(node.in[at_.param(i)].shape.elements());
  }
  void run(const KernelArgs& args) override {
    const StepScalars s = UpdateFrame::scalars(args);
    if (std::isnan(s.scale)) return frame_.keep_everything(args);
    for (size_t i = 0; i < at_.n; ++i) update(args, s, i);
    frame_.put_panels(args);
  }

 private:
  void update(const KernelArgs& args, const StepScalars& s, size_t i) const {
    const int64_t n = counts_[i];
    const auto* param = static_cast<const float*>(args.in[at_.param(i)]);
    const auto* grad = static_cast<const float*>(args.in[at_.grad(i)]);
    const auto* v = static_cast<const float*>(args.in[at_.state(0, i)]);
    auto* new_param = static_cast<float*>(args.out[at_.new_param(i)]);
    auto* new_v = static_cast<float*>(args.out[at_.new_state(0, i)]);
    const double beta = 1 - std::pow(s.t, constants_.decay_rate);
    double updates = 0;
    for (int64_t j = 0; j < n; ++j) {
      const double g = static_cast<double>(s.scale) * static_cast<double>(grad[j]);
      const double next = beta * static_cast<double>(v[j]) + (1 - beta) * (g * g + constants_.eps1);
      new_v[j] = static_cast<float>(next);
      updates += g * g / next;
    }
    const double rate = constants_.rate(s.lr, optimizer_rows().sum_of_squares(param, n), n);
    const double size = rate / constants_.clipping(updates, n);
    const double keep = 1 - (frame_.decays(i) ? rate * constants_.weight_decay : 0);
    for (int64_t j = 0; j < n; ++j) {
      const double g = static_cast<double>(s.scale) * static_cast<double>(grad[j]);
      new_param[j] = static_cast<float>(keep * static_cast<double>(param[j]) -
                                        size * g / std::sqrt(static_cast<double>(new_v[j])));
    }
    frame_.copy(args, i, 0, n);
  }

  ops::UpdateLayout at_;
  Constants constants_;
  UpdateFrame frame_;
  std::vector<int64_t> counts_;
};

template <typename K>
KernelEntry entry(Op op, size_t states) {
  return {op, "rows",
          [states](const NodeView& node) -> std::string {
            const ops::UpdateLayout at(node.attrs(), node.in.size(), states);
            for (size_t i = 0; i < at.n; ++i)
              if (node.in[at.grad(i)].dtype != DType::f32)
                return fmt::format("dtype {}: only f32", name_of(node.in[at.grad(i)].dtype));
            return "";
          },
          [](const NodeView& node) -> std::unique_ptr<Kernel> { return std::make_unique<K>(node); },
          kKnowsStorage};
}

}  // namespace

std::vector<KernelEntry> adafactor_kernels() {
  return {entry<AdafactorKernel>(Op::adafactor, 2),
          entry<AdafactorVectorKernel>(Op::adafactor_vector, 1)};
}

}  // namespace brrr::cpu
