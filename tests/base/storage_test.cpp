// Storages: how many bytes, which element lies where, and that what goes in comes out.

#include "base/storage.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/errors.h"
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

TEST(Storage, OnlyMatricesOf16BitsLieInPanels) {
  EXPECT_EQ(storage_refusal({}, DType::i64, Shape{2, 3, 4}), "");
  for (const Layout layout : {Layout::panels, Layout::transposed_panels}) {
    EXPECT_EQ(storage_refusal({layout}, DType::bf16, Shape{3, 4}), "");
    EXPECT_EQ(storage_refusal({layout}, DType::f16, Shape{0, 4}), "");
    for (const Shape& shape : {Shape{}, Shape{4}, Shape{2, 3, 4}, Shape{Dim::symbol("n"), 4}})
      EXPECT_NE(storage_refusal({layout}, DType::bf16, shape), "") << shape.str();
    for (const DType dtype : {DType::f32, DType::f64, DType::i8, DType::boolean})
      EXPECT_NE(storage_refusal({layout}, dtype, Shape{3, 4}), "") << name_of(dtype);
  }
}

TEST(Storage, WhatGoesInComesOut) {
  for (const Layout layout : kLayouts)
    for (const Shape& shape : {Shape{64, 96}, Shape{33, 65}, Shape{1, 1}, Shape{50, 1}})
      for (const DType dtype : {DType::bf16, DType::f16}) {
        SCOPED_TRACE(fmt::format("{} {} {}", Storage{layout}.str(), shape.str(), name_of(dtype)));
        const int64_t bytes = stored_bytes({layout}, dtype, shape);
        const int64_t k = shape.size(0), n = shape.size(1);
        if (layout == Layout::panels) {
          EXPECT_EQ(bytes, 2 * panel_elements(k, n));
        }
        if (layout == Layout::transposed_panels) {
          EXPECT_EQ(bytes, 2 * panel_elements(n, k));
        }
        std::vector<double> in(static_cast<size_t>(k * n));
        for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i % 200) - 99.5;
        std::vector<std::byte> memory(static_cast<size_t>(bytes), std::byte{0x7f});
        write_floats({layout}, dtype, shape, in, memory.data());
        std::vector<double> out(in.size());
        read_floats({layout}, dtype, shape, memory.data(), out);
        EXPECT_EQ(in, out);
        if (layout != Layout::panels) continue;
        EXPECT_EQ(load_as_double(dtype, memory.data(), place_in_panels(k - 1, n - 1, k)),
                  in.back());
        // What the panels have more than the matrix are zeros.
        int64_t others = 0;
        for (int64_t i = 0; i < bytes / 2; ++i)
          others += load_as_double(dtype, memory.data(), i) != 0;
        EXPECT_EQ(others, k * n);
      }
}

TEST(Storage, RefusesWhatHasTooManyBytes) {
  EXPECT_THROW(stored_bytes({}, DType::f32, Shape{int64_t{1} << 61, 2}), UserError);
}

}  // namespace
}  // namespace brrr
