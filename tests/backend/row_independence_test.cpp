// A row's bits do not depend on how many rows are computed with it, nor on its place among them: a
// table of pieces of models (products, norms, losses, clusters), each run on a batch of rows and on
// parts of it, in every dtype, on every instruction set, with different numbers of threads, fused
// and not. This is what makes decoding with a cache give the tokens that recomputing gives, and a
// request in a batch the bits that it gets alone. Attention: attention_test.cpp. Not promised: sums
// over rows (gradients of weights and biases), fp8 (a scale is that of the whole tensor), dropout
// (random bits belong to the element's place), oneDNN (asked only where gemm() is disabled), CUDA.

#include <gtest/gtest.h>
#include <functional>

#include "backend/cpu/isa.h"
#include "base/panels.h"
#include "base/threads/thread_team.h"
#include "ops/ops.h"
#include "ops/recurrent.h"
#include "ops/spatial/conv.h"
#include "ops/spatial/winograd.h"
#include "passes/passes.h"
#include "support/each_isa.h"
#include "support/engine_run.h"

namespace brrr::cpu {
namespace {

/// A graph whose inputs and outputs have rows along one axis, or are shared by all rows.
class Piece {
 public:
  explicit Piece(int64_t rows) : rows_(rows) {}
  int64_t rows() const { return rows_; }
  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }

  Value shared(Shape shape, DType dtype, double low = -1, double high = 1) {
    return input({dtype, std::move(shape)}, -1, low, high);
  }
  Value shared(Type type) { return input(std::move(type), -1, -1, 1); }
  /// `axis`: where the shape has the rows.
  Value of_rows(Shape shape, DType dtype, int axis = 0, double low = -1, double high = 1) {
    return input({dtype, std::move(shape)}, axis, low, high);
  }
  void output(Value v, int axis = 0) {
    const std::string name = fmt::format("y{}", axis_of_.size());
    graph_.output(name, v);
    axis_of_[name] = axis;
  }
  int axis_of(const std::string& name) const { return axis_of_.at(name); }

  reference::Tensors values() const {
    test::Random random(7);
    reference::Tensors all;
    for (NodeId id : graph_.inputs()) {
      const std::string& name = graph_.input_name(id);
      const auto& [low, high] = range_of_.at(name);
      all[name] = test::random_tensor(graph_.type({id, 0}), low, high, random);
    }
    return all;
  }

 private:
  Value input(Type type, int axis, double low, double high) {
    const std::string name = fmt::format("x{}", axis_of_.size());
    axis_of_[name] = axis;
    range_of_[name] = {low, high};
    return graph_.input(name, std::move(type));
  }

