// Attention over keys and values in blocks of a pool: every sequence gets the bits that it gets
// alone over contiguous keys, for every order of its blocks, instruction set and dtype.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "ops/quantized/int8_rows.h"
#include "support/attention_attrs.h"
#include "support/each_isa.h"
#include "support/temp_folder.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

constexpr int64_t kRowsOfBlock = 16;

/// The sequences of a step: the length of each and the number of its queries.
struct BlockStep {
  const char* name;
  std::vector<int64_t> lengths, queries;
  int64_t heads, kv_heads, d, dv;
  int64_t window = 0;
  bool neighbours = false;  // blocks are consecutive instead of shuffled
};

const BlockStep kBlockSteps[] = {
    {"decoding", {1, 16, 17, 193, 400}, {1, 1, 1, 1, 1}, 4, 2, 16, 24},
    {"neighbours", {40, 385, 200}, {1, 1, 70}, 3, 3, 64, 64, 0, true},
    {"prompts and decoding", {60, 300, 5, 210, 97}, {60, 1, 5, 100, 2}, 6, 2, 32, 32},
    {"a window", {250, 230, 49}, {1, 130, 49}, 2, 1, 8, 8, 33},
    {"odd widths", {33, 120}, {33, 1}, 2, 2, 5, 7},
};

std::vector<double> random_rows(int64_t rows, int64_t width, RngStream& rng) {
  std::vector<double> data;
  for (int64_t i = 0; i < rows * width; ++i)
    data.push_back(4 * static_cast<double>(rng.next_uniform()) - 2);
  return data;
}

std::vector<double> integers(const std::vector<int64_t>& values) {
  return {values.begin(), values.end()};
}

Attrs step_attrs(const BlockStep& step) {
  Attrs attrs = test::attention_attrs(step.heads, step.kv_heads, step.d, step.dv);
  for (const auto& [name, source] : {std::pair{"q", 0}, std::pair{"k", 1}, std::pair{"v", 2}})
    attrs.set(name, std::vector<int64_t>{source, 0, 1});
  attrs.set("y_in_rows", true);
  attrs.set("causal", true);
  attrs.set("window", step.window);
  return attrs;
}

const KernelEntry& flash_kernel(const std::vector<KernelEntry>& list) {
  return *std::ranges::find_if(list, [](const KernelEntry& entry) {
    return entry.op == Op::attention && entry.name == "flash";
  });
}

