#pragma once
// The paths of gemm(): what tests of products run on, one after the other.

#include <gtest/gtest.h>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "base/threads/thread_team.h"
#include "support/long_proof.h"

namespace brrr::cpu {

struct Path {
  std::string name;
  Isa needs, limit;  // skipped below `needs`; run with Highway limited to `limit`
  std::vector<DType> dtypes;
  std::function<void(const GemmBatch&)> run;
  bool needs_pairs = false;  // avx512_bf16
};

inline const std::vector<DType> kAll = {DType::f32, DType::bf16, DType::f16};

inline std::vector<Path> paths() {
  std::vector<Path> list;
  for (const Isa isa : {Isa::kPortable, Isa::kSse4, Isa::kAvx2, Isa::kAvx512}) {
    list.push_back({"vector_" + std::string(isa_name(isa)), isa, isa, kAll, gemm_vector});
  }
  const std::vector<DType> bf16_only = {DType::bf16};
  list.push_back({"amx_emulated", Isa::kAvx2, Isa::kAvx2, bf16_only, gemm_amx_emulated});
  list.push_back({"amx_emulated_avx512", Isa::kAvx512, Isa::kAvx512, bf16_only, gemm_amx_emulated});
  list.push_back({"amx", Isa::kAmx, Isa::kAmx, bf16_only, gemm_amx});
  list.push_back({"pairs_emulated", Isa::kAvx2, Isa::kAvx2, bf16_only, gemm_pairs_emulated});
  list.push_back({"pairs", Isa::kAvx512, Isa::kAvx512, bf16_only, gemm_pairs, true});
  return list;
}

class GemmPaths : public testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    best_isa();
    if (GetParam().needs > machine_isa())
      GTEST_SKIP() << "this machine has no " << isa_name(GetParam().needs);
    if (GetParam().needs_pairs && !has_bf16_pairs())
      GTEST_SKIP() << "this machine has no avx512_bf16";
    limit_isa(GetParam().limit);
  }
  void TearDown() override {
    limit_isa(best_isa());
    set_thread_count(usable_processors());
  }
  const Path& path() const { return GetParam(); }
  /// All of a long list on the best path of this machine, `count` of it on lesser instruction sets
  /// and on emulated tiles, which are slow.
  template <typename T>
  std::vector<T> some(const std::vector<T>& cases, size_t count) const {
    const bool is_best = path().limit >= std::min(machine_isa(), Isa::kAvx512) &&
                         path().name.find("emulated") == std::string::npos;
    return is_best && !test::is_sanitized() ? cases : test::sampled(cases, count, path().name);
  }
};

}  // namespace brrr::cpu
