// The rest of a body on blocks of its product, as every path of gemm() hands them over: the same
// bits as on the whole product.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "backend/cpu/fusion/tile_program.h"
#include "backend/cpu/products/fused_product.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/quantized/integer_matmul.h"
#include "ops/ops.h"
#include "support/each_isa.h"
#include "support/tensors.h"

namespace brrr::cpu {
namespace {

class FusedProduct : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, FusedProduct, test::every_isa(), test::isa_of);

/// Operands of every kind that a chain can read, after a product or after an operand a0 in its
/// place. a0: [m, k], a1: [k, n].
struct Body {
  Graph graph;
  std::vector<Type> in, out;
};

Body body_of(int64_t m, int64_t n, int64_t k, DType dtype, bool product) {
  Body body;
  Graph& g = body.graph;
  auto input = [&](Shape shape, DType t) {
    body.in.push_back({t, shape});
    return g.input(fmt::format("a{}", body.in.size() - 1), shape, t);
  };
  Value a = input(product ? Shape{m, k} : Shape{m, n}, dtype);
  Value b = input(Shape{k, n}, dtype);
  Value y = product ? matmul(a, b) : a;
  Value r = input({m, n}, f32), h = input({m, n}, bf16), mask = input({m, n}, boolean);
  Value row = input({n}, f32), column = input({m, 1}, f32), key = input({2}, i32);
  Value x = cast(y, f32);
  auto output = [&](Value v) {
    g.output(std::to_string(body.out.size()), v);
    body.out.push_back(v.type());
  };
  Value z = where(mask, gelu(x) + r, x * row - column);
  output(z);
  output(dropout(z, key, 0.3, 2) * x);
  output(cast(tanh(z) + cast(h, f32), bf16));
  if (product) output(y);
  return body;
}

struct Case {
  int64_t m, n, rows, columns;  // of C, and of the blocks
  DType dtype = f32;
};

/// Whole lines, as buffers of programs are.
template <typename T>
struct LineAllocator {
  using value_type = T;
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{64}); }
  bool operator==(const LineAllocator&) const = default;
};
using Memory = std::vector<std::vector<std::byte, LineAllocator<std::byte>>>;

Memory operands(const Body& body, uint32_t seed) {
  test::Random random(seed);
  Memory memory;
  for (const Type& t : body.in) {
    const RefTensor values = test::random_tensor(t, t.dtype == boolean ? 0 : -2, 2, random);
    memory.emplace_back(static_cast<size_t>(t.bytes()));
    write_tensor(values, memory.back().data());
  }
  return memory;
}

Memory results(const Body& body) {
  Memory memory;
  for (const Type& t : body.out)
    memory.emplace_back(static_cast<size_t>(t.bytes()), std::byte{0xee});
  return memory;
}

struct Args {
  Args(const Memory& in, Memory& out) {
    for (const auto& bytes : in) in_.push_back(bytes.data());
    for (auto& bytes : out) out_.push_back(bytes.data());
  }
  KernelArgs get() const { return {in_, out_, nullptr}; }
  std::vector<const void*> in_;
  std::vector<void*> out_;
};

TEST_P(FusedProduct, BlocksGiveTheBitsOfTheWhole) {
  constexpr int64_t kTerms = 5;
  const Case
      cases[] = {{64, 96, 32, 32},      {33, 65, 32, 32},       {7, 130, 3, 130},
                 {50, 384, 48, 384},    {3, 2500, 1, 2500},     {40, 256, 6, 128},
                 {1, 1, 1, 1},          {64, 96, 32, 32, bf16}, {9, 257, 4, 100, f16},
                 {31, 33, 31, 7, bf16}, {1056, 2048, 32, 32}};  // 8 MB: stored around the caches
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{}x{} by {}x{} {}", c.m, c.n, c.rows, c.columns, name_of(c.dtype)));
    const Body fused = body_of(c.m, c.n, kTerms, c.dtype, true);
    const Body plain = body_of(c.m, c.n, kTerms, c.dtype, false);
    const TileProgram program(fused.graph), judge(plain.graph);
    ASSERT_EQ(program.refusal(), "");
    ASSERT_TRUE(program.has_product());
    ASSERT_EQ(judge.refusal(), "");
    Memory in = operands(fused, 1), in_plain = operands(plain, 1);
    for (size_t i = 1; i < in.size(); ++i) in[i] = in_plain[i];
    // Values that are exact in the dtype, and digits beyond it for the block: they are rounded.
    std::vector<float> product(static_cast<size_t>(c.m * c.n));
    for (size_t i = 0; i < product.size(); ++i) {
      const double x = load_as_double(c.dtype, in_plain[0].data(), static_cast<int64_t>(i));
      product[i] = static_cast<float>(c.dtype == f32 ? x : x * (1 + 1e-6));
    }
    Memory got = results(fused), wanted = results(plain);
    const Args args(in, got), args_plain(in_plain, wanted);
    TileFrame frame(program, args.get()), frame_plain(judge, args_plain.get());
    for (int64_t begin = 0; begin < c.m * c.n; begin += judge.tile())
      judge.run_tile(frame_plain, begin, std::min(judge.tile(), c.m * c.n - begin), nullptr, false);
    for (int64_t i = 0; i < c.m; i += c.rows)
      for (int64_t j = 0; j < c.n; j += c.columns) {
        const int64_t rows = std::min(c.rows, c.m - i), columns = std::min(c.columns, c.n - j);
        const int64_t ld = (i + j) % 2 == 0 ? columns : columns + 3;
        std::vector<float> block(static_cast<size_t>(rows * ld), -7.0f);
        for (int64_t r = 0; r < rows; ++r)
          std::copy_n(product.data() + (i + r) * c.n + j, columns, block.data() + r * ld);
        program.run_block(frame, {i, j, rows, columns, block.data(), ld});
      }
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(got[i] == wanted[i]) << "result " << i;
    EXPECT_TRUE(got.back() == in_plain[0]) << "the product itself";
  }
}

