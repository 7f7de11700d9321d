#include "backend/cpu/quantized/integer_strips.h"

#include <fmt/format.h>

#include "backend/cpu/isa.h"

namespace brrr::cpu {
namespace {

std::string amx_refusal(const IntegerPanels& form, int64_t rows) {
  constexpr int64_t kFewRows = 4;
  if (current_isa() < Isa::kAmx) return fmt::format("limited to {}", isa_name(current_isa()));
  if (form.bits != 8 || form.groups() > 1) return "groups of terms, or integers of 4 bits";
  return rows <= kFewRows ? "few rows, which vectors multiply faster" : "";
}

std::string vnni_refusal(const IntegerPanels&, int64_t) {
  if (!has_vnni()) return "this machine has no avx512_vnni";
  if (current_isa() < Isa::kAvx512) return fmt::format("limited to {}", isa_name(current_isa()));
  return "";
}

std::string no_refusal(const IntegerPanels&, int64_t) { return ""; }
StripKernel portable_strips() {
  constexpr int64_t kStripRows = 12;
  return {integer_kernels().strip, kStripRows};
}

constexpr StripEntry kEntries[] = {
    {"integers_amx", "exact_integers_amx", &amx_refusal, &amx_strips},
    {"integers_vnni", "exact_integers_vnni", &vnni_refusal, &vnni_strips},
    {"integers", "exact_integers", &no_refusal, &portable_strips}};

}  // namespace

std::span<const StripEntry> strip_entries() { return kEntries; }

StripKernel best_strips(const IntegerPanels& form, int64_t rows) {
  for (const StripEntry& entry : kEntries)
    if (entry.refusal(form, rows).empty()) return entry.strips();
  return portable_strips();
}

}  // namespace brrr::cpu
