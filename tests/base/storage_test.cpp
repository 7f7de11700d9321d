// Storages: how many bytes, which element lies where, and that what goes in comes out.

#include "base/storage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/errors.h"
#include "base/integers.h"
#include "base/panels.h"

namespace brrr {
namespace {

constexpr Layout kLayouts[] = {Layout::rows, Layout::panels, Layout::transposed_panels};

TEST(Storage, NamesComeBack) {
  for (const Layout layout : kLayouts) {
    const Storage storage{layout};
    EXPECT_EQ(storage_from_name(storage.str()), storage);
    EXPECT_NE(storage_names().find(storage.str()), std::string::npos);
    EXPECT_EQ(storage.is_plain(), layout == Layout::rows);
  }
  for (const char* name : {"", "panel", "Panels", "panels ", "rows,panels"})
    EXPECT_FALSE(storage_from_name(name)) << name;
}

TEST(Storage, OnlyMatricesLieInPanels) {
  EXPECT_EQ(storage_refusal({}, DType::i64, Shape{2, 3, 4}), "");
  for (const Layout layout : {Layout::panels, Layout::transposed_panels}) {
    EXPECT_EQ(storage_refusal({layout}, DType::bf16, Shape{3, 4}), "");
    EXPECT_EQ(storage_refusal({layout}, DType::f16, Shape{0, 4}), "");
    EXPECT_EQ(storage_refusal({layout}, DType::f32, Shape{3, 4}), "");
    for (const Shape& shape : {Shape{}, Shape{4}, Shape{2, 3, 4}, Shape{Dim::symbol("n"), 4}})
      EXPECT_NE(storage_refusal({layout}, DType::bf16, shape), "") << shape.str();
    for (const DType dtype : {DType::f64, DType::u8, DType::boolean})
      EXPECT_NE(storage_refusal({layout}, dtype, Shape{3, 4}), "") << name_of(dtype);
  }
}

TEST(Storage, WhatGoesInComesOut) {
  for (const Layout layout : kLayouts)
    for (const Shape& shape : {Shape{64, 96}, Shape{33, 65}, Shape{1, 1}, Shape{50, 1}})
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        const bool wide = dtype == DType::f32;
        const auto width = static_cast<int64_t>(bytes_of(dtype));
        const auto elements = wide ? f32_panel_elements : panel_elements;
        const auto place = wide ? place_in_f32_panels : place_in_panels;
        SCOPED_TRACE(fmt::format("{} {} {}", Storage{layout}.str(), shape.str(), name_of(dtype)));
        const int64_t bytes = stored_bytes({layout}, dtype, shape);
        const int64_t k = shape.size(0), n = shape.size(1);
        if (layout == Layout::panels) {
          EXPECT_EQ(bytes, width * elements(k, n));
        }
        if (layout == Layout::transposed_panels) {
          EXPECT_EQ(bytes, width * elements(n, k));
        }
        std::vector<double> in(static_cast<size_t>(k * n));
        for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i % 200) - 99.5;
        std::vector<std::byte> memory(static_cast<size_t>(bytes), std::byte{0x7f});
        write_floats({layout}, dtype, shape, in, memory.data());
        std::vector<double> out(in.size());
        read_floats({layout}, dtype, shape, memory.data(), out);
        EXPECT_EQ(in, out);
        if (layout != Layout::panels) continue;
        EXPECT_EQ(load_as_double(dtype, memory.data(), place(k - 1, n - 1, k)), in.back());
        // What the panels have more than the matrix are zeros.
        int64_t others = 0;
        for (int64_t i = 0; i < bytes / width; ++i)
          others += load_as_double(dtype, memory.data(), i) != 0;
        EXPECT_EQ(others, k * n);
      }
}

constexpr Quantized kQuantized[] = {{8, 0, 0},  {8, 1, 0},  {8, 1, 32}, {4, 0, 0},
                                    {4, 1, 32}, {4, 0, 32}, {4, 1, 5}};

TEST(Storage, NamesOfIntegersComeBack) {
  EXPECT_EQ((Storage{Layout::rows, Quantized{8, 0, 0}}.str()), "int8_along_0");
  EXPECT_EQ((Storage{Layout::rows, Quantized{4, 1, 32}}.str()), "int4_along_1_by_32");
  for (const Quantized& q : kQuantized) {
    const Storage storage{Layout::rows, q};
    EXPECT_EQ(storage_from_name(storage.str()), storage);
    EXPECT_FALSE(storage.is_plain());
  }
  for (const char* name : {"int8", "int3_along_0", "int8_along_8", "int8_along_",
                           "int4_along_1_by_0", "int4_along_1_by_-4", "int4_along_1_by_32x",
                           "int08_along_0", "int8_along_0_by_99999999999"})
    EXPECT_FALSE(storage_from_name(name)) << name;
  EXPECT_NE(storage_refusal({Layout::rows, Quantized{8, 0, 0}}, DType::i8, Shape{4, 4}), "");
  EXPECT_NE(storage_refusal({Layout::rows, Quantized{8, 0, 0}}, DType::f32, Shape{4}), "");
  EXPECT_EQ(storage_refusal({Layout::rows, Quantized{8, 0, 0}}, DType::f32, Shape{4, 4}), "");
}

