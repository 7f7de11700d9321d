// matmul and linear on the CPU: which product each node is, and who computes it.

#include "backend/cpu/gemm_f32.h"
#include "backend/cpu/kernel_list.h"

namespace brrr::cpu {
namespace {

int64_t batch_elements(const Shape& s) {
  int64_t n = 1;
  for (int axis = 0; axis + 2 < s.rank(); ++axis) n *= s.size(axis);
  return n;
}

// A node as one batched row-major product.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

// Fills `p`, or returns why the node is no single batched product.
std::string as_product(const NodeView& view, Product& p) {
  const bool is_matmul = view.node().op->name == "matmul";
  const Shape &a = view.in[0].shape, &b = view.in[1].shape;
  p.ta = is_matmul && view.attrs().get<bool>("transpose_a");
  p.tb = is_matmul && view.attrs().get<bool>("transpose_b");
  p.m = a.size(p.ta ? -1 : -2);
  p.k = a.size(p.ta ? -2 : -1);
  p.n = b.size(p.tb ? -2 : -1);
  const int64_t batch_a = batch_elements(a), batch_b = batch_elements(b);
  const int64_t batch = batch_elements(view.out()[0].shape);
  if (batch_b == 1 && !p.ta) {  // the rows of all batches are rows of one product
    p.m *= batch;
    if (batch_a != batch) return "a is broadcast over the batch of the result";
    return "";
  }
  const bool plain_a = batch_a == batch || batch_a == 1, plain_b = batch_b == batch || batch_b == 1;
  if (!plain_a || !plain_b) return "a batch is broadcast in part";
  p.batch = batch;
  p.stride_a = batch_a == 1 ? 0 : p.m * p.k;
  p.stride_b = batch_b == 1 ? 0 : p.k * p.n;
  p.stride_c = p.m * p.n;
  return "";
}

std::string accepts_f32(const NodeView& view) {
  for (const std::span<const Type> types : {std::span<const Type>(view.in), view.out()})
    for (const Type& t : types)
      if (t.dtype != DType::f32) return fmt::format("dtype {}: only f32", name_of(t.dtype));
  Product p;
  return as_product(view, p);
}

class GemmKernel final : public Kernel {
 public:
  explicit GemmKernel(const NodeView& view) : bias_(view.in.size() > 2) { as_product(view, p_); }
  void run(const KernelArgs& args) override {
    GemmArgs g;
    g.m = p_.m;
    g.n = p_.n;
    g.k = p_.k;
    g.a = static_cast<const float*>(args.in[0]);
    g.b = static_cast<const float*>(args.in[1]);
    g.c = static_cast<float*>(args.out[0]);
    g.trans_a = p_.ta;
    g.trans_b = p_.tb;
    g.lda = p_.ta ? p_.m : p_.k;
    g.ldb = p_.tb ? p_.k : p_.n;
    g.ldc = p_.n;
    g.bias = bias_ ? static_cast<const float*>(args.in[2]) : nullptr;
    if (p_.batch == 1)
      gemm_f32(g);
    else
      gemm_f32_batched(g, p_.batch, p_.stride_a, p_.stride_b, p_.stride_c);
  }

 private:
  Product p_;
  bool bias_;
};

}  // namespace

std::vector<KernelEntry> matmul_kernels() {
  std::vector<KernelEntry> list;
  for (const char* op : {"matmul", "linear"})
    list.push_back(
        {op, "gemm_f32", accepts_f32, [](const NodeView& view) -> std::unique_ptr<Kernel> {
           return std::make_unique<GemmKernel>(view);
         }});
  return list;
}

}  // namespace brrr::cpu