class BlockAttention : public test::EachIsa {
 protected:
  void TearDown() override {
    set_thread_count(usable_processors());
    test::EachIsa::TearDown();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, BlockAttention, test::every_isa(), test::isa_of);

TEST_P(BlockAttention, SequencesHaveTheBitsThatTheyHaveAlone) {
  const std::vector<KernelEntry> list = attention_kernels();
  const KernelEntry& flash = flash_kernel(list);
  for (const BlockStep& step : kBlockSteps)
    for (const auto& form : {std::pair(DType::f32, false),
                             {DType::bf16, false},
                             {DType::f16, false},
                             {DType::f32, true},
                             {DType::bf16, true},
                             {DType::f16, true}}) {
      const DType dtype = form.first;
      const bool has_int8_keys = form.second;
      SCOPED_TRACE(
          fmt::format("{}, {}{}", step.name, name_of(dtype), has_int8_keys ? ", int8 keys" : ""));
      const auto type_of_keys = [&](Shape shape, int64_t width) {
        const Storage storage = has_int8_keys ? ops::int8_rows(2, width) : Storage{};
        return Type{dtype, std::move(shape), storage};
      };
      RngStream rng({5, 2}, 7);
      const auto sequences = static_cast<int64_t>(step.lengths.size());
      const int64_t q_width = step.heads * step.d, k_width = step.kv_heads * step.d,
                    v_width = step.kv_heads * step.dv, outside = 2;
      int64_t columns = 0, blocks = 3;
      for (const int64_t length : step.lengths) {
        columns = std::max(columns, (length + kRowsOfBlock - 1) / kRowsOfBlock);
        blocks += (length + kRowsOfBlock - 1) / kRowsOfBlock;
      }
      std::vector<int64_t> order(static_cast<size_t>(blocks));
      std::iota(order.begin(), order.end(), 0);
      if (!step.neighbours)
        for (size_t i = order.size() - 1; i > 0; --i)
          std::swap(order[i], order[rng.next_below(i + 1)]);
      std::vector<double> pool_k(static_cast<size_t>(blocks * kRowsOfBlock * k_width), 1e4);
      std::vector<double> pool_v(static_cast<size_t>(blocks * kRowsOfBlock * v_width), NAN);
      std::vector<int64_t> starts{outside}, table;
      std::vector<double> q = random_rows(outside, q_width, rng);
      std::vector<std::vector<double>> keys, values, queries;
      size_t next = 0;
      for (int64_t r = 0; r < sequences; ++r) {
        const int64_t length = step.lengths[static_cast<size_t>(r)],
                      count = step.queries[static_cast<size_t>(r)];
        keys.push_back(random_rows(length, k_width, rng));
        values.push_back(random_rows(length, v_width, rng));
        queries.push_back(random_rows(count, q_width, rng));
        q.insert(q.end(), queries.back().begin(), queries.back().end());
        starts.push_back(starts.back() + count);
        for (int64_t b = 0; b < columns; ++b) {
          const bool used = b * kRowsOfBlock < length;
          table.push_back(used ? order[next++] : -7);
          if (!used) continue;
          const int64_t rows = std::min(kRowsOfBlock, length - b * kRowsOfBlock);
          std::copy_n(keys.back().begin() + b * kRowsOfBlock * k_width, rows * k_width,
                      pool_k.begin() + table.back() * kRowsOfBlock * k_width);
          std::copy_n(values.back().begin() + b * kRowsOfBlock * v_width, rows * v_width,
                      pool_v.begin() + table.back() * kRowsOfBlock * v_width);
        }
      }
      const std::vector<double> beyond = random_rows(1, q_width, rng);
      q.insert(q.end(), beyond.begin(), beyond.end());
      const int64_t n = starts.back() + 1;
      Attrs attrs = step_attrs(step);
      attrs.set("lengths", true);
      attrs.set("starts", true);
      attrs.set("block_rows", kRowsOfBlock);
      const Call whole(op("attention"),
                       {{Type{dtype, {n, q_width}}, q},
                        {type_of_keys({blocks * kRowsOfBlock, k_width}, step.d), pool_k},
                        {type_of_keys({blocks * kRowsOfBlock, v_width}, step.dv), pool_v},
                        {Type{DType::i32, {sequences}}, integers(step.lengths)},
                        {Type{DType::i32, {sequences + 1}}, integers(starts)},
                        {Type{DType::i32, {sequences, columns}}, integers(table)}},
                       attrs);
      set_thread_count(2);
      const std::vector<Buffer> together = run_kernel(flash, whole);
      set_thread_count(1);
      EXPECT_EQ(run_kernel(flash, whole), together) << "one thread";
      const auto y_of = [&](const Buffer& y, int64_t row, int64_t column) {
        return load_as_double(dtype, y.data(), row * step.heads * step.dv + column);
      };
      for (int64_t r = 0; r < sequences; ++r) {
        const auto i = static_cast<size_t>(r);
        Attrs own = step_attrs(step);
        own.set("position", true);
        const Call alone(
            op("attention"),
            {{Type{dtype, {step.queries[i], q_width}}, queries[i]},
             {type_of_keys({step.lengths[i], k_width}, step.d), keys[i]},
             {type_of_keys({step.lengths[i], v_width}, step.dv), values[i]},
             {Type{DType::i32, {}}, {static_cast<double>(step.lengths[i] - step.queries[i])}}},
            own);
        const std::vector<Buffer> expected = run_kernel(flash, alone);
        for (int64_t row = 0; row < step.queries[i]; ++row)
          for (int64_t c = 0; c < step.heads * step.dv; ++c)
            ASSERT_EQ(std::bit_cast<uint64_t>(y_of(together[0], starts[i] + row, c)),
                      std::bit_cast<uint64_t>(y_of(expected[0], row, c)))
                << "sequence " << r << ", query " << row << ", column " << c;
      }
      for (const int64_t row : {int64_t{0}, int64_t{1}, n - 1})
        for (int64_t c = 0; c < step.heads * step.dv; ++c) EXPECT_EQ(y_of(together[0], row, c), 0);
    }
}

TEST_P(BlockAttention, RefusesBlocksOutsideThePool) {
  const std::vector<KernelEntry> list = attention_kernels();
  const KernelEntry& flash = flash_kernel(list);
  Attrs attrs = step_attrs({"", {}, {}, 1, 1, 4, 4});
  attrs.set("lengths", true);
  attrs.set("starts", true);
  attrs.set("block_rows", kRowsOfBlock);
  const auto call = [&](int64_t length, int64_t block) {
    return Call(op("attention"),
                {{Type{DType::f32, {2, 4}}, std::vector<double>(8, 1)},
                 {Type{DType::f32, {32, 4}}, std::vector<double>(128, 1)},
                 {Type{DType::f32, {32, 4}}, std::vector<double>(128, 1)},
                 {Type{DType::i32, {1}}, integers({length})},
                 {Type{DType::i32, {2}}, integers({0, 2})},
                 {Type{DType::i32, {1, 1}}, integers({block})}},
                attrs);
  };
  EXPECT_USER_ERROR(run_kernel(flash, call(2, 2)),
                    "block 2 of sequence 0 lies outside a pool of 2");
  EXPECT_USER_ERROR(run_kernel(flash, call(2, -1)), "lies outside a pool of 2 blocks");
  EXPECT_USER_ERROR(run_kernel(flash, call(1, 0)), "sequence 0 has 1 positions; expected 2 to 16");
  EXPECT_USER_ERROR(run_kernel(flash, call(17, 0)), "sequence 0 has 17 positions");
}

}  // namespace
}  // namespace brrr::cpu