/// The paths of gemm() with the program as their epilogue, against the product stored first.
TEST_P(FusedProduct, FollowsEveryPath) {
  struct Path {
    const char* name;
    DType dtype;
    void (*run)(const GemmBatch&);
  };
  const Path paths[] = {{"vector", f32, gemm_vector},
                        {"vector", bf16, gemm_vector},
                        {"amx", bf16, gemm_amx_emulated},
                        {"pairs", bf16, gemm_pairs_emulated}};
  for (const Path& path : paths)
    for (const auto [m, n, k] :
         {std::array<int64_t, 3>{1, 100, 40}, {70, 96, 300}, {130, 33, 17}}) {
      SCOPED_TRACE(fmt::format("{} {}: {}x{}x{}", path.name, name_of(path.dtype), m, n, k));
      const Body fused = body_of(m, n, k, path.dtype, true);
      const Body plain = body_of(m, n, k, path.dtype, false);
      const TileProgram program(fused.graph), judge(plain.graph);
      const Memory in = operands(fused, 2);
      Memory in_plain = operands(plain, 2);
      for (size_t i = 1; i < in.size(); ++i) in_plain[i] = in[i];
      Memory got = results(fused), wanted = results(plain);
      GemmBatch batch;
      batch.args = {.m = m,
                    .n = n,
                    .k = k,
                    .dtype = path.dtype,
                    .a = in[0].data(),
                    .lda = k,
                    .b = in[1].data(),
                    .ldb = n,
                    .c_dtype = path.dtype,
                    .c = in_plain[0].data(),
                    .ldc = n};
      path.run(batch);
      const Args args(in, got), args_plain(in_plain, wanted);
      TileFrame frame_plain(judge, args_plain.get());
      for (int64_t begin = 0; begin < m * n; begin += judge.tile())
        judge.run_tile(frame_plain, begin, std::min(judge.tile(), m * n - begin), nullptr, false);
      struct Context {
        const TileProgram& program;
        TileFrame frame;
      } context{program, TileFrame(program, args.get())};
      set_thread_count(1);
      batch.args.c = nullptr;
      batch.args.epilogue = {
          [](const void* c, int64_t row, int64_t column, int64_t rows, int64_t columns,
             float* block, int64_t ld) {
            auto& at = *static_cast<Context*>(const_cast<void*>(c));
            at.program.run_block(at.frame, {row, column, rows, columns, block, ld});
          },
          &context};
      path.run(batch);
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(got[i] == wanted[i]) << "result " << i;
      EXPECT_TRUE(got.back() == in_plain[0]) << "the product itself";
    }
}

