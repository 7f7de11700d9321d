// oneDNN promises no bits: how it splits a product, and so the order of its sums, may depend on the
// number of threads. So it never sees more than one thread: products are cut into blocks of a fixed
// number of rows, primitives are created for one thread, and the team shares out the blocks. The
// bits of a row still depend on the number of rows, which gemm() promises they do not.

#include "backend/cpu/products/onednn_matmul.h"

#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <unordered_map>

#include "backend/cpu/isa.h"
#include "backend/cpu/products/product.h"
#include "base/errors.h"
#include "base/threads/parallel.h"

namespace brrr::cpu {
namespace {

using dnnl::memory;

constexpr int64_t kBlockRows = 256;
constexpr int64_t kScratchAlign = 64;

/// Keeps oneDNN, which would start OpenMP threads of its own, to the calling thread.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

std::optional<memory::data_type> type_of(DType t) {
  switch (t) {
    case DType::f32:
      return memory::data_type::f32;
    case DType::bf16:
      return memory::data_type::bf16;
    case DType::f16:
      return memory::data_type::f16;
    case DType::i8:
      return memory::data_type::s8;
    case DType::i32:
      return memory::data_type::s32;
    default:
      return std::nullopt;
  }
}

/// `rows` rows of A times B.
struct Block {
  memory::desc a, b, c, bias;
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

Block make_block(const NodeView& view, const Product& p, int64_t rows) {
  const auto matrix = [](int64_t r, int64_t c, DType t, bool trans, int64_t ld) {
    return memory::desc({r, c}, *type_of(t),
                        trans ? memory::dims{1, ld} : memory::dims{ld, int64_t{1}});
  };
  Block block;
  block.a = matrix(rows, p.k, view.in[0].dtype, p.ta, p.lda());
  block.b = matrix(p.k, p.n, view.in[1].dtype, p.tb, p.ldb());
  block.c = matrix(rows, p.n, view.out()[0].dtype, false, p.n);
  const bool bias = view.in.size() > 2;
  if (bias) block.bias = matrix(1, p.n, view.in[2].dtype, false, p.n);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const OneThread one;
#if DNNL_VERSION_MAJOR >= 3
  block.description =
      bias ? dnnl::matmul::primitive_desc(cpu_engine(), block.a, block.b, block.bias, block.c, attr)
           : dnnl::matmul::primitive_desc(cpu_engine(), block.a, block.b, block.c, attr);
#else
  const auto operation = bias ? dnnl::matmul::desc(block.a, block.b, block.bias, block.c)
                              : dnnl::matmul::desc(block.a, block.b, block.c);
  block.description = dnnl::matmul::primitive_desc(operation, attr, cpu_engine());
#endif
  block.primitive = dnnl::matmul(block.description);
  return block;
}

class OnednnMatmul final : public Kernel {
 public:
  explicit OnednnMatmul(const NodeView& view)
      : product_(as_product(view)),
        element_a_(static_cast<int64_t>(bytes_of(view.in[0].dtype))),
        element_c_(static_cast<int64_t>(bytes_of(view.out()[0].dtype))),
        bias_(view.in.size() > 2),
        workers_(thread_count()) {
    const Product& p = product_;
    const std::array<int64_t, 2> rows = {std::min(kBlockRows, p.m), p.m % kBlockRows};
    for (size_t i = 0; i < 2; ++i) {
      if (rows[i] == 0) continue;
      blocks_[i] = make_block(view, p, rows[i]);
      const auto bytes = static_cast<int64_t>(blocks_[i].description.scratchpad_desc().get_size());
      worker_scratch_ =
          std::max(worker_scratch_, (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign);
    }
  }

  int64_t scratch_bytes() const override { return workers_ * worker_scratch_; }

  void run(const KernelArgs& args) override {
    const Product& p = product_;
    const int64_t row_blocks = (p.m + kBlockRows - 1) / kBlockRows;
    const int64_t count = row_blocks * p.batch;
    try {
      parallel_pieces(count, workers_, [&](int64_t i, int worker) {
        const OneThread one;
        run_block(args, i / row_blocks, i % row_blocks, worker);
      });
    } catch (const dnnl::error& error) {
      BRRR_CHECK(false, "oneDNN: {}", error.what());
    }
  }

 private:
  void run_block(const KernelArgs& args, int64_t product, int64_t row_block, int worker) const {
    const Product& p = product_;
    const int64_t row = row_block * kBlockRows;
    const Block& block = blocks_[p.m - row >= std::min(kBlockRows, p.m) ? 0 : 1];
    // oneDNN reads operands through the same type of pointer that it writes results through.
    const auto at = [](const void* base, int64_t bytes) {
      return const_cast<char*>(static_cast<const char*>(base)) + bytes;
    };
    const auto index = static_cast<size_t>(product);
    const int64_t a = (p.starts_a.empty() ? product * p.stride_a : p.starts_a[index]) +
                      row * (p.ta ? 1 : p.lda());
    const int64_t b = p.starts_b.empty() ? product * p.stride_b : p.starts_b[index];
    const int64_t c = product * p.stride_c + row * p.n;
    const dnnl::engine& engine = cpu_engine();
    std::unordered_map<int, memory> memories = {
        {DNNL_ARG_SRC, memory(block.a, engine, at(args.in[0], a * element_a_))},
        {DNNL_ARG_WEIGHTS, memory(block.b, engine, at(args.in[1], b * element_a_))},
        {DNNL_ARG_DST, memory(block.c, engine, at(args.out[0], c * element_c_))},
        {DNNL_ARG_SCRATCHPAD, memory(block.description.scratchpad_desc(), engine,
                                     args.scratch + worker * worker_scratch_)}};
    if (bias_) memories.insert({DNNL_ARG_BIAS, memory(block.bias, engine, at(args.in[2], 0))});
    dnnl::stream stream(engine);
    block.primitive.execute(stream, memories);
    stream.wait();
  }

  Product product_;
  int64_t element_a_, element_c_;
  bool bias_;
  int64_t workers_;
  std::array<Block, 2> blocks_;  // of whole blocks of rows, and of the rest
  int64_t worker_scratch_ = 0;
};

}  // namespace

std::string onednn_matmul_refusal(const NodeView& view) {
  for (const std::span<const Type> types : {std::span<const Type>(view.in), view.out()}) {
    for (const Type& t : types) {
      if (!type_of(t.dtype))
        return fmt::format("dtype {}: only f32, bf16, f16 and i8 to i32", name_of(t.dtype));
      if (t.shape.elements() == 0) return "an operand has no elements";
    }
  }
  best_isa();  // limits oneDNN before its first use
  // Without VPDPBUSD it adds pairs of products in 16 bits, which saturate: another number.
  if (view.in[0].dtype == DType::i8 && !(best_isa() >= Isa::kAvx512 && has_vnni()))
    return "oneDNN's sums of i8 are exact with avx512_vnni only";
  try {
    make_block(view, as_product(view), 1);
  } catch (const dnnl::error& error) {
    return fmt::format("oneDNN {}.{}: {}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, error.what());
  }
  return "";
}

std::unique_ptr<Kernel> onednn_matmul(const NodeView& view) {
  best_isa();
  try {
    return std::make_unique<OnednnMatmul>(view);
  } catch (const dnnl::error& error) {
    throw InternalError(fmt::format("oneDNN: {}", error.what()));
  }
}

}  // namespace brrr::cpu
