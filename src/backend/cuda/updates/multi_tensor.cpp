#include "backend/cuda/updates/multi_tensor.h"

#include <algorithm>

#include "backend/cuda/text.h"

namespace brrr::cuda {

const char* const kBf16AtRandom =
    "BRRR_DEVICE float at_random(float x, i32 random) {\n"
    "  const u32 bits = __float_as_uint(x);\n"
    "  if ((bits & 0x7f800000u) == 0x7f800000u) return x;\n"
    "  return __uint_as_float((bits + static_cast<u32>(random)) & 0xffff0000u);\n"
    "}\n";

namespace {

std::string table_text(const MultiTensor& m, size_t numbers, int64_t capacity) {
  std::string fields;
  for (size_t k = 0; k < m.in.size(); ++k)
    fields += fmt::format("  const {}* a{};\n", stored_type(m.in[k]), k);
  for (size_t k = 0; k < m.out.size(); ++k)
    fields += fmt::format("  {}* y{};\n", stored_type(m.out[k]), k);
  fields += "  i64 n, first;\n";
  for (size_t k = 0; k < numbers; ++k) fields += fmt::format("  i64 n{};\n", k);
  return fmt::format("struct Tensor {{\n{}}};\nstruct Tensors {{\n  Tensor of[{}];\n}};\n", fields,
                     capacity);
}

std::string kernel_text(const MultiTensor& m) {
  if (!m.body.empty())
    return fmt::format(
        "BRRR_KERNEL(256) {0}(BRRR_GRID_CONSTANT const Tensors tensors, i64 count, i64, {1}) {{\n"
        "  int k = 0;\n"
        "  while (k + 1 < count && blockIdx.x >= tensors.of[k + 1].first) ++k;\n"
        "  const Tensor& x = tensors.of[k];\n"
        "  const i64 begin = (blockIdx.x - x.first) * {2}ll;\n"
        "{3}}}\n",
        m.name, m.parameters, MultiTensor::kBlockElements, m.body);
  std::string loads, stores;
  for (size_t k = 0; k < m.in.size(); ++k)
    loads += fmt::format("    {0} v{1}[{2}];\n    load_some(v{1}, x.a{1} + i, n);\n",
                         work_type(m.in[k]), k, m.vector);
  for (size_t k = 0; k < m.out.size(); ++k) {
    loads += fmt::format("    {0} w{1}[{2}];\n", work_type(m.out[k]), k, m.vector);
    stores += fmt::format("    store_some(x.y{0} + i, w{0}, n);\n", k);
  }
  return fmt::format(
      "BRRR_KERNEL(256) {0}(BRRR_GRID_CONSTANT const Tensors tensors, i64 count, i64 "
      "first_block{1}) {{\n"
      "{2}"
      "  int k = 0;\n"
      "  while (k + 1 < count && blockIdx.x >= tensors.of[k + 1].first) ++k;\n"
      "  const Tensor& x = tensors.of[k];\n"
      "  const i64 block = blockIdx.x + first_block, begin = (blockIdx.x - x.first) * {3}ll;\n"
      "  for (i64 i = begin + threadIdx.x * {4}; i < begin + {3} && i < x.n; i += 256 * {4}) {{\n"
      "    const int n = x.n - i < {4} ? static_cast<int>(x.n - i) : {4};\n"
      "{5}{6}"
      "#pragma unroll\n    for (int e = 0; e < {4}; ++e) {{\n{7}    }}\n"
      "{8}  }}\n{9}  (void)block;\n}}\n",
      m.name, m.parameters.empty() ? "" : ", " + m.parameters, m.prepare,
      MultiTensor::kBlockElements, m.vector, loads, m.draw, m.element, stores, m.finish);
}

}  // namespace

int64_t MultiTensor::add_to(LaunchPlan& plan, int64_t first_block) const {
  const size_t numbers = tensors.empty() ? 0 : tensors[0].numbers.size();
  const size_t fields = in.size() + out.size() + 2 + numbers;
  const int64_t room = kMostArgumentBytes - 16 - 8 * static_cast<int64_t>(args.size());
  const int64_t capacity = room / (8 * static_cast<int64_t>(fields));
  const KernelSource source{name, headers,
                            helpers + table_text(*this, numbers, capacity) + kernel_text(*this)};
  std::vector<const Tensor*> list;
  for (const Tensor& t : tensors)
    if (t.elements > 0) list.push_back(&t);
  for (size_t begin = 0; begin < list.size(); begin += static_cast<size_t>(capacity)) {
    const size_t count = std::min(list.size() - begin, static_cast<size_t>(capacity));
    std::vector<LaunchArg> table;
    int64_t block = 0;
    for (size_t k = begin; k < begin + count; ++k) {
      const Tensor& t = *list[k];
      table.insert(table.end(), t.in.begin(), t.in.end());
      table.insert(table.end(), t.out.begin(), t.out.end());
      table.push_back(LaunchArg::i64(t.elements));
      table.push_back(LaunchArg::i64(block));
      for (int64_t number : t.numbers) table.push_back(LaunchArg::i64(number));
      block += (t.elements + kBlockElements - 1) / kBlockElements;
    }
    table.resize(fields * static_cast<size_t>(capacity), LaunchArg::i64(0));
    Launch launch;
    launch.source = source;
    launch.args = {LaunchArg::record(std::move(table)), LaunchArg::i64(static_cast<int64_t>(count)),
                   LaunchArg::i64(first_block)};
    launch.args.insert(launch.args.end(), args.begin(), args.end());
    launch.grid = {static_cast<uint32_t>(block), 1, 1};
    launch.block = {256, 1, 1};
    plan.launches.push_back(std::move(launch));
    first_block += block;
  }
  return first_block;
}

}  // namespace brrr::cuda