TEST_P(FusedProduct, IntegersGiveTheBitsOfTheProductAlone) {
  constexpr int64_t kTerms = 96;
  for (const Quantized& q : {Quantized{8, 0, 0}, Quantized{4, 0, 32}})
    for (const bool quantizes_rows : {true, false})
      for (const auto& size : {std::pair<int64_t, int64_t>(1, 96), {4, 100}, {13, 96}, {70, 300}}) {
        const int64_t m = size.first, n = size.second;
        SCOPED_TRACE(fmt::format("{}x{}, {} bits, rows {}", m, n, q.bits, quantizes_rows));
        Type weight{f32, {kTerms, n}};
        weight.storage = {right_layout(false), q};
        Attrs attrs{{"transpose_a", false}, {"transpose_b", false}};
        if (quantizes_rows) attrs.set("left_bits", int64_t{8});
        const auto multiply = [&](Graph& g) {
          const Value x = g.input("a0", {m, kTerms}, f32), w = g.input("a1", weight);
          return call(Op::matmul, std::vector<Value>{x, w}, attrs)[0];
        };
        Graph body;
        const Value y = multiply(body);
        body.output("0", y + body.input("a2", {n}, f32));
        body.output("1", y);
        Graph g, alone;
        std::vector<ValueId> inputs;
        for (const NodeId id : body.inputs())
          inputs.push_back(g.input(body.input_name(id), body.type({id, 0})).id);
        const NodeId fused = g.add(op(Op::fused), inputs, {{"body", Region(body)}});
        const NodeView view(g, fused);
        ASSERT_EQ(fused_product_refusal(view), "");
        const IntegerProduct product(NodeView(alone, multiply(alone).id.node));

        test::Random random(5);
        const auto values_of = [&](const Type& t) {
          std::vector<std::byte, LineAllocator<std::byte>> bytes(static_cast<size_t>(t.bytes()));
          write_tensor(test::random_tensor(t, -2, 2, random), bytes.data());
          return bytes;
        };
        Memory in{values_of(Type{f32, {m, kTerms}}), values_of(weight), values_of(Type{f32, {n}})};
        const Memory empty(3, Memory::value_type(static_cast<size_t>(m * n) * sizeof(float)));
        Memory out = empty;
        const std::unique_ptr<Kernel> kernel = fused_product(view);
        Memory scratch{Memory::value_type(static_cast<size_t>(kernel->scratch_bytes()) + 64),
                       Memory::value_type(static_cast<size_t>(product.scratch_bytes()) + 64)};
        const std::vector<const void*> operands{in[0].data(), in[1].data(), in[2].data()};
        std::vector<void*> results{out[0].data(), out[1].data()};
        kernel->run({operands, results, scratch[0].data()});
        product.run(operands.data(), out[2].data(), scratch[1].data());
        EXPECT_TRUE(out[1] == out[2]) << "the product";
        for (int64_t i = 0; i < m * n; ++i)
          ASSERT_EQ(
              load_as_double(f32, out[0].data(), i),
              static_cast<double>(static_cast<float>(load_as_double(f32, out[2].data(), i)) +
                                  static_cast<float>(load_as_double(f32, in[2].data(), i % n))));
      }
}

/// A convolution of several blocks of terms, whose result the memory plan may lay over the
/// residual.
TEST_P(FusedProduct, ConvolutionsWriteOverTheirResidual) {
  for (const DType t : {f32, DType::bf16})
    for (const int64_t channels : {40, 100, 200}) {
      SCOPED_TRACE(fmt::format("{} channels of {}", channels, name_of(t)));
      Graph body;
      const Shape picture{2, 5, 7, channels}, result{2, 5, 7, 34};
      const Value x = body.input("a0", picture, t), w = body.input("a1", {34, channels, 3, 3}, t),
                  b = body.input("a2", {34}, f32), r = body.input("a3", result, t);
      body.output("0", relu(conv(x, w, b, {{1, 1}, {1, 1}, {1, 1, 1, 1}, true}, 1) + r));
      Graph g;
      std::vector<ValueId> inputs;
      for (const NodeId id : body.inputs())
        inputs.push_back(g.input(body.input_name(id), body.type({id, 0})).id);
      const NodeView view(g, g.add(op(Op::fused), inputs, {{"body", Region(body)}}));
      ASSERT_EQ(fused_product_refusal(view), "");

      test::Random random(5);
      Memory in;
      std::vector<RefTensor> tensors;
      std::vector<const void*> operands;
      for (const Type& type : view.in) {
        tensors.push_back(test::random_tensor(type, -1, 1, random));
        in.emplace_back(static_cast<size_t>(type.bytes()));
        write_tensor(tensors.back(), in.back().data());
      }
      for (const auto& bytes : in) operands.push_back(bytes.data());
      std::vector<const RefTensor*> pointers;
      for (const RefTensor& tensor : tensors) pointers.push_back(&tensor);
      const RefTensor wanted = reference::evaluate_node(g, view.id, pointers)[0];

      const std::unique_ptr<Kernel> kernel = fused_product(view);
      Memory scratch{Memory::value_type(static_cast<size_t>(kernel->scratch_bytes()) + 64)};
      Memory::value_type apart(in[3].size());
      void* const results[] = {apart.data()};
      kernel->run({operands, results, scratch[0].data()});
      // In 16 bits the convolution, which is as large as any result, and the sum are rounded.
      const double largest = std::ranges::max(wanted.data);
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(load_as_double(t, apart.data(), static_cast<int64_t>(i)), wanted.data[i],
                    t == f32 ? 1e-4 : largest / 128);
      void* const over[] = {in[3].data()};
      kernel->run({operands, over, scratch[0].data()});
      EXPECT_TRUE(in[3] == apart);
    }
}

}  // namespace
}  // namespace brrr::cpu