  int64_t rows_;
  Graph graph_;
  std::map<std::string, int> axis_of_;
  std::map<std::string, std::pair<double, double>> range_of_;
};

/// Elements of a tensor with rows along an axis, as [before, rows, after].
struct RowAxis {
  int64_t before = 1, rows = 1, after = 1;
  RowAxis(const Shape& shape, int axis) : rows(shape.size(axis)) {
    for (int i = 0; i < axis; ++i) before *= shape.size(i);
    for (int i = axis + 1; i < shape.rank(); ++i) after *= shape.size(i);
  }
  /// f(index of a row's run in the whole, index in the part from `first` of `count` rows)
  template <typename F>
  void each_row(int64_t first, int64_t count, F&& f) const {
    for (int64_t b = 0; b < before; ++b)
      for (int64_t r = 0; r < count; ++r) f(b * rows + first + r, b * count + r);
  }
};

struct Case {
  std::string name;
  std::function<void(Piece&)> build;
};

constexpr DType kFloats[] = {f32, bf16, f16};

void add_products(std::vector<Case>& list) {
  const auto add = [&](const std::string& name, std::function<void(Piece&)> build) {
    list.push_back({name, std::move(build)});
  };
  // Beyond one block of terms of the f32 tiles (768), whole groups of terms and not.
  for (const DType t : kFloats) {
    const std::string of(name_of(t));
    for (const int64_t k : {int64_t{96}, int64_t{835}}) {
      const std::string size = fmt::format("{} k{}", of, k);
      add("linear " + size, [=](Piece& p) {
        p.output(
            linear(p.of_rows({1, p.rows(), k}, t, 1), p.shared({k, 75}, t), p.shared({75}, f32)),
            1);
      });
      add("transposed " + size, [=](Piece& p) {
        p.output(matmul(p.of_rows({p.rows(), k}, t), p.shared({75, k}, t), false, true, f32));
      });
      add("plain " + size, [=](Piece& p) {
        p.output(matmul(p.of_rows({p.rows(), k}, t), p.shared({k, 75}, t), false, false, f32));
      });
      add("rows are columns " + size, [=](Piece& p) {
        p.output(matmul(p.of_rows({k, p.rows()}, t, 1), p.shared({k, 40}, t), true, false));
      });
    }
    add("batch " + of, [=](Piece& p) {
      p.output(matmul(p.of_rows({3, p.rows(), 64}, t, 1), p.shared({3, 64, 33}, t)), 1);
    });
    add("batch in part " + of, [=](Piece& p) {
      p.output(matmul(p.of_rows({3, 1, p.rows(), 40}, t, 2), p.shared({2, 40, 33}, t)), 2);
    });
    add("wide " + of, [=](Piece& p) {
      p.output(matmul(p.of_rows({p.rows(), 32}, t), p.shared({1100, 32}, t), false, true));
    });
    add("with GELU " + of, [=](Piece& p) {
      Value y = linear(p.of_rows({p.rows(), 128}, t), p.shared({128, 70}, t), p.shared({70}, t));
      p.output(gelu(y));
    });
    add("with a residual " + of, [=](Piece& p) {
      Value y = matmul(p.of_rows({p.rows(), 128}, t), p.shared({70, 128}, t), false, true);
      p.output(cast(y, f32) + p.of_rows({p.rows(), 70}, f32));
      p.output(tanh(cast(y, f32)) * p.shared({70}, f32));
    });
    // Products below the smallest normal number: zeros of which sign?
    add("tiny " + of, [=](Piece& p) {
      p.output(matmul(p.of_rows({p.rows(), 45}, t, 0, -1e-20, 1e-20),
                      p.shared({45, 40}, t, -1e-20, 1e-20)));
      p.output(matmul(p.of_rows({p.rows(), 45}, t, 0, -1e-20, 1e-20),
                      p.shared({40, 45}, t, -1e-20, 1e-20), false, true));
    });
  }
  for (const bool transposed : {false, true})
    add(transposed ? "int8 transposed" : "int8", [=](Piece& p) {
      const Shape right = transposed ? Shape{75, 200} : Shape{200, 75};
      p.output(matmul(p.of_rows({p.rows(), 200}, DType::i8, 0, -128, 127),
                      p.shared(right, DType::i8, -128, 127), false, transposed));
    });
  for (const DType t : {bf16, f32})
    add(fmt::format("panels {}", name_of(t)), [=](Piece& p) {
      const Value x = p.of_rows({p.rows(), 864}, t);
      const Value w = p.shared(Type{t, {864, 96}, {Layout::panels}});
      p.output(matmul(x, w));
      p.output(gelu(matmul(x, w, false, false, f32)));
    });
}

// The rows are images.
void add_images(std::vector<Case>& list) {
  for (const DType t : kFloats) {
    const auto add = [&](const char* name, std::function<void(Piece&)> build) {
      list.push_back({fmt::format("{} {}", name, name_of(t)), std::move(build)});
    };
    const Windows steps{{2, 1}, {1, 2}, {1, 0, 1, 2}};
    add("convolutions", [=](Piece& p) {
      const Value x = p.of_rows({p.rows(), 6, 9, 21}, t);
      const Value bias = p.shared({4}, f32);
      p.output(conv(x, p.shared({4, 6, 3, 3}, t), bias, steps, 1));
      p.output(conv(x, p.shared({4, 6, 1, 1}, t), bias, {{1, 1}, {1, 1}, {0, 0, 0, 0}}, 1));
      p.output(conv(x, p.shared({6, 1, 3, 3}, t), std::nullopt, steps, 6));
      p.output(conv_transpose(x, p.shared({6, 2, 3, 2}, t), {17, 22},
                              {{2, 1}, {1, 1}, {1, 0, 1, 0}}, 2));
    });
    add("convolutions with channels last", [=](Piece& p) {
      const Value x = p.of_rows({p.rows(), 9, 15, 8}, t), bias = p.shared({40}, f32);
      const Windows same{{1, 1}, {1, 1}, {1, 1, 1, 1}, true},
          skip{{2, 2}, {1, 1}, {0, 0, 0, 0}, true};
      p.output(relu(conv(x, p.shared({40, 8, 3, 3}, t), bias, same, 1)));
      const auto stored = [&](int64_t terms, int32_t bits) {
        return p.shared(Type{t, {40, terms}, {Layout::transposed_panels, {bits, bits / 8, 0}}});
      };
      const Value residual = p.of_rows({p.rows(), 9, 15, 40}, t);
      for (const int32_t bits : {0, 8}) {
        const Value y = conv_by_matrix(x, stored(72, bits), {3, 3}, bias, same, 1);
        p.output(relu(y + residual));
        p.output(gelu(conv_by_matrix(y, stored(40, bits), {1, 1}, bias, skip, 1)));
      }
      if (t != f32) return;
      for (const int64_t tile : {2, 4}) {
        const int64_t places = ops::winograd_size(tile) * ops::winograd_size(tile);
        const Value y = conv_by_matrix(x, stored(places * 8, 0), {3, 3}, bias, same, 1, tile);
        p.output(relu(y + residual));
        p.output(gelu(y));
      }
    });
    add("convolutions of a few windows", [=](Piece& p) {
      const Value x = p.of_rows({p.rows(), 40, 3}, t), bias = p.shared({70}, f32);
      p.output(conv(x, p.shared({70, 40, 3}, t), bias, {{2}, {1}, {1, 1}}, 1));
      p.output(conv(x, p.shared({6, 40, 3}, t), std::nullopt, {{1}, {1}, {0, 0}}, 1));
    });
    add("pools", [=](Piece& p) {
      const Value x = p.of_rows({p.rows(), 3, 9, 21}, t);
      const MaxPool pooled = max_pool(x, {3, 2}, steps);
      p.output(pooled.values);
      p.output(sum_pool(x, {3, 2}, steps));
    });
  }
}

void add_rows(std::vector<Case>& list) {
  for (const DType t : kFloats)
    for (const int64_t c : {int64_t{37}, int64_t{768}}) {
      const auto add = [&](const char* name, std::function<void(Piece&)> build) {
        list.push_back({fmt::format("{} {} {}", name, name_of(t), c), std::move(build)});
      };
      add("layer_norm", [=](Piece& p) {
        const LayerNorm n =
            layer_norm(p.of_rows({p.rows(), c}, t), p.shared({c}, t), p.shared({c}, t));
        p.output(n.y);
        p.output(n.mean);
        p.output(n.rstd);
      });
      add("layer_norm_grad", [=](Piece& p) {
        const Value in[] = {p.of_rows({p.rows(), c}, t), p.of_rows({p.rows(), c}, t),
                            p.shared({c}, t), p.of_rows({p.rows()}, t), p.of_rows({p.rows()}, t)};
        p.output(call(Op::layer_norm_grad, in)[0]);
      });
      add("rms_norm", [=](Piece& p) {
        const RmsNorm n = rms_norm(p.of_rows({p.rows(), c}, t), p.shared({c}, t));
        p.output(n.y);
        p.output(n.rstd);
      });
      add("rms_norm_grad", [=](Piece& p) {
        const Value in[] = {p.of_rows({p.rows(), c}, t), p.of_rows({p.rows(), c}, t),
                            p.shared({c}, t), p.of_rows({p.rows()}, t)};
        p.output(call(Op::rms_norm_grad, in)[0]);
      });
      add("residual, rms_norm and SwiGLU", [=](Piece& p) {
        Value x = cast(p.of_rows({p.rows(), c}, t), f32) + p.of_rows({p.rows(), c}, f32);
        p.output(x);
        Value y = cast(rms_norm(x, p.shared({c}, f32)).y, t);
        p.output(silu(y) * p.of_rows({p.rows(), c}, t));
      });
      add("rotary", [=](Piece& p) {
        const int64_t half = c / 3;
        Value x = p.of_rows({p.rows(), 2, c}, t), at = p.of_rows({p.rows()}, i32, 0, 0, 40);
        Value cos = p.shared({40, half}, f32), sin = p.shared({40, half}, f32);
        p.output(rotary(x, at, cos, sin));
        p.output(rotary(x, at, cos, sin, {.interleaved = true, .inverse = true, .heads = 1}));
      });
      add("residual and layer_norm", [=](Piece& p) {
        Value x = cast(p.of_rows({p.rows(), c}, t), f32) + p.of_rows({p.rows(), c}, f32);
        p.output(x);
        p.output(cast(layer_norm(x, p.shared({c}, f32), p.shared({c}, f32)).y, t));
      });
      add("softmax", [=](Piece& p) { p.output(softmax(p.of_rows({p.rows(), c}, t, 0, -5, 5))); });
      add("softmax_grad", [=](Piece& p) {
        p.output(
            call1(Op::softmax_grad, {p.of_rows({p.rows(), c}, t), p.of_rows({p.rows(), c}, t)}));
      });
      add("cross_entropy", [=](Piece& p) {
        const CrossEntropy e = cross_entropy(p.of_rows({p.rows(), c}, t, 0, -5, 5),
                                             p.of_rows({p.rows()}, i32, 0, -1, 37));
        p.output(e.losses);
        p.output(e.lse);
      });
      add("cross_entropy_grad", [=](Piece& p) {
        const Value in[] = {p.of_rows({p.rows(), c}, t), p.of_rows({p.rows()}, i32, 0, -1, 37),
                            p.of_rows({p.rows()}, t, 0, 3, 4), p.of_rows({p.rows()}, t)};
        p.output(call(Op::cross_entropy_grad, in, {{"ignore_index", int64_t{-1}}})[0]);
      });
      add("sum and max of a row", [=](Piece& p) {
        Value x = p.of_rows({p.rows(), c}, t);
        p.output(sum(x, {1}));
        p.output(max(x, {1}));
      });
      add("elements", [=](Piece& p) {
        Value x = p.of_rows({p.rows(), c}, t), y = p.of_rows({p.rows(), c}, t);
        Value z = gelu(x) * sigmoid(y) + exp(x * p.shared({c}, t));
        p.output(z);
        p.output(where(less(x, y), z / (square(y) + 1.0), tanh(x) - p.of_rows({p.rows(), 1}, t)));
        p.output(cast(sin(cast(x, f32)) + sqrt(abs(cast(y, f32))), bf16));
      });
      add("embedding", [=](Piece& p) {
        p.output(embedding(p.shared({50, c}, t), p.of_rows({p.rows()}, i32, 0, 0, 50)));
      });
    }
}

/// dx is a row's own too; dw is a sum over rows.
void add_loss_heads(std::vector<Case>& list) {
  for (const DType t : kFloats)
    for (const bool transposed : {false, true}) {
      const std::string of = fmt::format("{} {}", name_of(t), transposed ? "transposed" : "plain");
      const Attrs attrs{{"ignore_index", int64_t{-1}}, {"transpose_w", transposed}};
      const Shape w = transposed ? Shape{300, 96} : Shape{96, 300};
      const auto targets = [](Piece& p) { return p.of_rows({p.rows()}, i32, 0, -1, 300); };
      list.push_back({"linear_cross_entropy " + of, [=](Piece& p) {
                        const CrossEntropy e = linear_cross_entropy(
                            p.of_rows({p.rows(), 96}, t), p.shared(w, t), targets(p), transposed);
                        p.output(e.losses);
                        p.output(e.lse);
                      }});
      list.push_back({"linear_cross_entropy_step " + of, [=](Piece& p) {
                        const Value in[] = {p.of_rows({p.rows(), 96}, t), p.shared(w, t),
                                            targets(p), p.of_rows({p.rows()}, f32)};
                        const auto out = call(Op::linear_cross_entropy_step, in, attrs);
                        for (size_t i = 0; i < 3; ++i) p.output(out[i]);
                      }});
      list.push_back({"linear_cross_entropy_grad " + of, [=](Piece& p) {
                        const Value in[] = {p.of_rows({p.rows(), 96}, t), p.shared(w, t),
                                            targets(p), p.of_rows({p.rows()}, f32, 0, 5, 6),
                                            p.of_rows({p.rows()}, f32)};
                        Attrs with = attrs;
                        with.set("dlse", false);
                        p.output(call(Op::linear_cross_entropy_grad, in, with)[0]);
                      }});
    }
}

/// A sequence of a batch gets the bits that it gets alone.
void add_recurrent(std::vector<Case>& list) {
  list.push_back({"lstm", [](Piece& p) {
                    const LstmResults r =
                        lstm(p.of_rows({7, p.rows(), 4 * 37}, f32, 1), p.shared({4 * 37, 37}, f32),
                             p.of_rows({p.rows(), 37}, f32), p.of_rows({p.rows(), 37}, f32));
                    p.output(r.outputs, 1);
                    p.output(r.cell);
                  }});
  list.push_back({"gru", [](Piece& p) {
                    const GruResults r =
                        gru(p.of_rows({7, p.rows(), 3 * 37}, f32, 1), p.shared({3 * 37, 37}, f32),
                            p.shared({37}, f32), p.of_rows({p.rows(), 37}, f32), true);
                    p.output(r.outputs, 1);
                    p.output(r.hidden);
                  }});
}

std::vector<Case> all_cases() {
  std::vector<Case> list;
  add_products(list);
  add_images(list);
  add_rows(list);
  add_loss_heads(list);
  add_recurrent(list);
  return list;
}

/// One batch of rows, and how to run parts of it.
class Batch {
 public:
  Batch(const Case& c, bool fused) : case_(c), fused_(fused), whole_(kRows) {
    c.build(whole_);
    values_ = whole_.values();
    wanted_ = test::run_on_cpu(compiled(whole_), values_);
  }
  bool is_fused() const {
    const Graph g = compiled(whole_);
    return std::any_of(g.nodes().begin(), g.nodes().end(),
                       [](const Node& node) { return is(node, Op::fused); });
  }