TEST(Storage, TensorsOfMoreAxesLieInRowsOfIntegers) {
  const Storage last{Layout::rows, Quantized{8, 3, 8}}, matrix{Layout::rows, Quantized{8, 1, 8}};
  const Shape shape{2, 3, 5, 16}, rows{30, 16};
  EXPECT_EQ(last.str(), "int8_along_3_by_8");
  EXPECT_EQ(storage_from_name(last.str()), last);
  EXPECT_EQ(storage_refusal(last, DType::f32, shape), "");
  EXPECT_EQ(stored_bytes(last, DType::f32, shape), 480 + 60 * 4);
  EXPECT_EQ(stored_bytes(last, DType::bf16, shape), stored_bytes(matrix, DType::f32, rows));
  std::vector<double> numbers(480), back(480);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<double>(i * i));
  std::vector<std::byte> bytes(720), of_matrix(720);
  write_floats(last, DType::f32, shape, numbers, bytes.data());
  write_floats(matrix, DType::f32, rows, numbers, of_matrix.data());
  EXPECT_EQ(bytes, of_matrix);
  read_floats(last, DType::f32, shape, bytes.data(), back);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(back[i], numbers[i], 0.5 / 127) << i;
  // Groups stand along the last axis only, and panels are matrices.
  EXPECT_NE(storage_refusal({Layout::rows, Quantized{8, 1, 8}}, DType::f32, shape), "");
  EXPECT_NE(storage_refusal({Layout::rows, Quantized{8, 2, 8}}, DType::f32, Shape{4, 16}), "");
  EXPECT_NE(storage_refusal({Layout::panels}, DType::f32, shape), "");
}

// The error is at most half a step of the group that the element stands in; what came out goes in
// and comes out again; and each group's largest magnitude stays, as far as f32 can say.
TEST(Storage, IntegersAndTheirScales) {
  for (const Quantized& q : kQuantized)
    for (const Shape& shape : {Shape{64, 96}, Shape{33, 65}, Shape{1, 7}, Shape{7, 1}}) {
      SCOPED_TRACE(fmt::format("{} {}", Storage{Layout::rows, q}.str(), shape.str()));
      const Storage storage{Layout::rows, q};
      const int64_t rows = shape.size(0), columns = shape.size(1);
      const int64_t line = q.axis == 0 ? rows : columns, size = q.group == 0 ? line : q.group;
      const int64_t scales = ceil_div(line, size) * (q.axis == 0 ? columns : rows);
      const int64_t bytes = stored_bytes(storage, DType::f32, shape);
      EXPECT_EQ(bytes,
                round_up(ceil_div(rows * columns * q.bits, int64_t{8}), int64_t{4}) + 4 * scales);
      std::vector<double> in(static_cast<size_t>(rows * columns)), out(in.size());
      for (size_t i = 0; i < in.size(); ++i)
        in[i] = std::sin(static_cast<double>(i) * 0.7) * static_cast<double>(i % 17 + 1);
      std::vector<std::byte> memory(static_cast<size_t>(bytes), std::byte{0x7f});
      write_floats(storage, DType::f32, shape, in, memory.data());
      read_floats(storage, DType::f32, shape, memory.data(), out);
      std::map<std::pair<int64_t, int64_t>, double> most;
      const auto group_of = [&](size_t i) {
        const auto at = static_cast<int64_t>(i);
        const int64_t row = at / columns, column = at % columns;
        return q.axis == 0 ? std::pair(row / size, column) : std::pair(row, column / size);
      };
      for (size_t i = 0; i < in.size(); ++i) {
        double& m = most[group_of(i)];
        m = std::max(m, std::fabs(in[i]));
      }
      EXPECT_EQ(static_cast<int64_t>(most.size()), scales);
      for (size_t i = 0; i < in.size(); ++i) {
        const double step = most[group_of(i)] / (q.bits == 8 ? 127 : 7);
        EXPECT_LE(std::fabs(out[i] - in[i]), step * 0.500001);
        if (std::fabs(in[i]) == most[group_of(i)]) {
          EXPECT_NEAR(out[i], in[i], std::fabs(in[i]) * 1e-6);
        }
      }
      std::vector<std::byte> again(memory.size());
      std::vector<double> same(out.size());
      write_floats(storage, DType::f32, shape, out, again.data());
      read_floats(storage, DType::f32, shape, again.data(), same);
      EXPECT_EQ(same, out);
    }
  // Nothing but zeros, and what is no number.
  const Storage storage{Layout::rows, Quantized{8, 0, 0}};
  std::vector<std::byte> memory(static_cast<size_t>(stored_bytes(storage, DType::f32, {2, 2})));
  std::vector<double> out(4);
  write_floats(storage, DType::f32, {2, 2}, std::vector<double>(4), memory.data());
  read_floats(storage, DType::f32, {2, 2}, memory.data(), out);
  EXPECT_EQ(out, std::vector<double>(4));
  // In columns: one with what is not finite, one without.
  for (const double bad : {std::nan(""), double{INFINITY}, -double{INFINITY}})
    for (const bool first : {false, true}) {
      const std::vector<double> in = {first ? bad : 1, 1, first ? 1 : bad, 1};
      write_floats(storage, DType::f32, {2, 2}, in, memory.data());
      read_floats(storage, DType::f32, {2, 2}, memory.data(), out);
      EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[2])) << bad;
      EXPECT_NEAR(out[1], 1, 1e-6);
      EXPECT_NEAR(out[3], 1, 1e-6);
    }
}

