// The kernels of a cluster from what the walk over its body has collected.

#include <cctype>

#include "backend/cuda/clusters/cluster_writer.h"
#include "backend/cuda/text.h"
#include "base/errors.h"
#include "base/integers.h"

namespace brrr::cuda {
namespace {

/// Whether the text has the letter as a word.
bool uses(const std::string& text, char letter) {
  auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (size_t at = text.find(letter); at != std::string::npos; at = text.find(letter, at + 1))
    if ((at == 0 || !is_word(text[at - 1])) && (at + 1 == text.size() || !is_word(text[at + 1])))
      return true;
  return false;
}

}  // namespace

std::string ClusterWriter::parameters() const {
  std::string list;
  auto add = [&](const std::string& p) { list += (list.empty() ? "" : ", ") + p; };
  for (size_t k = 0; k < inputs_.size(); ++k)
    add(fmt::format("const {}* a{}", stored_type(inputs_[k].dtype), k));
  for (size_t r = 0; r < result_types_.size(); ++r) add(fmt::format("{}* y{}", result_type(r), r));
  for (size_t k = 0; k < streams_.size(); ++k) add(fmt::format("u32 stream{}", k));
  if (!accumulators_.empty()) add("f32* partials");
  if (!s_.scales.empty()) add("f32* tops");
  return list;
}

std::string ClusterWriter::element_text() const {
  const PhaseText& text = text_[0];
  std::string body;
  for (const auto& [operand, name] : uniform_)
    body +=
        fmt::format("const {} {} = widen(a{}[0]);\n", work_type(dtype_of(operand)), name, operand);
  std::string part;
  if (!at_.exact)
    part += fmt::format("const int n = {0}u - i < {1} ? static_cast<int>({0}u - i) : {1};\n",
                        s_.elements, at_.vector);
  part += text.loads + fmt::format("#pragma unroll\nfor (int e = 0; e < {}; ++e) {{\n{}}}\n",
                                   at_.vector, indented(text.lines, 2));
  part += text.stores;
  const std::string first = fmt::format("(blockIdx.x * static_cast<{0}>({1}) + threadIdx.x) * {2}",
                                        index_type(), at_.threads, at_.vector);
  if (s_.scales.empty()) {
    body += fmt::format("const {} i = {};\n", index_type(), first);
    body += fmt::format("if (i >= {}u) return;\n", s_.elements) + part;
  } else {
    for (NodeId id : s_.scales) body += fmt::format("float top{} = 0.0f;\n", id);
    body += fmt::format("for ({} i = {}; i < {}u; i += {}u) {{\n{}}}\n", index_type(), first,
                        s_.elements, at_.blocks * at_.threads * at_.vector, indented(part, 2));
    body += block_scales_text();
  }
  return fmt::format("BRRR_KERNEL({}) {}({}) {{\n{}}}\n", at_.threads, c_.name, parameters(),
                     indented(body, 2));
}

std::string ClusterWriter::row_text() const {
  const int64_t elements = at_.chunks * at_.vector;
  std::string body;
  for (const auto& [operand, name] : uniform_)
    body +=
        fmt::format("const {} {} = widen(a{}[0]);\n", work_type(dtype_of(operand)), name, operand);
  body +=
      fmt::format("const int lane = threadIdx.x % {0}, group = threadIdx.x / {0};\n", at_.threads);
  if (at_.tile > 0) body += fmt::format("const int column = blockIdx.y * {};\n", at_.tile);
  for (const Accumulator& a : accumulators_)
    body += fmt::format("float {}[{}] = {{}};\n", a.name, elements);
  for (NodeId id : s_.scales) body += fmt::format("float top{} = 0.0f;\n", id);
  for (NodeId id : s_.transposed)
    body += fmt::format("__shared__ __align__(16) {} tile{}[{}];\n",
                        stored_type(body_.node(id).results[0].dtype), id,
                        at_.tile * (at_.block_rows + 4));
  const std::string index = index_type();
  body +=
      fmt::format("const {0} first = blockIdx.x * static_cast<{0}>({1});\n", index, at_.block_rows);
  body += fmt::format("const {0} last = first + {1}u < {2}u ? first + {1}u : {2}u;\n", index,
                      at_.block_rows, s_.rows);
  std::string row;
  for (const std::string& array : arrays_) row += array + "\n";
  for (const PhaseText& text : text_) {
    std::string chunk = fmt::format("const int col = {}(c * {} + lane) * {};\n",
                                    at_.tile > 0 ? "column + " : "", at_.threads, at_.vector);
    if (uses(text.loads + text.lines + text.stores, 'i'))
      chunk += fmt::format("const {0} i = row * static_cast<{0}>({1}) + static_cast<{0}>(col);\n",
                           index, s_.width);
    chunk += text.loads;
    chunk += fmt::format(
        "#pragma unroll\nfor (int e = 0; e < {0}; ++e) {{\n{1}{2}}}\n", at_.vector,
        uses(text.lines, 'j') ? fmt::format("  const int j = c * {} + e;\n", at_.vector) : "",
        indented(text.lines, 2));
    chunk += text.stores;
    row += each_chunk(chunk) + text.tail;
  }
  body += fmt::format("for ({} row = first + group; row < last; row += {}) {{\n{}}}\n", index,
                      at_.groups, indented(row, 2));
  if (!s_.transposed.empty()) body += transposed_text();
  body += block_scales_text();
  // The sums of this block's rows.
  if (!accumulators_.empty() && at_.groups > 1)
    body += fmt::format("__shared__ float columns[{}];\n", at_.tile > 0 ? at_.tile : s_.width);
  for (size_t k = 0; k < accumulators_.size(); ++k) {
    const std::string& sum = accumulators_[k].name;
    const std::string to = fmt::format("partials + ({}u + blockIdx.x) * {}ull + col",
                                       static_cast<int64_t>(k) * at_.blocks, s_.width);
    const std::string col = fmt::format("const int col = {}(c * {} + lane) * {};\n",
                                        at_.tile > 0 ? "column + " : "", at_.threads, at_.vector);
    if (at_.groups == 1) {
      body += each_chunk(col +
                         fmt::format("float o[{0}];\n#pragma unroll\nfor (int e = 0; e < {0}; ++e) "
                                     "o[e] = {1}[c * {0} + e];\nstore({2}, o);\n",
                                     at_.vector, sum, to));
      continue;
    }
    const std::string turn = each_chunk(
        col + fmt::format("float o[{0}];\n#pragma unroll\nfor (int e = 0; e < {0}; ++e) {{\n"
                          "  const int k = col{3} + e;\n"
                          "  o[e] = g == 0 ? {1}[c * {0} + e] : columns[k] + {1}[c * {0} + e];\n"
                          "  columns[k] = o[e];\n}}\nif (g == {4}) store({2}, o);\n",
                          at_.vector, sum, to, at_.tile > 0 ? " - column" : "", at_.groups - 1));
    body += fmt::format(
        "for (int g = 0; g < {}; ++g) {{\n  __syncthreads();\n  if (group == g) {{\n{}  }}\n}}\n",
        at_.groups, indented(turn, 4));
  }
  return fmt::format("BRRR_KERNEL({}) {}({}) {{\n{}}}\n", at_.threads * at_.groups, c_.name,
                     parameters(), indented(body, 2));
}

/// Adds up what the blocks have left: 32 columns to a block, 32 slices of the partial sums.
std::string ClusterWriter::sums_text() const {
  std::string parameters = "const f32* partials", stores;
  for (size_t k = 0; k < accumulators_.size(); ++k)
    for (uint32_t r : accumulators_[k].results) {
      parameters += fmt::format(", {}* y{}", result_type(r), r);
      stores += fmt::format("if (blockIdx.y == {}) y{}[col] = narrow<{}>(total);\n", k, r,
                            result_type(r));
    }
  return fmt::format(
      "BRRR_KERNEL(1024) {0}_sums({1}) {{\n"
      "  __shared__ float slices[32][33];\n"
      "  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, col = blockIdx.x * 32 + "
      "lane;\n"
      "  float total = 0.0f;\n"
      "  if (col < {2})\n"
      "    for (u32 p = slice; p < {3}u; p += 32)\n"
      "      total += partials[(blockIdx.y * {3}u + p) * {2}ull + col];\n"
      "  slices[slice][lane] = total;\n"
      "  __syncthreads();\n"
      "  if (slice != 0 || col >= {2}) return;\n"
      "  for (int k = 1; k < 32; ++k) total += slices[k][lane];\n"
      "{4}}}\n",
      c_.name, parameters, s_.width, at_.blocks, indented(stores, 2));
}

void ClusterWriter::add_to(LaunchPlan& plan) {
  if (s_.elements == 0) return;
  walk();  // learns in which phases what is read
  walk();
  Launch main;
  for (const ClusterOperand& o : c_.operands) main.args.push_back(o.address);
  main.args.insert(main.args.end(), c_.results.begin(), c_.results.end());
  for (int64_t stream : streams_) main.args.push_back(LaunchArg::i32(stream));
  LaunchArg partials, tops;
  if (!accumulators_.empty()) {
    partials = LaunchArg::scratch(
        plan.take_scratch(static_cast<int64_t>(accumulators_.size()) * at_.blocks * s_.width * 4));
    main.args.push_back(partials);
  }
  if (!s_.scales.empty()) {
    tops = LaunchArg::scratch(
        plan.take_scratch(static_cast<int64_t>(s_.scales.size()) * all_blocks() * 4));
    main.args.push_back(tops);
  }
  main.source = {c_.name, {"device.cuh"}, s_.width == 0 ? element_text() : row_text()};
  main.grid = {static_cast<uint32_t>(at_.blocks), static_cast<uint32_t>(all_blocks() / at_.blocks),
               1};
  main.block = {static_cast<uint32_t>(at_.threads * at_.groups), 1, 1};
  plan.launches.push_back(std::move(main));
  if (!accumulators_.empty()) add_sums(plan, partials);
  if (!s_.scales.empty()) add_scales(plan, tops);
}

int64_t ClusterWriter::all_blocks() const {
  return at_.blocks * (at_.tile > 0 ? ceil_div(s_.width, at_.tile) : 1);
}

void ClusterWriter::add_sums(LaunchPlan& plan, const LaunchArg& partials) const {
  Launch sums;
  sums.source = {c_.name + "_sums", {"device.cuh"}, sums_text()};
  sums.args.push_back(partials);
  for (const Accumulator& a : accumulators_)
    for (uint32_t r : a.results) sums.args.push_back(c_.results[r]);
  sums.grid = {static_cast<uint32_t>(ceil_div(s_.width, 32)),
               static_cast<uint32_t>(accumulators_.size()), 1};
  sums.block = {1024, 1, 1};
  plan.launches.push_back(std::move(sums));
}

/// From the largest of each block to the scales, one block for each.
void ClusterWriter::add_scales(LaunchPlan& plan, const LaunchArg& tops) const {
  Launch scales;
  scales.args.push_back(tops);
  std::string parameters = "const f32* tops", stores;
  for (size_t k = 0; k < s_.scales.size(); ++k) {
    const Node& node = body_.node(s_.scales[k]);
    const int exponent = node.attrs.get<DType>("dtype") == DType::f8e4m3 ? 8 : 15;
    for (uint32_t r : results_of({s_.scales[k], 0})) {
      parameters += fmt::format(", f32* y{}", r);
      stores += fmt::format("if (blockIdx.x == {}) *y{} = scale_for(top, {});\n", k, r, exponent);
      scales.args.push_back(c_.results[r]);
    }
  }
  scales.source = {c_.name + "_scales",
                   {"device.cuh"},
                   fmt::format("BRRR_KERNEL(1024) {0}_scales({1}) {{\n"
                               "  float top = 0.0f;\n"
                               "  for (u32 k = threadIdx.x; k < {2}u; k += 1024)\n"
                               "    top = larger(top, tops[blockIdx.x * {2}u + k]);\n"
                               "  top = fold<Larger, 1024>(top);\n"
                               "  if (threadIdx.x != 0) return;\n"
                               "{3}}}\n",
                               c_.name, parameters, all_blocks(), indented(stores, 2))};
  scales.grid = {static_cast<uint32_t>(s_.scales.size()), 1, 1};
  scales.block = {1024, 1, 1};
  plan.launches.push_back(std::move(scales));
}

}  // namespace brrr::cuda