  void check(int64_t first, int64_t count, int threads) const {
    set_thread_count(threads);
    Piece part(count);
    case_.build(part);
    const test::Bytes got = test::run_on_cpu(compiled(part), rows_of(part, first));
    for (const Output& o : whole_.graph().outputs()) {
      const Type& type = whole_.graph().type(o.value);
      const RowAxis axis(type.shape, whole_.axis_of(o.name));
      const auto bytes = static_cast<size_t>(axis.after) * bytes_of(type.dtype);
      int different = 0;
      axis.each_row(first, count, [&](int64_t in_whole, int64_t in_part) {
        different +=
            std::memcmp(wanted_.at(o.name).data() + static_cast<size_t>(in_whole) * bytes,
                        got.at(o.name).data() + static_cast<size_t>(in_part) * bytes, bytes) != 0;
      });
      EXPECT_EQ(different, 0) << "rows of " << o.name << ", " << type.str() << ", are others when "
                              << count << " from row " << first << " are computed by " << threads
                              << " threads";
    }
  }

  static constexpr int64_t kRows = 300;

 private:
  Graph compiled(const Piece& piece) const {
    const Backend backend = cpu_backend();
    const Target target = backend.target();
    const Graph g = decompose(piece.graph(), target);
    return fused_ ? fuse_epilogues(fuse(g, target), target) : g;
  }
  reference::Tensors rows_of(const Piece& part, int64_t first) const {
    reference::Tensors all;
    for (NodeId id : part.graph().inputs()) {
      const std::string& name = part.graph().input_name(id);
      RefTensor t = values_.at(name);
      if (const int at = whole_.axis_of(name); at >= 0) {
        const RowAxis axis(t.type.shape, at);
        t.type = part.graph().type({id, 0});
        t.data.resize(static_cast<size_t>(t.type.shape.elements()));
        axis.each_row(first, part.rows(), [&](int64_t in_whole, int64_t in_part) {
          std::copy_n(values_.at(name).data.begin() + in_whole * axis.after, axis.after,
                      t.data.begin() + in_part * axis.after);
        });
      }
      all[name] = std::move(t);
    }
    return all;
  }

  const Case& case_;
  bool fused_;
  Piece whole_;
  reference::Tensors values_;
  test::Bytes wanted_;
};

class RowIndependence : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, RowIndependence, test::every_isa(), test::isa_of);

TEST_P(RowIndependence, OfEveryKernel) {
  for (const Case& c : cases_for(all_cases(), 40))
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(c.name + (fused ? ", fused" : ""));
      set_thread_count(2);
      const Batch batch(c, fused);
      if (fused && !batch.is_fused()) continue;
      bool first = false;
      for (const int64_t count : {1, 2, 7, 64, 255, 256, 257}) {
        batch.check(21, count, 3);
        first = !first;
        batch.check(first ? 0 : Batch::kRows - count, count, first ? 1 : 2);
      }
    }
}

}  // namespace
}  // namespace brrr::cpu