// i8 lies in panels as quantised integers do, without scales.
TEST(Storage, BytesInPanels) {
  for (const Layout layout : {Layout::panels, Layout::transposed_panels})
    for (const Shape& shape : {Shape{64, 96}, Shape{33, 65}, Shape{1, 7}, Shape{7, 1}}) {
      const Storage storage{layout};
      EXPECT_EQ(storage_refusal(storage, DType::i8, shape), "");
      EXPECT_NE(storage_refusal(storage, DType::u8, shape), "");
      const bool transposed = layout == Layout::transposed_panels;
      const int64_t k = shape.size(transposed ? 1 : 0), n = shape.size(transposed ? 0 : 1);
      EXPECT_EQ(stored_bytes(storage, DType::i8, shape), round_up(k, 4) * round_up(n, 32));
      std::vector<double> in(static_cast<size_t>(shape.elements())), out(in.size());
      for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i * 37 % 256) - 128;
      std::vector<std::byte> memory(static_cast<size_t>(stored_bytes(storage, DType::i8, shape)));
      write_floats(storage, DType::i8, shape, in, memory.data());
      read_floats(storage, DType::i8, shape, memory.data(), out);
      EXPECT_EQ(out, in);
    }
}

// Panels hold the integers and the scales that rows hold, at other places.
TEST(Storage, IntegersInPanelsAreThoseInRows) {
  for (const Layout layout : {Layout::panels, Layout::transposed_panels})
    for (const auto& [bits, group] : {std::pair(8, 0), {8, 32}, {4, 0}, {4, 8}})
      for (const Shape& shape : {Shape{64, 96}, Shape{33, 65}, Shape{1, 7}, Shape{7, 1}}) {
        const Quantized q{bits, layout == Layout::panels ? 0 : 1, group};
        const Storage rows{Layout::rows, q}, panels{layout, q};
        SCOPED_TRACE(fmt::format("{} {}", panels.str(), shape.str()));
        EXPECT_EQ(storage_from_name(panels.str()), panels);
        EXPECT_EQ(storage_refusal(panels, DType::bf16, shape), "");
        std::vector<double> in(static_cast<size_t>(shape.elements())), wanted(in.size()),
            out(in.size());
        for (size_t i = 0; i < in.size(); ++i)
          in[i] = std::sin(static_cast<double>(i) * 0.7) * static_cast<double>(i % 17 + 1);
        std::vector<std::byte> memory(static_cast<size_t>(stored_bytes(rows, DType::f32, shape)));
        write_floats(rows, DType::f32, shape, in, memory.data());
        read_floats(rows, DType::f32, shape, memory.data(), wanted);
        memory.assign(static_cast<size_t>(stored_bytes(panels, DType::f32, shape)),
                      std::byte{0x7f});
        write_floats(panels, DType::f32, shape, in, memory.data());
        read_floats(panels, DType::f32, shape, memory.data(), out);
        EXPECT_EQ(out, wanted);
      }
  for (const Quantized& q : {Quantized{8, 1, 0}, Quantized{8, 0, 5}})
    EXPECT_NE(storage_refusal({Layout::panels, q}, DType::bf16, Shape{4, 4}), "");
}

TEST(Storage, RefusesWhatHasTooManyBytes) {
  constexpr int64_t kHuge = int64_t{1} << 61, kLong = int64_t{1} << 40;
  EXPECT_THROW(stored_bytes({}, DType::f32, Shape{kHuge, 2}), UserError);
  for (const Storage& storage : {Storage{Layout::panels}, Storage{Layout::transposed_panels},
                                 Storage{Layout::rows, Quantized{4, 1, 1}}}) {
    EXPECT_THROW(stored_bytes(storage, DType::bf16, Shape{kLong, kLong}), UserError);
    EXPECT_THROW(stored_bytes(storage, DType::bf16, Shape{kLong, kLong / 2048}), UserError);
    EXPECT_NE(storage_refusal(storage, DType::bf16, Shape{0, kHuge}), "");
    EXPECT_EQ(stored_bytes(storage, DType::bf16, Shape{0, kLong}), 0);
  }
}

}  // namespace
}  // namespace brrr
