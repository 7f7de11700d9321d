#pragma once
// Unicode's normal forms, as the library `tokenizers` has them: what its older version of Unicode
// does not know stays as it is. Bytes that are no UTF-8 stay, too.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

std::string normal_form(std::string_view text, NormalForm form);

/// Appends the canonical decomposition of one code point, marks not yet in their order.
void append_decomposed(uint32_t code, std::vector<int32_t>& codes);
/// Brings the marks of decomposed code points into their canonical order.
void order_marks(std::vector<int32_t>& codes);

}  // namespace brrr::io
