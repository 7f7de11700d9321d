#pragma once
// What the library's tests share.

#include <string>

#include "brrr/brrr.h"

namespace brrr::test {

/// The sentence of the Error that f() throws; "" where it throws none.
template <typename F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace brrr::test
